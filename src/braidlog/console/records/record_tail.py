"""Read and follow records of a topic for a page, at a bounded rate.

A tail fetches at most `ROUND_BYTES` of a partition in `ROUND_SECONDS`, independent of the rate of producers and the speed
of the reader. Records that it skips are counted and reported. At most `SHOWN_BYTES_MAX` of a value are shown, and
`DECODED_CHARS_MAX` of a decoded value.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.console.listener_clients import Clients, Fetch
from braidlog.console.records.record_filter import Test
from braidlog.console.records.record_values import RecordValues
from braidlog.registry import framing

PARTITIONS_MAX: Final = 64
ROUND_BYTES: Final = 64 * 1024
ROUND_RECORDS: Final = 100
ROUND_SECONDS: Final = 0.25
PARTITIONS_PER_ROUND: Final = 8
"""Partitions per round; with more, a round takes longer, so that the load of tails does not grow with the topic."""
BEHIND_MAX: Final = 1_000
KEPT_BEHIND: Final = 50
LAST_RECORDS: Final = 50
SHOWN_BYTES_MAX: Final = 4096
DECODED_CHARS_MAX: Final = 16_384
RECORDS_MAX: Final = 10_000
EMPTY_ROUNDS_MAX: Final = 1_000
PING_SECONDS: Final = 10.0

Start = Literal["last", "earliest", "latest", "offset", "time"]
End = Literal["now", "offset", "time"]


class Wanted(NamedTuple):
    """Selection of records. `at` and `until` are an offset or a time in milliseconds; `until` is exclusive. Filters apply to
    values decoded by `values`."""

    topic: str
    partitions: Sequence[int]
    values: RecordValues
    start: Start = "last"
    at: int = 0
    contains: str = ""
    matches: Test | None = None
    end: End = "now"
    until: int = 0

    @property
    def is_choosy(self) -> bool:
        return bool(self.contains) or self.matches is not None

    def shows(self, record: ConsumedRecord) -> bool:
        if self.is_choosy and (decoded := self.values.json_of(record.value)) is not None:
            record = msgspec.structs.replace(record, value=decoded)
        if self.matches is not None and not self.matches(record):
            return False
        if not self.contains:
            return True
        wanted = self.contains.lower()
        return any(wanted in part.decode("utf-8", "replace").lower() for part in _parts(record))


class Skipped(msgspec.Struct, frozen=True):
    """Number of records that arrived too fast to be shown."""

    skipped: int
    partition: int


class Progress(msgspec.Struct, frozen=True):
    """Number of scanned records, and the approximate total; 0: unbounded."""

    scanned: int
    of: int


def _parts(record: ConsumedRecord) -> list[bytes]:
    headers = [part for name, value in record.headers for part in (name.encode(), value or b"")]
    return [part for part in (record.key, record.value, *headers) if part is not None]


async def positions(clients: Clients, wanted: Wanted) -> dict[int, int]:
    """Return the start offset of each partition."""
    found = {}
    for number in wanted.partitions:
        span = await clients.admin.span(wanted.topic, number)
        at = span.latest
        if wanted.start == "last":
            at = max(span.latest - LAST_RECORDS, span.earliest)
        elif wanted.start == "earliest":
            at = span.earliest
        elif wanted.start == "offset":
            at = min(max(wanted.at, span.earliest), span.latest)
        elif wanted.start == "time":
            by_time = await clients.admin.offset_at(wanted.topic, number, wanted.at)
            at = span.latest if by_time is None else by_time
        found[number] = at
    return found


async def _end(clients: Clients, wanted: Wanted, number: int) -> int:
    """Return the end offset: the current end, or the requested end before it."""
    latest = (await clients.admin.span(wanted.topic, number)).latest
    if wanted.end == "offset":
        return min(wanted.until, latest)
    if wanted.end == "time":
        by_time = await clients.admin.offset_at(wanted.topic, number, wanted.until)
        return latest if by_time is None else min(by_time, latest)
    return latest


async def read(clients: Clients, wanted: Wanted, limit: int) -> AsyncIterator[ConsumedRecord | Progress]:
    """Yield up to `limit` existing records, partition after partition, with progress after each fetch."""
    left, scanned = min(limit, RECORDS_MAX), 0
    async with clients.reader() as fetch:
        begins = await positions(clients, wanted)
        ends = {number: await _end(clients, wanted, number) for number in begins}
        total = sum(max(ends[number] - begin, 0) for number, begin in begins.items())
        for number, begin in begins.items():
            at, end = begin, ends[number]
            for _ in range(EMPTY_ROUNDS_MAX):
                if at >= end or not left:
                    break
                fetched = await fetch(wanted.topic, number, at, ROUND_BYTES)
                at = max(fetched.next_offset, at + 1)
                await wanted.values.learn(fetched.records)
                for record in fetched.records:
                    if not left or record.offset >= end:
                        break
                    scanned += 1
                    if wanted.shows(record):
                        left -= 1
                        yield record
                yield Progress(scanned, total)


async def follow(clients: Clients, wanted: Wanted) -> AsyncIterator[ConsumedRecord | Skipped | Progress | None]:
    """Yield new records without end; yields None at times, so that the caller notices a disconnect."""
    at = await positions(clients, wanted)
    loop = asyncio.get_running_loop()
    pause = ROUND_SECONDS * max(len(at) / PARTITIONS_PER_ROUND, 1)
    said = loop.time()
    scanned = told = 0
    async with clients.reader() as fetch:
        while True:
            for number in at:
                async for event in _round(fetch, wanted, number, at):
                    if isinstance(event, int):
                        scanned += event
                        continue
                    said = loop.time()
                    yield event
            if scanned > told and wanted.is_choosy:
                told, said = scanned, loop.time()
                yield Progress(scanned, 0)
            if loop.time() - said > PING_SECONDS:
                said = loop.time()
                yield None
            await asyncio.sleep(pause)


async def _round(
    fetch: Fetch, wanted: Wanted, number: int, at: dict[int, int]
) -> AsyncIterator[ConsumedRecord | Skipped | int]:
    """Return records, the number of skipped records, and the number of scanned records."""
    fetched = await fetch(wanted.topic, number, at[number], ROUND_BYTES)
    records = fetched.records[:ROUND_RECORDS]
    at[number] = fetched.next_offset if len(records) == len(fetched.records) else records[-1].offset + 1
    await wanted.values.learn(records)
    for record in records:
        if wanted.shows(record):
            yield record
    yield len(records)
    behind = (fetched.high_watermark or 0) - at[number]
    if behind > BEHIND_MAX:
        at[number] += behind - KEPT_BEHIND
        yield Skipped(behind - KEPT_BEHIND, number)


# -- rendering of records ------------------------------------------------------------------------------------------


def shown(record: ConsumedRecord, values: RecordValues) -> dict[str, Any]:
    """Return a record for a page, with bytes as base64 and truncated values; the page shows text or hex, never HTML."""
    made = {
        "p": record.partition,
        "o": record.offset,
        "t": record.timestamp_ms,
        "k": _base64(record.key),
        "v": _base64(record.value),
        "n": 0 if record.value is None else len(record.value),
        "h": [[name, _base64(value)] for name, value in record.headers],
    }
    decoded = values.json_of(record.value)
    if decoded is None or record.value is None:
        return made
    # Truncated as text: the page shows incomplete JSON as text.
    return made | {"s": framing.id_of(record.value), "j": decoded.decode()[:DECODED_CHARS_MAX]}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data[:SHOWN_BYTES_MAX]).decode()
