"""The change feed: every mutation of the key-value store as a record of the topic `__kv`, once.

Knows: what the topic has and what it lacks. Refuses to know: what mutations mean.
Invariants: the store's log comes first. A record is appended only when its mutation, and everything it leans on, is durable
there; and the store keeps what the feed lacks. So after any crash the feed is behind the store or level with it, never ahead, and
goes on after the number in its last record: no mutation is missing, none is told twice. While the disk is full the store takes no
mutation; the feed tries again every `RETRY_SECONDS`, with the very batch that did not fit, and lets the store go on.

Records are written to sections as their mutations are made, while keys and values are at hand; but collections, which are told
whole or in part by what is known when a batch is made, wait as they are, and so does whatever comes behind them.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from braidlog.broker.topics import Topics
from braidlog.codec.records import decode_batch, encode_batch
from braidlog.codec.visible import visible
from braidlog.kv.feed import FeedRecord, FeedSection, MutationColumns, sequence_in, state_record
from braidlog.kv.keyspace import Image
from braidlog.kv.slots import FEED_TOPIC
from braidlog.kv.store import Mutation, Store
from braidlog.kv.values import HashValue, ListValue
from braidlog.model.errors import StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.settings import Flush, TopicSettings
from braidlog.model.world import Wakeup, World
from braidlog.partition.partition import Partition
from braidlog.partition.published import append_published, read_published

SETTINGS = TopicSettings(flush=Flush.ACK, compact=True, segment_bytes=64 * 1024 * 1024)
BATCH_RECORDS_MAX = 1_000
BATCH_BYTES = 1024 * 1024
RECORD_BYTES = 200
"""What a record of a state takes beside its value, about."""
ROUND_BATCHES_MAX = 32
"""Batches that share two syncs, the store's and the feed's; until they have `ROUND_BYTES`. Others have their turn between them
after each `BATCH_BYTES`, so that nobody waits for long."""
ROUND_BYTES = 4 * 1024 * 1024
PENDING_MAX = 50_000
"""Mutations that wait for the feed. Beyond it, acknowledgements wait with them."""
PENDING_EARLY = PENDING_MAX // 2
"""From here on the feed lingers no longer, so that nobody comes to wait."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""The same for the sections in which they wait."""
WAIT_SECONDS = 60.0
RETRY_SECONDS = 1.0
log = logging.getLogger("braidlog.kv")


