"""Metadata store of a cluster, kept in etcd.

Does not handle: the meaning of events, HTTP.
Invariants: entries are applied in order, each once, and only if etcd has them. Every entry names its predecessor by
digest. A proposal is written directly after the entry that it was computed at, or not at all. A proposal with unknown
outcome is checked until its outcome is known. A node's position is durable in its own folder before the node acts on
it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from braidlog.cluster.etcd import image_snapshots
from braidlog.cluster.etcd.entries import ENTRY_BYTES_MAX, Keys, decode_entry, digest, encode_entry, one
from braidlog.cluster.etcd.port import (
    Change,
    Etcd,
    EtcdAwayError,
    EtcdCompactedError,
    EtcdError,
    EtcdForeignError,
    EtcdRefusedError,
    Holds,
    Outage,
    Put,
    Watch,
)
from braidlog.cluster.etcd.position import Position
from braidlog.cluster.metadata.events import Event
from braidlog.cluster.metadata.history import History
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.local_store import SNAPSHOT_EVERY
from braidlog.cluster.metadata.metadata_store import Conflict, Entry, TrimmedError
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime

log = logging.getLogger("braidlog.metadata")

PROPOSE_SECONDS_MAX: Final = 10.0
"""How long a proposal is retried while etcd does not answer."""
AGAIN_SECONDS: Final = 0.05
WATCH_AGAIN_SECONDS: Final = 0.2
TICK_SECONDS: Final = 2.0
SAID_AFTER_SECONDS: Final = 3.0
COMPACT_TICKS: Final = 150
"""Every five minutes: ticks alone would fill etcd, and a quiet cluster writes no snapshots."""
_TURN = "the metadata log"
_KEEPING = "how far this node has come"


Remember = Callable[[Position], Awaitable[None]]
"""Saves a position durably."""


async def _forget(_: Position) -> None:
    """For callers without a folder."""


class EtcdStore:
    """A `MetadataStore`: call `open` first, then run `follow_changes` and `check_watch` as tasks."""

    is_alone = False

    def __init__(  # noqa: PLR0913 - the parts it is made of, and settings that tests change
        self,
        etcd: Etcd,
        runtime: Runtime,
        *,
        prefix: str,
        node: str,
        new_nonce: Callable[[], str],
        remember: Remember = _forget,
        arrived: Callable[[], None] = lambda: None,
        snapshot_every: int = SNAPSHOT_EVERY,
        propose_seconds_max: float = PROPOSE_SECONDS_MAX,
    ) -> None:
        self._etcd = etcd
        self._runtime = runtime
        self._keys = Keys(prefix)
        self._node = node
        self._new_nonce = new_nonce
        self._remember = remember
        self._remembered_seq = 0
        self._snapshot_every = snapshot_every
        self._propose_seconds_max = propose_seconds_max
        self._turns = KeyedLock(runtime)
        self._head = Position("")
        self._events_since_image = 0
        self._recent: list[Entry] = []
        self.history = History()
        self._loaded: Image | None = None
        self._loaded_seq = 0
        self._own_nonce = ""
        self._own_seq = 0
        self._watch: Watch | None = None
        self._tick_seen = b""
        self._is_closed = False
        self._is_outage_said = False
        self._is_foreign = False
        """Whether the last read returned another cluster's data."""
        self.outage: Outage | None = None
        """Start and cause of the current etcd outage; None while etcd answers."""
        self.outages = 0
        """Number of outages long enough to be logged."""
        self.arrived = arrived
        """Called when entries of other nodes arrived."""

    @property
    def position(self) -> Position:
        return self._head

    # -- begin -----------------------------------------------------------------------------------------------

    async def create_cluster(self, cluster: str) -> str:
        """Create an empty log if none exists; returns the cluster id of the log."""
        head = Put(self._keys.head, msgspec.json.encode(Position(cluster)))
        try:
            await self._etcd.write([head], conditions=[Holds(self._keys.head, None)])
        except EtcdAwayError:  # the write may have succeeded
            await self._etcd.write([head], conditions=[Holds(self._keys.head, None)])
        found = await image_snapshots.read_head(self._etcd, self._keys)
        if found is None:
            raise EtcdAwayError("etcd lost a key that it just acknowledged")
        return found[0].cluster

    async def open(self, known: Position | None = None) -> None:
        """Load the metadata. `known` is the position this node had applied when it stopped."""
        if known is not None:
            await self._check_known(known)
        await self._load()
        await self._keep_position()

    async def _check_known(self, known: Position) -> None:
        """Reject an etcd that was restored from an old copy or belongs to another cluster."""
        found = await image_snapshots.read_head(self._etcd, self._keys)
        head = found[0] if found else Position("")
        if head.cluster != known.cluster:
            raise StorageFault(
                f"etcd holds cluster {head.cluster!r}, but this node belongs to {known.cluster!r}: "
                "check the addresses of etcd and the prefix; if etcd was lost, run `braid cluster recover`"
            )
        there = head.digest if head.seq == known.seq else await self._digest_at(known.seq)
        if head.seq < known.seq or there not in (None, known.digest):
            raise StorageFault(_restored_copy_error(known.seq, head.seq))

    async def _digest_at(self, seq: int) -> str | None:
        """The digest of an entry; None if it was deleted after a snapshot."""
        found = await self._etcd.read(one(self._keys.event(seq)))
        return digest(found.items[0].value) if found.items else None

    async def _load(self) -> int:
        """Load the complete state; returns the revision it was read at."""
        loaded = await image_snapshots.load(self._etcd, self._keys, self.history)
        if loaded is None:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"etcd holds no cluster at {self._keys.head.decode()!r}; create one: braid cluster init",
            )
        if loaded.head.seq < self._head.seq:  # a concurrent read has already taken newer entries
            return loaded.revision
        self._recent.clear()
        self._head = loaded.head
        self._loaded, self._loaded_seq = loaded.image, loaded.head.seq
        self._events_since_image = loaded.events_since_image
        return loaded.revision

    def load(self) -> tuple[Image, int]:
        """Return the image that `open` or a reload has read. Each image is returned once."""
        image, self._loaded = self._loaded, None
        assert image is not None, "each loaded image is returned once"
        return image, self._loaded_seq

    # -- propose ---------------------------------------------------------------------------------------------

    async def propose(self, events: Sequence[Event], after: int) -> int | Conflict:
        async with self._turns.acquire(_TURN):
            outcome = (
                Conflict(self._head.seq) if after != self._head.seq else await self._write_entry(events, after + 1)
            )
            await self._keep_position()
            return outcome

    async def _write_entry(self, events: Sequence[Event], seq: int) -> int | Conflict:
        """Retry until the writer of entry `seq` is known. A repeated request is written once."""
        self._own_nonce, self._own_seq = self._new_nonce(), 0
        entry = Entry(seq, events, self._runtime.now_ms())
        value = encode_entry(entry, self._node, self._own_nonce, self._head.digest)
        if len(value) > ENTRY_BYTES_MAX:
            raise BrokerError(
                Reason.RECORD_TOO_LARGE,
                f"metadata change of {len(value)} bytes exceeds the limit of {ENTRY_BYTES_MAX} bytes",
            )
        head = Position(self._head.cluster, seq, digest(value))
        puts = [
            Put(self._keys.event(seq), value),
            Put(self._keys.head, msgspec.json.encode(head)),
            Put(self._keys.proposed(self._node), self._own_nonce.encode()),
        ]
        conditions = [Holds(self._keys.head, msgspec.json.encode(self._head)), Holds(self._keys.event(seq), None)]
        until = self._runtime.monotonic() + self._propose_seconds_max
        while self._head.seq < seq or self._is_unseen(seq):
            try:
                if self._head.seq >= seq:
                    return seq if await self._is_written() else Conflict(self._head.seq)
                outcome = await self._etcd.write(puts, conditions=conditions)
                if outcome.done:
                    self._own_seq = seq
                    self._take(entry, self._own_nonce, head)
                else:
                    await self._catch_up()
                    if self._head.seq < seq:
                        key = self._keys.event(seq).decode()
                        raise EtcdForeignError(f"entry {seq} exists, but the head does not name it; delete key {key}")
            except EtcdRefusedError as error:
                if isinstance(error, EtcdForeignError):
                    self._note(error)
                raise BrokerError(Reason.UNAVAILABLE, f"change rejected: {error}") from error
            except EtcdAwayError as error:
                self._note(error)
                if self._runtime.monotonic() >= until:
                    raise BrokerError(
                        Reason.UNAVAILABLE, f"etcd does not answer; the outcome of the change is unknown: {error}"
                    ) from error
                await self._runtime.wakeup().wait(AGAIN_SECONDS)
        self._answered()
        return seq if self._own_seq == seq else Conflict(self._head.seq)

    def _is_unseen(self, seq: int) -> bool:
        """Whether entry `seq` was read as part of an image, which does not record its proposer."""
        return self._own_seq == 0 and self._loaded_seq >= seq

    async def _is_written(self) -> bool:
        """Whether this node's last proposal is in the log: each entry is written together with its proposer's nonce."""
        found = (await self._etcd.read(one(self._keys.proposed(self._node)))).items
        return bool(found) and found[0].value == self._own_nonce.encode()

    def _take(self, entry: Entry, nonce: str, head: Position) -> None:
        """Append the next entry, from whichever source delivers it first: a proposal's answer, a watch or a read."""
        if is_applied(entry.seq, self._head):
            return
        assert entry.seq == self._head.seq + 1
        if nonce == self._own_nonce:
            self._own_seq = entry.seq
        self._recent.append(entry)
        self._events_since_image += len(entry.events)
        self._head = head
        self._is_foreign = False

    # -- follow ----------------------------------------------------------------------------------------------

    def follow(self, after: int) -> Sequence[Entry]:
        if after < self._loaded_seq <= self._remembered_seq and self._loaded is not None:
            raise TrimmedError
        self._recent = [entry for entry in self._recent if entry.seq > after]
        return [entry for entry in self._recent if entry.seq <= self._remembered_seq]

    async def _keep_position(self) -> None:
        """Save the position durably before the entries up to it are visible. An etcd that later lacks them was
        restored from an old copy.
        """
        async with self._turns.acquire(_KEEPING):
            position = self.position
            if position.seq > self._remembered_seq:
                await self._remember(position)
                self._remembered_seq = position.seq

    async def _catch_up(self) -> int:
        """Read the missing entries; returns the revision up to which the state is complete."""
        known = self._head  # may advance during the wait
        found = await image_snapshots.read_head(self._etcd, self._keys)
        if found is None:
            raise EtcdForeignError(f"the head is missing; restore key {self._keys.head.decode()}")
        head, revision = found
        if head.cluster != known.cluster:
            raise EtcdForeignError(
                f"the head names cluster {head.cluster!r}, this node belongs to {known.cluster!r}; "
                f"restore key {self._keys.head.decode()}"
            )
        if head.seq < known.seq or (head.seq == known.seq and head != known):
            raise EtcdForeignError(_restored_copy_error(known.seq, head.seq))
        if head.seq <= self._head.seq:
            self._is_foreign = False
            return revision
        try:
            async for item in image_snapshots.read_all(
                self._etcd, self._keys.events_between(self._head.seq, head.seq), revision
            ):
                if not self._take_written(item.key, item.value):
                    return await self._load_again()
        except EtcdCompactedError:
            return await self._load_again()
        if self._head.seq < head.seq:
            return await self._load_again()
        await self._show()
        return revision

    async def _load_again(self) -> int:
        revision = await self._load()
        await self._show()
        return revision

    async def _show(self) -> None:
        await self._keep_position()
        self.arrived()

    def _take_written(self, key: bytes, value: bytes) -> bool:
        """Apply an entry from etcd; False if an earlier entry is missing."""
        seq = self._keys.seq_of(key)
        if is_applied(seq, self._head):
            return True
        if seq > self._head.seq + 1:
            return False
        written, events = decode_entry(value, seq, self._head.digest)
        self._take(Entry(seq, events, written.time_ms), written.nonce, Position(self._head.cluster, seq, digest(value)))
        return True

    async def follow_changes(self) -> None:
        """Follow the entries of other nodes until `close`."""
        while not self._is_closed:
            try:
                revision = await self._catch_up()
                self._watch = await self._etcd.watch([self._keys.events, one(self._keys.tick(self._node))], revision)
                self._answered()
                while await self._take_changes(await self._watch.next()):
                    pass
            except EtcdCompactedError:
                log.info("metadata watch fell behind etcd compaction; reloading")
            except EtcdError as error:
                self._note(error)
                if not self._is_closed:
                    await self._runtime.wakeup().wait(TICK_SECONDS if self._is_foreign else WATCH_AGAIN_SECONDS)

    async def _take_changes(self, changes: Sequence[Change]) -> bool:
        """Apply changes; False if an entry in between is missing and must be read."""
        before = self._head.seq
        try:
            whole = all(self._take_change(change) for change in changes)
        except (StorageFault, EtcdForeignError) as error:  # the next read shows whether the head names it
            log.warning("metadata change ignored unless the head names it: %s", error)
            whole = False
        if self._head.seq > before:
            await self._show()
        return whole

    def _take_change(self, change: Change) -> bool:
        if change.value is None:
            return True  # an entry was trimmed
        if self._keys.events.has(change.key):
            return self._take_written(change.key, change.value)
        self._tick_seen = change.value
        return True

    async def check_watch(self) -> None:
        """Detect dead watches until `close`: write a tick, and reopen a watch that does not show it. A dead watch
        looks like an idle one.
        """
        tick = revision = 0
        while not self._is_closed:
            tick += 1
            watch, value = self._watch, b"%d" % tick
            try:
                outcome = await self._etcd.write([Put(self._keys.tick(self._node), value)])
                self._answered()
                if tick % COMPACT_TICKS == 0:
                    if revision:  # the previous tick's revision: reads at it have finished by now
                        await self._etcd.compact(revision)
                    revision = outcome.revision
            except EtcdError as error:
                self._note(error)
                watch = None
            await self._runtime.wakeup().wait(TICK_SECONDS)
            if watch is not None and watch is self._watch and self._tick_seen != value:
                log.warning("metadata watch delivers no changes; reopening it")
                watch.stop()

    def _note(self, error: EtcdError) -> None:
        """Note a failed call. An outage is logged only once it lasts."""
        now = self._runtime.monotonic()
        if isinstance(error, EtcdForeignError) and not self._is_foreign:
            self._is_foreign, self.outage = True, None
            log.error("metadata rejected: %s; this node serves with its last metadata, topics cannot change", error)
        if self.outage is None:
            self.outage = Outage(now, str(error), is_refusal=isinstance(error, EtcdRefusedError))
        if not self._is_outage_said and now - self.outage.since >= SAID_AFTER_SECONDS:
            self._is_outage_said = True
            self.outages += 1
            log.warning("%s", self.outage.report(now))

    def _answered(self) -> None:
        if self._is_foreign:
            return
        if self.outage is not None and self._is_outage_said:
            log.info("etcd answers again after %.0f s", self._runtime.monotonic() - self.outage.since)
        self.outage, self._is_outage_said = None, False

    # -- snapshots -------------------------------------------------------------------------------------------

    async def save(self, image: Image, seq: int) -> None:
        if self._events_since_image < self._snapshot_every:
            return
        copy, entry = image.copy(), self._head.digest
        async with self._turns.acquire(_TURN):
            if seq != self._head.seq:
                return  # the writer of the later entry saves a later image
            data = await self._runtime.blocking(lambda: msgspec.json.encode(copy, order="sorted"))
            try:
                await image_snapshots.write_image(self._etcd, self._keys, seq, entry, data)
                await image_snapshots.trim(self._etcd, self._keys)
            except EtcdError as error:  # no entry is lost: the next change retries
                self._note(error)
                return
            self._events_since_image = 0

    def write_durably(self, _: Sequence[Event]) -> None:
        raise AssertionError("a cluster's log has several writers")

    def close(self) -> None:
        self._is_closed = True
        if self._watch is not None:
            self._watch.stop()


def is_applied(seq: int, head: Position) -> bool:
    """Whether an entry was already taken: a reopened watch, a read and a proposal's answer deliver the same entries."""
    return seq <= head.seq


def _restored_copy_error(known: int, there: int) -> str:
    return (
        f"etcd was restored from an old copy: this node applied entry {known}, etcd ends with {there} or differs; "
        "restore a newer copy of etcd, or stop all nodes and run `braid cluster recover`"
    )
