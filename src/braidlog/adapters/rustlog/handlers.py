"""Handlers of RustLog's requests: translate, call the service, translate back (the RustLog page, §5).

Does not handle: bytes, sockets.
"""

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, cast

from braidlog.adapters.contract import Conversation, Relayed, answer_of
from braidlog.adapters.routing import ForwardingAdapter, Handler, Need, Route, named, then
from braidlog.adapters.rustlog.errors import TopicMissing, failure
from braidlog.adapters.services import LogServices as Services
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.broker.partition_reports import log_report
from braidlog.codec.batch.row_layout import Packed, RowForm
from braidlog.coordinator.offsets import Commit
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.reporting.prometheus_text import log_lines_of
from braidlog.model.runtime.cooperative import YieldCounter, yield_to_loop
from braidlog.partition.fetch.record_reader import Rows
from braidlog.partition.produce.append import Acks, Appended
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.binary import RECORD_ROW as BINARY_ROW
from braidlog.wire.rustlog.connection import ClientConnection, Request, ServerConnection
from braidlog.wire.rustlog.jsonform import RECORD_ROW as JSON_ROW
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX, Form
from braidlog.wire.rustlog.sizes import BINARY_ANSWER_BYTES, JSON_ANSWER_BYTES, JSON_RECORD_BYTES, fitting

_ALL: Final = Acks.ALL
WAIT_MS_MAX = 30_000
RECORDS_PER_FETCH_MAX = FRAME_BYTES_MAX // JSON_RECORD_BYTES
"""Maximum records of an answer: no JSON answer can hold more; a binary one could, but its reader fetches again."""
_BINARY_ROWS = RowForm(BINARY_ROW, FRAME_BYTES_MAX - BINARY_ANSWER_BYTES)
_JSON_ROWS = RowForm(JSON_ROW, FRAME_BYTES_MAX - JSON_ANSWER_BYTES, b",", plain_only=True)
_TIMESTAMP_MAX = 2**63 - 1
TOPICS_NAMED_MAX = 100
_TOPIC_BYTES = len('{"name":"","partition_count":},') + 10
_ANSWER_BYTES = 2048  # the fields around the rows: the type, the longest id


def produce(message: m.Produce, services: Services, _: Conversation) -> Any:  # noqa: ANN401 - an answer, or a coroutine
    if not message.records:
        services.hosting.check_partition(message.topic, message.partition)
        return m.ProduceResponse(base_offset=0, record_count=0)
    # Without an acks field, acknowledge only what survives the loss of any one node.
    appended = services.append.append_records(
        message.topic, message.partition, message.records, message.keys, acks=_ALL
    )
    if type(appended) is Appended:
        return m.ProduceResponse(base_offset=appended.base_offset, record_count=len(message.records))
    return _produced(cast("Awaitable[Appended]", appended), len(message.records))


async def _produced(appended: Awaitable[Appended], count: int) -> m.ProduceResponse:
    return m.ProduceResponse(base_offset=(await appended).base_offset, record_count=count)


def fetch(request: Request, services: Services, _: Conversation) -> Any:  # noqa: ANN401 - an answer, or a coroutine
    message: m.Fetch = request.message  # type: ignore[assignment]
    offset = message.offset
    services.hosting.check_partition(message.topic, message.partition)
    found = services.fetch.rows(
        message.topic,
        message.partition,
        offset,
        _BINARY_ROWS if request.form is Form.BINARY else _JSON_ROWS,
        bytes_max=_bytes_max(message),
        records_max=RECORDS_PER_FETCH_MAX,
        wait_ms=_wait_ms(message),
        leader_only=True,
        beyond_end=True,
    )
    if isinstance(found, Rows) and not found.has_headers:
        return _fetched(found, offset)
    return _fetch_later(found, message, offset, services)


async def _fetch_later(
    finding: Rows | Awaitable[Rows], message: m.Fetch, offset: int, services: Services
) -> m.FetchResponse | m.PackedFetchResponse:
    found = finding if isinstance(finding, Rows) else await finding
    return await _fetch_records(message, offset, services) if found.has_headers else _fetched(found, offset)


def _fetched(found: Rows, offset: int) -> m.PackedFetchResponse:
    if found.is_too_large:
        raise _too_large(offset)
    return m.PackedFetchResponse(Packed(found.data, found.count), found.next_offset)


def _wait_ms(message: m.Fetch) -> int:
    return min(message.max_wait_ms or 0, WAIT_MS_MAX)


def _bytes_max(message: m.Fetch) -> int:
    return min(max(message.max_bytes, 1), FRAME_BYTES_MAX)


