"""Handlers of Cursus's requests: translate, call the service, translate back (the Cursus page, §8).

Does not handle: bytes, sockets.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

import msgspec

from braidlog.adapters.contract import Conversation, Relayed, answer_of
from braidlog.adapters.cursus import cluster, events, forwarding, producing, reading
from braidlog.adapters.cursus.errors import answer_error
from braidlog.adapters.cursus.served import ActingConversation, SessionConnection
from braidlog.adapters.cursus.services import Services
from braidlog.adapters.cursus.transactions import COUNTS_CALL, TransactionHandlers
from braidlog.adapters.routing import ForwardingAdapter, Handler, Need, Route, named
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.broker.topics import Placed
from braidlog.coordinator.groups.assignors import Assignor
from braidlog.coordinator.groups.group import Group, Member, Membership
from braidlog.coordinator.offsets import Commit
from braidlog.model.address import show_address
from braidlog.model.errors import BrokerError, ElsewhereError, NotCoordinatorError, NotLeaderError, Reason
from braidlog.model.settings import UNLIMITED, TopicSettings
from braidlog.security.authentication import NOT_PROVED
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch
from braidlog.wire.cursus.compressors import COMPRESSORS, choose
from braidlog.wire.cursus.connection import ClientConnection
from braidlog.wire.cursus.failures import ErrorCode, Failure
from braidlog.wire.cursus.messages import OPERATIONS, Request

PARTITIONS_DEFAULT = 4
HOUR_MS = 3_600_000
FEATURES = ("batches", "gzip", "groups", "streaming", "idempotence", "event_sourcing", "transactions")

_CLEANUP = {"delete": False, "compact": True}
_ONLY = {"partitioner": "hash_key", "auth_policy": "open", "read_acl": "", "write_acl": ""}
"""Values of CREATE that have only one legal value: permissions are configured on the node."""


# -- topics --------------------------------------------------------------------------------------------------------


async def create(message: r.Create, services: Services, conversation: Conversation) -> a.Created:
    partitions = PARTITIONS_DEFAULT if message.partitions is None else message.partitions
    meta = await services.topics.ensure(
        message.topic,
        partitions,
        settings=_settings(message),
        placed=Placed(message.replication_factor),
        grow=message.partitions is not None,
        by=conversation.principal,
    )
    settings: TopicSettings = meta.settings
    return a.Created(
        meta.name,
        meta.partitions,
        cleanup_policy="compact" if settings.compact else "delete",
        retention_hours=max(settings.retention_ms, 0) // HOUR_MS,
        retention_bytes=max(settings.retention_bytes, 0),
    )


def _settings(message: r.Create) -> dict[str, Any]:
    """Return the given settings under the topic's own names."""
    for name, only in _ONLY.items():
        if getattr(message, name) not in (None, only):
            raise BrokerError(Reason.INVALID_SETTING, f"{name} of a topic can only be {only!r}")
    changes: dict[str, Any] = {}
    if message.cleanup_policy is not None:
        if message.cleanup_policy not in _CLEANUP:
            raise BrokerError(Reason.INVALID_SETTING, f"cleanup_policy must be one of {', '.join(_CLEANUP)}")
        changes["compact"] = _CLEANUP[message.cleanup_policy]
    if message.retention_hours is not None:
        changes["retention_ms"] = message.retention_hours * HOUR_MS or UNLIMITED
    if message.retention_bytes is not None:
        changes["retention_bytes"] = message.retention_bytes or UNLIMITED
    if message.event_sourcing:
        changes["event_streams"] = True
    return changes


async def delete(message: r.Delete, services: Services, _: Conversation) -> a.Deleted:
    if message.if_exists and not services.hosting.exists(message.topic):
        return a.Deleted(message.topic, deleted=False)
    await services.topics.delete(message.topic)
    return a.Deleted(message.topic)


def list_topics(_: Request, services: Services, conversation: Conversation) -> a.TopicList:
    names = services.authorize.visible(conversation.principal, services.hosting.names())
    return a.TopicList(len(names), tuple(names))


async def describe(message: r.Describe, services: Services, conversation: Conversation) -> a.TopicDescription:
    numbers = range(services.hosting.meta(message.topic).partitions)
    shown = {number: _described(message.topic, number, services, conversation) for number in numbers}
    if not conversation.is_forwarded:
        await cluster.describe_at_leaders(message, shown, services, conversation.principal)
    return a.TopicDescription(message.topic, tuple(shown.values()))


