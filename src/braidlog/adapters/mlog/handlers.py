"""Handlers of mlog's requests: translate, call the service, translate back (the mlog page, §7).

Consumers and replicas send the same messages; `ReplicaNodeID` distinguishes them, and each has its own routes. Does
not handle: bytes, sockets.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec

from braidlog.adapters.contract import Conversation, Relayed, Stream
from braidlog.adapters.mlog import topics
from braidlog.adapters.mlog.errors import rpc_error
from braidlog.adapters.mlog.services import Services
from braidlog.adapters.mlog.topics import led_partition
from braidlog.adapters.routing import TO_BE_KNOWN, ForwardingAdapter, Handler, Route, named, then
from braidlog.adapters.services import CommonServices
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.codec.batch.records import sealed_batch
from braidlog.codec.batch.row_layout import Packed, RowForm
from braidlog.codec.batch.rows import Ended
from braidlog.coordinator.offsets import Commit, check_group_name
from braidlog.model.errors import BrokerError, ElsewhereError, NotCoordinatorError, Reason
from braidlog.model.limits import LONG_POLL_MS_MAX
from braidlog.model.record import Record
from braidlog.partition.fetch.fetch import OffsetOutOfRange
from braidlog.partition.fetch.record_reader import Rows
from braidlog.partition.partition import Partition
from braidlog.partition.produce.append import Acks, Appended
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import ClientConnection, ServerConnection, frame
from braidlog.wire.mlog.errors import RPCErrorResponse
from braidlog.wire.mlog.replication import HEADER_BYTES, RECORD_HEADER_BYTES, ReplicationRecord
from braidlog.wire.mlog.replication import encode_batch as encode_replication_batch
from braidlog.wire.mlog.sizes import (
    ANSWER_BYTES,
    ENTRIES_PER_ANSWER_MAX,
    PAYLOAD_BYTES_MAX,
    VALUE_BYTES_MAX,
    entries_that_fit,
    raw_chunk_bytes_max,
    value_bytes_max,
)

DEFAULT_CONSUMER = "default"
DEFAULT_BATCH_SIZE = 1000
READ_BYTES = 256 * 1024
"""Bytes read from the log in one step; a piece of a stream has about as many."""
ANSWER_VALUE_BYTES = PAYLOAD_BYTES_MAX // 4 * 3
RECORDS_PER_BATCH = 500
"""Maximum bytes of a batch in the log: Fetch reads one record and decodes its whole batch, so a large ProduceBatch
becomes several batches in one append.
"""

_ACKS = {m.AckMode.NONE: Acks.NONE, m.AckMode.LEADER: Acks.LEADER, m.AckMode.ALL: Acks.ALL}


# -- writing -------------------------------------------------------------------------------------------------------


async def produce(message: m.ProduceRequest, services: Services, _: Conversation) -> m.ProduceResponse:
    appended = await _append(services, message.topic, (message.value,), message.acks)
    return m.ProduceResponse(offset=appended.base_offset)


async def produce_batch(message: m.ProduceBatchRequest, services: Services, _: Conversation) -> m.ProduceBatchResponse:
    values = message.values or ()
    appended = await _append(services, message.topic, values, message.acks)
    return m.ProduceBatchResponse(appended.base_offset, appended.last_offset, len(values))


async def _append(services: Services, topic: str, values: Sequence[bytes | None], acks: int) -> Appended:
    led_partition(services, topic)
    _check_values(values, value_bytes_max(topic))
    if acks not in _ACKS:
        raise BrokerError(
            Reason.INVALID_ACKS, f"mlog does not support acks={acks}; supported: 0 (none), 1 (leader), 2 (all)"
        )
    if len(values) <= RECORDS_PER_BATCH:
        appended = services.append.append_records(topic, 0, values, acks=_ACKS[m.AckMode(acks)])
        return appended if isinstance(appended, Appended) else await appended
    now_ms = services.runtime.now_ms()
    pieces = [values[at : at + RECORDS_PER_BATCH] for at in range(0, len(values), RECORDS_PER_BATCH)]
    batches = [sealed_batch(piece, base_timestamp=now_ms) for piece in pieces]
    appended = services.append.append_own(topic, 0, batches, acks=_ACKS[m.AckMode(acks)])
    return appended if isinstance(appended, Appended) else await appended


def _check_values(values: Sequence[bytes | None], bytes_max: int) -> None:
    if not values or not all(values):
        raise BrokerError(Reason.INVALID_RECORD, "a produce needs at least one value, and values cannot be empty")
    largest = max([len(value or b"") for value in values])
    if largest > bytes_max:
        raise BrokerError(
            Reason.RECORD_TOO_LARGE, f"a value of {largest} bytes could not be read back, the limit is {bytes_max}"
        )


# -- reading -------------------------------------------------------------------------------------------------------


async def fetch(message: m.FetchRequest, services: Services, _: Conversation) -> m.FetchResponse:
    hosted, offset = _consumer(services, message)
    entry = _fitted(hosted, offset, await _collect(services, message.topic, offset, 1))[0]
    return m.FetchResponse(entry)


async def fetch_as_replica(message: m.FetchRequest, services: Services, _: Conversation) -> m.FetchResponse:
    hosted = _replica(services, message)
    records = await _collect(services, message.topic, message.offset, 1, replica=message.replica_node_id)
    entry = _fitted(hosted, message.offset, records)[0]
    return m.FetchResponse(entry)


async def fetch_batch(
    message: m.FetchBatchRequest, services: Services, _: Conversation
) -> m.FetchBatchResponse | m.PackedEntries:
    offset = _consumer(services, message)[1]
    entries = await _collect_entries(services, message.topic, offset, message.max_count)
    return m.PackedEntries(entries) if entries.number else m.FetchBatchResponse(None)


async def _collect_entries(services: Services, topic: str, offset: int, count: int) -> Packed:
    """Return `count` entries from `offset` on (0 means 1), limited by the log's end and the frame; already encoded."""
    left = min(max(count, 1), ENTRIES_PER_ANSWER_MAX)
    room = PAYLOAD_BYTES_MAX - ANSWER_BYTES
    pieces: list[bytes] = []
    number = 0
    while left:
        form = RowForm(m.ENTRY_ROW, room, b",")
        found = services.fetch.rows(topic, 0, offset, form, bytes_max=READ_BYTES, records_max=left, beyond_end=True)
        if not isinstance(found, Rows):
            found = await found
        offset = found.next_offset
        if found.is_too_large and not number:
            raise _too_large(offset)
        if not found.count:
            break
        pieces.append(found.data)
        number, left, room = number + found.count, left - found.count, room - len(found.data) - 1
        if found.ended is Ended.FULL:
            break
    return Packed(b",".join(pieces), number)


