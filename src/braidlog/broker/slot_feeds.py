"""The change feed of keys in slots: the leader of a partition of `__kv` tells what its own copy of that log holds.

Knows: what each partition has told, and what is committed since. Refuses to know: what mutations mean, who leads the slots: what
is committed is the same in all copies, and a log and its feed are on the same nodes.
Invariants: only what is committed in the slot's log is told, in its order, by the leader of the feed's partition alone. Each
record has the offset of its mutation, so whoever leads the partition next goes on after the last record of its log: nothing is
missing, nothing is told twice. Only a feed that is further behind than the log goes back tells states in place of changes.
"""

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from braidlog.broker.feed import BATCH_BYTES, BATCH_RECORDS_MAX, last_sequence, state_batches
from braidlog.broker.slots import Slots
from braidlog.codec.batch import read_headers
from braidlog.kv import checkpoints
from braidlog.kv.feed import FeedSection, MutationColumns
from braidlog.kv.settings import KeyValueSettings
from braidlog.kv.store import Mutation
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.world import Wakeup, World
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.partition.replicated import Produced
from braidlog.partition.replicated_slot import ReplicatedSlot

log = logging.getLogger("braidlog.kv")
PENDING_MAX: Final = 20_000
"""Changes of a slot that wait to be told; more are read from the log once more."""
AGAIN_SECONDS: Final = 0.3
IDLE_SECONDS: Final = 60.0
RECORDS_PER_TURN: Final = 200

Spawn = Callable[[Coroutine[Any, Any, None], str], object]
Batch = tuple[bytes, int]
"""And the number in its last record."""
Change = tuple[Mutation | MutationColumns, bytes]
"""And the node that gave the stamps."""


class SlotFeed:
    """One slot's, as long as this node leads its partition in one epoch. A `Watcher` of the slot."""

    def __init__(self, feed: Partition, slots: Slots, settings: KeyValueSettings, world: World) -> None:
        self._feed = feed
        self._epoch = feed.leader_epoch
        self._slots = slots
        self._world = world
        self._linger_seconds = settings.feed_linger_ms / 1000
        self._pending: deque[Change] = deque()
        self._pending_rows = 0
        self._is_stale = False
        self._is_level = False
        """Whether all is told that was there before changes were noted."""
        self._idle: Wakeup | None = None
        self.sequence = 0
        """Up to which the partition's log tells."""

    @property
    def is_led(self) -> bool:
        feed = self._feed
        return feed.role is Role.LEADER and feed.leader_epoch == self._epoch and not feed.is_gone

    @property
    def reached(self) -> int:
        """All changes up to this offset of the slot's log are told; what follows may be a checkpoint, which is none."""
        held = self._slots.held(self._feed.number)
        if held is None or held[1].slot.watcher is not self or not self._is_level or self._pending or self._is_stale:
            return self.sequence
        return max(self.sequence, held[1].slot.applied)

    # -- what the slot says ------------------------------------------------------------------------------------

    def changed(self, mutation: Mutation, node: bytes) -> None:
        if mutation.sequence <= self.sequence:
            return  # the leader before told it; the state here is behind the feed, whose watermark came earlier
        self._pending_rows += 1
        if self._pending_rows >= PENDING_MAX:
            self._is_stale = True
        elif not self._is_stale:
            self._pending.append((mutation, node))
        self.wake()

    def changed_together(self, told: MutationColumns, node: bytes) -> None:
        if told.sequence <= self.sequence:
            for each in told.mutations():
                self.changed(each, node)
            return
        self._pending_rows += told.count
        if self._pending_rows >= PENDING_MAX:
            self._is_stale = True
        elif not self._is_stale:
            self._pending.append((told, node))
        self.wake()

    def began_anew(self) -> None:
        self._is_stale = True
        self.wake()

    def wake(self) -> None:
        if self._idle is not None:
            self._idle.wake()

    # -- the task ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        is_read = False
        while self.is_led:
            held = self._slots.held(self._feed.number)
            if held is None or not held[1].is_whole:
                await self._rest(AGAIN_SECONDS)
                continue
            try:
                if not is_read:
                    self.sequence, is_read = last_sequence(self._feed), True
                await self._follow(*held)
            except (BrokerError, StorageFault) as error:
                log.info("the change feed of log %d waits: %s", self._feed.number, error)
                await self._rest(AGAIN_SECONDS)
            finally:
                if held[1].slot.watcher is self:
                    held[1].slot.watcher = None

    async def _follow(self, source: Partition, slot: ReplicatedSlot) -> None:
        """Tell what the slot's log holds since, then what is changed, until the slot begins anew."""
        self._pending.clear()
        self._pending_rows = 0
        self._is_stale = self._is_level = False
        slot.slot.watcher = self
        noted_from = slot.slot.applied

        def goes_on() -> bool:
            return self.is_led and not self._is_stale and not source.is_gone

        while goes_on() and source.high_watermark < noted_from:
            await self._rest(AGAIN_SECONDS)
        if goes_on() and self.sequence < noted_from:
            await self._tell_past(source, slot, noted_from)
        self._is_level = goes_on()
        while goes_on():
            if not self._pending:
                await self._rest(IDLE_SECONDS)
                continue
            if self._linger_seconds:
                await self._world.wakeup().wait(self._linger_seconds)
            if goes_on():
                await self._tell_pending(source, goes_on)

    async def _tell_past(self, source: Partition, slot: ReplicatedSlot, end: int) -> None:
        """What was committed before this began: by a state of its own, made from the log."""
        shadow, told = slot.shadow(), _Collected(self.sequence)
        lacks = self.sequence < shadow.begins_at
        shadow.watcher = None if lacks else told
        while self.is_led and not source.is_gone and source.start_offset <= shadow.applied < end:
            if source.is_cutting:
                await self._until_changed(source)
                continue
            for origin, row in islice(slot.rows(shadow.applied, end), RECORDS_PER_TURN):
                checkpoints.apply(shadow, origin.offset, row)
            if not lacks:
                await self._write(told.taken(), min(shadow.applied, end))
            await self._world.wakeup().wait(0)
        if shadow.applied < end:
            self._is_stale = True  # the log was trimmed meanwhile: once more, from there
        elif lacks:
            image, stamp, now_ms = shadow.keyspace.take_image(), shadow.clock.stamp.pack(), shadow.clock.wall_ms
            await self._write(state_batches(image, self._feed, sequence=end, stamp=stamp, now_ms=now_ms), end)

    async def _tell_pending(self, source: Partition, goes_on: Callable[[], bool]) -> None:
        """Written out at once, as lists and hashes are now, and told when all of it is committed."""
        changes = list(self._pending)
        batches, end = list(_batches(changes)), _end(changes[-1][0])
        while goes_on() and source.high_watermark < end:
            await self._until_changed(source)
        if goes_on():
            await self._write(batches, end)
            for _ in changes:
                self._pending_rows -= _count(self._pending.popleft()[0])

    async def _write(self, batches: Iterable[Batch], upto: int) -> None:
        """Each is committed before the next. What is in the log here is told, whatever becomes of the epoch."""
        for data, last in batches:
            produced = Produced(data, list(read_headers(data)), self._world.now_ms())
            self._feed.produce(produced, needs_all=True, is_awaited=False)
            self.sequence = last
            await self._feed.made_durable(self._feed.end_offset, self._world)
        self.sequence = upto

    async def _until_changed(self, source: Partition) -> None:
        wakeup = self._world.wakeup()
        source.watch(wakeup)
        try:
            await wakeup.wait(AGAIN_SECONDS)
        finally:
            source.unwatch(wakeup)

    async def _rest(self, seconds: float) -> None:
        self._idle = self._world.wakeup()
        try:
            await self._idle.wait(seconds)
        finally:
            self._idle = None


