"""The JSON form of a record. `braid consume --json`, `braid log dump` and the console's download write it; `braid
produce --json` reads it.

Bytes are text where they are UTF-8, else `{"base64": "..."}`; the form is lossless, so every line can be read back.
The schemas are docs/schemas/record.json and record-input.json.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import msgspec

from braidlog.model.record import Header, NewRecord


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not UTF-8."""

    base64: bytes


Bytes = str | Base64 | None


class HeaderJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    value: Bytes = None


class RecordJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of `braid consume --json`. `timestamp_ms` is null if the listener's protocol does not show it. `decoded`
    is present with --decode if the value's schema could read it, `decoded_key` with --decode-key.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: Bytes
    value: Bytes
    headers: list[HeaderJson]
    decoded: Any = None
    decoded_key: Any = None


class RecordInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that `braid produce --json` reads: any line of `braid consume --json`. Topic, offset and decoded values
    are ignored.
    """

    value: Bytes
    key: Bytes = None
    headers: list[HeaderJson] = []
    timestamp_ms: int | None = None
    partition: int | None = None
    topic: str | None = None
    offset: int | None = None
    decoded: Any = None
    decoded_key: Any = None


class StoredRecord(Protocol):
    """A record with its topic, partition and offset."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Iterable[Header]: ...


class ParsedRecord(NamedTuple):
    """A parsed record, and the partition in its line."""

    record: NewRecord
    partition: int | None


_READER = msgspec.json.Decoder(RecordInput)


def json_bytes(raw: bytes | None) -> Bytes:
    """Return bytes as text, or as base64 if they are not UTF-8."""
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return Base64(raw)


def json_line(record: StoredRecord, decoded: bytes | None = None, decoded_key: bytes | None = None) -> bytes:
    """Return a record as a line, with its decoded value and key as JSON."""
    line = RecordJson(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        json_bytes(record.key),
        json_bytes(record.value),
        [HeaderJson(name, json_bytes(value)) for name, value in record.headers],
        None if decoded is None else msgspec.Raw(decoded),
        None if decoded_key is None else msgspec.Raw(decoded_key),
    )
    return msgspec.json.encode(line) + b"\n"


def read_json(line: bytes) -> ParsedRecord:
    """Parse a line to a record; raises a ValueError that says what is wrong."""
    try:
        found = _READER.decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(f'not a record in JSON, as {{"key": "ada", "value": "one book"}} is: {error}') from None
    headers = tuple((each.name, _raw(each.value)) for each in found.headers)
    return ParsedRecord(NewRecord(_raw(found.value), _raw(found.key), headers, found.timestamp_ms), found.partition)


def _raw(value: Bytes) -> bytes | None:
    return value.base64 if isinstance(value, Base64) else None if value is None else value.encode()
