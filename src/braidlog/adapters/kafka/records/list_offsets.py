"""ListOffsets and OffsetForLeaderEpoch.

Handles the negative timestamps with special meanings.
Invariant: the answer is a record's own offset and time, not its batch's. An offset that is not found is not an error.
"""

from collections.abc import Awaitable, Callable

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.coordination.offsets_topic import OFFSETS_PARTITIONS, OFFSETS_TOPIC
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.routes import Route, on_topics, refused
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.routing import Denied
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.partition.partition import Partition
from braidlog.security.authorization import Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import data as d

READ_COMMITTED = 1
NOWHERE = -1
NO_TIME = -1

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6

Found = tuple[int, int]
"""Offset and timestamp."""


async def _latest(hosted: Partition, _: Services, *, committed_only: bool) -> Found:
    return (hosted.last_stable_offset if committed_only else hosted.high_watermark), NO_TIME


async def _earliest(hosted: Partition, _: Services, *, committed_only: bool) -> Found:  # noqa: ARG001 - as the others
    return hosted.start_offset, NO_TIME


async def _newest(hosted: Partition, services: Services, *, committed_only: bool) -> Found:
    """Return the first record with the largest timestamp."""
    newest = hosted.newest_timestamp_ms
    return await _at(newest, hosted, services, committed_only=committed_only) if newest >= 0 else (NOWHERE, NO_TIME)


async def _tiered(_: Partition, __: Services, *, committed_only: bool) -> Found:  # noqa: ARG001 - no tiered storage
    return NOWHERE, NO_TIME


MEANINGS: dict[int, Callable[..., Awaitable[Found]]] = {
    LATEST: _latest,
    EARLIEST: _earliest,
    MAX_TIMESTAMP: _newest,
    EARLIEST_LOCAL: _earliest,
    LATEST_TIERED: _tiered,
    EARLIEST_PENDING_UPLOAD: _tiered,
}
"""Negative timestamps and the positions they mean."""
_ENDS = (LATEST, EARLIEST, EARLIEST_LOCAL)
SINCE: dict[int, int] = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The first version in which a client may use it."""


async def _at(timestamp: int, hosted: Partition, services: Services, *, committed_only: bool) -> Found:
    found = await services.fetch.offset_at(hosted.topic, hosted.number, timestamp, committed_only=committed_only)
    return found if found is not None else (NOWHERE, NO_TIME)


async def list_offsets(request: Request, services: Services, _: Conversation, denied: Denied) -> d.ListOffsetsResponse:
    message: d.ListOffsetsRequest = request.message
    pace = YieldCounter()
    topics = []
    for topic in message.topics:
        topics.append(d.ListOffsetsResponseTopic(topic.name, []))
        for each in topic.partitions:
            await pace.step()
            topics[-1].partitions.append(await _listed(topic.name, each, request, services, denied))
    return d.ListOffsetsResponse(topics=topics)


async def _listed(
    topic: str,
    asked: d.ListOffsetsRequestPartition,
    request: Request,
    services: Services,
    denied: Denied,
) -> d.ListOffsetsResponsePartition:
    number, timestamp = asked.partition_index, asked.timestamp
    committed_only = request.message.isolation_level == READ_COMMITTED
    if timestamp < 0 and (timestamp not in MEANINGS or request.version < SINCE.get(timestamp, 0)):
        return d.ListOffsetsResponsePartition(number, E.UNSUPPORTED_VERSION)
    try:
        denied.check(topic)
        if topic == OFFSETS_TOPIC and number in range(OFFSETS_PARTITIONS):
            return d.ListOffsetsResponsePartition(number, E.NONE, NO_TIME, 0 if timestamp in _ENDS else NOWHERE, 0)
        hosted = _led(services, topic, number, asked.current_leader_epoch)
        if timestamp not in (EARLIEST, EARLIEST_LOCAL):
            hosted.require_decided()
        if timestamp in MEANINGS:
            offset, time = await MEANINGS[timestamp](hosted, services, committed_only=committed_only)
        else:
            offset, time = await _at(timestamp, hosted, services, committed_only=committed_only)
    except (BrokerError, StorageFault) as error:
        return d.ListOffsetsResponsePartition(number, code_of(error))
    epoch = hosted.epoch_at(offset) if offset >= 0 else -1
    return d.ListOffsetsResponsePartition(number, E.NONE, time, offset, epoch)


def _led(services: Services, topic: str, number: int, epoch: int) -> Partition:
    hosted = services.hosting.partition(topic, number)
    hosted.require_leader()
    if epoch >= 0:
        hosted.require_epoch(epoch)
    return hosted


# -- leader epochs ---------------------------------------------------------------------------------------------


async def offset_for_leader_epoch(
    request: Request, services: Services, _: Conversation, denied: Denied
) -> d.OffsetForLeaderEpochResponse:
    message: d.OffsetForLeaderEpochRequest = request.message
    pace = YieldCounter()
    topics = []
    for topic in message.topics:
        topics.append(d.OffsetForLeaderEpochResponseTopic(topic.topic, []))
        for each in topic.partitions:
            await pace.step()
            topics[-1].partitions.append(_ended(topic.topic, each, services, denied))
    return d.OffsetForLeaderEpochResponse(topics=topics)


def _ended(
    topic: str, asked: d.OffsetForLeaderEpochRequestPartition, services: Services, denied: Denied
) -> d.OffsetForLeaderEpochResponsePartition:
    try:
        denied.check(topic)
        hosted = _led(services, topic, asked.partition, asked.current_leader_epoch)
        epoch, end = hosted.end_offset_for_epoch(asked.leader_epoch)
    except (BrokerError, StorageFault) as error:
        return d.OffsetForLeaderEpochResponsePartition(code_of(error), asked.partition)
    return d.OffsetForLeaderEpochResponsePartition(E.NONE, asked.partition, epoch, end)


ROUTES: dict[Key, Route] = {
    Key.LIST_OFFSETS: on_topics(list_offsets, Operation.DESCRIBE, refused(d.ListOffsetsResponse)),
    Key.OFFSET_FOR_LEADER_EPOCH: on_topics(
        offset_for_leader_epoch,
        Operation.DESCRIBE,
        refused(d.OffsetForLeaderEpochResponse),
        lambda request, _: (topic.topic for topic in request.message.topics),
    ),
}
