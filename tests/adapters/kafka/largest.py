"""The largest requests that Kafka's port takes, made of the table: for each API and each array in its request, as many items as
its limits allow, all about the same thing or each about another."""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from tests.adapters.kafka.client import batch_of, produce_of

from braidlog.adapters.kafka.topic_entries import LOOKING_UP, PARTITIONS_MAX
from braidlog.wire.kafka.apis import BY_KEY, OPERATIONS, Api, Key
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.rows import NO_UUID, Field, Kind, Message, fields_of

WIDE, GROUP, TRANSACTION = "wide", "crowd", "largest"
"""A topic of many partitions, a group of many members, a transactional id."""

Path = tuple[str, ...]
"""The names of fields that lead to an array."""

_TEXTS = {"topic": WIDE, "name": WIDE, "group_id": GROUP, "transactional_id": TRANSACTION, "resource_name": WIDE}
_NUMBERS = {"acks": 1, "num_partitions": 1, "replication_factor": 1, "count": 2, "key_type": 0, "resource_type": 2,
            "timeout_ms": 1000, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 1, "max_bytes": 2**31 - 1,
            "response_partition_limit": 2**31 - 1, "permission_type": 3, "operation": 3, "pattern_type": 3,
            "resource_pattern_type": 3, "resource_type_filter": 2, "pattern_type_filter": 3, "producer_id": 1,
            "replica_id": -1}  # fmt: skip
_TRUE = {"validate_only"}
"""What would be done for real takes a node minutes; looking at it takes as long as it takes."""


def largest() -> Iterator[tuple[str, str, bytes]]:
    """API, what is large about its request, and the frame: in the newest version."""
    for api in OPERATIONS:
        paths = list(_arrays(api.request, api.versions.last))
        if not paths:
            yield api.name, "as it is", frame_of(_made(api, api.request, (), 1, api.versions.last), api.versions.last)
        for path in paths:
            yield api.name, f"{'.'.join(path)} alike", _fitted(api, path, api.versions.last, alike=True)
            yield api.name, f"{'.'.join(path)} each another", _fitted(api, path, api.versions.last)


def made(key: Key, path: Path, count: int) -> Message:
    """A request in its newest version with so many items in one array."""
    api = BY_KEY[key]
    return _made(api, api.request, path, count, api.versions.last, alike=False)


def older() -> Iterator[tuple[Api, int, Path]]:
    """Every array of every older version: `older_frame` makes its request."""
    for api in OPERATIONS:
        for version in range(api.versions.first, api.versions.last):
            for path in _arrays(api.request, version):
                yield api, version, path


def older_frame(api: Api, version: int, path: Path) -> tuple[str, bytes]:
    return f"v{version} {'.'.join(path)}", _fitted(api, path, version)


def oldest_sampled(chance: Random) -> Iterable[tuple[Api, int, Path]]:
    """One of the arrays of each API's oldest version."""
    found: dict[Api, list[tuple[Api, int, Path]]] = {}
    for row in older():
        if row[1] == row[0].versions.first:
            found.setdefault(row[0], []).append(row)
    return map(chance.choice, found.values())


def _arrays(message: type[Message], version: int) -> Iterator[Path]:
    for field in fields_of(message):
        if version in field.versions and field.is_array:
            yield (field.name,)
        if version in field.versions and field.struct is not None:
            yield from ((field.name, *rest) for rest in _arrays(field.struct, version))


def _fitted(api: Api, path: Path, version: int, *, alike: bool = False) -> bytes:
    """With as many items as fit: what one more adds is seen from a few."""

    def frame(count: int) -> bytes:
        return frame_of(_made(api, api.request, path, count, version, alike=alike), version)

    def size(count: int) -> int:
        return len(frame(count))

    few, more = size(100), size(300)
    each = max((more - few) / 200, 1)
    parts = _parts(api, path, version)
    count = min(
        int((api.request_bytes_max - few) * 0.99 / each), (api.request_parts_max - 10) // parts, _named_max(api, path)
    )
    return frame(max(count, 1))


def _named_max(api: Api, path: Path) -> int:
    return PARTITIONS_MAX if path[-1] in ("topics", "partitions") and api.key in LOOKING_UP else 2**31


def _parts(api: Api, path: Path, version: int) -> int:
    """How many parts of the message one item of the array is, those inside it included."""
    message: type[Message] | None = api.request
    for name in path:
        assert message is not None
        (field,) = [each for each in fields_of(message) if each.name == name]
        message = field.struct
    return 1 + (0 if message is None else len(list(_arrays(message, version))))


def _made(
    api: Api, message: type[Message], path: Path, count: int, version: int, *, alike: bool = True, number: int = 0
) -> Message:
    """A message with `count` items in the array that the path leads to, and one in every other."""
    values = {}
    for field in fields_of(message):
        if version not in field.versions:
            continue
        onward = path[1:] if path[:1] == (field.name,) else ()
        if not field.is_array:
            values[field.name] = _value(api, field, onward, number, count, version, alike=alike)
        elif path == (field.name,):
            same = _value(api, field, onward, 0, count, version, alike=alike)
            values[field.name] = (
                [same] * count
                if alike
                else [_value(api, field, onward, n, count, version, alike=False) for n in range(count)]
            )
        else:
            values[field.name] = [_value(api, field, onward, number, count, version, alike=alike)]
    return message(**values)


def _value(api: Api, field: Field, path: Path, number: int, count: int, version: int, *, alike: bool) -> Any:
    if field.struct is not None:
        return _made(api, field.struct, path, count, version, alike=alike, number=number)
    if field.kind is Kind.TEXT:
        if api.key in (Key.DELETE_TOPICS, Key.DELETE_GROUPS):
            return f"gone{number or ''}"
        return f"{_TEXTS.get(field.name, '')}{number or ''}"
    if field.kind is Kind.RECORDS:
        return batch_of(b"")
    if field.kind is Kind.BOOL:
        return field.name in _TRUE
    if field.kind in (Kind.BYTES, Kind.UUID):
        return NO_UUID if field.kind is Kind.UUID else b""
    return number if "partition" in field.name or "index" in field.name else _NUMBERS.get(field.name, 0)


def frame_of(message: Message, version: int | None = None) -> bytes:
    return ClientConnection().request(message, version)


def produced(topic: str, batch: bytes) -> bytes:
    return frame_of(produce_of((topic, 0, batch)), 12)
