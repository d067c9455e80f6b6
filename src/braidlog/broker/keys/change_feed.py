"""The change feed: a partition of the topic `__kv` gets every change of one source of keys as a record, once.

Knows: what the partition has and what it lacks. Does not know: what changes mean, where the source keeps them
(`feed_sources.py`: the store of a lone node, or a log of slots).
Invariants: a record is appended only when its change, and everything it leans on, is durable or committed in the source. Each
record has the number of its change, so the feed continues after the last record of its log: no change is missing, none is there
twice. A batch that the partition refuses is tried again as it is, every `RETRY_SECONDS`.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from braidlog.codec.batch.read_committed import visible
from braidlog.codec.batch.records import decode_batch
from braidlog.kv.engine.store import Mutation
from braidlog.kv.feed.feed_records import Batch, FeedQueue, MutationColumns, sequence_in
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.model.settings import Flush, TopicSettings
from braidlog.partition.internal.system_topic import append_published, read_published
from braidlog.partition.partition import Partition

SETTINGS = TopicSettings(flush=Flush.ACK, compact=True, segment_bytes=64 * 1024 * 1024)
ROUND_BYTES = 4 * 1024 * 1024
"""Of batches that share two syncs, the source's and the feed's."""
TURN_BYTES = 1024 * 1024
"""Appended in one turn of the loop."""
PENDING_MAX = 50_000
"""Changes that wait for the feed. Beyond it, acknowledgements of a lone node wait; a log of slots is read again."""
PENDING_EARLY = PENDING_MAX // 2
"""From here on the feed does not linger."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""The same for the sections in which they wait."""
WAIT_SECONDS = 60.0
RETRY_SECONDS = 0.3
_NEVER: Final = 2**62


class Source(ABC):
    """Where the changes come from. It calls `changed` and `changed_together` of its feed."""

    @property
    @abstractmethod
    def is_led(self) -> bool:
        """Return whether this node publishes the changes."""

    @abstractmethod
    async def partition(self) -> Partition:
        """Return the partition to append to; raise if another node leads it."""

    @abstractmethod
    async def commit(self, feed: "Feed") -> bool:
        """Wait until no change made before the call can be lost; False: the feed is stale, or led by another node."""

    @abstractmethod
    async def publish_past(self, feed: "Feed") -> None:
        """`restart` a stale feed, and `publish` what it lacks until then."""

    @abstractmethod
    def refuse(self, error: BrokerError | StorageFault) -> StorageFault | None:
        """The feed retries later. Raise the error if it never will; return the error for callers that wait."""

    def resume(self) -> None:  # noqa: B027 - not every source has something to do
        """The feed has caught up after a refusal."""

    def stop(self, fault: StorageFault) -> None:  # noqa: B027 - not every source has something to do
        """The feed has ended."""


