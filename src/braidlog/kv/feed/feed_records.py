"""Encodes changes of keys as records of the change feed, and queues them for publication.

Does not handle: the topic, the time of writing. feed_rows.py writes the bytes.
Invariants: the last record of a key in the feed has the key's value, or null if it was deleted, so the feed may
be compacted. The records of a batch have stamps of one node, in ascending order.

| part                | content                                                                                      |
|---------------------|----------------------------------------------------------------------------------------------|
| key                 | the key                                                                                      |
| value               | the key's new value, in the format of `kv.type`; null: deleted                               |
| timestamp           | the wall part of the mutation's stamp                                                        |
| header `kv.seq`     | the mutation's number, decimal; 0 in a record of a key's state without a mutation            |
| header `kv.hlc`     | its stamp (kv/engine/hybrid_clock.py), 28 bytes in 56 hex digits, which sort as mutations do |
| header `kv.op`      | set del lpush rpush lpop rpop incrby hset hdel expire expired evicted, or state              |
| header `kv.type`    | string, counter, list or hash: `value` is as kv/engine/values.py writes it; or part          |
| header `kv.expires` | when the key expires, ms since 1970; absent: never                                           |

`part`: the value is the argument of the operation, as in the log's entry (kv/wal/wal_entries.py). Lists and
hashes that change often are not written completely for every change: a later record of the key, already durable
in the store's log, has the whole value.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import msgspec

from braidlog.codec.batch.records import encode_batch, seal_section
from braidlog.kv.engine.keyspace import Image
from braidlog.kv.engine.operations import Columns, Kind
from braidlog.kv.engine.store import Mutation
from braidlog.kv.engine.values import HashValue, ListValue, Value, kind_of, write_value
from braidlog.kv.feed.feed_rows import append_columns, append_mutation, packed_header
from braidlog.kv.wal.wal_entries import Op
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
_COLLECTIONS = frozenset((ListValue, HashValue))
BATCH_RECORDS_MAX = 1_000
BATCH_BYTES = 1024 * 1024
RECORD_BYTES = 200
"""Approximate size of a state record without its value."""

Batch = tuple[bytes, int]
"""A batch, and the number of its last record."""


class FeedRecord(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp_ms: int
    headers: tuple[Header, ...]


class MutationColumns(msgspec.Struct, frozen=True):
    """Changes of plain keys made together: rows [row, until) of columns, except each DELETE without effect."""

    sequence: int
    """Of the first change, as is `counter`."""
    wall_ms: int
    counter: int
    columns: Columns
    found: list[Any]
    row: int
    until: int
    count: int

    def mutations(self) -> Iterator[Mutation]:
        """Yield the changes singly."""
        sequence, counter = self.sequence, self.counter
        for row in range(self.row, self.until):
            kind, key, argument = self.columns.kinds[row], self.columns.keys[row], self.columns.values[row]
            if kind == Kind.DELETE and self.found[row] is None:
                continue
            holds = argument if kind == Kind.SET else None if kind == Kind.DELETE else self.found[row]
            yield Mutation(sequence, self.wall_ms, counter, _COLUMN_OPS[kind], key, argument, holds, 0)
            sequence, counter = sequence + 1, counter + 1


class Watcher(Protocol):
    """Observes each change as it is applied, before it is durable or committed. `node` issued the stamp."""

    def changed(self, mutation: Mutation, node: bytes) -> None:
        """A change was applied. In a log of slots, its sequence is the offset after its record."""
        ...

    def changed_together(self, told: MutationColumns, node: bytes) -> None:
        """Plain changes were applied, in columns."""
        ...

    def restarted(self) -> None:
        """The state was dropped: reported changes after the high watermark may not exist."""
        ...


class FeedSection:
    """The records of a batch under construction. Mutations are appended in order."""

    def __init__(self, node: bytes) -> None:
        self.node = node
        self._node_hex = node.hex().encode()
        self._base_ms = self._latest_ms = 0
        self.data = bytearray()
        self.count = 0
        self.last = 0
        """The sequence of its last mutation."""

    def has_room(self, node: bytes, wall_ms: int) -> bool:
        """Return whether a record with a stamp of that node and time can be appended."""
        if self.count >= BATCH_RECORDS_MAX or len(self.data) >= BATCH_BYTES:
            return False
        return node == self.node and wall_ms >= self._latest_ms

    def append(self, mutation: Mutation, *, is_latest: bool) -> None:
        """Append a mutation. `is_latest`: no later mutation of the key is known, so a collection is written
        completely."""
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

    def append_columns(self, told: MutationColumns) -> MutationColumns | None:
        """Append while space is left; return the remaining changes."""
        columns = told.columns
        row, written = append_columns(
            self.data,
            self.count,
            BATCH_RECORDS_MAX,
            BATCH_BYTES,
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
        """Return the batch."""
        return seal_section(self.data, self.count, base_timestamp=self._base_ms, max_timestamp=self._latest_ms)


class FeedQueue:
    """Changes that wait to be published, in order. Changes up to `after` are skipped.

    Records are encoded to sections on arrival, while keys and values are in the CPU cache. Collections wait
    unencoded, because only the batch decides whether they are written completely or in part; so do all changes
    after them.
    """

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self.count = 0
        self.section_bytes = 0
        self._sections: deque[FeedSection] = deque()
        """Sections before everything in `_rest`; all except the last are full."""
        self._rest: deque[tuple[Mutation | MutationColumns, bytes]] = deque()
        self._latest: dict[bytes, int] = {}
        """Key → number of its last change in `_rest`."""

    def changed(self, mutation: Mutation, node: bytes) -> None:
        if mutation.sequence <= self.after:
            return
        self.count += 1
        if self._rest or type(mutation.value) in _COLLECTIONS:
            self._latest[mutation.key] = mutation.sequence
            self._rest.append((mutation, node))
            return
        section = self._section(node, mutation.wall_ms)
        size = len(section.data)
        section.append(mutation, is_latest=True)
        self.section_bytes += len(section.data) - size

    def changed_together(self, told: MutationColumns, node: bytes) -> None:
        """Queue changes of keys without collections. Their records do not depend on which change is the latest."""
        if told.sequence <= self.after:
            for each in told.mutations():
                self.changed(each, node)
            return
        self.count += told.count
        if self._rest:
            self._rest.append((told, node))
            return
        more: MutationColumns | None = told
        while more is not None:
            section = self._section(node, more.wall_ms)
            size = len(section.data)
            more = section.append_columns(more)
            self.section_bytes += len(section.data) - size

    def restarted(self) -> None:
        raise AssertionError("a state that is read from a log is made once")

    def _section(self, node: bytes, wall_ms: int) -> FeedSection:
        """Return the section with space for the next record."""
        if not self._sections or not self._sections[-1].has_room(node, wall_ms):
            self._sections.append(FeedSection(node))
        return self._sections[-1]

    def batches(self, bytes_max: int) -> Iterator[Batch]:
        """Take batches of about this many bytes. A part of a collection depends only on changes that were made
        before this call."""
        while self.count and bytes_max > 0:
            batch = self._next_batch()
            bytes_max -= len(batch[0])
            yield batch

    def _next_batch(self) -> Batch:
        section = self._sections.popleft() if self._sections else FeedSection(self._rest[0][1])
        self.section_bytes -= len(section.data)
        while self._rest and not self._sections and section.has_room(self._rest[0][1], self._rest[0][0].wall_ms):
            told, node = self._rest.popleft()
            if isinstance(told, MutationColumns):
                if (more := section.append_columns(told)) is not None:
                    self._rest.appendleft((more, node))
                continue
            is_latest = self._latest[told.key] == told.sequence
            if is_latest:
                del self._latest[told.key]
            section.append(told, is_latest=is_latest)
        self.count -= section.count
        return section.seal(), section.last


def state_record(
    image: Image, key: bytes, value: Value | None, *, sequence: int, stamp: bytes, now_ms: int
) -> FeedRecord:
    """Return the record of a key's state, independent of its mutations. `value` None: the key is deleted."""
    headers: tuple[Header, ...] = ((SEQUENCE, b"%d" % sequence), (STAMP, stamp.hex().encode()), (OPERATION, STATE))
    if value is None:
        return FeedRecord(key, None, now_ms, headers)
    headers += ((TYPE, kind_of(value).encode()),)
    if key in image.deadlines:
        headers += ((EXPIRES, b"%d" % image.deadlines[key]),)
    return FeedRecord(key, write_value(value), now_ms, headers)


