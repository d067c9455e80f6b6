"""Prefetches one partition for its consumer.

Does not handle: groups, other consumers. Records are returned in order and once. `position` is the offset after the
last returned record, so commits cover returned records only. A dropped fetcher returns nothing more.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from braidlog.client.drivers.contract import ConsumedRecord, Driver, Fetched, FetchRequest
from braidlog.client.drivers.routed import FETCH_CHANNELS_MAX
from braidlog.client.engine.options import ConsumerOptions
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.errors import ClientError, Refusal, RefusedError

if TYPE_CHECKING:
    from braidlog.client.engine.consumer import Consumer

_RECORD_OVERHEAD_BYTES = 128
_IDLE_SECONDS_MIN, _IDLE_SECONDS_MAX = 0.005, 0.25
_FETCH_BYTES_MIN = 64 * 1024


class PartitionFetcher:
    """Prefetches one partition for its consumer."""

    def __init__(
        self,
        owner: "Consumer",
        driver: Driver,
        policy: Policy,
        options: ConsumerOptions,
        place: tuple[str, int],
        offset: int,
        slot: int,
    ) -> None:
        self._owner = owner
        self._driver = driver
        self._policy = policy
        self._options = options
        self.topic, self.partition = place
        self.position = offset
        self.began = offset
        self.processed = offset
        """The position at the consumer's last poll: all records before it were processed."""
        self.committed: int | None = None
        self._next_fetch = offset
        self._high_watermark: int | None = None
        self._slot = slot
        self._records: deque[ConsumedRecord] = deque()
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return (
            f"<PartitionFetcher {self.topic}/{self.partition} at {self.position}, {len(self._records)} fetched ahead>"
        )

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def settled(self) -> int:
        """The group's committed offset, as far as this consumer knows; else the start offset."""
        return self.began if self.committed is None else self.committed

    # -- returning records -----------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        return len(self._records)

    @property
    def reached(self) -> int:
        """The offset before which nothing is left to return: control records and compacted offsets are skipped."""
        return self.position if self._records else max(self.position, self._next_fetch)

    @property
    def lag(self) -> int | None:
        """The number of stored records that are not returned yet, as of the last fetch."""
        return None if self._high_watermark is None else max(self._high_watermark - self.reached, 0)

    def take(self) -> ConsumedRecord:
        record = self._records.popleft()
        self._bytes -= _weigh(record)
        self.position = record.offset + 1
        if self._bytes <= self._quota // 2:
            self._has_room.set()
        return record

    def clear(self) -> None:
        """Discard prefetched records."""
        self._records.clear()
        self._bytes = 0
        self._has_room.set()

    # -- fetching --------------------------------------------------------------------------------------------

    @property
    def _quota(self) -> int:
        return max(self._options.prefetch_bytes_max // self._owner.fetcher_count, _FETCH_BYTES_MIN)

    async def run(self) -> None:
        """Prefetch until an error stops it."""
        idle = _IDLE_SECONDS_MIN
        while True:
            await self._has_room.wait()
            try:
                fetched = await retry(self._policy, self._fetch)
            except RefusedError as error:
                if not await self._cope(error):
                    return
                continue
            except ClientError as error:
                self._owner.stopped(error)
                return
            self._keep(fetched)
            if fetched.records or self._driver.capabilities.waits:
                idle = _IDLE_SECONDS_MIN
            else:
                await asyncio.sleep(idle)
                idle = min(idle * 2, _IDLE_SECONDS_MAX)

    async def _fetch(self) -> Fetched:
        # Partitions that share a connection wait one after the other: divide the wait time.
        sharing = -(-self._owner.fetcher_count // FETCH_CHANNELS_MAX)
        bytes_max = min(self._options.fetch_bytes_max, max(self._quota // 2, _FETCH_BYTES_MIN))
        wait_ms, member = self._options.wait_ms // sharing, self._owner.membership
        return await self._driver.fetch(
            FetchRequest(*self.place, self._next_fetch, bytes_max, wait_ms, self._slot, member)
        )

    async def _cope(self, error: RefusedError) -> bool:
        """Handle a refusal; return whether to continue."""
        if error.reason is Refusal.REJOIN and self._owner.membership is not None:
            self._owner.rejoin()
            return False
        if error.reason is Refusal.OFFSET_OUT_OF_RANGE and self._options.reset is not None:
            try:
                span = await retry(self._policy, lambda: self._driver.span(self.topic, self.partition))
            except ClientError as fault:
                self._owner.stopped(fault)
                return False
            self._next_fetch = span.earliest if self._options.reset == "earliest" else span.latest
            return True
        self._owner.stopped(error)
        return False

    def _keep(self, fetched: Fetched) -> None:
        self._next_fetch = fetched.next_offset
        if fetched.high_watermark is not None:
            self._high_watermark = fetched.high_watermark
        if fetched.records:
            self._records.extend(fetched.records)
            size = sum(map(_weigh, fetched.records))
            self._bytes += size
            if self._bytes > self._quota // 2:
                self._has_room.clear()
            self._owner.arrived(size - _RECORD_OVERHEAD_BYTES * len(fetched.records))


def _weigh(record: ConsumedRecord) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else size
