"""The metadata log of a cluster, kept in etcd.

Knows: how an entry is proposed, what to do when nobody answers, how others' entries are followed. Refuses to know: what events
mean, HTTP.
Invariants: entries are taken in order, each once, and only those that etcd has; every entry names the one before it by digest;
a proposal is written right after the entry it was made at, or not at all; one whose outcome is not known is asked about until
it is; how far a node has come is durable in its own folder before it acts on it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from braidlog.cluster.etcd import images
from braidlog.cluster.etcd.entries import ENTRY_BYTES_MAX, Keys, decode_entry, digest, encode_entry, one
from braidlog.cluster.etcd.outage import Outage
from braidlog.cluster.etcd.port import (
    Change,
    Etcd,
    EtcdAwayError,
    EtcdCompactedError,
    EtcdError,
    EtcdForeignError,
    EtcdRefusedError,
    Holds,
    Put,
    Watch,
)
from braidlog.cluster.etcd.position import Position
from braidlog.cluster.events import Event
from braidlog.cluster.history import History
from braidlog.cluster.image import Image
from braidlog.cluster.local import SNAPSHOT_EVERY
from braidlog.cluster.store import Conflict, Entry, TrimmedError
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.turns import Turns
from braidlog.model.world import World

log = logging.getLogger("braidlog.metadata")

PROPOSE_SECONDS_MAX: Final = 10.0
"""How long a proposal is repeated while nobody answers."""
AGAIN_SECONDS: Final = 0.05
WATCH_AGAIN_SECONDS: Final = 0.2
TICK_SECONDS: Final = 2.0
SAID_AFTER_SECONDS: Final = 3.0
COMPACT_TICKS: Final = 150
"""Every five minutes: the ticks themselves would fill etcd, and a quiet cluster makes no snapshots."""
_TURN = "the metadata log"
_KEEPING = "how far this node has come"


Remember = Callable[[Position], Awaitable[None]]
"""Keep a position durably."""


async def _forget(_: Position) -> None:
    """For whoever has nothing to keep it in."""


class EtcdStore:
    """A `MetadataStore`: `open` before anything else, then `follow_changes` and `check_watch` in tasks."""

    is_alone = False

    def __init__(  # noqa: PLR0913 - the parts it is made of, and settings that tests change
        self,
        etcd: Etcd,
        world: World,
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
        self._world = world
        self._keys = Keys(prefix)
        self._node = node
        self._new_nonce = new_nonce
        self._remember = remember
        self._remembered_seq = 0
        self._snapshot_every = snapshot_every
        self._propose_seconds_max = propose_seconds_max
        self._turns = Turns(world)
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
        """What was read last was not ours."""
        self.outage: Outage | None = None
        """While etcd does not answer: since when, and why."""
        self.outages = 0
        """Those that lasted so long that they were said."""
        self.arrived = arrived
        """Called when there are entries to follow that others wrote."""

    @property
    def position(self) -> Position:
        return self._head

    # -- begin -------------------------------------------------------------------------------------------------

    async def found_cluster(self, cluster: str) -> str:
        """Begin an empty log, if none has begun; returns whose log it is."""
        head = Put(self._keys.head, msgspec.json.encode(Position(cluster)))
        try:
            await self._etcd.write([head], conditions=[Holds(self._keys.head, None)])
        except EtcdAwayError:  # perhaps it was done
            await self._etcd.write([head], conditions=[Holds(self._keys.head, None)])
        found = await images.read_head(self._etcd, self._keys)
        if found is None:
            raise EtcdAwayError("etcd has lost what it was just told")
        return found[0].cluster

    async def open(self, known: Position | None = None) -> None:
        """Read everything. `known`: what this node had applied when it stopped."""
        if known is not None:
            await self._check_known(known)
        await self._load()
        await self._keep_position()

    async def _check_known(self, known: Position) -> None:
        """An etcd that was set back, or is another one, must not make this node forget what it has acted on."""
        found = await images.read_head(self._etcd, self._keys)
        head = found[0] if found else Position("")
        if head.cluster != known.cluster:
            raise StorageFault(
                f"etcd holds cluster {head.cluster!r}, and this node belongs to {known.cluster!r}: "
                "check the addresses of etcd and the prefix; if etcd was lost, `braid cluster recover` makes the nodes go on"
            )
        there = head.digest if head.seq == known.seq else await self._digest_at(known.seq)
        if head.seq < known.seq or there not in (None, known.digest):
            raise StorageFault(_set_back(known.seq, head.seq))

    async def _digest_at(self, seq: int) -> str | None:
        """The digest of an entry; None if it was let go after a snapshot."""
        found = await self._etcd.read(one(self._keys.event(seq)))
        return digest(found.items[0].value) if found.items else None

    async def _load(self) -> int:
        """Everything anew; returns the revision at which it was read."""
        loaded = await images.load(self._etcd, self._keys, self.history)
        if loaded is None:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"etcd holds no cluster at {self._keys.head.decode()!r}; begin one: braid cluster init",
            )
        if loaded.head.seq < self._head.seq:  # meanwhile others brought more
            return loaded.revision
        self._recent.clear()
        self._head = loaded.head
        self._loaded, self._loaded_seq = loaded.image, loaded.head.seq
        self._events_since_image = loaded.events_since_image
        return loaded.revision

    def load(self) -> tuple[Image, int]:
        """What was read by `open`, or anew since; handed over once."""
        image, self._loaded = self._loaded, None
        assert image is not None, "the image is handed over once each time it was read"
        return image, self._loaded_seq

    # -- propose -----------------------------------------------------------------------------------------------

    async def propose(self, events: Sequence[Event], after: int) -> int | Conflict:
        async with self._turns.take(_TURN):
            outcome = (
                Conflict(self._head.seq) if after != self._head.seq else await self._write_entry(events, after + 1)
            )
            await self._keep_position()
            return outcome

    async def _write_entry(self, events: Sequence[Event], seq: int) -> int | Conflict:
        """Ask until it is known who wrote entry `seq`: the same request twice is written once."""
        self._own_nonce, self._own_seq = self._new_nonce(), 0
        entry = Entry(seq, events, self._world.now_ms())
        value = encode_entry(entry, self._node, self._own_nonce, self._head.digest)
        if len(value) > ENTRY_BYTES_MAX:
            raise BrokerError(
                Reason.RECORD_TOO_LARGE,
                f"a change of metadata of {len(value)} bytes; at most {ENTRY_BYTES_MAX} go at once",
            )
        head = Position(self._head.cluster, seq, digest(value))
        puts = [
            Put(self._keys.event(seq), value),
            Put(self._keys.head, msgspec.json.encode(head)),
            Put(self._keys.proposed(self._node), self._own_nonce.encode()),
        ]
        conditions = [Holds(self._keys.head, msgspec.json.encode(self._head)), Holds(self._keys.event(seq), None)]
        until = self._world.monotonic() + self._propose_seconds_max
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
                        raise EtcdForeignError(f"entry {seq} is written, the head does not name it; delete key {key}")
            except EtcdRefusedError as error:
                if isinstance(error, EtcdForeignError):
                    self._note(error)
                raise BrokerError(Reason.UNAVAILABLE, f"the change was not made: {error}") from error
            except EtcdAwayError as error:
                self._note(error)
                if self._world.monotonic() >= until:
                    raise BrokerError(
                        Reason.UNAVAILABLE, f"etcd does not answer, so the change may be made or not: {error}"
                    ) from error
                await self._world.wakeup().wait(AGAIN_SECONDS)
        self._answered()
        return seq if self._own_seq == seq else Conflict(self._head.seq)

    def _is_unseen(self, seq: int) -> bool:
        """Whether entry `seq` was read as part of an image, which does not say who proposed it."""
        return self._own_seq == 0 and self._loaded_seq >= seq

    async def _is_written(self) -> bool:
        """Whether this node's last proposal is in the log: each entry is written together with its proposer's nonce."""
        found = (await self._etcd.read(one(self._keys.proposed(self._node)))).items
        return bool(found) and found[0].value == self._own_nonce.encode()

    def _take(self, entry: Entry, nonce: str, head: Position) -> None:
        """The next entry, whoever brings it first: the answer to a proposal, a watch, a read."""
        if is_taken(entry.seq, self._head):
            return
        assert entry.seq == self._head.seq + 1
        if nonce == self._own_nonce:
            self._own_seq = entry.seq
        self._recent.append(entry)
        self._events_since_image += len(entry.events)
        self._head = head
        self._is_foreign = False

    # -- follow ------------------------------------------------------------------------------------------------

    def follow(self, after: int) -> Sequence[Entry]:
        if after < self._loaded_seq <= self._remembered_seq and self._loaded is not None:
            raise TrimmedError
        self._recent = [entry for entry in self._recent if entry.seq > after]
        return [entry for entry in self._recent if entry.seq <= self._remembered_seq]

    async def _keep_position(self) -> None:
        """Durably, before anyone is shown the entries up to it: an etcd that lacks them later is then known to be set back."""
        async with self._turns.take(_KEEPING):
            position = self.position
            if position.seq > self._remembered_seq:
                await self._remember(position)
                self._remembered_seq = position.seq

    async def _catch_up(self) -> int:
        """Read what is missing; returns the revision up to which nothing is."""
        known = self._head  # it may go on while this waits
        found = await images.read_head(self._etcd, self._keys)
        if found is None:
            raise EtcdForeignError(f"the head is missing; restore key {self._keys.head.decode()}")
        head, revision = found
        if head.cluster != known.cluster:
            raise EtcdForeignError(
                f"the head names cluster {head.cluster!r}, this node belongs to {known.cluster!r}; "
                f"restore key {self._keys.head.decode()}"
            )
        if head.seq < known.seq or (head.seq == known.seq and head != known):
            raise EtcdForeignError(_set_back(known.seq, head.seq))
        if head.seq <= self._head.seq:
            self._is_foreign = False
            return revision
        try:
            async for item in images.read_all(
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
        """An entry that etcd holds. False: one before it is missing."""
        seq = self._keys.seq_of(key)
        if is_taken(seq, self._head):
            return True
        if seq > self._head.seq + 1:
            return False
        written, events = decode_entry(value, seq, self._head.digest)
        self._take(Entry(seq, events, written.time_ms), written.nonce, Position(self._head.cluster, seq, digest(value)))
        return True

    async def follow_changes(self) -> None:
        """Until `close`: take the entries of others as they come."""
        while not self._is_closed:
            try:
                revision = await self._catch_up()
                self._watch = await self._etcd.watch([self._keys.events, one(self._keys.tick(self._node))], revision)
                self._answered()
                while await self._take_changes(await self._watch.next()):
                    pass
            except EtcdCompactedError:
                log.info("the watch of the metadata fell behind what etcd keeps; reading anew")
            except EtcdError as error:
                self._note(error)
                if not self._is_closed:
                    await self._world.wakeup().wait(TICK_SECONDS if self._is_foreign else WATCH_AGAIN_SECONDS)

    async def _take_changes(self, changes: Sequence[Change]) -> bool:
        """False: something is missing in between, read it."""
        before = self._head.seq
        try:
            whole = all(self._take_change(change) for change in changes)
        except (StorageFault, EtcdForeignError) as error:  # reading again tells whether the head names it
            log.warning("metadata change ignored unless the head names it: %s", error)
            whole = False
        if self._head.seq > before:
            await self._show()
        return whole

    def _take_change(self, change: Change) -> bool:
        if change.value is None:
            return True  # an entry was let go
        if self._keys.events.has(change.key):
            return self._take_written(change.key, change.value)
        self._tick_seen = change.value
        return True

    async def check_watch(self) -> None:
        """Until `close`: a silent watch looks like a quiet one. Write a tick; a watch that does not show it is opened anew."""
        tick = revision = 0
        while not self._is_closed:
            tick += 1
            watch, value = self._watch, b"%d" % tick
            try:
                outcome = await self._etcd.write([Put(self._keys.tick(self._node), value)])
                self._answered()
                if tick % COMPACT_TICKS == 0:
                    if revision:  # of the last time: who reads at a revision is done with it by now
                        await self._etcd.compact(revision)
                    revision = outcome.revision
            except EtcdError as error:
                self._note(error)
                watch = None
            await self._world.wakeup().wait(TICK_SECONDS)
            if watch is not None and watch is self._watch and self._tick_seen != value:
                log.warning("the watch of the metadata shows nothing; opening it anew")
                watch.stop()

    def _note(self, error: EtcdError) -> None:
        """One call that failed is no outage yet: it is said once it lasts."""
        now = self._world.monotonic()
        if isinstance(error, EtcdForeignError) and not self._is_foreign:
            self._is_foreign, self.outage = True, None
            log.error("metadata refused: %s; this node serves with the metadata it has, topics do not change", error)
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
            log.info("etcd answers again, after %.0f s", self._world.monotonic() - self.outage.since)
        self.outage, self._is_outage_said = None, False

    # -- snapshots ---------------------------------------------------------------------------------------------

    async def save(self, image: Image, seq: int) -> None:
        if self._events_since_image < self._snapshot_every:
            return
        copy, entry = image.copy(), self._head.digest
        async with self._turns.take(_TURN):
            if seq != self._head.seq:
                return  # whoever made the later entry saves a later image
            data = await self._world.blocking(lambda: msgspec.json.encode(copy, order="sorted"))
            try:
                await images.write_image(self._etcd, self._keys, seq, entry, data)
                await images.let_go(self._etcd, self._keys)
            except EtcdError as error:  # entries are all there: the next change tries again
                self._note(error)
                return
            self._events_since_image = 0

    def write_durably(self, _: Sequence[Event]) -> None:
        raise AssertionError("nobody has a cluster's log alone")

    def close(self) -> None:
        self._is_closed = True
        if self._watch is not None:
            self._watch.stop()


def is_taken(seq: int, head: Position) -> bool:
    """A watch that is opened again, a read and the answer to a proposal all bring the same entries."""
    return seq <= head.seq


def _set_back(known: int, there: int) -> str:
    return (
        f"etcd was set back: this node has applied metadata entry {known}, and etcd ends with {there} or has another there; "
        "restore a newer copy of etcd, or stop all nodes and run `braid cluster recover`"
    )