async def fetch_batch_as_replica(
    message: m.FetchBatchRequest, services: Services, _: Conversation
) -> m.FetchBatchResponse:
    hosted, node = _replica(services, message), message.replica_node_id
    records = await _collect(services, message.topic, message.offset, message.max_count, replica=node)
    return m.FetchBatchResponse(_fitted(hosted, message.offset, records))


def fetch_stream(message: m.FetchStreamRequest, services: Services, conversation: Conversation) -> Stream:
    hosted, offset = _consumer(services, message)
    if offset > hosted.high_watermark:
        raise OffsetOutOfRange(hosted, offset)
    if conversation.connection.streaming:
        raise BrokerError(
            Reason.UNAVAILABLE, "a FetchStream is already open on this connection; use another connection"
        )
    conversation.connection.streaming = True
    return Stream(lambda: _push_records(services, conversation, message.topic, offset), holds_turn=False)


def fetch_stream_as_replica(_: m.FetchStreamRequest, __: Services, ___: Conversation) -> Stream:
    raise BrokerError(
        Reason.UNAVAILABLE,
        "a replica must use ReplicateStream or FetchBatch: a FetchStream does not report its progress",
    )


async def _push_records(services: Services, conversation: Conversation, topic: str, offset: int) -> None:
    while not conversation.is_closing:
        found = await services.fetch.records(topic, 0, offset, bytes_max=READ_BYTES, wait_ms=LONG_POLL_MS_MAX)
        led_partition(services, topic)
        for piece in _pieces(found.records, len(found.records), READ_BYTES):
            await conversation.push(conversation.connection.push_entries(_entries(piece)))
        offset = found.next_offset


