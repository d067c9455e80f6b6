"""CONSUME and STREAM: records as batch frames.

Chooses where a reader begins, what fits a frame, and when a stream ends. Does not handle: sockets.
Invariant: a stream pushes the next frame only when the client can receive it, and at least a keep-alive every
`KEEP_ALIVE_MS`: the published client disconnects after five seconds without a frame.
"""

import contextlib
from collections.abc import Awaitable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.cursus.forwarding import ask_leaders, forward, is_led_here
from braidlog.adapters.cursus.records import can_show, show
from braidlog.adapters.cursus.services import Services
from braidlog.codec.batch.row_layout import Packed, RowForm
from braidlog.model.errors import BrokerError, NotCoordinatorError, NotLeaderError, Reason
from braidlog.model.record import Record
from braidlog.partition.fetch.fetch import OffsetOutOfRange
from braidlog.partition.fetch.long_polls import wait_committed
from braidlog.partition.fetch.record_reader import Rows
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.security.authorization import Operation
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import SHOWN_ROW, STRING_BYTES_MAX, Batch, BatchRecord, PackedBatch
from braidlog.wire.cursus.failures import Failure, echo
from braidlog.wire.cursus.messages import Request

READ_BYTES = 4 * 1024 * 1024
STREAM_BYTES = 1024 * 1024
RECORDS_MAX = 10_000
WAIT_MS_MAX = 30_000
COMMIT_SECONDS_MAX = 1.0
"""Maximum wait of CONSUME and LIST_OFFSETS for replicas: clients read their own writes with acks=1, which the
published broker acknowledges after replication.
"""
KEEP_ALIVE_MS = 2_000
TOPICS_MATCHED_MAX = 1_000
UNBOUNDED = 2**63 - 1
NOWHERE = -1
NAMED = "*,"
"""Prefix of the pattern by which one node requests topics from another: topic names separated by commas follow."""
REMOVED = (Reason.GROUP_NOT_FOUND, Reason.MEMBER_NOT_FOUND, Reason.STALE_GENERATION, Reason.PARTITION_NOT_ASSIGNED)

_RESETS = ("earliest", "latest")
_ISOLATION = {"": True, "read_committed": True, "read_uncommitted": False}


def consume(request: Request, services: Services, conversation: Conversation) -> Any:  # noqa: ANN401 - or a coroutine
    message: r.Consume = request.message
    if message.isolation_level not in _ISOLATION:
        return Failure.of("invalid_isolation_level", command="CONSUME", value=echo(message.isolation_level))
    if is_pattern(message.topic):
        return _consume_matching(request, services, conversation)
    check_owner(services, message)
    offset = _reset(services, message.topic, message.partition, message.offset, message.auto_offset_reset)
    frame = _Frame(request, services, conversation, offset, READ_BYTES)
    if uncommitted := _uncommitted(message, [message.topic], services):
        return _consume_committed(frame, uncommitted, services)
    found = frame.find(min(message.wait_ms, WAIT_MS_MAX))
    if isinstance(found, Rows) and not found.has_headers:
        return frame.packed(found)[0]
    return _consume_later(frame, found)


def _uncommitted(message: r.Consume, topics: Sequence[str], services: Services) -> list[Partition]:
    """Return partitions led by this node with appended records that are not committed yet."""
    if message.wait_ms:
        return []
    partitions = [services.hosting.partition(topic, message.partition) for topic in topics]
    beyond = message.offset + (message.records_max or RECORDS_MAX)
    return [
        each for each in partitions if each.role is Role.LEADER and each.high_watermark < min(each.end_offset, beyond)
    ]


async def _consume_committed(
    frame: "_Frame", uncommitted: Sequence[Partition], services: Services
) -> Batch | PackedBatch:
    await wait_committed(uncommitted, services.runtime, COMMIT_SECONDS_MAX)
    return await _consume_later(frame, frame.find(0))


async def _consume_later(frame: "_Frame", finding: Rows | Awaitable[Rows]) -> Batch | PackedBatch:
    return (await frame.made(finding))[0]


