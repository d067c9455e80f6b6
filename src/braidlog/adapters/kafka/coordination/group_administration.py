"""Administration of groups: list, describe, delete.

Translates states; `groups.py` serves members.
Invariant: every group of a request has its own result. Groups of both types are listed alike.
"""

from collections.abc import Callable, Iterable

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.coordination.groups import each_group
from braidlog.adapters.kafka.errors import code_of, coordinator_code, coordinator_code_of
from braidlog.adapters.kafka.routes import Route, refused, whole
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import operations
from braidlog.adapters.routing import Denied
from braidlog.coordinator.groups.messages import State
from braidlog.coordinator.groups.service import GroupKind, GroupView, MemberView
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.kafka import consumer
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.rows import UNASKED

NOT_FOUND_SINCE = 6
"""The first version of DescribeGroups with an error for an unknown group; before, its state is "Dead"."""
STATES: dict[State, str] = {
    State.EMPTY: "Empty",
    State.JOINING: "PreparingRebalance",
    State.SYNCING: "CompletingRebalance",
    State.STABLE: "Stable",
    State.ASSIGNING: "Assigning",
    State.RECONCILING: "Reconciling",
}
CLASSIC_STATES: dict[State, str] = {
    **STATES,
    State.ASSIGNING: STATES[State.JOINING],
    State.RECONCILING: STATES[State.SYNCING],
}
"""The states in the words of DescribeGroups, whose clients know no others."""
DEAD = "Dead"


async def describe(
    request: Request, services: Services, conversation: Conversation, denied: Denied
) -> g.DescribeGroupsResponse:
    message: g.DescribeGroupsRequest = request.message

    def allowed(name: str) -> int:
        wanted = message.include_authorized_operations
        return operations(services, conversation, name, Kind.GROUP) if wanted else UNASKED

    names = dict.fromkeys(message.groups)
    return g.DescribeGroupsResponse(
        groups=[await _described(name, request.version, services, denied, allowed) for name in names]
    )


async def _described(
    name: str, version: int, services: Services, denied: Denied, allowed: Callable[[str], int]
) -> g.DescribeGroupsResponseGroup:
    refused = denied.get((Kind.GROUP, name))
    if refused is not None:
        return g.DescribeGroupsResponseGroup(code_of(refused), str(refused), name)
    try:
        async with services.coordinators.settled_after(name) as coordinator:
            view = coordinator.groups.describe(name)
    except BrokerError as error:
        is_said = version >= NOT_FOUND_SINCE or error.reason is not Reason.GROUP_NOT_FOUND
        code, text = (coordinator_code(error), str(error)) if is_said else (E.NONE, None)
        return g.DescribeGroupsResponseGroup(code, text, name, DEAD, authorized_operations=allowed(name))
    return g.DescribeGroupsResponseGroup(
        group_id=name,
        group_state=CLASSIC_STATES[view.state],
        protocol_type=_protocol_type(view),
        protocol_data=view.protocol,
        members=[_member(view, member) for member in view.members],
        authorized_operations=allowed(name),
    )


def _protocol_type(view: GroupView) -> str:
    """Members of server-assigned groups are consumers, regardless of their listener."""
    return view.protocol_type if view.kind is GroupKind.CLASSIC else consumer.PROTOCOL_TYPE


def group_type(view: GroupView) -> GroupKind:
    """Return the group's type; Kafka knows two."""
    return view.kind if view.kind is GroupKind.CONSUMER else GroupKind.CLASSIC


def _member(view: GroupView, member: MemberView) -> g.DescribeGroupsResponseMember:
    metadata, assignment = member.metadata, member.assignment
    if view.kind is not GroupKind.CLASSIC:
        metadata, assignment = consumer.subscription(member.topics), consumer.assignment(member.shares)
    return g.DescribeGroupsResponseMember(
        member.member, member.instance, member.client, member.host, metadata, assignment
    )


async def list_groups(request: Request, services: Services, conversation: Conversation) -> g.ListGroupsResponse:
    message: g.ListGroupsRequest = request.message
    there = {name: each.groups for each in await services.coordinators.all_led() for name in each.groups.names()}
    visible = services.authorize.visible(conversation.principal, sorted(there), Kind.GROUP)
    views = [there[name].describe(name) for name in visible]
    shown = [
        g.ListGroupsResponseGroup(view.name, _protocol_type(view), STATES[view.state], group_type(view))
        for view in views
        if _is_wanted(STATES[view.state], message.states_filter) and _is_wanted(group_type(view), message.types_filter)
    ]
    return g.ListGroupsResponse(groups=shown)


def _is_wanted(word: str, wanted: Iterable[str]) -> bool:
    words = {each.lower() for each in wanted}
    return not words or word.lower() in words


async def delete(request: Request, services: Services, _: Conversation, denied: Denied) -> g.DeleteGroupsResponse:
    message: g.DeleteGroupsRequest = request.message
    results = []
    for name in message.groups_names:
        code = E.NONE
        try:
            denied.check((Kind.GROUP, name))
            async with services.coordinators.settled_after(name) as coordinator:
                await coordinator.groups.delete(name)
        except (BrokerError, StorageFault) as error:
            code = coordinator_code(error)
        results.append(g.DeleteGroupsResponseResult(name, code))
    return g.DeleteGroupsResponse(results=results)


ROUTES: dict[Key, Route] = {
    Key.DESCRIBE_GROUPS: each_group(
        describe,
        Operation.DESCRIBE,
        refused(g.DescribeGroupsResponse, {"groups": "groups"}),
        lambda request, _: request.message.groups,
    ),
    Key.LIST_GROUPS: Route(list_groups, None, refusal=whole(g.ListGroupsResponse), said=coordinator_code_of),
    Key.DELETE_GROUPS: each_group(
        delete,
        Operation.DELETE,
        refused(g.DeleteGroupsResponse, {"results": "groups_names"}),
        lambda request, _: request.message.groups_names,
    ),
}
