"""The keyed log of a coordinator: the last value of each key, stored in a compacted log.

Values are msgspec structs, keys are tuples of strings and numbers.
Invariants: a change is in its table immediately and settled later. A caller awaits `settled` of the mark that the
write returned before it acts on the change or reports it. After a replay a table holds the last settled value of every
key. Only this module decides which log stores a key, and when it is settled.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NewType, Protocol

import msgspec

from braidlog.codec.batch.records import encode_batch
from braidlog.codec.batch.records_section import Row
from braidlog.coordinator.state_limits import Account
from braidlog.model.errors import StorageFault
from braidlog.model.runtime.cooperative import YieldCounter, in_slices
from braidlog.model.runtime.runtime import Runtime

Key = tuple[str | int, ...]
Mark = NewType("Mark", int)
"""Returned by writes, awaited by `settled`. Only the log compares marks."""
NOTHING = Mark(0)
"""The mark of no change; always settled."""
_STARTED: Key = ("started",)
"""Key of empty entries, written only to settle the entries before them."""
_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}
"""One decoder per type for all shards: creating one takes as long as decoding a hundred entries."""
_encode = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(tuple[str | int, ...]).decode


class JournalLog(Protocol):
    """A partition of which this node is leader in one epoch. Appends and waits fail once the epoch is over.

    An append never suspends, and is stored completely or not at all.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def is_led(self) -> bool:
        """Whether this node still leads the partition in that epoch."""
        ...

    @property
    def is_sole(self) -> bool:
        """Whether this node has the only replica, so no other node can take over without its consent."""
        ...

    @property
    def end_offset(self) -> int: ...

    def append(self, batch: bytes) -> int:
        """Append a batch; returns the offset up to which the log must be durable."""
        ...

    def is_durable(self, next_offset: int) -> bool: ...

    def durable(self, next_offset: int) -> Awaitable[None]:
        """Wait until everything below the offset is durable; raises if that fails."""
        ...

    def rows(self) -> Iterator[Row]:
        """Every record in order: (offset, timestamp, key, value, headers)."""
        ...


class Journal:
    """Keyed values over one log. A change is settled once it is durable in the log."""

    def __init__(self, log: JournalLog, runtime: Runtime) -> None:
        self._log = log
        self._runtime = runtime
        self.epoch = log.epoch
        """Grows whenever another node becomes coordinator of this state."""
        self._end = NOTHING
        """The mark of the last change."""

    def write(self, entries: Sequence[tuple[Key, msgspec.Struct | None]]) -> Mark:
        """Append values (None deletes a key) as one batch, which survives a crash completely or not at all."""
        batch = encode_batch(
            [None if value is None else _encode(value) for _, value in entries],
            keys=[_encode(key) for key, _ in entries],
            base_timestamp=self._runtime.now_ms(),
        )
        self._end = Mark(self._log.append(batch))
        return self._end

    @property
    def is_sole(self) -> bool:
        """Whether no other node has a replica, so none can have taken over without this node's knowledge."""
        return self._log.is_sole

    def write_start(self) -> Mark:
        """Return the mark of everything written before. With several replicas, settling that takes an entry of this
        epoch.
        """
        if not self.is_sole:
            return self.write([(_STARTED, None)])
        self._end = Mark(self._log.end_offset)
        return self._end

    def is_settled(self, mark: Mark) -> bool:
        return self._log.is_durable(mark)

    async def wait_committed(self, *marks: Mark) -> None:
        """Wait until these changes may be acted on and reported; raises if they cannot be settled."""
        await self._log.durable(max(marks, default=NOTHING))

    async def all_settled(self) -> None:
        """Wait for everything written so far. For callers that read tables and are about to report the result."""
        await self._log.durable(self._end)

    def replay(self) -> Iterator[tuple[Key, bytes | None]]:
        """Every entry in order; a later entry replaces an earlier one of the same key, None deletes it."""
        for row in self._log.rows():
            if (key := _decode_key(row[2] or b"[]")) != _STARTED:
                yield key, row[3]


class Table:
    """The entries of one kind: keys with a common first word, values of one type. `account` counts their memory."""

    def __init__(self, journal: Journal, kind: str, value_type: type[Any], account: Account | None = None) -> None:
        self.kind = kind
        self.journal = journal
        self._account = account
        self._decoder = _DECODERS.get(value_type) or _DECODERS.setdefault(value_type, msgspec.json.Decoder(value_type))
        self.values: dict[Key, Any] = {}

    def load(self, key: Key, raw: bytes | None) -> None:
        try:
            self.set(key, None if raw is None else self._decoder.decode(raw))
        except msgspec.MsgspecError as error:
            raise StorageFault(f"entry {key} of the coordinator log does not decode: {error}") from error

    def set(self, key: Key, value: msgspec.Struct | None) -> None:
        """Set a value in memory only, because the journal already contains it."""
        before = self.values.pop(key, None) if value is None else self.values.get(key)
        if value is not None:
            self.values[key] = value
        if self._account is not None:
            self._account.moved(key, before, value)

    async def forget(self) -> None:
        """Drop all entries from memory only: another node is now their coordinator."""
        async for key in in_slices(self.values):
            self.set(key, None)

    def get(self, *key: str | int) -> Any:  # noqa: ANN401 - the type is the table's
        return self.values.get((self.kind, *key))

    def put(self, *key: str | int, value: msgspec.Struct) -> Mark:
        return put_atomically([(self, key, value)])

    def put_many(self, entries: Sequence[tuple[Key, msgspec.Struct | None]]) -> Mark:
        """Set several values (None deletes one) as one batch, which survives a crash completely or not at all."""
        return put_atomically([(self, key, value) for key, value in entries])

    def drop(self, *key: str | int) -> Mark:
        return put_atomically([(self, key, None)])

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Keys without the kind, and values."""
        for key, value in list(self.values.items()):
            yield key[1:], value


def put_atomically(entries: Sequence[tuple[Table, Key, msgspec.Struct | None]]) -> Mark:
    """Set or delete (None) entries of several tables of one log as one batch, which survives a crash completely or not
    at all.
    """
    if not entries:
        return NOTHING
    full = [(table, (table.kind, *key), value) for table, key, value in entries]
    mark = entries[0][0].journal.write([(key, value) for _, key, value in full])
    for table, key, value in full:
        table.set(key, value)
    return mark


async def load_tables(journal: Journal, tables: list[Table], unknown: Callable[[Key], None]) -> None:
    """Replay the log into its tables, in slices between other requests. `unknown` receives the keys that belong to no
    table.
    """
    by_kind = {table.kind: table for table in tables}
    pace = YieldCounter()
    for key, raw in journal.replay():
        table = by_kind.get(str(key[0])) if key else None
        if table is None:
            unknown(key)
        else:
            table.load(key, raw)
        await pace.step()