async def _consume_matching(request: Request, services: Services, conversation: Conversation) -> Batch:
    """Read all matching topics from the offset on, merged by offset. The frame contains the requested pattern as
    topic.

    If a topic has more than its share of a frame, no topic contributes records beyond that topic's last offset: a
    reader that continues after the last record misses none. `sequence_end` reports that offset to another node.
    """
    message: r.Consume = request.message
    topics = topics_of(services, conversation, message.topic, message.partition)
    here = [topic for topic in topics if conversation.is_forwarded or is_led_here(services, topic, message.partition)]
    away = {topic: NotLeaderError(topic, message.partition, "another node is its leader") for topic in topics}
    for topic in here:
        del away[topic]

    async def read_here(topics: list[str]) -> Batch:
        found, until = await _read_matching(message, topics, services)
        return Batch(message.topic, message.partition, found, sequence_end=until)

    def asked(topics: list[str]) -> r.Consume:
        return msgspec.structs.replace(message, topic=NAMED + ",".join(topics), wait_ms=0)

    batches = [await read_here(here), *await ask_leaders(away, asked, services, conversation, read_here)]
    until = min(batch.sequence_end for batch in batches)
    records = [each for batch in batches for each in batch.records if each.offset < until]
    records.sort(key=lambda each: each.offset)
    fitting: int = conversation.connection.count_fitting(request, message.topic, message.partition, records)
    shown = sum(1 for _ in takewhile(lambda each: len(each.key) <= STRING_BYTES_MAX, records))
    count = min(fitting, shown, RECORDS_MAX)
    if records and not count:
        raise _too_large(records[0].offset)
    if count < len(records):
        until = records[count].offset
        count = sum(each.offset < until for each in records) or count
    given = tuple(records[:count])
    return Batch(message.topic, message.partition, given, sequence_end=until if conversation.is_forwarded else 0)