class Feed:
    """A `Watcher` of its source. `run` is its task; everything else may be called beside it."""

    def __init__(
        self,
        runtime: Runtime,
        partition: Partition | None,
        *,
        linger_seconds: float,
        is_stale: bool = False,
        pending_bytes_max: int | None = None,
    ) -> None:
        """`pending_bytes_max`: the feed becomes stale rather than keep more; None: callers wait for space."""
        self._runtime = runtime
        self.partition = partition
        """None: the topic is made with the first change."""
        self._linger_seconds = linger_seconds
        self._is_bounded = pending_bytes_max is not None
        self._bytes_max = pending_bytes_max or PENDING_BYTES_MAX
        self.is_stale = is_stale
        """It lacks changes that are not in the queue."""
        self.sequence = 0 if is_stale or partition is None else last_sequence(partition)
        """The number of the last change whose record is durable in the feed."""
        self._queue = FeedQueue(self.sequence)
        self._begun: deque[Batch] = deque()
        """The batches of the round under way that are not appended yet."""
        self._appended: int | None = None
        """The last change that is appended, until it is durable."""
        self._end = 0
        self._refused: StorageFault | None = None
        self._idle: Wakeup | None = None
        self._wakes_at = _NEVER
        """So many changes wake the task."""
        self._waiting: dict[Wakeup, None] = {}  # in the order they came: so they are answered
        self.fault: StorageFault | None = None

    # -- the source's changes --------------------------------------------------------------------------------

    def changed(self, mutation: Mutation, node: bytes) -> None:
        if not self.is_stale:
            self._queue.changed(mutation, node)
            if self._queue.count >= self._wakes_at or self._is_bounded:
                self._has_grown()

    def changed_together(self, told: MutationColumns, node: bytes) -> None:
        if not self.is_stale:
            self._queue.changed_together(told, node)
            if self._queue.count >= self._wakes_at or self._is_bounded:
                self._has_grown()

    def _has_grown(self) -> None:
        if self._queue.count >= self._wakes_at:
            self.wake()
        if self._is_bounded and self.is_behind:
            self.restarted()

    def restarted(self) -> None:
        """What waits is void, or too much: the source is read again."""
        self._queue = FeedQueue()
        self.is_stale = True
        self.wake()

    def restart(self, after: int, *, sequence: int) -> None:
        """Queue the changes after that number from now on; the feed ends with `sequence`."""
        self._queue, self.sequence = FeedQueue(after), sequence
        self._begun.clear()
        self._appended = None
        self.is_stale = False

    # -- waiting ---------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        queue = self._queue
        return queue.count > PENDING_MAX or queue.section_bytes > self._bytes_max

    @property
    def is_level(self) -> bool:
        """Return whether all changes that were made are durable in the feed."""
        return not (self.is_stale or self._queue.count or self._begun or self._appended is not None)

    async def wait_for_space(self) -> None:
        """Return when there is a topic, and the feed has caught up enough to take more; or will take nothing any more."""
        await self._wait_until(lambda: (self.partition is not None and not self.is_behind) or self.fault is not None)

    async def reach(self, sequence: int) -> None:
        """Return when every change up to this one is durable in the feed; raise its fault if it never will be."""
        await self._wait_until(lambda: self.sequence >= sequence)

    async def _wait_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            if (fault := self.fault or self._refused) is not None:
                raise fault.again()
            wakeup = self._runtime.wakeup()
            self._waiting[wakeup] = None
            self.wake()
            try:
                await wakeup.wait(WAIT_SECONDS)
            finally:
                self._waiting.pop(wakeup, None)

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for wakeup in waiting:
            wakeup.wake()

    def wake(self) -> None:
        """Let the task look for something to do."""
        if self._idle is not None:
            self._idle.wake()

    # -- the task --------------------------------------------------------------------------------------------

    async def run(self, source: Source) -> None:
        """Publish changes while the feed is led. What the source does not let it try again ends it."""
        try:
            while source.is_led:
                if self.is_level:
                    await self._rest(WAIT_SECONDS, changes=1)
                if self._linger_seconds and not self._waiting and self._queue.count <= PENDING_EARLY:
                    await self._rest(self._linger_seconds, changes=PENDING_EARLY + 1)
                await self._try_to_catch_up(source)
        except BaseException as error:
            # Whatever ended it, no caller may wait for it any more.
            self.fault = StorageFault(f"the change feed has stopped: {error}")
            source.stop(self.fault)
            self._wake_waiting()
            raise

    async def _try_to_catch_up(self, source: Source) -> None:
        try:
            await self._catch_up(source)
        except (BrokerError, StorageFault) as error:
            self._refused = source.refuse(error)
            self._wake_waiting()
            await self._runtime.wakeup().wait(RETRY_SECONDS)
            return
        if self._refused is not None:
            self._refused = None
            source.resume()

    async def _rest(self, seconds: float, *, changes: int) -> None:
        """Wait until a caller waits for the feed, or so many changes do, but not for longer."""
        self._idle, self._wakes_at = self._runtime.wakeup(), changes
        try:
            await self._idle.wait(seconds)
        finally:
            self._idle, self._wakes_at = None, _NEVER

    async def _catch_up(self, source: Source) -> None:
        """Publish what waits now, in rounds of some batches that share their syncs."""
        if self.is_level:
            await source.commit(self)  # which finds that the source is another
        if self.is_stale:
            try:
                await source.publish_past(self)
            except BaseException:
                self.is_stale = True
                raise
            self._wake_waiting()
        left = self._queue.count
        while not (self.is_level or self.is_stale):
            if not self._begun and self._appended is None:
                left -= self._queue.count
                self._begun.extend(self._queue.batches(ROUND_BYTES))
                left += self._queue.count
            # Up to the last change, not only to the last record: a part leans on a later change of its key.
            if self._begun and not await source.commit(self):
                return
            await self._append_begun(source)
            self._wake_waiting()
            if left <= 0:  # what came meanwhile lingers
                return

    async def _append_begun(self, source: Source) -> None:
        """Append the batches that are begun; each is taken off when it is in the log. Return when all are durable."""
        size = 0
        while self._begun:
            if size >= TURN_BYTES:
                await self._runtime.wakeup().wait(0)
                size = 0
            partition = await source.partition()
            if self.partition is None:
                self.partition = partition
                self._wake_waiting()
            batch, last = self._begun[0]
            self._end = append_published(partition, batch, self._runtime)
            self._begun.popleft()
            self._appended = last
            size += len(batch)
        if self._appended is not None:
            await (await source.partition()).wait_durable(self._end, self._runtime)
            self.sequence, self._appended = self._appended, None

    async def publish(self, source: Source, batches: Iterable[Batch], upto: int) -> None:
        """Append batches that were read from the source, each when the one before it is durable."""
        for batch in batches:
            self._begun.append(batch)
            await self._append_begun(source)
        self.sequence = upto


def keys_published(partition: Partition) -> list[bytes]:
    """Return the keys that exist for a reader of a feed."""
    found = dict[bytes, None]()
    for data, position, _ in visible(read_published(partition, partition.start_offset)):
        for _, _, key, value, _ in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            if key is not None and value is not None:
                found[key] = None
            elif key is not None:
                found.pop(key, None)
    return list(found)


def last_sequence(partition: Partition) -> int:
    """Return the number of the last change that a feed has a record of; 0 if there is none."""
    offset = partition.end_offset - 1
    while offset >= partition.start_offset and (found := next(read_published(partition, offset), None)) is not None:
        data, position, header = found
        if not header.is_control:
            rows = decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            for row in reversed(rows):
                sequence = sequence_in(row[4])
                if sequence is not None:
                    return sequence
        offset = header.base_offset - 1
    return 0
