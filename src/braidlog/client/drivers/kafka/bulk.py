"""Reading in bulk: batches as they are, and the ends of many partitions in one question.

Knows: which leader is asked for which partitions. Refuses to know: what is in a record, when to ask again.
Invariants: what is given are whole batches, or blocks of columns in their place for who asked for them, cut at no other place;
the next offset is the one after the last of them. A method is one attempt, as a driver's are.
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
"""Waiting for news has a connection of its own: what is fetched meanwhile does not stand behind it."""
_LENGTH = Struct(">i")
_LENGTH_AT = 8
_LAST_DELTA_AT = 23
_BASE = Struct(">q")


class Bare(IntEnum):
    """What records may come without: as blocks of columns (`codec/columns/column_blocks.py`) then. A server of
    another make or an older one
    sends whole batches, and so does ours where that costs less: whoever asks reads both."""

    NOTHING = 0
    VALUES = 1
    """Values and headers."""
    KEYS_AND_VALUES = 2


class RawFetched(msgspec.Struct, frozen=True):
    """Whole batches as the server has them; `aborted` are the transactions that are not to be seen."""

    data: memoryview
    next_offset: int
    start_offset: int
    readable_end: int
    """Where the reader may go now: the last stable offset for who reads what is committed, else the high watermark."""
    aborted: tuple[AbortedRange, ...] = ()


class BulkReader:
    """A driver, asked for much at once."""

    def __init__(self, driver: KafkaDriver) -> None:
        self.driver = driver

    async def topics(self, topics: Collection[str] | None) -> dict[str, tuple[int, bytes]]:
        """How many partitions each of these has and its id, of all that are not the server's own if None; one not there is
        left out."""
        told = await self.driver.metadata(None if topics is None else list(topics))
        found = {}
        for each in told.topics:
            if not each.error_code and each.name and not (topics is None and each.is_internal):
                found[each.name] = len(each.partitions), each.topic_id
            elif each.error_code and topics is not None:
                error = self.driver.refuse(each.error_code, about=f"topic {each.name!r}")
                if error.reason is not Refusal.TOPIC_NOT_FOUND:
                    raise error
        return found

    async def offsets(self, wanted: Mapping[Place, int]) -> dict[Place, int | None]:
        """Of each place the first offset at or after a time in ms (or EARLIEST, LATEST); None where there is none."""

        async def ask(leader: Address, places: list[Place]) -> dict[Place, int]:
            return await self.driver.list_offsets(leader, {place: wanted[place] for place in places})

        found = await self._of_each_leader(wanted, ask)
        return {place: None if offset == NOWHERE else offset for place, offset in found.items()}

    async def topics_and_offsets(
        self, topics: Collection[str] | None, wanted: Mapping[Place, int]
    ) -> tuple[dict[str, tuple[int, bytes]], dict[Place, int | None] | None]:
        """Both, asked at once: one round trip where they would be two. None for offsets that nobody gave: whoever expected these
        places learns by the topics what became of them."""
        offsets = asyncio.ensure_future(self.offsets(wanted))
        try:
            told = await self.topics(topics)
            with contextlib.suppress(ClientError):
                return told, await offsets
            return told, None
        finally:
            offsets.cancel()
            await asyncio.gather(offsets, return_exceptions=True)

    async def count(self, wanted: Mapping[Place, tuple[int, int]]) -> dict[Place, tuple[int, int]]:
        """How many records a reader sees of each range [start, end), and up to where that is: a server tells a part at a
        time, and not of everything. `UnsupportedError` if it does not tell at all."""

        async def ask(leader: Address, places: list[Place]) -> dict[Place, tuple[int, int]]:
            parts = by_topic(places, lambda place: m.CountRecordsRequestPartition(place[1], *wanted[place]))
            asked = [m.CountRecordsRequestTopic(topic, its) for topic, its in parts.items()]
            answer: m.CountRecordsResponse = await self.driver.ask(
                m.CountRecordsRequest(self.driver.settings.isolation, asked), leader
            )
            found = {}
            for topic in answer.topics:
                for part in topic.partitions:
                    place = topic.name, part.partition_index
                    self.driver.check_code(part.error_code, place=place)
                    found[place] = part.records, part.next_offset
            return found

        return await self._of_each_leader(wanted, ask)

    async def fetch(
        self, place: Place, offset: int, *, bytes_max: int, wait_ms: int, bare: Bare = Bare.NOTHING
    ) -> RawFetched:
        """Batches from the one that holds `offset`; `RefusedError(OFFSET_OUT_OF_RANGE)` if there is no such offset.

        `bytes_max` is what the log has of them, also where less of it comes.
        """
        wanted = FetchRequest(*place, offset, bytes_max, wait_ms)
        found = await self.driver.fetch_partition(wanted, bare if byteorder == "little" else Bare.NOTHING)
        committed = self.driver.settings.committed_only
        records = found.records or b""
        assert isinstance(records, bytes | bytearray | memoryview), "slices of files are written, never read"
        data, next_offset = whole(memoryview(records), offset)
        return RawFetched(
            data,
            next_offset,
            found.log_start_offset,
            found.last_stable_offset if committed and found.last_stable_offset >= 0 else found.high_watermark,
            self.driver.aborted_in(found),
        )

    async def wait_beyond(self, ends: Mapping[Place, int], wait_ms: int) -> None:
        """Return when one of the places has more than this, or when the time is over; what there is, is not told."""

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

    # -- whom to ask -------------------------------------------------------------------------------------------

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
            return {place: value for each in done for place, value in each.result().items()}
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


def whole(data: memoryview, offset: int) -> tuple[memoryview, int]:
    """The batches that are there entirely (a server may stop in the middle of one), and the offset after them.

    Only lengths and offsets are looked at; whoever decodes the batches checks them.
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
