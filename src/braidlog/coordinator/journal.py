"""The keyed log of a coordinator: the last value of each key, kept in a compacted log.

Knows: keys (tuples of words and numbers), values (msgspec structs), how they come back after a crash, and when a change is
settled. Refuses to know: what they mean. Invariants: a change is in its table at once and settled later; whoever acts on it or
tells of it first awaits `settled` of the mark that writing it returned; after a replay a table holds the last settled value of
every key. Callers name keys and hold marks; which log a key is in, and what settles it, is decided here alone.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NewType, Protocol

import msgspec

from braidlog.codec.records import encode_batch
from braidlog.codec.section import Row
from braidlog.coordinator.holdings import Account
from braidlog.model.errors import StorageFault
from braidlog.model.slices import Pace, in_slices
from braidlog.model.world import World

Key = tuple[str | int, ...]
Mark = NewType("Mark", int)
"""What writing returns, and `settled` takes. Nobody but the log compares marks or computes with them."""
NOTHING = Mark(0)
"""The mark of no change: settled always."""
_STARTED: Key = ("started",)
"""The key of entries that say nothing: written to see what is before them settled."""
_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}
"""One of each type for all shards: to make one takes as long as to read a hundred entries."""
_encode = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(tuple[str | int, ...]).decode


class JournalLog(Protocol):
    """A partition as its leader of one epoch has it: batches in, rows out; appends and waits fail once the epoch is over.

    An append neither waits nor suspends and is taken whole or not at all.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def is_led(self) -> bool:
        """Whether this node still leads it, in that epoch."""
        ...

    @property
    def is_sole(self) -> bool:
        """Whether this node has its only replica: no other node is waited for, nor leads it before this one has agreed."""
        ...

    @property
    def end_offset(self) -> int: ...

    def append(self, batch: bytes) -> int:
        """Append a batch; returns the offset below which the log must be durable for it to be."""
        ...

    def is_durable(self, next_offset: int) -> bool: ...

    def durable(self, next_offset: int) -> Awaitable[None]:
        """Done when everything below is durable; raises if that cannot be."""
        ...

    def rows(self) -> Iterator[Row]:
        """Every record in order: (offset, timestamp, key, value, headers)."""
        ...


class Journal:
    """Keyed values over one log: settled is what is durable in it."""

    def __init__(self, log: JournalLog, world: World) -> None:
        self._log = log
        self._world = world
        self.epoch = log.epoch
        """Grows whenever another node becomes the coordinator of what is kept here."""
        self._end = NOTHING
        """The mark of the last change."""

    def write(self, entries: Sequence[tuple[Key, msgspec.Struct | None]]) -> Mark:
        """Append values, None for a key that goes, as one batch: all of them survive a crash, or none."""
        batch = encode_batch(
            [None if value is None else _encode(value) for _, value in entries],
            keys=[_encode(key) for key, _ in entries],
            base_timestamp=self._world.now_ms(),
        )
        self._end = Mark(self._log.append(batch))
        return self._end

    @property
    def is_sole(self) -> bool:
        """Whether no other node has a replica: none can keep all this by now without this one having heard of it."""
        return self._log.is_sole

    def write_start(self) -> Mark:
        """Return the mark of all that was there before. Among several replicas it takes an entry of this epoch to settle that."""
        if not self.is_sole:
            return self.write([(_STARTED, None)])
        self._end = Mark(self._log.end_offset)
        return self._end

    def is_settled(self, mark: Mark) -> bool:
        return self._log.is_durable(mark)

    async def settled(self, *marks: Mark) -> None:
        """Done when these changes can be acted on and told; raises if they cannot become so."""
        await self._log.durable(max(marks, default=NOTHING))

    async def all_settled(self) -> None:
        """The same for all that is written when this is asked: for whoever has looked at tables, and is about to tell."""
        await self._log.durable(self._end)

    def replay(self) -> Iterator[tuple[Key, bytes | None]]:
        """Every entry in order; a later one replaces an earlier one of the same key, None drops it."""
        for row in self._log.rows():
            if (key := _decode_key(row[2] or b"[]")) != _STARTED:
                yield key, row[3]


class Table:
    """The entries of one kind: keys that begin with the same word, values of one type. `account` counts what they hold."""

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
            raise StorageFault(f"the entry {key} of the coordinator's log does not decode: {error}") from error

    def set(self, key: Key, value: msgspec.Struct | None) -> None:
        """In memory only: what the journal says already."""
        before = self.values.pop(key, None) if value is None else self.values.get(key)
        if value is not None:
            self.values[key] = value
        if self._account is not None:
            self._account.moved(key, before, value)

    async def forget(self) -> None:
        """In memory only: another node keeps these from now on."""
        async for key in in_slices(self.values):
            self.set(key, None)

    def get(self, *key: str | int) -> Any:  # noqa: ANN401 - the type is the table's
        return self.values.get((self.kind, *key))

    def put(self, *key: str | int, value: msgspec.Struct) -> Mark:
        return put_together([(self, key, value)])

    def put_many(self, entries: Sequence[tuple[Key, msgspec.Struct | None]]) -> Mark:
        """Set several values (None drops one) as one batch: all of them survive a crash, or none."""
        return put_together([(self, key, value) for key, value in entries])

    def drop(self, *key: str | int) -> Mark:
        return put_together([(self, key, None)])

    def items(self) -> Iterator[tuple[Key, Any]]:
        """Keys without the kind, and values."""
        for key, value in list(self.values.items()):
            yield key[1:], value


def put_together(entries: Sequence[tuple[Table, Key, msgspec.Struct | None]]) -> Mark:
    """Set or drop (None) entries of several tables of one log as one batch: all of them survive a crash, or none."""
    if not entries:
        return NOTHING
    full = [(table, (table.kind, *key), value) for table, key, value in entries]
    mark = entries[0][0].journal.write([(key, value) for _, key, value in full])
    for table, key, value in full:
        table.set(key, value)
    return mark


async def load_tables(journal: Journal, tables: list[Table], unknown: Callable[[Key], None]) -> None:
    """Replay the log into its tables, in slices between which other requests are served; entries of no table go to `unknown`,
    which decides what that means."""
    by_kind = {table.kind: table for table in tables}
    pace = Pace()
    for key, raw in journal.replay():
        table = by_kind.get(str(key[0])) if key else None
        if table is None:
            unknown(key)
        else:
            table.load(key, raw)
        await pace.step()
