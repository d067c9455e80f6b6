"""A durable table: the last value of each key, kept as a compacted topic.

Knows: keys (tuples of words and numbers) and values (msgspec structs), and how to get them back after a crash. Refuses to know:
what they mean. Invariant: `put` returns the offset whose durability is the value's; after replay the table holds the last durable
value of every key, and a key that was dropped is not there.

Committed offsets, groups, producer ids, transactions and replica roles live here. It is a topic like any other (`__state`), so
it is checked, recovered, compacted and readable like any other.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from braidlog.codec.records import decode_batch, encode_batch
from braidlog.model.clock import Clock
from braidlog.model.errors import StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.storage.partition import PartitionLog

Key = tuple[str | int, ...]
READ_BYTES = 1024 * 1024
_encode = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(tuple[str | int, ...]).decode


class Journal:
    """Keyed values over one partition."""

    def __init__(self, partition: PartitionLog, clock: Clock) -> None:
        self.partition = partition
        self._clock = clock

    def put(self, key: Key, value: msgspec.Struct) -> int:
        """Append a value; return the offset below which the log must be durable for the value to be."""
        return self.put_many([(key, value)])

    def drop(self, key: Key) -> int:
        return self.put_many([(key, None)])

    def put_many(self, entries: Sequence[tuple[Key, msgspec.Struct | None]]) -> int:
        """Several values as one batch: all of them survive a crash, or none."""
        now_ms = self._clock.now_ms()
        batch = encode_batch(
            [None if value is None else _encode(value) for _, value in entries],
            keys=[_encode(key) for key, _ in entries],
            base_timestamp=now_ms,
        )
        return self.partition.append(batch, now_ms=now_ms).next_offset

    def replay(self) -> Iterator[tuple[Key, bytes | None]]:
        """Every entry in order; a later one replaces an earlier one of the same key, None drops it."""
        offset = self.partition.start_offset
        while (found := self.partition.slice_at(offset, READ_BYTES)) is not None:
            data = found.read()
            position = 0
            while position < len(data):
                size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
                for row in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
                    yield _decode_key(row[2] or b"[]"), row[3]
                position += size
            offset = found.next_offset


class Table:
    """The entries of one kind: keys that begin with the same word, values of one type."""

    def __init__(self, journal: Journal, kind: str, value_type: type[Any]) -> None:
        self.kind = kind
        self.journal = journal
        self._decoder = msgspec.json.Decoder(value_type)
        self.values: dict[Key, Any] = {}

    def load(self, key: Key, raw: bytes | None) -> None:
        if raw is None:
            self.values.pop(key, None)
            return
        try:
            self.values[key] = self._decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise StorageFault(f"the entry {key} of the journal does not decode: {error}") from error

    def get(self, *key: str | int) -> Any:  # noqa: ANN401 - the type is the table's
        return self.values.get((self.kind, *key))

    def put(self, *key: str | int, value: msgspec.Struct) -> int:
        """Set a value; return the offset to wait for."""
        full = (self.kind, *key)
        next_offset = self.journal.put(full, value)
        self.values[full] = value
        return next_offset

    def put_many(self, entries: Sequence[tuple[Key, msgspec.Struct | None]]) -> int:
        """Set several values (None drops one) as one batch: all of them survive a crash, or none."""
        return put_together([(self, key, value) for key, value in entries])

    def drop(self, *key: str | int) -> int:
        full = (self.kind, *key)
        next_offset = self.journal.drop(full)
        self.values.pop(full, None)
        return next_offset

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Keys without the kind, and values."""
        for key, value in list(self.values.items()):
            yield key[1:], value


def put_together(entries: Sequence[tuple[Table, Key, msgspec.Struct | None]]) -> int:
    """Set or drop (None) entries of several tables of one journal as one batch: all of them survive a crash, or none."""
    full = [(table, (table.kind, *key), value) for table, key, value in entries]
    next_offset = entries[0][0].journal.put_many([(key, value) for _, key, value in full])
    for table, key, value in full:
        if value is None:
            table.values.pop(key, None)
        else:
            table.values[key] = value
    return next_offset


def load_tables(journal: Journal, tables: list[Table], unknown: Callable[[Key], None]) -> None:
    """Replay the journal into its tables; entries of no table go to `unknown`, which decides what that means."""
    by_kind = {table.kind: table for table in tables}
    for key, raw in journal.replay():
        table = by_kind.get(str(key[0])) if key else None
        if table is None:
            unknown(key)
        else:
            table.load(key, raw)