class Feed:
    """The feed of one store. `run` is its task; everything else may be called beside it."""

    def __init__(self, topics: Topics, world: World) -> None:
        self._topics = topics
        self._world = world
        self._hosted: Partition | None = None
        self._store: Store | None = None
        self._sections: deque[FeedSection] = deque()
        """What comes before anything in `_pending`; all are full but the last."""
        self._section_bytes = 0
        self._pending: deque[Mutation | MutationColumns] = deque()
        self._pending_count = 0
        """Of both."""
        self._latest: dict[bytes, int] = {}
        self._begun: deque[tuple[bytes, int]] = deque()
        """The batches of the round under way that are not appended yet, each with its last mutation."""
        self._unsettled: int | None = None
        """The last mutation that is appended, until it is durable."""
        self._end = 0
        self._full: StorageFault | None = None
        self._idle: Wakeup | None = None
        self._wakes_for_mutations = False
        self._waiting: dict[Wakeup, None] = {}  # in the order they came: so they are answered
        self._is_urgent = False
        self._lacks_state = False
        self.sequence = 0
        """The last mutation whose record is durable in the feed."""
        self.fault: StorageFault | None = None

    # -- opening ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find out how far the feed has got; before the store is opened, so that it can be told what is new."""
        found = self._topics.hosting.find(FEED_TOPIC)
        if found is not None:
            hosted = self._topics.hosting.partition(FEED_TOPIC, 0)
            self._use(hosted)
            self.sequence = last_sequence(hosted)

    def _use(self, hosted: Partition) -> None:
        self._hosted = hosted
        hosted.when_cut(self._drop_above)

    def _drop_above(self, _offset: int) -> None:
        """Records were taken back: what they told is told again."""
        assert self._hosted is not None
        sequence = last_sequence(self._hosted)
        if sequence < self.sequence:
            self.sequence, self._lacks_state = sequence, True

    def attach(self, store: Store, *, snapshot_upto: int) -> None:
        """The store is open, and has told of everything beyond the feed that its log holds: what is after its snapshot."""
        self._store = store
        if self.sequence > store.sequence:
            raise StorageFault(
                f"the topic {FEED_TOPIC} tells of mutation {self.sequence}, the store ends with {store.sequence}: "
                "they do not belong together"
            )
        if self.sequence < snapshot_upto:
            # It was off for a while, or is new: what was changed meanwhile is not in the log any more.
            self._lacks_state = True
            self._forget_pending()

    def note(self, mutation: Mutation) -> None:
        """A mutation was made (or, at the start, found in the log)."""
        if mutation.sequence <= self.sequence:
            return
        if self._writes_at_once and not isinstance(mutation.value, ListValue | HashValue):
            section = self._section()
            size = len(section.data)
            section.append(mutation, is_latest=True)
            self._section_bytes += len(section.data) - size
        else:
            self._latest[mutation.key] = mutation.sequence
            self._pending.append(mutation)
        self._noted(1)

    def note_columns(self, told: MutationColumns) -> None:
        """Many were made, of keys that hold no collection: which of them is the latest of its key makes no difference."""
        count, rest = told.count, told if self._writes_at_once else None
        if rest is None:
            self._pending.append(told)
        while rest is not None:
            section = self._section()
            size = len(section.data)
            rest = section.append_columns(rest, count_max=BATCH_RECORDS_MAX, bytes_max=BATCH_BYTES)
            self._section_bytes += len(section.data) - size
        self._noted(count)

    @property
    def _writes_at_once(self) -> bool:
        return not self._pending and self._store is not None

    def _section(self) -> FeedSection:
        """The one that has room."""
        if not self._sections or _is_full(self._sections[-1]):
            assert self._store is not None
            self._sections.append(FeedSection(self._store.clock.node.hex().encode()))
        return self._sections[-1]

    def _noted(self, count: int) -> None:
        self._pending_count += count
        if self._idle is not None and (self._wakes_for_mutations or self._pending_count > PENDING_EARLY):
            self._idle.wake()

    def _forget_pending(self) -> None:
        self._sections.clear()
        self._pending.clear()
        self._section_bytes = self._pending_count = 0
        self._latest.clear()

    # -- waiting ---------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        return self._pending_count > PENDING_MAX or self._section_bytes > PENDING_BYTES_MAX

    @property
    def has_begun(self) -> bool:
        """Whether there is a topic: who has heard of a mutation finds one."""
        return self._hosted is not None

    async def wait_for_space(self) -> None:
        """Return when the feed has begun, and caught up enough to take more; or will take nothing any more."""
        await self._wait_until(lambda: (self.has_begun and not self.is_behind) or self.fault is not None)

    async def reach(self, sequence: int) -> None:
        """Return when every mutation up to this one is durable in the feed; raise its fault if it never will be."""
        await self._wait_until(lambda: self.sequence >= sequence)

    async def _wait_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            if (fault := self.fault or self._full) is not None:
                raise fault.again()
            self._is_urgent = True
            if self._idle is not None:
                self._idle.wake()
            wakeup = self._world.wakeup()
            self._waiting[wakeup] = None
            try:
                await wakeup.wait(WAIT_SECONDS)
            finally:
                self._waiting.pop(wakeup, None)

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for wakeup in waiting:
            wakeup.wake()

    # -- the task --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what is pending, for ever. A fault of the disk ends it: then the store takes no more mutations."""
        assert self._store is not None
        settings = self._store.settings
        # Each turn also syncs the store's log; who set `flush` to something else does not want that all the time.
        linger_ms = settings.feed_linger_ms
        if settings.flush is not Flush.ACK:
            linger_ms = max(linger_ms, settings.flush_interval_ms)
        try:
            while True:
                if not self._is_under_way and not self._lacks_state:
                    await self._rest(WAIT_SECONDS, until_mutation=True)
                if linger_ms and not self._is_urgent:
                    await self._rest(linger_ms / 1000, until_mutation=False)
                await self._catch_up_or_wait()
        except BaseException as error:
            # Whatever ended it, nobody may wait for it any more.
            self.fault = StorageFault(f"the change feed has stopped: {error}")
            self._store.stop(self.fault)
            self._wake_waiting()
            raise

    async def _catch_up_or_wait(self) -> None:
        """As `catch_up`. Where there is no room on the disk, say so to everyone, and rest before the next attempt."""
        assert self._store is not None
        try:
            await self.catch_up()
        except StorageFault as fault:
            if not fault.is_full:
                raise
            if self._full is None:
                log.warning("the disk is full: the key-value store takes no mutation until there is room: %s", fault)
            self._full = fault
            self._store.stop(fault)
            self._wake_waiting()
            await self._rest(RETRY_SECONDS, until_mutation=False)
            return
        if self._full is not None:
            log.warning("there is room on the disk again: the key-value store goes on")
            self._full = None
            self._store.go_on()

    async def _rest(self, seconds: float, *, until_mutation: bool) -> None:
        """Wait until somebody waits for the feed, or (if so asked) there is a mutation, but not for ever."""
        self._idle = self._world.wakeup()
        self._wakes_for_mutations = until_mutation
        try:
            await self._idle.wait(seconds)
        finally:
            self._idle = None

    @property
    def _is_under_way(self) -> bool:
        return self._pending_count > 0 or bool(self._begun) or self._unsettled is not None

    async def catch_up(self) -> None:
        """Write everything that is pending now, in rounds of some batches that share their syncs."""
        assert self._store is not None
        self._is_urgent = False
        if self._lacks_state:
            await self._tell_state(self._store)
        while self._is_under_way:
            if not self._begun and self._unsettled is None:
                self._begin(self._store.clock.node.hex().encode())
            if self._begun:
                # Up to what the log has now, not only to the last record: a part leans on a later mutation of its key.
                await self._store.log.durable(self._store.sequence)
            appended_bytes = 0
            while self._begun:
                if appended_bytes >= BATCH_BYTES:
                    await self._world.wakeup().wait(0)
                    appended_bytes = 0
                batch, last = self._begun[0]
                await self._append(batch)
                self._begun.popleft()
                self._unsettled = last
                appended_bytes += len(batch)
            await self._settle()
            assert self._unsettled is not None
            self.sequence, self._unsettled = self._unsettled, None
            self._wake_waiting()

    def _begin(self, node_hex: bytes) -> None:
        """Make the batches of a round."""
        size = 0
        while self._pending_count and size < ROUND_BYTES and len(self._begun) < ROUND_BATCHES_MAX:
            self._begun.append(self._next_batch(node_hex))
            size += len(self._begun[-1][0])

    def _next_batch(self, node_hex: bytes) -> tuple[bytes, int]:
        if self._sections:
            section = self._sections.popleft()
            self._section_bytes -= len(section.data)
        else:
            section = FeedSection(node_hex)
        while self._pending and not self._sections and not _is_full(section):
            told = self._pending.popleft()
            if isinstance(told, MutationColumns):
                rest = section.append_columns(told, count_max=BATCH_RECORDS_MAX, bytes_max=BATCH_BYTES)
                if rest is not None:
                    self._pending.appendleft(rest)
                continue
            is_latest = self._latest[told.key] == told.sequence
            if is_latest:
                del self._latest[told.key]
            section.append(told, is_latest=is_latest)
        self._pending_count -= section.count
        return section.seal(), section.last

    async def _append(self, batch: bytes) -> None:
        hosted = self._hosted
        if hosted is None:
            hosted = await self._topics.publish(FEED_TOPIC, SETTINGS)
            self._use(hosted)
            self._wake_waiting()  # who waits for a topic has one
        self._end = append_published(hosted, batch, self._world)

    async def _settle(self) -> None:
        assert self._hosted is not None
        await self._hosted.made_durable(self._end, self._world)

    # -- a feed that lacks a part of the past ----------------------------------------------------------------

    async def _tell_state(self, store: Store) -> None:
        """Tell what every key holds, and which of those that the feed knows are gone."""
        image = store.keyspace.take_image()
        try:
            sequence, stamp, now_ms = store.sequence, store.clock.stamp.pack(), store.clock.wall_ms
            self._forget_pending()
            await store.log.durable(sequence)
            for batch, _ in state_batches(image, self._hosted, sequence=sequence, stamp=stamp, now_ms=now_ms):
                await self._append(batch)
                await self._settle()
            self.sequence = sequence
            self._lacks_state = False
        finally:
            store.keyspace.give_back(image)
        self._wake_waiting()


