"""The change feed: publishes every change of one source of keys as a record in a partition of the topic `__kv`,
exactly once.

Does not handle: the meaning of changes, their storage in the source (`feed_sources.py`: the store of a node
without a cluster, or a log of slots).
Invariants: a record is appended only after its change, and every change that it depends on, is durable or
committed in the source. Each record has the number of its change, so the feed continues after the last record of
its log without gaps or duplicates. A refused batch is retried unchanged, every `RETRY_SECONDS`.
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
"""Size of a round: its batches share two syncs, the source's and the feed's."""
TURN_BYTES = 1024 * 1024
"""Bytes appended in one turn of the event loop."""
PENDING_MAX = 50_000
"""Changes that wait for the feed. Beyond it, a node without a cluster delays acknowledgements; a log of slots is
read from its log again."""
PENDING_EARLY = PENDING_MAX // 2
"""With more waiting changes, the feed does not linger."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Byte limit of the sections that hold waiting changes."""
WAIT_SECONDS = 60.0
RETRY_SECONDS = 0.3
_NEVER: Final = 2**62


class Source(ABC):
    """The origin of the changes. It calls `changed` and `changed_together` of its feed."""

    @property
    @abstractmethod
    def is_led(self) -> bool:
        """Return whether this node publishes the changes."""

    @abstractmethod
    async def partition(self) -> Partition:
        """Return the partition to append to; raise if another node leads it."""

    @abstractmethod
    async def commit(self, feed: "Feed") -> bool:
        """Wait until no change made before the call can be lost. Return False if the feed is stale or has another
        leader."""

    @abstractmethod
    async def publish_past(self, feed: "Feed") -> None:
        """`restart` a stale feed, and `publish` the changes that it lacks."""

    @abstractmethod
    def refuse(self, error: BrokerError | StorageFault) -> StorageFault | None:
        """Handle a refusal that the feed retries. Raise the error if it is final; return an error to fail waiting
        callers."""

    def resume(self) -> None:  # noqa: B027 - not every source has something to do
        """Called when the feed has caught up after a refusal."""

    def stop(self, fault: StorageFault) -> None:  # noqa: B027 - not every source has something to do
        """Called when the feed has ended."""


class Feed:
    """A `Watcher` of its source. `run` is its task; the other methods may be called during it."""

    def __init__(
        self,
        runtime: Runtime,
        partition: Partition | None,
        *,
        linger_seconds: float,
        is_stale: bool = False,
        pending_bytes_max: int | None = None,
    ) -> None:
        """`pending_bytes_max`: beyond it the feed becomes stale; None: callers wait for space."""
        self._runtime = runtime
        self.partition = partition
        """None: the topic is created with the first change."""
        self._linger_seconds = linger_seconds
        self._is_bounded = pending_bytes_max is not None
        self._bytes_max = pending_bytes_max or PENDING_BYTES_MAX
        self.is_stale = is_stale
        """The feed lacks changes that are not in the queue."""
        self.sequence = 0 if is_stale or partition is None else last_sequence(partition)
        """The number of the last change whose record is durable in the feed."""
        self._queue = FeedQueue(self.sequence)
        self._begun: deque[Batch] = deque()
        """Batches of the current round that are not appended yet."""
        self._appended: int | None = None
        """The last appended change, until it is durable."""
        self._end = 0
        self._refused: StorageFault | None = None
        self._idle: Wakeup | None = None
        self._wakes_at = _NEVER
        """Count of queued changes that wakes the task."""
        self._waiting: dict[Wakeup, None] = {}  # in order of arrival: callers are answered in that order
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
        """Drop the queue: it is invalid or too long. The source is read again."""
        self._queue = FeedQueue()
        self.is_stale = True
        self.wake()

    def restart(self, after: int, *, sequence: int) -> None:
        """Queue the changes after this number; `sequence` is the feed's last change."""
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
        """Return whether all changes are durable in the feed."""
        return not (self.is_stale or self._queue.count or self._begun or self._appended is not None)

    async def wait_for_space(self) -> None:
        """Wait until the topic exists and the queue has space, or the feed has ended."""
        await self._wait_until(lambda: (self.partition is not None and not self.is_behind) or self.fault is not None)

    async def reach(self, sequence: int) -> None:
        """Wait until every change up to this one is durable in the feed; raise its fault if it has ended."""
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
        """Wake the task."""
        if self._idle is not None:
            self._idle.wake()

    # -- the task --------------------------------------------------------------------------------------------

    async def run(self, source: Source) -> None:
        """Publish changes while the feed is led. An error that the source does not retry ends the task."""
        try:
            while source.is_led:
                if self.is_level:
                    await self._rest(WAIT_SECONDS, changes=1)
                if self._linger_seconds and not self._waiting and self._queue.count <= PENDING_EARLY:
                    await self._rest(self._linger_seconds, changes=PENDING_EARLY + 1)
                await self._try_to_catch_up(source)
        except BaseException as error:
            # Callers may not wait for a feed that has ended, for any reason.
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
        """Wait until a caller waits for the feed or `changes` are queued, at most `seconds`."""
        self._idle, self._wakes_at = self._runtime.wakeup(), changes
        try:
            await self._idle.wait(seconds)
        finally:
            self._idle, self._wakes_at = None, _NEVER

    async def _catch_up(self, source: Source) -> None:
        """Publish the queued changes, in rounds of batches that share their syncs."""
        if self.is_level:
            await source.commit(self)  # detects that the source was replaced
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
            # Up to the last change, not only to the last record: a part depends on a later change of its key.
            if self._begun and not await source.commit(self):
                return
            await self._append_begun(source)
            self._wake_waiting()
            if left <= 0:  # changes that arrived during the round linger
                return

    async def _append_begun(self, source: Source) -> None:
        """Append the batches of the round; each leaves the queue when it is in the log. Return when all are durable."""
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
        """Append batches that were read from the source, each after the one before it is durable."""
        for batch in batches:
            self._begun.append(batch)
            await self._append_begun(source)
        self.sequence = upto


def keys_published(partition: Partition) -> list[bytes]:
    """Return the keys that a reader of the feed sees as existing."""
    found = dict[bytes, None]()
    for data, position, _ in visible(read_published(partition, partition.start_offset)):
        for _, _, key, value, _ in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            if key is not None and value is not None:
                found[key] = None
            elif key is not None:
                found.pop(key, None)
    return list(found)


def last_sequence(partition: Partition) -> int:
    """Return the number of the last change that has a record in the feed; 0 if there is none."""
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