def sequence_in(headers: tuple[Header, ...]) -> int | None:
    """Return the number of a record's mutation; None if it is not a record of a feed."""
    for name, value in headers:
        if name == SEQUENCE and value is not None and value.isdigit() and len(value) <= _SEQUENCE_DIGITS_MAX:
            return int(value)
    return None


def state_batches(image: Image, gone: list[bytes], *, sequence: int, stamp: bytes, now_ms: int) -> Iterator[Batch]:
    """Return batches with every key's value and with the feed's deleted keys, each with the number of its last
    record. Only the very last record has a number, others have 0: a feed that ends with 0 gets the state again."""
    last = len(gone) + len(image.data) - 1
    numbered = ((sequence if at == last else 0, key) for at, key in enumerate(chain(gone, image.data)))
    records = (
        state_record(image, key, image.data.get(key), sequence=number, stamp=stamp, now_ms=now_ms)
        for number, key in numbered
    )
    while some := list(_some(records)):
        keys, values, timestamps, headers = zip(*some, strict=True)
        data = encode_batch(values, keys=keys, timestamps=timestamps, headers=headers, base_timestamp=now_ms)
        yield data, sequence_in(headers[-1]) or 0


def _some(records: Iterable[FeedRecord]) -> Iterator[FeedRecord]:
    """Return records for one batch."""
    size = 0
    for record in islice(records, BATCH_RECORDS_MAX):
        yield record
        size += len(record.value or b"") + RECORD_BYTES
        if size >= BATCH_BYTES:
            return