class _Collected:
    """A `Watcher` of a state that is made from the log: what is after `sequence`."""

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self._changes: list[Change] = []

    def changed(self, mutation: Mutation, node: bytes) -> None:
        if mutation.sequence > self._sequence:
            self._changes.append((mutation, node))

    def changed_together(self, told: MutationColumns, node: bytes) -> None:
        self._changes += [(each, node) for each in told.mutations() if each.sequence > self._sequence]

    def began_anew(self) -> None:
        raise AssertionError("a state that is made from the log is made once")

    def taken(self) -> list[Batch]:
        changes, self._changes = self._changes, []
        return list(_batches(changes))


def _batches(changes: list[Change]) -> Iterator[Batch]:
    """A list or hash is written out with its last change among them. A batch has the stamps of one node, in their order."""
    latest = {told.key: told.sequence for told, _ in changes if isinstance(told, Mutation)}
    section, of_node, wall_ms = FeedSection(b""), b"", 0
    for each, node in changes:
        told: Mutation | MutationColumns | None = each
        while told is not None:
            is_full = section.count >= BATCH_RECORDS_MAX or len(section.data) >= BATCH_BYTES
            if is_full or node != of_node or told.wall_ms < wall_ms:
                if section.count:
                    yield section.seal(), section.last
                section, of_node = FeedSection(node.hex().encode()), node
            wall_ms = told.wall_ms
            if isinstance(told, Mutation):
                section.append(told, is_latest=latest[told.key] == told.sequence)
                told = None
            else:
                told = section.append_columns(told, count_max=BATCH_RECORDS_MAX, bytes_max=BATCH_BYTES)
    if section.count:
        yield section.seal(), section.last


def _count(told: Mutation | MutationColumns) -> int:
    return 1 if isinstance(told, Mutation) else told.count


def _end(told: Mutation | MutationColumns) -> int:
    """Return the number of the last change."""
    return told.sequence + _count(told) - 1


class SlotFeeds:
    """Those that this node tells."""

    def __init__(self, slots: Slots, settings: KeyValueSettings, world: World, spawn: Spawn) -> None:
        self._slots = slots
        self._settings = settings
        self._world = world
        self._spawn = spawn
        self._told: dict[int, SlotFeed] = {}

    def led_anew(self, partition: Partition) -> None:
        """A partition of `FEED_TOPIC` has another leader, or the same in another epoch."""
        former = self._told.pop(partition.number, None)
        if former is not None:
            former.wake()  # it finds that it is led no more
        if partition.role is Role.LEADER and not partition.is_gone:
            feed = self._told[partition.number] = SlotFeed(partition, self._slots, self._settings, self._world)
            self._spawn(feed.run(), f"feed of log {partition.number}")

    @property
    def sequence(self) -> int:
        """Changes that the partitions led here tell of, in all."""
        return sum(each.reached for each in self._told.values())
