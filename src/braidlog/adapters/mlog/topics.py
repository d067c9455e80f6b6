"""mlog's requests about topics and nodes."""

from braidlog.adapters.contract import Conversation
from braidlog.adapters.mlog.services import Services
from braidlog.broker.forwarding import Call
from braidlog.broker.topics import Placed
from braidlog.model.address import Address, show_address
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.names import node_number
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.replication.assignment import Assignment
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import ClientConnection, frame

DOOR = "mlog"
UNKNOWN_END = -1
"""Replaces a log end offset that this node does not know."""


def led_partition(services: Services, topic: str) -> Partition:
    """Return the topic's one partition, led by this node."""
    hosted = services.hosting.sole_partition(topic)
    hosted.require_leader()
    return hosted


async def create_topic(
    message: m.CreateTopicRequest, services: Services, conversation: Conversation
) -> m.CreateTopicResponse:
    wanted, by = message.designated_leader_node_id, conversation.principal
    if wanted not in ("", services.placement.node) and node_number(wanted) not in services.routing.numbers:
        raise BrokerError(Reason.NOT_LEADER, f"unknown node {wanted[:60]!r}: it cannot lead topic {message.topic!r}")
    followers = services.placement.choose_followers(message.replica_count)
    placed = Placed(message.replica_count + 1, first=node_number(wanted))
    made = await services.topics.create(message.topic, 1, followers=followers, placed=placed, by=by)
    known = made.assignments[0]
    others = (*[str(node) for node in known.replicas if node != known.leader], *made.observers)
    return m.CreateTopicResponse(message.topic, others or None)


async def delete_topic(message: m.DeleteTopicRequest, services: Services, _: Conversation) -> m.DeleteTopicResponse:
    await services.topics.delete(message.topic)
    return m.DeleteTopicResponse(message.topic)


async def find_topic_leader(
    message: m.FindTopicLeaderRequest, services: Services, conversation: Conversation
) -> m.FindTopicLeaderResponse:
    found: Address | None = conversation.address
    if services.routing.assignment(message.topic, 0) is None:
        led_partition(services, message.topic)
    else:
        await services.topic_leaders.wait(message.topic)
        found = services.routing.leader_address(message.topic, 0, DOOR, conversation.address)
    if found is None:
        raise BrokerError(Reason.NOT_LEADER, f"topic {message.topic!r} has no leader at present; retry")
    return m.FindTopicLeaderResponse(show_address(found))


def find_raft_leader(
    _: m.FindRaftLeaderRequest, services: Services, conversation: Conversation
) -> m.FindRaftLeaderResponse:
    """Any node writes metadata. Return the node that proposes first, or this one if that has no mlog listener."""
    found = services.routing.address(services.routing.controller, DOOR, conversation.address)
    return m.FindRaftLeaderResponse(show_address(found or conversation.address))


async def list_topics(_: m.ListTopicsRequest, services: Services, conversation: Conversation) -> m.ListTopicsResponse:
    names = services.authorize.visible(conversation.principal, services.hosting.names())
    found = {name: _topic_info(services, name) for name in names}
    if not conversation.is_forwarded:
        await _ask_leaders(found, services, conversation.principal)
    answer = m.ListTopicsResponse(tuple(found.values()) or None)
    try:
        frame(answer)
    except ValueError as error:
        raise BrokerError(Reason.RECORD_TOO_LARGE, f"the list does not fit one answer: {error}") from error
    return answer


def _topic_info(services: Services, name: str) -> m.TopicInfo:
    known = services.routing.assignment(name, 0)
    if known is not None:
        return _replicated_info(services, name, known)
    hosted = services.hosting.partition(name, 0)
    leader = m.ReplicaInfo(services.placement.node, is_isr=True, leo=hosted.end_offset)
    followers = [m.ReplicaInfo(r.node, r.in_sync, r.end_offset) for r in hosted.replicas.followers]
    return m.TopicInfo(name, services.placement.node, hosted.leader_epoch, (leader, *followers))


def _replicated_info(services: Services, name: str, known: Assignment) -> m.TopicInfo:
    """Return a topic by the metadata. A leader knows its followers' offsets and observers; other nodes know only
    their own log end.
    """
    hosted = services.hosting.hosted(name, 0)
    ends: dict[str, int] = {}
    observers: list[m.ReplicaInfo] = []
    if hosted is not None:
        if hosted.role is Role.LEADER:
            ends = {each.node: each.end_offset for each in hosted.replicas.followers}
            observers = [m.ReplicaInfo(r.node, r.in_sync, r.end_offset) for r in hosted.replicas.observers]
        ends[str(services.routing.own_number)] = hosted.end_offset
    replicas = [
        m.ReplicaInfo(str(node), node in known.in_sync, ends.get(str(node), UNKNOWN_END)) for node in known.replicas
    ]
    leader = "" if known.leader is None else str(known.leader)
    return m.TopicInfo(name, leader, known.leader_epoch, (*replicas, *observers))


async def _ask_leaders(found: dict[str, m.TopicInfo], services: Services, principal: str) -> None:
    """Ask each leader for its followers' offsets. If one does not respond, this node's values stay."""
    own, asked = services.routing.own_number, m.ListTopicsRequest()
    leaders = {info.leader_node_id for info in found.values()} - {"", str(own)}
    for node in sorted(number for name in leaders if (number := node_number(name)) is not None):
        if not services.routing.is_live(node):
            continue
        client = ClientConnection()
        call = Call(DOOR, principal, client.request(asked), changes=False)
        try:
            client.receive(await services.forwarding.ask(node, call))
        except BrokerError:
            continue
        told = client.next_event()
        for info in (told.topics or ()) if isinstance(told, m.ListTopicsResponse) else ():
            if info.name in found and info.leader_node_id == str(node) == found[info.name].leader_node_id:
                found[info.name] = info
