"""Consumer groups with server-side assignment (KIP-848): heartbeats and descriptions.

`coordinator/consumer_groups` keeps epochs and target assignments.
Invariant: every described group has its own result. A group of another type is not found, and tools then use
DescribeGroups.
"""

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.coordination.group_administration import STATES
from braidlog.adapters.kafka.coordination.groups import each_group
from braidlog.adapters.kafka.errors import Refusal, code_of, coordinator_code, coordinator_code_of
from braidlog.adapters.kafka.routes import Route, on_group, refused, whole
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import id_of, operations
from braidlog.adapters.routing import Denied, Need
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.coordinator.consumer_groups.messages import JOIN, PAUSE, Heartbeat
from braidlog.coordinator.groups.messages import State
from braidlog.coordinator.groups.service import GroupKind, MemberView
from braidlog.model.errors import BrokerError
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import consumer_groups as m
from braidlog.wire.kafka.rows import UNASKED

OWN_ID_SINCE = 1
"""The first version in which the member chooses its id."""
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""The member type in ConsumerGroupDescribe."""


async def heartbeat(
    request: Request, services: Services, conversation: Conversation, coordinator: Coordinator
) -> m.ConsumerGroupHeartbeatResponse:
    message: m.ConsumerGroupHeartbeatRequest = request.message
    _check(message, request.version)
    owned = message.topic_partitions
    asked = Heartbeat(
        member=message.member_id,
        epoch=message.member_epoch,
        instance=message.instance_id,
        rack=message.rack_id,
        client=request.client_id or "",
        host="/" + conversation.peer.rpartition(":")[0],
        by=conversation.principal,
        rebalance_timeout_ms=None if message.rebalance_timeout_ms == -1 else message.rebalance_timeout_ms,
        topics=message.subscribed_topic_names,
        pattern=message.subscribed_topic_regex,
        assignor=message.server_assignor,
        owned=None if owned is None else {each.topic_id.hex(): set(each.partitions) for each in owned},
    )
    told = await coordinator.groups.consumer.heartbeat(message.group_id, asked)
    assignment = None
    if told.assignment is not None:
        assignment = m.ConsumerGroupHeartbeatResponseAssignment(
            [m.TopicIdPartitions(bytes.fromhex(topic), numbers) for topic, numbers in told.assignment.items()]
        )
    return m.ConsumerGroupHeartbeatResponse(
        member_id=told.member,
        member_epoch=told.epoch,
        heartbeat_interval_ms=services.group_settings.settings_of(message.group_id).heartbeat_interval_ms,
        assignment=assignment,
    )


def _check(message: m.ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Reject a heartbeat with contradictory fields."""
    is_named = bool(message.member_id) or (version < OWN_ID_SINCE and message.member_epoch == JOIN)
    wants = message.subscribed_topic_names is not None or message.subscribed_topic_regex is not None
    faults = {
        "a member needs an id": not is_named,
        "an instance id cannot be empty": message.instance_id == "",
        "a rack id cannot be empty": message.rack_id == "",
        f"a member epoch must be at least {PAUSE}": message.member_epoch < PAUSE,
        "only a static member can leave temporarily": message.member_epoch == PAUSE and message.instance_id is None,
        "a rebalance timeout cannot be negative": message.rebalance_timeout_ms < -1,
    }
    if message.member_epoch == JOIN:
        faults |= {
            "a joining member must send its rebalance timeout": message.rebalance_timeout_ms == -1,
            "a joining member must send its subscription": not wants,
            "a joining member must send an empty list of owned partitions": message.topic_partitions != [],
        }
    for rule, is_broken in faults.items():
        if is_broken:
            raise Refusal(E.INVALID_REQUEST, f"ConsumerGroupHeartbeat: {rule}")


def _heartbeat_code(request: Request, code: E) -> E:
    """Translate an error code to one that heartbeats may return: they differ from those of commits and joins."""
    said = {E.STALE_MEMBER_EPOCH: E.FENCED_MEMBER_EPOCH, E.INCONSISTENT_GROUP_PROTOCOL: E.GROUP_ID_NOT_FOUND}
    return said.get(code) or coordinator_code_of(request, code)


async def describe(
    request: Request, services: Services, conversation: Conversation, denied: Denied
) -> m.ConsumerGroupDescribeResponse:
    message: m.ConsumerGroupDescribeRequest = request.message
    groups = []
    pace = YieldCounter()
    for name in dict.fromkeys(message.group_ids):
        told = await _described(name, services, denied)
        await pace.step(1 + len(told.members))
        if message.include_authorized_operations:
            allowed = operations(services, conversation, name, Kind.GROUP)
            told = msgspec.structs.replace(told, authorized_operations=allowed)
        groups.append(told)
    return m.ConsumerGroupDescribeResponse(groups=groups)


async def _described(name: str, services: Services, denied: Denied) -> m.ConsumerGroupDescribeResponseGroup:
    refused = denied.get((Kind.GROUP, name))
    if refused is not None:
        return m.ConsumerGroupDescribeResponseGroup(code_of(refused), str(refused), name)
    try:
        async with services.coordinators.settled_after(name) as coordinator:
            view = coordinator.groups.describe(name)
    except BrokerError as error:
        return m.ConsumerGroupDescribeResponseGroup(coordinator_code(error), str(error), name)
    if view.kind is not GroupKind.CONSUMER:
        why = f"group {name!r} is not a consumer group; use DescribeGroups"
        return m.ConsumerGroupDescribeResponseGroup(E.GROUP_ID_NOT_FOUND, why, name)
    return m.ConsumerGroupDescribeResponseGroup(
        group_id=name,
        group_state=STATES[view.state],
        group_epoch=view.generation + (view.state is State.ASSIGNING),
        assignment_epoch=view.generation,
        assignor_name=view.protocol,
        members=[_member(services, each) for each in view.members],
        authorized_operations=UNASKED,
    )


def _member(services: Services, member: MemberView) -> m.ConsumerGroupDescribeResponseMember:
    def assignment(shares: dict[str, list[int]]) -> m.ConsumerGroupDescribeResponseAssignment:
        return m.ConsumerGroupDescribeResponseAssignment(
            [
                m.ConsumerGroupDescribeResponseTopic(id_of(services, topic), topic, shares[topic])
                for topic in sorted(shares)
            ]
        )

    return m.ConsumerGroupDescribeResponseMember(
        member.member,
        member.instance,
        member.rack,
        member.epoch,
        member.client,
        member.host,
        member.topics,
        member.pattern or None,
        assignment(member.shares),
        assignment(member.target),
        CLASSIC_MEMBER if member.is_translated else CONSUMER_MEMBER,
    )


ROUTES: dict[Key, Route] = {
    Key.CONSUMER_GROUP_HEARTBEAT: Route(
        heartbeat,
        None,
        needs=(
            on_group(Operation.READ),
            Need(Operation.DESCRIBE, lambda request, _: request.message.subscribed_topic_names or ()),
        ),
        refusal=whole(m.ConsumerGroupHeartbeatResponse),
        said=_heartbeat_code,
    ),
    Key.CONSUMER_GROUP_DESCRIBE: each_group(
        describe,
        Operation.DESCRIBE,
        refused(m.ConsumerGroupDescribeResponse, {"groups": "group_ids"}),
        lambda request, _: request.message.group_ids,
    ),
}