def _described(topic: str, number: int, services: Services, conversation: Conversation) -> a.PartitionDescription:
    """Describe a partition: replicas from the metadata, and the offsets of the local replica if one exists."""
    known = services.routing.assignment(topic, number)
    if known is None:
        hosted = services.hosting.partition(topic, number)
        replicas = (hosted.replicas.leader, *(replica.node for replica in hosted.replicas.followers))
        in_sync = tuple(hosted.replicas.in_sync)
    else:
        found = services.hosting.hosted(topic, number)
        replicas, in_sync = tuple(map(str, known.replicas)), tuple(map(str, known.in_sync))
        if found is None:
            leader = cluster.leader_of(topic, number, services, conversation)[0]
            return a.PartitionDescription(number, leader, replicas, in_sync, cluster.UNKNOWN_END, cluster.UNKNOWN_END)
        hosted = found
    leader = cluster.leader_of(topic, number, services, conversation)[0]
    return a.PartitionDescription(number, leader, replicas, in_sync, hosted.end_offset, hosted.high_watermark)


def metadata(message: r.GetMetadata, services: Services, conversation: Conversation) -> a.TopicMetadata:
    numbers = range(services.hosting.meta(message.topic).partitions)
    found = [cluster.leader_of(message.topic, number, services, conversation) for number in numbers]
    # Published clients connect to this address and never ask again: any node forwards.
    own = show_address(conversation.address)
    leaders = tuple(own if leader == cluster.NO_LEADER else leader for leader, _ in found)
    epochs = tuple(str(epoch) for _, epoch in found)
    return a.TopicMetadata(message.topic, len(numbers), leaders, epochs)


async def find_coordinator(message: r.FindCoordinator, services: Services, conversation: Conversation) -> a.Coordinator:
    kind = "transaction" if message.transactional_id and not message.group else "group"
    name = message.group or message.transactional_id or ""
    node = await services.coordinators.find(name)
    found = None if node is None else services.routing.address(node, forwarding.DOOR, conversation.address)
    if found is None:
        raise BrokerError(Reason.UNAVAILABLE, f"no node coordinates the {kind} {name[:60]!r} at present; retry")
    return a.Coordinator(str(node), kind, *found)


# -- groups --------------------------------------------------------------------------------------------------------


async def register(
    request: Request, services: Services, conversation: Conversation, coordinator: Coordinator
) -> a.Registered:
    message: r.RegisterGroup | r.Subscribe = request.message
    services.hosting.meta(message.topic)
    await coordinator.groups.register(message.group, by=conversation.principal)
    return a.Registered(message.group, message.topic)


async def join(message: r.JoinGroup, _: Services, conversation: Conversation, coordinator: Coordinator) -> a.Assignment:
    membership = await coordinator.groups.join(
        message.group, message.member, [message.topic], assignor=Assignor.RANGE, by=conversation.principal
    )
    return _assignment(message.topic, membership)


def sync(message: r.SyncGroup, _: Services, __: Conversation, coordinator: Coordinator) -> a.Assignment:
    return _assignment(message.topic, coordinator.groups.sync(*_member(coordinator, message)))


def _assignment(topic: str, membership: Membership) -> a.Assignment:
    return a.Assignment(membership.generation, membership.member, tuple(membership.assignment.get(topic, ())))


def _member(coordinator: Coordinator, message: r.SyncGroup | r.Heartbeat) -> tuple[str, str, int]:
    """Without a generation, a request means the current one."""
    present = coordinator.groups.find(message.group).generation
    return message.group, message.member, present if message.generation is None else message.generation


def heartbeat(message: r.Heartbeat, _: Services, __: Conversation, coordinator: Coordinator) -> a.Beating:
    membership = coordinator.groups.heartbeat(*_member(coordinator, message))
    return a.Beating(membership.member, membership.generation)


async def leave(message: r.LeaveGroup, _: Services, __: Conversation, coordinator: Coordinator) -> a.Left:
    await coordinator.groups.leave(message.group, message.member, message.generation)
    return a.Left(message.group, message.member)


async def list_groups(_: Request, services: Services, conversation: Conversation) -> a.GroupList:
    # Another listener may have a group whose name this dialect's lists cannot contain.
    there = await cluster.group_names(services)
    visible = services.authorize.visible(conversation.principal, sorted(there), Kind.GROUP)
    names = [name for name in visible if not set(name) & set(" ,[]")]
    return a.GroupList(len(names), tuple(names))


