"""The sources of change feeds: the store of a node without a cluster, or a log of slots.

Does not handle: records of the feed.
Invariants: a store accepts no change while its feed has ended or cannot write to a full disk. From a log of
slots, only committed changes are published, in log order, by the leader of the feed's partition. Committed
changes are the same on all replicas, and a log and its feed are on the same nodes. A feed gets the state of all
keys instead of changes only if it is further behind than its source reaches back.
"""

import logging
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, Final

from braidlog.broker.keys.change_feed import PENDING_BYTES_MAX, SETTINGS, Feed, Source, keys_published, last_sequence
from braidlog.broker.keys.slot_service import SlotService
from braidlog.broker.topics import Topics
from braidlog.kv.engine.keyspace import Image
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.feed.feed_records import FeedQueue, state_batches
from braidlog.kv.replicated import checkpoints
from braidlog.kv.replicated.slots import FEED_TOPIC, KEY_LOGS
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.hosted_log import Role
from braidlog.partition.key_log import KeyLog
from braidlog.partition.partition import Partition

log = logging.getLogger("braidlog.kv")
AGAIN_SECONDS: Final = 0.3
RECORDS_PER_TURN: Final = 200

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class StoreSource(Source):
    """The store of a node without a cluster. The feed gets every change during recovery and from then on."""

    is_led = True

    def __init__(self, store: LocalStore, topics: Topics, feed: Feed) -> None:
        self._store = store
        self._topics = topics
        if feed.sequence > store.sequence:
            raise StorageFault(
                f"the topic {FEED_TOPIC} ends with mutation {feed.sequence}, the store with {store.sequence}: "
                "they do not belong together"
            )
        if store.snapshot is not None and feed.sequence < store.snapshot.sequence:
            feed.restarted()  # the feed was off or is new: the log lacks earlier changes

    async def partition(self) -> Partition:
        return await self._topics.publish(FEED_TOPIC, SETTINGS)

    async def commit(self, feed: Feed) -> bool:  # noqa: ARG002 - required by the port
        await self._store.wal.durable(self._store.sequence)
        return True

    async def publish_past(self, feed: Feed) -> None:
        store = self._store
        image = store.keyspace.take_image()
        try:
            sequence, stamp, now_ms = store.sequence, store.clock.stamp.pack(), store.clock.wall_ms
            feed.restart(sequence, sequence=feed.sequence)
            await store.wal.durable(sequence)
            doubt = store.doubt
            gone = [key for key in _gone(feed.partition, image) if doubt is None or not doubt.holds(key)]
            batches = state_batches(image, gone, sequence=sequence, stamp=stamp, now_ms=now_ms)
            await feed.publish(self, batches, sequence)
        finally:
            store.keyspace.give_back(image)

    def refuse(self, error: BrokerError | StorageFault) -> StorageFault:
        if not isinstance(error, StorageFault) or not error.is_full:
            raise error
        if self._store.fault is None:
            log.warning("the disk is full: the key-value store takes no mutation until there is room: %s", error)
        self._store.stop(error)
        return error

    def resume(self) -> None:
        log.warning("there is room on the disk again: the key-value store takes mutations")
        self._store.resume_writes()

    def stop(self, fault: StorageFault) -> None:
        self._store.stop(fault)