async def _fetch_records(message: m.Fetch, offset: int, services: Services) -> m.FetchResponse:
    """Read one record at a time: a row cannot contain headers."""
    found = await services.fetch.records(
        message.topic,
        message.partition,
        offset,
        bytes_max=_bytes_max(message),
        records_max=RECORDS_PER_FETCH_MAX,
        leader_only=True,
        beyond_end=True,
    )
    shown = [
        m.FetchedRecord(
            offset=record.offset,
            timestamp=min(max(record.timestamp_ms, 0) * 1000, _TIMESTAMP_MAX),  # other dialects allow any time
            payload=record.value or b"",
            key=record.key,
            headers=record.headers,
        )
        for record in found.records
    ]
    count = fitting(shown)
    if shown and not count:
        raise _too_large(offset)
    return m.FetchResponse(
        records=shown[:count], next_offset=found.next_offset if count == len(shown) else shown[count].offset
    )


def _too_large(offset: int) -> BrokerError:
    return BrokerError(
        Reason.RECORD_TOO_LARGE,
        f"the first record from offset {offset} on does not fit a frame of {FRAME_BYTES_MAX} bytes",
    )


async def commit(
    message: m.OffsetCommit, _: Services, conversation: Conversation, coordinator: Coordinator
) -> m.OffsetCommitResponse:
    wanted = [Commit(message.topic, message.partition, message.offset)]
    await coordinator.offsets.commit(message.group, wanted, by=conversation.principal)
    return m.OffsetCommitResponse(success=True)


def committed(message: m.OffsetFetch, _: Services, __: Conversation, coordinator: Coordinator) -> m.OffsetFetchResponse:
    found = coordinator.offsets.committed(message.group, message.topic, message.partition)
    return m.OffsetFetchResponse(offset=None if found is None else found.offset)


async def create_topic(message: m.CreateTopic, services: Services, conversation: Conversation) -> m.CreateTopicResponse:
    if not 1 <= message.partition_count <= m.PARTITIONS_PER_TOPIC_MAX:
        raise BrokerError(
            Reason.INVALID_PARTITION_COUNT, f"a topic must have 1 to {m.PARTITIONS_PER_TOPIC_MAX} partitions"
        )
    meta = await services.topics.create(message.topic, message.partition_count, by=conversation.principal)
    return m.CreateTopicResponse(success=True, partitions_created=meta.partitions)


def list_topics(_: Request, services: Services, conversation: Conversation) -> m.ListTopicsResponse:
    names = services.authorize.visible(conversation.principal, services.hosting.names())
    _check_answer(sum(map(len, names)) + _TOPIC_BYTES * len(names))
    return m.ListTopicsResponse(topics=[m.TopicSummary(name, services.hosting.meta(name).partitions) for name in names])


def _check_answer(size: int) -> None:
    """Raise if an answer that cannot be split exceeds the frame."""
    if size > FRAME_BYTES_MAX - _ANSWER_BYTES:
        raise BrokerError(Reason.UNAVAILABLE, f"the answer does not fit a frame of {FRAME_BYTES_MAX} bytes")


def describe_topic(message: m.DescribeTopic, services: Services, _: Conversation) -> m.DescribeTopicResponse:
    hosted = services.hosting.partitions(message.topic)
    shown = [m.PartitionSummary(h.number, h.high_watermark, h.start_offset, h.segment_count) for h in hosted]
    return m.DescribeTopicResponse(topic=message.topic, partitions=shown)


def describe_partition(
    message: m.DescribePartition, services: Services, _: Conversation
) -> m.DescribePartitionResponse:
    hosted = services.hosting.partition(message.topic, message.partition)
    hosted.require_leader()
    return m.DescribePartitionResponse(
        topic=message.topic,
        partition=message.partition,
        high_watermark=hosted.high_watermark,
        log_start_offset=hosted.start_offset,
        segment_count=hosted.segment_count,
    )


async def metrics(_: Request, services: Services, conversation: Conversation) -> m.MetricsFetchResponse:
    names = services.authorize.visible(conversation.principal, services.hosting.names())

    def shown(groups: Sequence[str]) -> list[str]:
        return services.authorize.visible(conversation.principal, groups, Kind.GROUP)

    report = await log_report(services.hosting, services.coordinators, frozenset(names), shown)
    lines, size, pace = list[str](), 0, YieldCounter()
    for line in log_lines_of(report):
        lines.append(f"{line}\n")
        size += len(line) + 1
        if pace.is_due():
            _check_answer(2 * size)
            await yield_to_loop()
    _check_answer(2 * size)
    return m.MetricsFetchResponse(metrics="".join(lines))


def ping(_: Request, __: Services, ___: Conversation) -> m.Pong:
    return m.PONG


def _topic(request: Request) -> str | None:
    topic: str = request.message.topic  # type: ignore[attr-defined]  # routes of what has one
    return topic


def _group(request: Request) -> str | None:
    group: str = request.message.group  # type: ignore[attr-defined]  # routes of what has one
    return group