def group_status(
    message: r.GroupStatus, services: Services, _: Conversation, coordinator: Coordinator
) -> a.GroupDescription:
    committed = sorted({topic for topic, _ in coordinator.offsets.group_offsets(message.group)})
    if committed and message.group not in coordinator.groups.known():
        return a.GroupDescription(message.group, ",".join(committed), "Empty")
    group = coordinator.groups.find(message.group)
    topics = sorted({topic for member in group.members for topic in member.topics}) or committed
    members = [_show_member(group, member) for member in group.members]
    return a.GroupDescription(
        group_name=message.group,
        topic_name=",".join(topics),
        state="Stable" if members else "Empty",
        generation=group.generation,
        member_count=len(members),
        partition_count=sum(services.hosting.meta(name).partitions for name in topics if services.hosting.exists(name)),
        members=tuple(members),
        last_rebalance=_show_time(group.changed_ms),
    )


def _show_member(group: Group, member: Member) -> a.MemberDescription:
    shares = group.assignment.get(member.member, {})
    own = tuple(sorted({p for share in shares.values() for p in share}))
    return a.MemberDescription(member.member, _show_time(member.seen_ms), own)


def _show_time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat().replace("+00:00", "Z")


# -- commits -------------------------------------------------------------------------------------------------------


async def commit(message: r.Commit, services: Services, conversation: Conversation, coordinator: Coordinator) -> a.Ok:
    _check_committed(message.topic, message.partition, services)
    wanted = [Commit(message.topic, message.partition, message.offset)]
    await coordinator.offsets.commit(message.group, wanted, forward_only=True, by=conversation.principal)
    return a.Ok()


def _check_committed(topic: str, number: int, services: Services) -> None:
    """Reject a partition that this node follows without replication by the cluster. In a cluster, the leader need not
    store commits.
    """
    if services.routing.is_held_alone(topic):
        services.hosting.partition(topic, number).require_leader()
    else:
        services.hosting.check_partition(topic, number)


async def commit_offset(
    message: r.CommitOffset, services: Services, conversation: Conversation, coordinator: Coordinator
) -> a.Ok:
    topics = reading.topics_of(services, conversation, message.topic, message.partition)
    wanted = [Commit(topic, message.partition, message.offset) for topic in topics]
    by = conversation.principal
    if message.member and message.generation is not None:
        await coordinator.groups.commit(
            message.group,
            message.member,
            message.generation,
            wanted,
            forward_only=True,
            by=by,
            is_pattern=reading.is_pattern(message.topic),
        )
    else:
        await coordinator.offsets.commit(message.group, wanted, forward_only=True, by=by)
    return a.Ok()


async def batch_commit(
    message: r.BatchCommit, _: Services, conversation: Conversation, coordinator: Coordinator
) -> a.BatchCommitted:
    wanted = [Commit(message.topic, entry.partition, entry.offset) for entry in message.offsets]
    by = conversation.principal
    await coordinator.groups.commit(message.group, message.member, message.generation, wanted, forward_only=True, by=by)
    return a.BatchCommitted(len(wanted))


def fetch_offset(
    message: r.FetchOffset, services: Services, conversation: Conversation, coordinator: Coordinator
) -> a.CommittedOffset:
    """For several topics, return the smallest offset: a reader that starts there misses no record."""
    topics = reading.topics_of(services, conversation, message.topic, message.partition)
    for topic in topics:
        _check_committed(topic, message.partition, services)
    found = [coordinator.offsets.committed(message.group, topic, message.partition) for topic in topics]
    return a.CommittedOffset(min(0 if each is None else each.offset for each in found))


# -- the connection itself -----------------------------------------------------------------------------------------


async def authenticate(message: r.Auth, _: Services, conversation: Conversation) -> a.Authenticated | Failure:
    if not await conversation.prove(message.principal, message.token.encode()):
        return Failure.of(ErrorCode.AUTHENTICATION_FAILED, reason=NOT_PROVED)
    conversation.principal = message.principal
    return a.Authenticated(message.principal)


def show_help(_: Request, __: Services, ___: Conversation) -> a.CommandList:
    return a.CommandList(tuple(row.name for row in OPERATIONS if row.request is not Batch))


def protocol_info(_: Request, __: Services, ___: Conversation) -> a.ProtocolInfo:
    return a.ProtocolInfo(features=FEATURES)


def leave_connection(_: Request, __: Services, conversation: Conversation) -> a.Ok:
    conversation.close()
    return a.Ok()


# -- the adapter ---------------------------------------------------------------------------------------------------


def _topic(request: Request) -> str | None:
    topic: str = request.message.topic
    return topic


def _topic_or_pattern(request: Request) -> str | None:
    """A pattern names no single topic: the handler omits topics that the client may not read."""
    return None if reading.is_pattern(request.message.topic) else _topic(request)


def _nothing(_: Request) -> None:
    """For requests without a topic."""