class LogSource(Source):
    """A log of slots, while this node leads the feed's partition in one epoch."""

    def __init__(self, partition: Partition, slots: SlotService, runtime: Runtime) -> None:
        self._partition = partition
        self._epoch = partition.leader_epoch
        self._slots = slots
        self._runtime = runtime
        self._held: tuple[Partition, KeyLog] | None = None

    @property
    def sequence(self) -> int:
        return 0 if self._held is None else self._held[1].slot.applied

    @property
    def is_led(self) -> bool:
        feed = self._partition
        return feed.role is Role.LEADER and feed.leader_epoch == self._epoch and not feed.is_gone

    async def partition(self) -> Partition:
        if not self.is_led:
            raise self._partition.failed(Reason.NOT_LEADER)
        return self._partition

    async def commit(self, feed: Feed) -> bool:
        assert self._held is not None
        source, end = self._held[0], self.sequence
        while self._is_current(feed) and source.high_watermark < end:
            await self._until_changed(source)
        return self._is_current(feed)

    def _is_current(self, feed: Feed) -> bool:
        if self._slots.held(self._partition.number) is not self._held:
            feed.restarted()  # the log was closed, or opened again
        return self.is_led and not feed.is_stale

    async def publish_past(self, feed: Feed) -> None:
        """Publish from the log. It builds a second state from the log, separate from the one that serves requests."""
        while self.is_led and ((held := self._slots.held(self._partition.number)) is None or not held[1].is_whole):
            await self._runtime.wakeup().wait(AGAIN_SECONDS)
        if not self.is_led or held is None:
            return
        self._held, (source, slot) = held, held
        end = last_sequence(self._partition)
        feed.restart(end, sequence=end)
        slot.slot.watcher, end = feed, slot.slot.applied
        if not await self.commit(feed) or feed.sequence >= end:
            return
        shadow, past = slot.shadow(), FeedQueue(feed.sequence)
        lacks = feed.sequence < shadow.begins_at
        shadow.watcher = None if lacks else past
        while self._is_current(feed) and source.start_offset <= shadow.applied < end:
            if source.is_cutting:
                await self._until_changed(source)
                continue
            for origin, row in islice(slot.rows(shadow.applied, end), RECORDS_PER_TURN):
                checkpoints.apply(shadow, origin.offset, row)
            if not lacks:
                await feed.publish(self, past.batches(PENDING_BYTES_MAX), min(shadow.applied, end))
            await self._runtime.wakeup().wait(0)
        if shadow.applied < end:
            feed.restarted()  # the log was trimmed during the scan: start over
        elif lacks:
            image, stamp, now_ms = shadow.keyspace.take_image(), shadow.clock.stamp.pack(), shadow.clock.wall_ms
            gone = _gone(self._partition, image)
            await feed.publish(self, state_batches(image, gone, sequence=end, stamp=stamp, now_ms=now_ms), end)

    async def _until_changed(self, source: Partition) -> None:
        wakeup = self._runtime.wakeup()
        source.watch(wakeup)
        try:
            await wakeup.wait(AGAIN_SECONDS)
        finally:
            source.unwatch(wakeup)

    def refuse(self, error: BrokerError | StorageFault) -> None:
        log.info("the change feed of log %d waits: %s", self._partition.number, error)


def _gone(partition: Partition | None, image: Image) -> list[bytes]:
    """Return the keys that exist in the feed but not in the image."""
    return [] if partition is None else [key for key in keys_published(partition) if key not in image.data]


class LogFeeds:
    """The feeds of the partitions that this node leads."""

    def __init__(self, slots: SlotService, settings: KeyValueSettings, runtime: Runtime, spawn: Spawn) -> None:
        self._slots = slots
        self._linger_seconds = settings.feed_linger_ms / 1000
        self._runtime = runtime
        self._spawn = spawn
        self._feeds: dict[int, tuple[Feed, LogSource]] = {}

    def on_leadership_change(self, partition: Partition) -> None:
        """Start or stop a feed: its partition of `FEED_TOPIC` has a new leader or leader epoch."""
        number, held = partition.number, self._slots.held(partition.number)
        former = self._feeds.pop(number, None)
        if held is not None:
            held[1].slot.watcher = None
        if former is not None:
            former[0].wake()  # its source is no longer led
        if partition.role is Role.LEADER and not partition.is_gone:
            source = LogSource(partition, self._slots, self._runtime)
            feed = Feed(
                self._runtime,
                partition,
                linger_seconds=self._linger_seconds,
                is_stale=True,
                pending_bytes_max=PENDING_BYTES_MAX // KEY_LOGS,
            )
            self._feeds[number] = feed, source
            self._spawn(feed.run(source), f"feed of log {number}")

    @property
    def sequence(self) -> int:
        """Return the count of changes that the partitions led here have published. The source may have applied a
        checkpoint after them, which does not count as a change."""
        every = self._feeds.values()
        return sum(max(feed.sequence, source.sequence) if feed.is_level else feed.sequence for feed, source in every)