async def _read_matching(message: r.Consume, topics: list[str], services: Services) -> tuple[list[BatchRecord], int]:
    """Return records of the topics that this node leads, and the offset from which records may be missing."""
    shown: list[BatchRecord] = []
    until = UNBOUNDED
    await wait_committed(_uncommitted(message, topics, services), services.runtime, COMMIT_SECONDS_MAX)
    filled = [topic for topic in topics if _has(services, topic, message.partition, message.offset)]
    for topic in filled:
        found = await services.fetch.records(
            topic,
            message.partition,
            max(message.offset, services.hosting.partition(topic, message.partition).start_offset),
            bytes_max=max(READ_BYTES // len(filled), 1),
            records_max=max(min(message.records_max or RECORDS_MAX, RECORDS_MAX) // len(filled), 1),
            committed_only=_ISOLATION[message.isolation_level],
            leader_only=True,
        )
        shown += map(show, found.records)
        if _has(services, topic, message.partition, found.next_offset):
            until = min(until, found.next_offset)
    return shown, until


def _has(services: Services, topic: str, partition: int, offset: int) -> bool:
    hosted = services.hosting.partition(topic, partition)
    hosted.require_leader()  # a follower's log may end earlier
    return offset < hosted.high_watermark


class _Frame:
    """One frame of records from an offset on."""

    __slots__ = ("_bytes_max", "_committed_only", "_conversation", "_offset", "_records_max", "_request", "_services")

    def __init__(
        self, request: Request, services: Services, conversation: Conversation, offset: int, bytes_max: int
    ) -> None:
        message: r.Consume | r.Stream = request.message
        self._request = request
        self._services = services
        self._conversation = conversation
        self._offset = offset
        self._bytes_max = bytes_max
        self._records_max = min(message.records_max or RECORDS_MAX, RECORDS_MAX)
        self._committed_only = _ISOLATION[message.isolation_level]

    def find(self, wait_ms: int) -> Rows | Awaitable[Rows]:
        message = self._request.message
        room = self._conversation.connection.records_room(self._request, message.topic, message.partition)
        return self._services.fetch.rows(
            message.topic,
            message.partition,
            self._offset,
            RowForm(SHOWN_ROW, room, plain_only=True),
            bytes_max=self._bytes_max,
            records_max=self._records_max,
            wait_ms=wait_ms,
            committed_only=self._committed_only,
            leader_only=True,
        )

    def packed(self, found: Rows) -> tuple[Batch | PackedBatch, int]:
        """Return the frame of rows without headers, and the next offset. A `PackedBatch` is never empty."""
        message = self._request.message
        if found.is_too_large:
            raise _too_large(self._offset)
        if not found.count:
            return Batch(message.topic, message.partition, ()), found.next_offset
        return PackedBatch(message.topic, message.partition, Packed(found.data, found.count)), found.next_offset

    async def made(self, finding: Rows | Awaitable[Rows]) -> tuple[Batch | PackedBatch, int]:
        """Return the frame of a finished or pending read; records with headers are encoded one by one."""
        found = finding if isinstance(finding, Rows) else await finding
        if not found.has_headers:
            return self.packed(found)
        message = self._request.message
        shown = await self._services.fetch.records(
            message.topic,
            message.partition,
            self._offset,
            bytes_max=self._bytes_max,
            records_max=self._records_max,
            committed_only=self._committed_only,
            leader_only=True,
        )
        batch, count = fit(self._request, self._conversation, message.topic, message.partition, shown.records)
        return batch, shown.next_offset if count == len(shown.records) else shown.records[count].offset


def check_owner(services: Services, message: r.Consume | r.Stream) -> None:
    """Check that a member reads only its own partitions; otherwise it must rejoin. A request without a generation is
    not a member's.

    Only the group's coordinator knows the members: a leader on another node allows every read, and the coordinator
    rejects stale commits.
    """
    if message.group and message.member and message.generation is not None:
        services.hosting.check_partition(message.topic, message.partition)
        with contextlib.suppress(NotCoordinatorError):
            services.coordinators.coordinator_for(message.group).groups.find(message.group).check_owner(
                message.member, message.generation, message.topic, message.partition
            )


def _reset(services: Services, topic: str, partition: int, offset: int, policy: str) -> int:
    """Return the requested offset, or the offset by the client's reset policy if it is out of range."""
    if policy not in _RESETS:
        return offset
    hosted = services.hosting.partition(topic, partition)
    if hosted.start_offset <= offset <= hosted.end_offset:
        return offset
    return hosted.start_offset if policy == "earliest" else hosted.high_watermark


def fit(
    request: Request, conversation: Conversation, topic: str, partition: int, records: Sequence[Record]
) -> tuple[Batch, int]:
    """Return one frame of the first records, and their count."""
    shown = tuple(map(show, takewhile(can_show, records)))
    fitting: int = conversation.connection.count_fitting(request, topic, partition, shown)
    if records and not fitting:
        raise _too_large(records[0].offset)
    return Batch(topic, partition, shown[:fitting]), fitting


def _too_large(offset: int) -> BrokerError:
    return BrokerError(Reason.RECORD_TOO_LARGE, f"the record at {offset} does not fit this protocol's frame")


# -- topics by pattern ---------------------------------------------------------------------------------------------


def is_pattern(topic: str) -> bool:
    """Return whether the name has a wildcard: no topic name may contain one."""
    return "*" in topic or "?" in topic


def topics_of(services: Services, conversation: Conversation, pattern: str, partition: int) -> list[str]:
    """Return the topic, or the matching topics that the client may read and that have the partition, sorted by name."""
    if not is_pattern(pattern):
        return [pattern]
    allowed = services.authorize.is_allowed
    if conversation.is_forwarded and pattern.startswith(NAMED):
        names = pattern.removeprefix(NAMED).split(",")
    else:
        names = [name for name in services.hosting.names() if matches(pattern, name)]
    readable = [name for name in names if allowed(conversation.principal, Operation.READ, name)]
    if not readable:
        raise BrokerError(Reason.TOPIC_NOT_FOUND, f"no topic matches {pattern[:60]!r}")
    found = [name for name in readable if partition < services.hosting.meta(name).partitions]
    if not found:
        raise BrokerError(Reason.PARTITION_NOT_FOUND, f"no topic of {pattern[:60]!r} has a partition {partition}")
    return found[:TOPICS_MATCHED_MAX]


def matches(pattern: str, name: str) -> bool:
    """Match with `*` for any run and `?` for any one character. Greedy with a single backtracking point: the time is
    at most pattern length times name length.
    """
    at = position = 0
    star, mark = -1, 0
    while position < len(name):
        if at < len(pattern) and pattern[at] in ("?", name[position]):
            at, position = at + 1, position + 1
        elif at < len(pattern) and pattern[at] == "*":
            star, mark, at = at, position, at + 1
        elif star >= 0:
            mark += 1
            at, position = star + 1, mark
        else:
            return False
    return pattern[at:].strip("*") == ""


# -- streams -------------------------------------------------------------------------------------------------------


async def stream(request: Request, services: Services, conversation: Conversation) -> Failure | None:
    message: r.Stream = request.message
    if message.isolation_level not in _ISOLATION:
        return Failure.of("invalid_isolation_level", command="STREAM", value=echo(message.isolation_level))
    check_owner(services, message)
    hosted = services.hosting.partition(message.topic, message.partition)
    hosted.require_leader()
    begin = await _begin(services, conversation, message)
    offset = _reset(services, message.topic, message.partition, begin, message.auto_offset_reset)
    if not hosted.start_offset <= offset <= hosted.end_offset:
        raise OffsetOutOfRange(hosted, offset)
    connection = conversation.connection
    connection.begin_pushing()
    place = _Place(offset)
    # A stopping server cancels every wait; the client still receives the offset to continue from.
    conversation.last_words = lambda: connection.push(request, a.StreamControl(reason="stopped", offset=place.offset))
    try:
        control = await _push(request, services, conversation, place)
        conversation.last_words = None
        await conversation.push(connection.push(request, control))
    finally:
        conversation.close()
    return None


class _Place:
    """The progress of a stream."""

    __slots__ = ("offset",)

    def __init__(self, offset: int) -> None:
        self.offset = offset


async def _begin(services: Services, conversation: Conversation, message: r.Stream) -> int:
    """Return the start offset of a stream that names none: its group's committed offset, else the first record."""
    if message.offset is not None:
        return message.offset
    committed = await _committed(services, conversation, message) if message.group else NOWHERE
    hosted = services.hosting.partition(message.topic, message.partition)
    if committed != NOWHERE:
        return committed
    return hosted.high_watermark if message.auto_offset_reset == "latest" else hosted.start_offset


async def _committed(services: Services, conversation: Conversation, message: r.Stream) -> int:
    """Return the offset committed at the group's coordinator; another node's answer of 0 means none, too."""
    place = message.topic, message.partition

    async def here() -> a.CommittedOffset:
        found = (await services.coordinators.reach(message.group)).offsets.committed(message.group, *place)
        return a.CommittedOffset(NOWHERE if found is None else found.offset)

    try:
        return (await here()).offset
    except NotCoordinatorError as error:
        refusal = error.with_traceback(None)
    answer: a.CommittedOffset = await forward(
        r.FetchOffset(*place, message.group), refusal, services, conversation, here
    )
    return answer.offset or NOWHERE


async def _push(request: Request, services: Services, conversation: Conversation, place: _Place) -> a.StreamControl:
    """Push until the client, its group or the server ends the stream; return the last message for the client."""
    message: r.Stream = request.message
    connection = conversation.connection
    while not conversation.is_closing:
        try:
            check_owner(services, message)
            frame = _Frame(request, services, conversation, place.offset, STREAM_BYTES)
            batch, next_offset = await frame.made(frame.find(KEEP_ALIVE_MS))
            if isinstance(batch, Batch) and not batch.records:
                place.offset = next_offset
                await conversation.push(connection.push(request, a.KeepAlive()))
                continue
        except OffsetOutOfRange as error:
            return a.StreamControl(
                reason="offset_out_of_range",
                offset=place.offset,
                requested=error.requested,
                earliest=error.start_offset,
                latest=error.high_watermark,
            )
        except BrokerError as error:
            return a.StreamControl(reason="removed" if error.reason in REMOVED else "error", offset=place.offset)
        await conversation.push(connection.push(request, batch))
        # Updated only now: if a push is interrupted, the client is sent an offset that it may have, never one that it
        # may lack.
        place.offset = next_offset
    return a.StreamControl(reason="stopped", offset=place.offset)