def _consumer(
    services: Services, message: m.FetchRequest | m.FetchBatchRequest | m.FetchStreamRequest
) -> tuple[Partition, int]:
    """Return where a consumer reads: offsets deleted by retention are skipped (entries contain their offsets)."""
    hosted = led_partition(services, message.topic)
    return hosted, max(message.offset, hosted.start_offset)


def _replica(services: Services, message: m.FetchRequest | m.FetchBatchRequest | m.ReplicateRequest) -> Partition:
    """Return the partition that a replica copies; its fetch offset reports that it has everything below."""
    led_partition(services, message.topic)
    return services.fetch.replica_fetched(message.topic, 0, message.replica_node_id, message.offset)


async def _collect(
    services: Services, topic: str, offset: int, count: int, *, replica: str | None = None
) -> list[Record]:
    """Return `count` records from `offset` on (0 means 1), limited by the log's end and about a frame."""
    count = min(max(count, 1), ENTRIES_PER_ANSWER_MAX)
    records: list[Record] = []
    size = 0
    while len(records) < count and size < ANSWER_VALUE_BYTES:
        found = await services.fetch.records(
            topic,
            0,
            offset,
            bytes_max=READ_BYTES,
            records_max=count - len(records),
            committed_only=replica is None,
            replica=replica,
            beyond_end=replica is None,
        )
        if found.next_offset == offset:
            break
        offset = found.next_offset  # also after batches without records: markers, aborted transactions
        records += found.records
        size += sum([len(record.value or b"") for record in found.records])
    return records


def _fitted(hosted: Partition, offset: int, records: Sequence[Record]) -> tuple[m.LogEntry, ...]:
    """Return the records that fit an answer, at least one."""
    if not records:
        raise OffsetOutOfRange(hosted, offset)
    entries = _entries(records)
    count = entries_that_fit(entries)
    if not count:
        raise _too_large(records[0].offset)
    return tuple(entries[:count])


def _entries(records: Sequence[Record]) -> list[m.LogEntry]:
    return [m.LogEntry(record.offset, record.value) for record in records]


def _pieces(records: Sequence[Record], count_max: int, bytes_max: int) -> Iterator[list[Record]]:
    """Yield the records in pieces limited by count and bytes; a larger single record is its own piece. Raises for a
    record that exceeds a frame.
    """
    piece: list[Record] = []
    size = 0
    for record in records:
        added = RECORD_HEADER_BYTES + len(record.value or b"")
        if piece and (len(piece) >= count_max or size + added > bytes_max):
            yield piece
            piece, size = [], 0
        if added - RECORD_HEADER_BYTES > VALUE_BYTES_MAX:
            raise _too_large(record.offset)
        piece.append(record)
        size += added
    if piece:
        yield piece


def _too_large(offset: int) -> BrokerError:
    return BrokerError(
        Reason.RECORD_TOO_LARGE, f"the record at offset {offset} exceeds a frame, the limit is {VALUE_BYTES_MAX} bytes"
    )


# -- replicas ------------------------------------------------------------------------------------------------------


def replicate(message: m.ReplicateRequest, services: Services, conversation: Conversation) -> Stream:
    hosted = _replica(services, message)
    if message.offset < hosted.start_offset:
        raise OffsetOutOfRange(hosted, message.offset)
    return Stream(lambda: _push_batches(services, conversation, message, hosted.end_offset), holds_turn=True)