_FETCHING = (named(Operation.DESCRIBE, Kind.GROUP, lambda request: request.message.group_id),)
"""A request with a group needs permission to read its committed offset."""


def _row(handler: Handler, operation: Operation, *needs: Need) -> Route:
    """A row whose handler takes only the message."""
    return Route(handler, operation, _topic, needs=needs, of_message=True)


def _of_group(handler: Handler, operation: Operation) -> Route:
    """A row about where a group is in a topic, which the group's coordinator knows; `operation` is needed on the group."""
    needs = (named(operation, Kind.GROUP, _group),)
    return Route(handler, Operation.READ, _topic, needs=needs, state_of=_group, of_message=True)


def _continues(request: Request) -> bool:
    """Return whether a fetch begins at its group's commit: the published server does so regardless of the requested
    offset.
    """
    message = request.message
    return isinstance(message, m.Fetch) and request.form is Form.BINARY and bool(message.group_id)


class RustlogAdapter(ForwardingAdapter):
    """RustLog behind a listener. Its clients match answers by order, and do not know other nodes."""

    dialect = "rustlog"
    uses = Services
    ordered = True
    routes: ClassVar[Mapping[type, Route]] = {
        m.Produce: _row(produce, Operation.WRITE),
        m.Fetch: Route(fetch, Operation.READ, _topic, needs=_FETCHING),
        m.OffsetCommit: _of_group(commit, Operation.READ),
        m.OffsetFetch: _of_group(committed, Operation.DESCRIBE),
        m.CreateTopic: _row(create_topic, Operation.CREATE),
        m.ListTopics: Route(list_topics, Operation.DESCRIBE),
        m.DescribeTopic: _row(describe_topic, Operation.DESCRIBE),
        m.DescribePartition: _row(describe_partition, Operation.DESCRIBE),
        m.MetricsFetch: Route(metrics, Operation.DESCRIBE),
        m.Ping: Route(ping, None),
    }

    def open(self) -> ServerConnection:
        return ServerConnection()

    def frame_of(self, request: Request) -> bytes:
        return ClientConnection(request.form).request(request.message)

    def wait_ms(self, request: Request) -> int:
        return _wait_ms(request.message) if isinstance(request.message, m.Fetch) else 0

    def handle(self, conversation: Conversation, request: Request) -> Any:  # noqa: ANN401
        route = self.routes[type(request.message)]
        if route.operation is None:
            return route.handler(request, self._services, conversation)
        if route.handler is fetch and _continues(request):
            return self._fetch_committed(conversation, request)
        if request.form is Form.JSON:
            return self._naming_topics(conversation, request)
        return self.serve(route, conversation, request)

    def _fetch_committed(self, conversation: Conversation, request: Request) -> Any:  # noqa: ANN401
        """The coordinator knows the group's offset, the leader has the records: either may be another node."""
        message: m.Fetch = request.message  # type: ignore[assignment]  # `_continues` has looked
        asked = Request(m.OffsetFetch(message.group_id or "", message.topic, message.partition), request.form)
        offset_found = self.serve(self.routes[m.OffsetFetch], conversation, asked)
        return then(offset_found, partial(self._fetch_from, conversation, request, asked))

    def _fetch_from(self, conversation: Conversation, request: Request, asked: Request, found: Any) -> Any:  # noqa: ANN401
        message: m.Fetch = request.message  # type: ignore[assignment]  # `_continues` has looked
        if isinstance(found, Relayed):
            client = ClientConnection(request.form)
            client.request(asked.message)
            client.receive(found.data)
            found = client.next_event().message
            if isinstance(found, m.Error):
                raise BrokerError(Reason.UNAVAILABLE, found.message)
        if found.offset is None:
            services: Services = self._services  # type: ignore[assignment]
            # The published server answers a group that reads an unknown topic with no records.
            if services.hosting.exists(message.topic):
                services.hosting.check_partition(message.topic, message.partition)
            return m.BriefFetchResponse([], 0)
        fetched = m.Fetch("", message.topic, message.partition, found.offset, message.max_bytes, message.max_wait_ms)
        return self.serve(self.routes[m.Fetch], conversation, Request(fetched, request.form))

    async def _naming_topics(self, conversation: Conversation, request: Request) -> Any:  # noqa: ANN401
        """Add the topics that the client may describe to the JSON error for an unknown topic."""
        try:
            return await answer_of(self.serve, self.routes[type(request.message)], conversation, request)
        except BrokerError as error:
            if error.reason is not Reason.TOPIC_NOT_FOUND:
                raise
            services: Services = self._services  # type: ignore[assignment]
            names = services.authorize.visible(conversation.principal, services.hosting.names())
            raise TopicMissing(error, names[:TOPICS_NAMED_MAX]) from None

    def failure(self, request: Request, error: Exception) -> m.Answer:
        return failure(request, error)
