"""Bulk reads: undecoded batches, and the offsets of many partitions in one request.

Sends each leader one request for its partitions. Does not handle: decoding records, retries. It returns whole
batches, or column blocks if the caller requests them. The next offset is the one after the last batch. Each method
makes one attempt, as a driver's methods do.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import IntEnum
from struct import Struct
from sys import byteorder
from typing import TypeVar

import msgspec

from braidlog.client.drivers.cluster import Place
from braidlog.client.drivers.contract import FetchRequest
from braidlog.client.drivers.kafka.driver import EARLIEST, LATEST, NOWHERE, KafkaDriver, by_topic
from braidlog.client.drivers.routed import fetch_channel
from braidlog.client.errors import Address, ClientError, Refusal, RefusedError
from braidlog.codec.batch.header import HEADER_BYTES, LENGTH_PREFIX_BYTES
from braidlog.codec.batch.read_committed import AbortedRange
from braidlog.wire.kafka.messages import counting as m

T = TypeVar("T")

__all__ = ["EARLIEST", "LATEST", "Bare", "BulkReader", "Place", "RawFetched", "whole"]

_WAIT_SLOT = 1
"""The channel for long polls: they do not delay fetches, which use other connections."""
_LENGTH = Struct(">i")
_LENGTH_AT = 8
_LAST_DELTA_AT = 23
_BASE = Struct(">q")


class Bare(IntEnum):
    """Fields that the caller does not need: the server may then send column blocks (`codec/columns/column_blocks.py`). Other or
    older servers send whole batches, and so does braidlog where that costs less: the caller must read both."""

    NOTHING = 0
    VALUES = 1
    """Neither values nor headers are needed."""
    KEYS_AND_VALUES = 2


class RawFetched(msgspec.Struct, frozen=True):
    """Whole batches as stored by the server; `aborted` are the transactions to hide."""

    data: memoryview
    next_offset: int
    start_offset: int
    readable_end: int
    """How far the reader may read: the last stable offset for `read_committed`, otherwise the high watermark."""
    aborted: tuple[AbortedRange, ...] = ()


class BulkReader:
    """A driver's bulk requests."""

    def __init__(self, driver: KafkaDriver) -> None:
        self.driver = driver

    async def topics(self, topics: Collection[str] | None) -> dict[str, tuple[int, bytes]]:
        """Return each topic's partition count and id; of all topics that are not internal if None. Missing topics are
        left out."""
        metadata = await self.driver.metadata(None if topics is None else list(topics))
        counts = {}
        for topic in metadata.topics:
            if not topic.error_code and topic.name and not (topics is None and topic.is_internal):
                counts[topic.name] = len(topic.partitions), topic.topic_id
            elif topic.error_code and topics is not None:
                error = self.driver.refuse(topic.error_code, about=f"topic {topic.name!r}")
                if error.reason is not Refusal.TOPIC_NOT_FOUND:
                    raise error
        return counts

    async def offsets(self, times: Mapping[Place, int]) -> dict[Place, int | None]:
        """Return each partition's first offset at or after a time in ms (or EARLIEST, LATEST); None if there is
        none."""

        async def ask(leader: Address, places: list[Place]) -> dict[Place, int]:
            return await self.driver.list_offsets(leader, {place: times[place] for place in places})

        results = await self._of_each_leader(times, ask)
        return {place: None if offset == NOWHERE else offset for place, offset in results.items()}

    async def topics_and_offsets(
        self, topics: Collection[str] | None, times: Mapping[Place, int]
    ) -> tuple[dict[str, tuple[int, bytes]], dict[Place, int | None] | None]:
        """Request both concurrently, which saves a round trip. Offsets are None if that request failed; the topics
        then show what became of the partitions."""
        offsets = asyncio.ensure_future(self.offsets(times))
        try:
            described = await self.topics(topics)
            with contextlib.suppress(ClientError):
                return described, await offsets
            return described, None
        finally:
            offsets.cancel()
            await asyncio.gather(offsets, return_exceptions=True)

    async def count(self, ranges: Mapping[Place, tuple[int, int]]) -> dict[Place, tuple[int, int]]:
        """Return the number of visible records in each range [start, end), and the offset counted up to: a server may
        count only a part of a range, and not every partition. `UnsupportedError` if the server cannot count."""

        async def ask(leader: Address, places: list[Place]) -> dict[Place, tuple[int, int]]:
            parts = by_topic(places, lambda place: m.CountRecordsRequestPartition(place[1], *ranges[place]))
            asked = [m.CountRecordsRequestTopic(topic, its) for topic, its in parts.items()]
            answer: m.CountRecordsResponse = await self.driver.ask(
                m.CountRecordsRequest(self.driver.settings.isolation, asked), leader
            )
            counts = {}
            for topic in answer.topics:
                for part in topic.partitions:
                    place = topic.name, part.partition_index
                    self.driver.check_code(part.error_code, place=place)
                    counts[place] = part.records, part.next_offset
            return counts

        return await self._of_each_leader(ranges, ask)

    async def fetch(
        self, place: Place, offset: int, *, bytes_max: int, wait_ms: int, bare: Bare = Bare.NOTHING
    ) -> RawFetched:
        """Return batches from the one that contains `offset`; `RefusedError(OFFSET_OUT_OF_RANGE)` if it does not
        exist.

        `bytes_max` limits the bytes in the log; the answer may be smaller.
        """
        request = FetchRequest(*place, offset, bytes_max, wait_ms)
        answer = await self.driver.fetch_partition(request, bare if byteorder == "little" else Bare.NOTHING)
        committed = self.driver.settings.committed_only
        records = answer.records or b""
        assert isinstance(records, bytes | bytearray | memoryview), (
            "the server sends file slices; a client never receives them"
        )
        data, next_offset = whole(memoryview(records), offset)
        return RawFetched(
            data,
            next_offset,
            answer.log_start_offset,
            answer.last_stable_offset if committed and answer.last_stable_offset >= 0 else answer.high_watermark,
            self.driver.aborted_in(answer),
        )

    async def wait_beyond(self, ends: Mapping[Place, int], wait_ms: int) -> None:
        """Return when a partition has records beyond its offset, or after `wait_ms`; the records are not returned."""

        async def ask(leader: Address, places: list[Place]) -> dict[Place, int]:
            message = self.driver.fetch_request({place: ends[place] for place in places}, 1, wait_ms)
            await self.driver.ask(message, leader, fetch_channel(_WAIT_SLOT), wait_ms)
            return {}

        await self._of_each_leader(ends, ask, return_when=asyncio.FIRST_COMPLETED)

    async def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        for topic, parts in by_topic(offsets, lambda place: (place[1], offsets[place])).items():
            await self.driver.commit(group, topic, dict(parts), None)

    def close(self) -> None:
        self.driver.close()

    # -- choosing the leader -----------------------------------------------------------------------------------

    async def _of_each_leader(
        self,
        places: Iterable[Place],
        ask: Callable[[Address, list[Place]], Awaitable[dict[Place, T]]],
        return_when: str = asyncio.ALL_COMPLETED,
    ) -> dict[Place, T]:
        by_leader: dict[Address, list[Place]] = defaultdict(list)
        for place in places:
            by_leader[await self.driver.leader_of(*place)].append(place)
        if not by_leader:
            return {}
        asked = [asyncio.ensure_future(ask(leader, its)) for leader, its in by_leader.items()]
        try:
            done, _ = await asyncio.wait(asked, return_when=return_when)
            return {place: value for task in done for place, value in task.result().items()}
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


def whole(data: memoryview, offset: int) -> tuple[memoryview, int]:
    """Return the complete batches (the last one may be truncated), and the offset after them.

    Reads lengths and offsets only; the decoder checks the batches.
    """
    position, end, following = 0, len(data), offset
    while end - position >= HEADER_BYTES:
        size = LENGTH_PREFIX_BYTES + _LENGTH.unpack_from(data, position + _LENGTH_AT)[0]
        if size < HEADER_BYTES:
            raise RefusedError(
                Refusal.FAILED, "kafka", "", f"the records are damaged: a batch of {size} bytes at byte {position}"
            )
        if size > end - position:
            break
        base: int = _BASE.unpack_from(data, position)[0]
        following = max(following, base + _LENGTH.unpack_from(data, position + _LAST_DELTA_AT)[0] + 1)
        position += size
    return data[:position], following
