"""Who leads instead: what an answer of Produce or Fetch adds to a refusal, so that its client need not ask for metadata first
(KIP-951)."""

from collections.abc import Iterable

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topics import DOOR, named
from braidlog.replication.assignment import Assignment
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages.parts import CurrentLeader, NodeEndpoint

REDIRECTED = (E.NOT_LEADER_OR_FOLLOWER, E.FENCED_LEADER_EPOCH)


def add_to_produce(answer: d.ProduceResponse, services: Services, conversation: Conversation) -> d.ProduceResponse:
    leaders = set()
    for topic in answer.responses:
        for at, each in enumerate(topic.partition_responses):
            if each.error_code in REDIRECTED and (known := _known(services, topic.name, topic.topic_id, each.index)):
                topic.partition_responses[at] = msgspec.structs.replace(each, current_leader=_leader(known))
                leaders.add(known.leader)
    return (
        msgspec.structs.replace(answer, node_endpoints=_where(leaders, services, conversation)) if leaders else answer
    )


def add_to_fetch(answer: d.FetchResponse, services: Services, conversation: Conversation) -> d.FetchResponse:
    leaders = set()
    for topic in answer.responses:
        for at, each in enumerate(topic.partitions):
            if each.error_code in REDIRECTED and (
                known := _known(services, topic.topic, topic.topic_id, each.partition_index)
            ):
                topic.partitions[at] = msgspec.structs.replace(each, current_leader=_leader(known))
                leaders.add(known.leader)
    return (
        msgspec.structs.replace(answer, node_endpoints=_where(leaders, services, conversation)) if leaders else answer
    )


def _known(services: Services, name: str, topic_id: bytes, number: int) -> Assignment | None:
    topic = named(services, name, topic_id)
    return None if topic is None else services.routing.assignment(topic, number)


def _leader(known: Assignment) -> CurrentLeader:
    """Without a leader the epoch is told all the same: a client then waits for a later one."""
    return CurrentLeader(-1 if known.leader is None else known.leader, known.leader_epoch)


def _where(leaders: Iterable[int | None], services: Services, conversation: Conversation) -> list[NodeEndpoint]:
    return [
        NodeEndpoint(each.number, each.host, each.port, each.rack or None)
        for each in services.routing.brokers(DOOR, conversation.address)
        if each.number in leaders
    ]