def _row(
    handler: Handler, operation: Operation | None, topic: Callable[[Request], str | None] = _nothing, *needs: Need
) -> Route:
    """A row whose handler takes only the message."""
    return Route(handler, operation, topic, needs=needs, of_message=True)


def _coordinated(state_of: Callable[[Request], str | None], routes: Mapping[type, Route]) -> dict[type, Route]:
    """Rows that only the coordinator of the named group or transaction serves."""
    return {kind: msgspec.structs.replace(route, state_of=state_of) for kind, route in routes.items()}


def _group(request: Request) -> str | None:
    group: str = request.message.group
    return group


def _transaction(request: Request) -> str | None:
    name: str = request.message.transactional_id
    return name


_READ_GROUP = named(Operation.READ, Kind.GROUP, lambda request: request.message.group)
_DESCRIBE_GROUP = named(Operation.DESCRIBE, Kind.GROUP, lambda request: request.message.group)
_WRITE_ID = named(Operation.WRITE, Kind.TRANSACTIONAL_ID, lambda request: request.message.transactional_id)
_DESCRIBE_ID = named(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, lambda request: request.message.transactional_id)


class CursusAdapter(ForwardingAdapter):
    """Cursus behind a listener. Its clients match answers by order. Any node accepts their requests, except STREAM,
    and forwards them.
    """

    dialect = "cursus"
    uses = Services
    ordered = True
    fixed: ClassVar[Mapping[type, Route]] = {
        Batch: Route(producing.produce, Operation.WRITE, _topic),
        r.Create: _row(create, Operation.CREATE, _topic),
        r.Delete: _row(delete, Operation.DELETE, _topic),
        r.ListTopics: Route(list_topics, Operation.DESCRIBE),
        r.Consume: Route(reading.consume, Operation.READ, _topic_or_pattern, needs=(_READ_GROUP,)),
        r.Stream: Route(reading.stream, Operation.READ, _topic, needs=(_READ_GROUP,)),
        r.Publish: Route(producing.publish, Operation.WRITE, _topic),
        r.Describe: _row(describe, Operation.DESCRIBE, _topic),
        r.GetMetadata: _row(metadata, Operation.DESCRIBE, _topic),
        r.ListOffsets: _row(cluster.list_offsets, Operation.DESCRIBE, _topic),
        r.FindCoordinator: _row(find_coordinator, Operation.DESCRIBE, _nothing, _DESCRIBE_GROUP, _DESCRIBE_ID),
        r.ListCluster: Route(cluster.list_cluster, Operation.DESCRIBE),
        r.GetClusterStatus: Route(cluster.cluster_status, Operation.DESCRIBE),
        r.ElectLeader: Route(cluster.elect_leader, Operation.CLUSTER, _topic),
        r.ListGroups: Route(list_groups, Operation.DESCRIBE),
        r.AppendStream: _row(events.append_stream, Operation.WRITE, _topic),
        r.ReadStream: Route(events.read_stream, Operation.READ, _topic),
        r.StreamVersion: _row(events.stream_version, Operation.READ, _topic),
        r.SaveSnapshot: _row(events.save_snapshot, Operation.WRITE, _topic),
        r.ReadSnapshot: _row(events.read_snapshot, Operation.READ, _topic),
        r.Auth: _row(authenticate, None),
        r.Help: Route(show_help, None),
        r.GetProtocolInfo: Route(protocol_info, None),
        r.Exit: Route(leave_connection, None),
        **_coordinated(
            _group,
            {
                r.Subscribe: Route(register, Operation.READ, _topic, needs=(_READ_GROUP,)),
                r.JoinGroup: _row(join, Operation.READ, _topic, _READ_GROUP),
                r.LeaveGroup: _row(leave, Operation.READ, _topic, _READ_GROUP),
                r.Commit: _row(commit, Operation.READ, _topic, _READ_GROUP),
                r.Heartbeat: _row(heartbeat, Operation.READ, _topic, _READ_GROUP),
                r.BatchCommit: _row(batch_commit, Operation.READ, _topic, _READ_GROUP),
                r.SyncGroup: _row(sync, Operation.READ, _topic, _READ_GROUP),
                r.RegisterGroup: Route(register, Operation.READ, _topic, needs=(_READ_GROUP,)),
                r.GroupStatus: _row(group_status, None, _nothing, _DESCRIBE_GROUP),
                r.FetchOffset: _row(fetch_offset, Operation.READ, _topic_or_pattern, _DESCRIBE_GROUP),
                r.CommitOffset: _row(commit_offset, Operation.READ, _topic_or_pattern, _READ_GROUP),
            },
        ),
    }

    def __init__(self, services: Services, *, compression: str = "none") -> None:
        transactions = self._transactions = TransactionHandlers()
        super().__init__(services)
        self._services: Services = services
        try:
            choose(compression, COMPRESSORS)
        except ValueError as error:
            raise BrokerError(Reason.INVALID_SETTING, f"listeners.cursus.compression: {error}") from error
        self._compression = compression
        self.table: dict[type, Route] = {
            **self.fixed,
            **_coordinated(
                _transaction,
                {
                    r.InitProducerId: _row(transactions.init_producer, None, _nothing, _WRITE_ID),
                    r.BeginTxn: _row(transactions.begin, None, _nothing, _WRITE_ID),
                    r.EndTxn: _row(transactions.end, None, _nothing, _WRITE_ID),
                    r.TxnStatus: _row(transactions.status, None, _nothing, _DESCRIBE_ID),
                },
            ),
            r.TxnPublish: _row(transactions.publish, Operation.WRITE, _topic, _WRITE_ID),
            **_coordinated(
                _group,
                {r.SendOffsetsToTxn: _row(transactions.send_offsets, Operation.READ, _topic, _WRITE_ID, _READ_GROUP)},
            ),
        }

    def open(self) -> SessionConnection:
        return SessionConnection(compression=self._compression)

    @property
    def calls(self) -> Mapping[str, Callable[[bytes], Coroutine[Any, Any, bytes]]]:
        answer_groups = partial(cluster.answer_groups, services=self._services)
        return {COUNTS_CALL: self._transactions.answer_counts, cluster.GROUPS_CALL: answer_groups}

    def frame_of(self, request: Request) -> bytes:
        return ClientConnection(spelling=request.spelling).request(request.message)  # the principal is sent separately

    def may_forward(self, request: Request) -> bool:
        return super().may_forward(request) and not isinstance(request.message, r.Stream)

    def should_forward(self, request: Request, error: ElsewhereError) -> bool:
        """Do not forward requests that several nodes answer together; to a coordinator, forward only what it serves."""
        is_served_there = isinstance(error, NotLeaderError) or self.table[type(request.message)].state_of is not None
        is_of_several = cluster.is_of_several_nodes(request.message)
        return is_served_there and not is_of_several

    def may_repeat(self, route: Route, request: Request, refusal: BrokerError) -> bool:
        return forwarding.is_repeatable(request.message) or super().may_repeat(route, request, refusal)

    def wait_ms(self, request: Request) -> int:
        return min(request.message.wait_ms, reading.WAIT_MS_MAX) if isinstance(request.message, r.Consume) else 0

    async def _forward(
        self, route: Route, conversation: Conversation, request: Request, refusal: ElsewhereError
    ) -> Any:  # noqa: ANN401
        if isinstance(refusal, NotLeaderError):
            request = forwarding.at_partition(request, refusal.number)
        # The client's next write must not arrive first.
        with conversation.alone() if route.operation is Operation.WRITE else nullcontext():
            try:
                answer = await super()._forward(route, conversation, request, refusal)
            except BrokerError as error:
                # Too large to forward: the client may send it to the leader.
                raise refusal if error.reason is Reason.RECORD_TOO_LARGE else error from None
        return answer.data if isinstance(answer, Relayed) else answer  # the connection counts its answered requests

    def handle(self, conversation: Conversation, request: Request) -> Any:  # noqa: ANN401
        route = self.table[type(request.message)]
        if request.credentials is not None:
            return self._as_principal(route, conversation, request, request.credentials)
        return self.serve(route, conversation, request)

    async def _as_principal(
        self, route: Route, conversation: Conversation, request: Request, credentials: r.Credentials
    ) -> Any:  # noqa: ANN401
        """Serve one request as the principal of its credentials; the connection keeps its own principal."""
        if not await conversation.prove(credentials.principal, credentials.token.encode()):
            return Failure.of(ErrorCode.AUTHENTICATION_FAILED, reason=NOT_PROVED)
        return await answer_of(self.serve, route, ActingConversation(conversation, credentials.principal), request)

    def failure(self, request: Request, error: Exception) -> Failure | a.Ack:
        routing, elsewhere = self._services.routing, None
        if isinstance(error, NotLeaderError):
            elsewhere = routing.leader_address(error.topic, error.number, self.dialect)
        elif isinstance(error, NotCoordinatorError) and error.reason is Reason.NOT_COORDINATOR:
            node = routing.leader_of_shard(error.shard)
            elsewhere = None if node is None else routing.address(node, self.dialect)
        return answer_error(request, error, self.table[type(request.message)].operation or "none", elsewhere)