async def _push_batches(
    services: Services, conversation: Conversation, message: m.ReplicateRequest, end_offset: int
) -> None:
    """Push the log up to its end when the stream began; the next request fetches newer records and reports progress."""
    topic, connection = message.topic, conversation.connection
    offset = message.offset
    while offset < end_offset and not conversation.is_closing:
        epoch = led_partition(services, topic).leader_epoch
        found = await services.fetch.records(
            topic, 0, offset, bytes_max=READ_BYTES, committed_only=False, replica=message.replica_node_id
        )
        records = [record for record in found.records if record.offset < end_offset]
        for piece in _pieces(records, message.batch_size or DEFAULT_BATCH_SIZE, READ_BYTES):
            chunk = _replication_batch(topic, piece, epoch)
            await conversation.push(connection.push(m.ReplicateResponse(topic, chunk)))
        offset = found.next_offset
    if not conversation.is_closing:
        await conversation.push(
            connection.push(m.ReplicateResponse(topic, None, end_of_stream=True, leader_leo=end_offset))
        )


def _replication_batch(topic: str, records: Sequence[Record], epoch: int) -> bytes:
    if len(records) == 1 and HEADER_BYTES + RECORD_HEADER_BYTES + len(records[0].value or b"") > raw_chunk_bytes_max(
        topic
    ):
        raise _too_large(records[0].offset)
    return encode_replication_batch([ReplicationRecord(r.offset, r.value or b"") for r in records], epoch)


async def apply_isr_update(
    message: m.ApplyIsrUpdateEventRequest, services: Services, _: Conversation
) -> m.ApplyIsrUpdateEventResponse:
    led_partition(services, message.topic)
    await services.placement.set_in_sync(message.topic, 0, message.replica_node_id, in_sync=message.isr)
    return m.ApplyIsrUpdateEventResponse()


# -- committed offsets ---------------------------------------------------------------------------------------------


async def commit_offset(
    message: m.CommitOffsetRequest, services: Services, conversation: Conversation, coordinator: Coordinator
) -> m.CommitOffsetResponse:
    services.hosting.check_sole_partition(message.topic)
    wanted = [Commit(message.topic, 0, message.offset)]
    await coordinator.offsets.commit(_group(message), wanted, by=conversation.principal)
    return m.CommitOffsetResponse(success=True)


def fetch_offset(
    message: m.FetchOffsetRequest, services: Services, _: Conversation, coordinator: Coordinator
) -> m.FetchOffsetResponse:
    services.hosting.check_sole_partition(message.topic)
    group = _group(message)
    check_group_name(group)
    found = coordinator.offsets.committed(group, message.topic, 0)
    return m.FetchOffsetResponse(0 if found is None else found.offset)


# -- routes --------------------------------------------------------------------------------------------------------


def _topic(request: Any) -> str | None:  # noqa: ANN401
    topic: str = request.topic
    if not topic:
        raise BrokerError(Reason.INVALID_TOPIC_NAME, "the request has no topic")
    return topic


def _group(request: Any) -> str:  # noqa: ANN401
    """A consumer's id is the group whose offsets it commits."""
    return request.consumer_id or DEFAULT_CONSUMER


_CONSUMER = (named(Operation.DESCRIBE, Kind.GROUP, lambda request: request.consumer_id),)
"""Without a consumer id, the default consumer's offset is used if the client may read it, else the log's start:
reading needs no rule for groups.
"""


def _of_group(handler: Handler, operation: Operation) -> Route:
    """A row about where a group is in a topic, which the group's coordinator knows; `operation` is needed on the group."""
    needs = (named(operation, Kind.GROUP, _group),)
    return Route(handler, Operation.READ, _topic, needs=needs, state_of=_group)


def _continues(request: m.Request, services: CommonServices, conversation: Conversation) -> bool:
    """Return whether a consumer reads after its last commit; without an id only if this node has that commit."""
    if not isinstance(request, m.FetchRequest | m.FetchBatchRequest | m.FetchStreamRequest) or request.offset:
        return False
    may = services.authorize.is_allowed
    return bool(request.consumer_id) or (
        services.coordinators.keeps(DEFAULT_CONSUMER)
        and may(conversation.principal, Operation.DESCRIBE, DEFAULT_CONSUMER, Kind.GROUP)
    )


