"""A mutation as a record: what the change feed tells of it.

Knows: keys, values and headers of the records (their bytes: feed_rows.py). Refuses to know: the topic, when they are written.
Invariant: the last record of a key in the feed tells what the key holds, or that it is gone (null): the feed may be compacted.

| part                | what it is                                                                                     |
|---------------------|------------------------------------------------------------------------------------------------|
| key                 | the key                                                                                        |
| value               | what the key holds since, as `kv.type` says; null: it is gone                                  |
| timestamp           | the wall part of the mutation's stamp                                                          |
| header `kv.seq`     | the mutation's number, in decimal digits; 0 in a record that tells a key's state and no mutation |
| header `kv.hlc`     | its stamp (kv/hlc.py), 28 bytes in 56 hexadecimal digits: they sort as the mutations do        |
| header `kv.op`      | set del lpush rpush lpop rpop incrby hset hdel expire expired evicted, or state                |
| header `kv.type`    | string, counter, list or hash: `value` is that, as kv/values.py writes it; or part             |
| header `kv.expires` | when the key goes by itself, ms since 1970; absent: never                                      |

`part`: the value is the argument of the operation, as in the log's entry (kv/entries.py). Lists and hashes that change often are
not written out for every change: a later record of the key, already durable in the store's log, has the whole.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from braidlog.codec.records import seal_section
from braidlog.kv.entries import Op
from braidlog.kv.feed_rows import append_columns, append_mutation, packed_header
from braidlog.kv.keyspace import Image
from braidlog.kv.operations import Columns, Kind
from braidlog.kv.store import Mutation
from braidlog.kv.values import HashValue, ListValue, Value, kind_of, write_value
from braidlog.model.record import Header

SEQUENCE = "kv.seq"
STAMP = "kv.hlc"
OPERATION = "kv.op"
TYPE = "kv.type"
EXPIRES = "kv.expires"
PART = b"part"
STATE = b"state"
_OPS: dict[int, bytes] = {int(op): packed_header(OPERATION, op.name.lower().encode()) for op in Op}
_PART = packed_header(TYPE, PART)
_TYPES: dict[type, bytes] = {
    kind: packed_header(TYPE, kind_of(kind()).encode()) for kind in (bytes, int, ListValue, HashValue)
}
_IN_COLUMNS = (_OPS[Op.SET], _OPS[Op.DEL], _OPS[Op.INCRBY], _TYPES[bytes], _TYPES[int])
_COLUMN_OPS: dict[int, Op] = {
    Kind.SET: Op.SET, Kind.DELETE: Op.DEL, Kind.INCREMENT: Op.INCRBY, Kind.DECREMENT: Op.INCRBY
}  # fmt: skip
_SEQUENCE_DIGITS_MAX = 20


class FeedRecord(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...]


class MutationColumns(msgspec.Struct, frozen=True):
    """Changes of plain keys that were made together: rows [row, until) of columns, but for a DELETE that found nothing."""

    sequence: int
    """Of the first, as `counter`."""
    wall_ms: int
    counter: int
    columns: Columns
    found: list[Any]
    row: int
    until: int
    count: int

    def mutations(self) -> Iterator[Mutation]:
        """The same, one by one."""
        sequence, counter = self.sequence, self.counter
        for row in range(self.row, self.until):
            kind, key, argument = self.columns.kinds[row], self.columns.keys[row], self.columns.values[row]
            if kind == Kind.DELETE and self.found[row] is None:
                continue
            holds = argument if kind == Kind.SET else None if kind == Kind.DELETE else self.found[row]
            yield Mutation(sequence, self.wall_ms, counter, _COLUMN_OPS[kind], key, argument, holds, 0)
            sequence, counter = sequence + 1, counter + 1


class FeedSection:
    """Records of a batch that is being made. Mutations come in their order."""

    def __init__(self, node_hex: bytes) -> None:
        self._node_hex = node_hex
        self._base_ms = self._latest_ms = 0
        self.data = bytearray()
        self.count = 0
        self.last = 0
        """The sequence of the last mutation in it."""

    def append(self, mutation: Mutation, *, is_latest: bool) -> None:
        """`is_latest`: no later mutation of the same key is known, so a collection is written out."""
        value = mutation.value
        kind, written = _TYPES.get(type(value), b""), None
        if type(value) is bytes:
            written = value
        elif value is not None and (is_latest or type(value) is int):
            written = write_value(value)
        elif value is not None:
            kind, written = _PART, mutation.argument
        append_mutation(
            self.data,
            self.count,
            self._delta_ms(mutation.wall_ms),
            (mutation.sequence, mutation.wall_ms, mutation.counter, self._node_hex),
            _OPS[mutation.op],
            kind,
            mutation.key,
            written,
            0 if value is None else mutation.deadline_ms,
        )
        self.count += 1
        self.last = mutation.sequence

    def append_columns(self, told: MutationColumns, *, count_max: int, bytes_max: int) -> MutationColumns | None:
        """Append while there is room; return what is left."""
        columns = told.columns
        row, written = append_columns(
            self.data,
            self.count,
            count_max,
            bytes_max,
            self._delta_ms(told.wall_ms),
            (told.sequence, told.wall_ms, told.counter, self._node_hex),
            _IN_COLUMNS,
            columns.kinds,
            columns.keys,
            columns.values,
            told.found,
            told.row,
            told.until,
        )
        self.count += written
        self.last = told.sequence + written - 1
        if written == told.count:
            return None
        return msgspec.structs.replace(
            told, sequence=self.last + 1, counter=told.counter + written, row=row, count=told.count - written
        )

    def _delta_ms(self, wall_ms: int) -> int:
        if not self.count:
            self._base_ms = wall_ms
        self._latest_ms = wall_ms
        return wall_ms - self._base_ms

    def seal(self) -> bytes:
        """The batch."""
        return seal_section(self.data, self.count, base_timestamp=self._base_ms, max_timestamp=self._latest_ms)


def state_record(
    image: Image, key: bytes, value: Value | None, *, sequence: int, stamp: bytes, now_ms: int
) -> FeedRecord:
    """The record of a key that is there (or, with no value, gone), whatever made it so."""
    headers: tuple[Header, ...] = ((SEQUENCE, b"%d" % sequence), (STAMP, stamp.hex().encode()), (OPERATION, STATE))
    if value is None:
        return FeedRecord(key, None, now_ms, headers)
    headers += ((TYPE, kind_of(value).encode()),)
    if key in image.deadlines:
        headers += ((EXPIRES, b"%d" % image.deadlines[key]),)
    return FeedRecord(key, write_value(value), now_ms, headers)


def sequence_in(headers: tuple[Header, ...]) -> int | None:
    """The number of the mutation that a record tells of; None if it is no record of a feed."""
    for name, value in headers:
        if name == SEQUENCE and value is not None and value.isdigit() and len(value) <= _SEQUENCE_DIGITS_MAX:
            return int(value)
    return None