def _is_full(section: FeedSection) -> bool:
    return section.count >= BATCH_RECORDS_MAX or len(section.data) >= BATCH_BYTES


def state_batches(
    image: Image, hosted: Partition | None, *, sequence: int, stamp: bytes, now_ms: int
) -> Iterator[tuple[bytes, int]]:
    """Return batches that tell what every key holds, and which keys of the feed are gone; with each the number in its last
    record. Only the last record of all has a number, others have 0: a feed that ends with 0 is told its state again."""
    gone = [] if hosted is None else [key for key in keys_told(hosted) if key not in image.data]
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


def _some(records: Iterator[FeedRecord]) -> Iterator[FeedRecord]:
    """Return records for one batch."""
    size = 0
    for record in islice(records, BATCH_RECORDS_MAX):
        yield record
        size += len(record.value or b"") + RECORD_BYTES
        if size >= BATCH_BYTES:
            return


def keys_told(hosted: Partition) -> Iterable[bytes]:
    """The keys that a reader of a feed takes to be there."""
    there = dict[bytes, None]()
    for data, position, _ in visible(read_published(hosted, hosted.start_offset)):
        for _, _, key, value, _ in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            if key is not None and value is not None:
                there[key] = None
            elif key is not None:
                there.pop(key, None)
    return there


def last_sequence(hosted: Partition) -> int:
    """The mutation that the last record of a feed tells of; 0 if there is none."""
    offset = hosted.end_offset - 1
    while offset >= hosted.start_offset and (found := next(read_published(hosted, offset), None)) is not None:
        data, position, header = found
        if not header.is_control:
            rows = decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            for row in reversed(rows):
                sequence = sequence_in(row[4])
                if sequence is not None:
                    return sequence
        offset = header.base_offset - 1
    return 0
