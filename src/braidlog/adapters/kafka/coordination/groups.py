"""Consumer groups: members and committed offsets.

`coordinator/groups` keeps rebalances and generations.
Invariant: every group, member and partition of a request has its own result.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.errors import code_of, coordinator_code, coordinator_code_of, outcomes
from braidlog.adapters.kafka.routes import (
    Refusal,
    Route,
    on_group,
    refused,
    resolved,
    topics_by_id,
    topics_named,
    whole,
)
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import DOOR, id_of, named, unknown
from braidlog.adapters.routing import Denied, Handler, Need
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.coordinator.groups.messages import Joining, MemberIdRequired
from braidlog.coordinator.offsets import Commit, Committed
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages.parts import PartitionOutcome
from braidlog.wire.kafka.rows import NO_UUID

ID_REQUIRED_SINCE = 4
SKIPPING_SINCE = 9
SEVERAL_SINCE = 8
"""The first version of OffsetFetch for several groups."""
COORDINATED = {0: Kind.GROUP, 1: Kind.TRANSACTIONAL_ID}
"""The kinds that FindCoordinator can find."""


REFUSE_COORDINATOR = refused(
    c.FindCoordinatorResponse, {"coordinators": "coordinator_keys"}, {"node_id": -1, "port": -1}
)


# -- coordinators ------------------------------------------------------------------------------------------------


async def find_coordinator(
    request: Request, services: Services, conversation: Conversation, denied: Denied
) -> c.FindCoordinatorResponse:
    message: c.FindCoordinatorRequest = request.message
    kind = COORDINATED.get(message.key_type)
    if kind is None:
        return REFUSE_COORDINATOR(request, E.INVALID_REQUEST, f"no coordinator exists for type {message.key_type}")
    if not message.coordinator_keys:
        denied.check((kind, message.key))

    async def tell(key: str) -> c.FindCoordinatorResponseCoordinator:
        error = denied.get((kind, key))
        if error is not None:
            return c.FindCoordinatorResponseCoordinator(key, -1, "", -1, code_of(error), str(error))
        node = await services.coordinators.find(key)
        found = None if node is None else services.routing.address(node, DOOR, conversation.address)
        if node is None or found is None:
            text = f"no node coordinates {key[:60]!r} at present; retry"
            return c.FindCoordinatorResponseCoordinator(key, -1, "", -1, E.COORDINATOR_NOT_AVAILABLE, text)
        return c.FindCoordinatorResponseCoordinator(key, node, *found)

    if message.coordinator_keys:
        return c.FindCoordinatorResponse(coordinators=[await tell(key) for key in message.coordinator_keys])
    told = await tell(message.key)
    return c.FindCoordinatorResponse(
        error_code=told.error_code,
        error_message=told.error_message,
        node_id=told.node_id,
        host=told.host,
        port=told.port,
    )


def _coordinated(kind: Kind) -> Need:
    """The names of that kind in a FindCoordinator: one until version 3, several after."""

    def find(request: Request, _: Services) -> Iterable[str]:
        message: c.FindCoordinatorRequest = request.message
        return (message.coordinator_keys or (message.key,)) if COORDINATED.get(message.key_type) is kind else ()

    return Need(Operation.DESCRIBE, find, kind)


# -- members -----------------------------------------------------------------------------------------------------


async def join(
    request: Request, _: Services, conversation: Conversation, coordinator: Coordinator, *, session_timeout_ms_min: int
) -> g.JoinGroupResponse:
    message: g.JoinGroupRequest = request.message
    told_ms = message.rebalance_timeout_ms
    asked = Joining(
        member=message.member_id,
        instance=message.group_instance_id,
        client=request.client_id or "",
        host="/" + conversation.peer.rpartition(":")[0],
        session_timeout_ms=message.session_timeout_ms,
        session_timeout_ms_min=session_timeout_ms_min,
        rebalance_timeout_ms=told_ms if request.version > 0 else message.session_timeout_ms,
        protocol_type=message.protocol_type,
        protocols=[(each.name, bytes(each.metadata)) for each in message.protocols],
        id_required=request.version >= ID_REQUIRED_SINCE,
        knows_skipping=request.version >= SKIPPING_SINCE,
    )
    try:
        joined = await coordinator.groups.classic_service_for(message.group_id).join(
            message.group_id, asked, by=conversation.principal
        )
    except MemberIdRequired as required:
        return g.JoinGroupResponse(error_code=E.MEMBER_ID_REQUIRED, member_id=required.member)
    return g.JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member,
        members=[g.JoinGroupResponseMember(*member) for member in joined.members],
    )


def refuse_join(request: Request, code: E, _: str) -> g.JoinGroupResponse:
    return g.JoinGroupResponse(error_code=code, member_id=request.message.member_id)


async def sync(request: Request, _: Services, __: Conversation, coordinator: Coordinator) -> g.SyncGroupResponse:
    message: g.SyncGroupRequest = request.message
    synced = await coordinator.groups.classic_service_for(message.group_id).sync(
        message.group_id,
        message.member_id,
        message.generation_id,
        [(each.member_id, bytes(each.assignment)) for each in message.assignments],
        instance=message.group_instance_id,
        spoken=(message.protocol_type, message.protocol_name),
    )
    return g.SyncGroupResponse(
        protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
    )


def heartbeat(
    request: Request, _: Services, __: Conversation, coordinator: Coordinator
) -> g.HeartbeatResponse | Coroutine[Any, Any, g.HeartbeatResponse]:
    message: g.HeartbeatRequest = request.message
    waiting = coordinator.groups.classic_service_for(message.group_id).heartbeat(
        message.group_id, message.member_id, message.generation_id, message.group_instance_id
    )
    return g.HeartbeatResponse() if waiting is None else _heartbeat_later(waiting)


async def _heartbeat_later(waiting: Coroutine[Any, Any, None]) -> g.HeartbeatResponse:
    await waiting
    return g.HeartbeatResponse()


async def leave(request: Request, _: Services, __: Conversation, coordinator: Coordinator) -> g.LeaveGroupResponse:
    """One member until version 2; several, each with its own result, after."""
    message: g.LeaveGroupRequest = request.message
    leaving = message.members or [g.LeaveGroupRequestMember(message.member_id)]
    results = await coordinator.groups.classic_service_for(message.group_id).leave(
        message.group_id, [(each.member_id, each.group_instance_id) for each in leaving]
    )
    codes = [E.NONE if error is None else coordinator_code(error) for error in results]
    if not message.members:
        return g.LeaveGroupResponse(error_code=codes[0])
    members = [
        g.LeaveGroupResponseMember(each.member_id, each.group_instance_id, code)
        for each, code in zip(leaving, codes, strict=True)
    ]
    return g.LeaveGroupResponse(members=members)


# -- commits -----------------------------------------------------------------------------------------------------


async def commit(
    request: Request, services: Services, conversation: Conversation, denied: Denied, coordinator: Coordinator
) -> g.OffsetCommitResponse:
    message: g.OffsetCommitRequest = request.message
    checked = []
    pace = YieldCounter()
    for topic in message.topics:
        for each in topic.partitions:
            await pace.step()
            checked.append(_check_commit(topic, each, message, services, denied, coordinator))
    good = [found for found in checked if isinstance(found, Commit)]
    failed = E.NONE
    try:
        await coordinator.groups.commit_service_for(message.group_id).commit(
            message.group_id,
            message.member_id,
            message.generation_id_or_member_epoch,
            good,
            instance=message.group_instance_id,
            by=conversation.principal,
        )
    except (BrokerError, StorageFault) as error:
        failed = coordinator_code(error)
    codes = (failed or (E.NONE if isinstance(each, Commit) else each) for each in checked)
    return _commits(message, lambda: next(codes))


def _commits(message: g.OffsetCommitRequest, code: Callable[[], E]) -> g.OffsetCommitResponse:
    """`code` is called for each partition in order."""
    return g.OffsetCommitResponse(
        topics=[
            g.OffsetCommitResponseTopic(
                topic.name,
                topic.topic_id,
                [PartitionOutcome(each.partition_index, code()) for each in topic.partitions],
            )
            for topic in message.topics
        ]
    )


def _check_commit(
    topic: g.OffsetCommitRequestTopic,
    each: g.OffsetCommitRequestPartition,
    message: g.OffsetCommitRequest,
    services: Services,
    denied: Denied,
    coordinator: Coordinator,
) -> Commit | E:
    name = named(services, topic.name, topic.topic_id)
    if name is None:
        return unknown(topic.topic_id)
    return checked_commit(
        coordinator,
        denied,
        message.group_id,
        Commit(
            name,
            each.partition_index,
            each.committed_offset,
            each.committed_metadata or "",
            each.committed_leader_epoch,
        ),
    )


def checked_commit(coordinator: Coordinator, denied: Denied, group: str, wanted: Commit) -> Commit | E:
    """Return the commit if it is valid, else its error code."""
    if wanted.topic in denied:
        return E.TOPIC_AUTHORIZATION_FAILED
    try:
        coordinator.offsets.check(group, [wanted])
    except BrokerError as error:
        return coordinator_code(error)
    return wanted


async def fetch(
    request: Request, services: Services, conversation: Conversation, denied: Denied
) -> g.OffsetFetchResponse:
    message: g.OffsetFetchRequest = request.message

    async def committed(each: g.OffsetFetchRequest | g.OffsetFetchRequestGroup) -> list[g.OffsetFetchResponseTopic]:
        denied.check((Kind.GROUP, each.group_id))
        asked = each.topics
        async with services.coordinators.settled_after(each.group_id) as coordinator:
            if isinstance(each, g.OffsetFetchRequestGroup):
                coordinator.groups.consumer.check_fetch(each.group_id, each.member_id, each.member_epoch)
            if asked is None:
                asked = _all_of(coordinator.offsets.group_offsets(each.group_id), services, conversation)
            return _committed(each.group_id, asked, services, denied, coordinator, stable=message.require_stable)

    if request.version < SEVERAL_SINCE:
        return g.OffsetFetchResponse(topics=await committed(message))

    async def tell(each: g.OffsetFetchRequestGroup) -> g.OffsetFetchResponseGroup:
        try:
            return g.OffsetFetchResponseGroup(each.group_id, await committed(each))
        except BrokerError as error:
            return g.OffsetFetchResponseGroup(each.group_id, error_code=coordinator_code(error))

    once = {each.group_id: each for each in message.groups}
    return g.OffsetFetchResponse(groups=[await tell(each) for each in once.values()])


def _committed(
    group: str,
    asked: Sequence[g.OffsetFetchRequestTopic],
    services: Services,
    denied: Denied,
    coordinator: Coordinator,
    *,
    stable: bool,
) -> list[g.OffsetFetchResponseTopic]:
    """Return a group's committed offsets. With `stable`, a partition with a pending transactional commit returns an
    error.
    """
    committed = coordinator.offsets.group_offsets(group)
    moving = coordinator.pending_commits.places(group) if stable else set()

    def tell(name: str | None, topic: g.OffsetFetchRequestTopic, number: int) -> g.OffsetFetchResponsePartition:
        if name is None:
            return _nothing(number, unknown(topic.topic_id))
        if name in denied:
            return _nothing(number, E.TOPIC_AUTHORIZATION_FAILED)
        if (name, number) in moving:
            return _nothing(number, E.UNSTABLE_OFFSET_COMMIT)
        found = committed.get((name, number))
        if found is None:
            return _nothing(number)
        return g.OffsetFetchResponsePartition(number, found.offset, found.leader_epoch, found.metadata)

    return [
        g.OffsetFetchResponseTopic(topic.name, topic.topic_id, [tell(name, topic, n) for n in topic.partition_indexes])
        for topic, name in ((topic, named(services, topic.name, topic.topic_id)) for topic in asked)
    ]


def _all_of(
    committed: dict[tuple[str, int], Committed], services: Services, conversation: Conversation
) -> list[g.OffsetFetchRequestTopic]:
    visible = services.authorize.visible(conversation.principal, sorted({topic for topic, _ in committed}))
    return [
        g.OffsetFetchRequestTopic(name, id_of(services, name), sorted(n for topic, n in committed if topic == name))
        for name in visible
    ]


def _nothing(number: int, code: E = E.NONE) -> g.OffsetFetchResponsePartition:
    return g.OffsetFetchResponsePartition(number, -1, -1, "", code)


def refuse_fetch(request: Request, code: E, _: str) -> g.OffsetFetchResponse:
    said = code
    groups = [g.OffsetFetchResponseGroup(each.group_id, error_code=said) for each in request.message.groups]
    topics = [
        g.OffsetFetchResponseTopic(topic.name, NO_UUID, [_nothing(number, said) for number in topic.partition_indexes])
        for topic in request.message.topics or []
    ]
    return g.OffsetFetchResponse(error_code=said, groups=groups, topics=topics)


async def delete_offsets(
    request: Request, services: Services, _: Conversation, denied: Denied, coordinator: Coordinator
) -> g.OffsetDeleteResponse:
    message: g.OffsetDeleteRequest = request.message
    asked = [(topic.name, each.partition_index) for topic in message.topics for each in topic.partitions]
    wanted = [place for place in asked if place[0] not in denied]
    refused = set(await coordinator.groups.delete_commits(message.group_id, wanted))

    def code(place: tuple[str, int]) -> E:
        if place[0] in denied:
            return E.TOPIC_AUTHORIZATION_FAILED
        if place in refused:
            return E.GROUP_SUBSCRIBED_TO_TOPIC
        there = place[1] in range(services.hosting.partition_count(place[0]))
        return E.NONE if there else E.UNKNOWN_TOPIC_OR_PARTITION

    told = ((topic.name, [each.partition_index for each in topic.partitions]) for topic in message.topics)
    return g.OffsetDeleteResponse(topics=outcomes(told, code))


def _route(handler: Handler, operation: Operation, refusal: Refusal, *each: Need) -> Route:
    """The row of a request for one group: its permission on the group, and on each topic in it."""
    return Route(handler, None, needs=(on_group(operation),), each=each, refusal=refusal, said=coordinator_code_of)


def each_group(
    handler: Handler, operation: Operation, refusal: Refusal, find: Callable[..., Iterable[str]], *each: Need
) -> Route:
    """The row of a request for several groups, each with its own result."""
    needs = (Need(operation, find, Kind.GROUP), *each)
    return Route(handler, None, each=needs, refusal=refusal, said=coordinator_code_of)


def _groups_fetched(request: Request, _: Services) -> Iterable[str]:
    return [each.group_id for each in request.message.groups] or (request.message.group_id,)


def _topics_fetched(request: Request, services: Services) -> Iterable[str]:
    asked = (each.topics or () for each in (request.message, *request.message.groups))
    return resolved(services, ((topic.name, topic.topic_id) for topics in asked for topic in topics))


def routes(session_timeout_ms_min: int) -> dict[Key, Route]:
    return {
        Key.FIND_COORDINATOR: Route(
            find_coordinator,
            None,
            each=(_coordinated(Kind.GROUP), _coordinated(Kind.TRANSACTIONAL_ID)),
            refusal=REFUSE_COORDINATOR,
        ),
        Key.JOIN_GROUP: _route(
            partial(join, session_timeout_ms_min=session_timeout_ms_min), Operation.READ, refuse_join
        ),
        Key.SYNC_GROUP: _route(sync, Operation.READ, whole(g.SyncGroupResponse)),
        Key.HEARTBEAT: _route(heartbeat, Operation.READ, whole(g.HeartbeatResponse)),
        Key.LEAVE_GROUP: _route(leave, Operation.READ, whole(g.LeaveGroupResponse)),
        Key.OFFSET_COMMIT: _route(
            commit,
            Operation.READ,
            lambda request, code, _: _commits(request.message, lambda: code),
            Need(Operation.READ, topics_by_id),
        ),
        Key.OFFSET_FETCH: each_group(
            fetch, Operation.DESCRIBE, refuse_fetch, _groups_fetched, Need(Operation.DESCRIBE, _topics_fetched)
        ),
        Key.OFFSET_DELETE: _route(
            delete_offsets, Operation.DELETE, whole(g.OffsetDeleteResponse), Need(Operation.READ, topics_named)
        ),
    }