class MlogAdapter(ForwardingAdapter):
    """mlog behind a listener. Its clients match answers by order. They look for leaders themselves, but do not know
    coordinators: requests for commits are forwarded.
    """

    dialect = "mlog"
    uses = Services
    ordered = True
    routes: ClassVar[Mapping[type, Route]] = {
        m.ReplicateRequest: Route(replicate, Operation.CLUSTER, _topic),
        m.ProduceRequest: Route(produce, Operation.WRITE, _topic),
        m.ProduceBatchRequest: Route(produce_batch, Operation.WRITE, _topic),
        m.FetchRequest: Route(fetch, Operation.READ, _topic, needs=_CONSUMER),
        m.FetchBatchRequest: Route(fetch_batch, Operation.READ, _topic, needs=_CONSUMER),
        m.FetchStreamRequest: Route(fetch_stream, Operation.READ, _topic, needs=_CONSUMER),
        m.CommitOffsetRequest: _of_group(commit_offset, Operation.READ),
        m.FetchOffsetRequest: _of_group(fetch_offset, Operation.DESCRIBE),
        m.CreateTopicRequest: Route(topics.create_topic, Operation.CREATE, _topic),
        m.DeleteTopicRequest: Route(topics.delete_topic, Operation.DELETE, _topic),
        m.FindTopicLeaderRequest: Route(topics.find_topic_leader, Operation.DESCRIBE, _topic),
        m.FindRaftLeaderRequest: Route(topics.find_raft_leader, None, needs=(TO_BE_KNOWN,)),
        m.ListTopicsRequest: Route(topics.list_topics, Operation.DESCRIBE),
        m.ApplyIsrUpdateEventRequest: Route(apply_isr_update, Operation.CLUSTER, _topic),
    }
    replica_routes: ClassVar[Mapping[type, Route]] = {
        m.FetchRequest: Route(fetch_as_replica, Operation.CLUSTER, _topic),
        m.FetchBatchRequest: Route(fetch_batch_as_replica, Operation.CLUSTER, _topic),
        m.FetchStreamRequest: Route(fetch_stream_as_replica, Operation.CLUSTER, _topic),
    }
    """With a ReplicaNodeID the same messages read uncommitted records."""

    def open(self) -> ServerConnection:
        return ServerConnection()

    def frame_of(self, request: m.Request) -> bytes:
        return frame(request)

    def should_forward(self, request: m.Request, error: ElsewhereError) -> bool:  # noqa: ARG002
        return isinstance(error, NotCoordinatorError)

    def handle(self, conversation: Conversation, request: m.Request) -> Any:  # noqa: ANN401
        asked_by = self.replica_routes if getattr(request, "replica_node_id", "") else self.routes
        route = asked_by.get(type(request)) or self.routes[type(request)]
        if asked_by is self.routes and _continues(request, self._services, conversation):
            return self._fetch_committed(route, conversation, request)
        return self.serve(route, conversation, request)

    def _fetch_committed(self, route: Route, conversation: Conversation, request: Any) -> Any:  # noqa: ANN401
        """The coordinator knows the consumer's offset; this node has the records."""
        asked = m.FetchOffsetRequest(request.topic, request.consumer_id)
        offset_found = self.serve(self.routes[m.FetchOffsetRequest], conversation, asked)
        return then(offset_found, partial(self._fetch_from, route, conversation, request, asked))

    def _fetch_from(
        self,
        route: Route,
        conversation: Conversation,
        request: Any,  # noqa: ANN401
        asked: m.FetchOffsetRequest,
        found: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if isinstance(found, Relayed):
            client = ClientConnection()
            client.request(asked)
            client.receive(found.data)
            found = client.next_event()
        if isinstance(found, RPCErrorResponse):
            return found
        begun = msgspec.structs.replace(request, offset=found.offset)
        return self.serve(route, conversation, begun)

    def failure(self, request: m.Request, error: Exception) -> RPCErrorResponse:
        return rpc_error(request, error)
