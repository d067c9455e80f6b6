"""What nodes of a simulated cluster say to each other, as the bytes that real ones would send; everything else passes as it is.

Knows: frames of the nodes' two ports. Refuses to know: when they arrive, and whether. A frame is on a connection of its own:
which answer belongs to which question is what its number says, also if frames overtake each other.
"""

from collections import Counter

import msgspec
from tests.simulation.simulated_messages import ForReplica, Ping, key_of
from tests.simulation.simulated_node import TOPIC_ID

from braidlog.adapters.peers.replica_messages import (
    in_request,
    in_response,
    read_answer,
    read_question,
    write_answer,
    write_complaint,
    write_question,
)
from braidlog.codec.errors import ProtocolError
from braidlog.replication.control import swim
from braidlog.replication.messages import Answer, Complaint, CorruptAnswer, Fetch
from braidlog.server.peers.gossip import from_wire, to_wire
from braidlog.wire.contract import Output, Refused
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages.data import FetchRequestReplicaState
from braidlog.wire.kafka.messages.replicas import ReplicaFetchRequest, ReplicaFetchResponse
from braidlog.wire.kafka.replica_fetch import follower_connection, leader_connection
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.connection import Frame, PeerConnection, write

SENDER = b"a simulated node"


class Gossiped(msgspec.Struct, frozen=True):
    data: bytes


class Asked(msgspec.Struct, frozen=True):
    name: str
    data: bytes


class Answered(msgspec.Struct, frozen=True):
    name: str
    data: bytes


class RealCodec:
    """`encode` what is sent, `decode` what arrives."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._questions: dict[int, Fetch] = {}
        self._numbers: dict[tuple[str, Fetch], int] = {}

    def encode(self, message: object) -> object:
        match message:
            case Ping():
                return self._gossiped(m.Ping(0))
            case swim.Pong(node, incarnation):
                return self._gossiped(m.Pong(node, incarnation, 0, 0))
            case swim.PingRequest() | swim.WitnessReport():
                return self._gossiped(to_wire(message))
            case ForReplica(name, Fetch() | Complaint()):
                self.counts["question as bytes"] += 1
                return Asked(name, self._request(message))
            case ForReplica(name, _):
                self.counts["answer as bytes"] += 1
                return Answered(name, self._response(message))
        return message

    def decode(self, message: object, receiver: int) -> object:
        match message:
            case Gossiped(data):
                return _read_gossip(data)
            case Asked(name, data):
                return ForReplica(name, self._read_request(name, data, receiver))
            case Answered(name, data):
                return ForReplica(name, self._read_response(data))
        return message

    def _gossiped(self, message: m.Message) -> Gossiped:
        self.counts["gossip as bytes"] += 1
        return Gossiped(write(SENDER, message))

    # -- replication -------------------------------------------------------------------------------------------

    def _request(self, message: ForReplica) -> bytes:
        place = TOPIC_ID, key_of(message.name)[1]
        said = message.message
        incarnation = -1
        if isinstance(said, Fetch):
            number = len(self._questions) + 1
            self._questions[number] = said
            incarnation = said.incarnation
            row = write_question(place[1], number, said)
        else:
            assert isinstance(said, Complaint)
            row = write_complaint(place[1], said)
        who = FetchRequestReplicaState(said.node, incarnation)
        return follower_connection().request(ReplicaFetchRequest(replica_state=who, topics=in_request([(place, row)])))

    def _read_request(self, name: str, data: bytes, leader: int) -> Fetch | Complaint:
        leading = leader_connection()
        leading.receive(data)
        request = leading.next_event()
        assert isinstance(request, Request)
        message: ReplicaFetchRequest = request.message
        (topic,) = message.topics
        (row,) = topic.partitions
        assert (topic.topic_id, row.partition) == (TOPIC_ID, key_of(name)[1])
        if row.complaint >= 0:
            return Complaint(message.replica_state.replica_id, row.current_leader_epoch, row.complaint)
        question = read_question(row, message.replica_state, leader)
        self._numbers[name, question] = row.question
        return question

    def _response(self, message: ForReplica) -> bytes:
        answer = message.message
        assert not isinstance(answer, Fetch | Complaint | CorruptAnswer)
        place = TOPIC_ID, key_of(message.name)[1]
        row = write_answer(place[1], self._numbers[message.name, answer.question], answer)
        leading = leader_connection()
        leading.receive(follower_connection().request(ReplicaFetchRequest()))
        request = leading.next_event()
        assert isinstance(request, Request)
        return _joined(leading.respond(request, ReplicaFetchResponse(responses=in_response([(place, row)]))))

    def _read_response(self, data: bytes) -> Answer | CorruptAnswer:
        following = follower_connection()
        following.request(ReplicaFetchRequest())
        following.receive(data)
        response = following.next_event()
        assert not isinstance(response, Refused), response
        (topic,) = response.message.responses
        (row,) = topic.partitions
        question = self._questions[row.question]
        try:
            return read_answer(row, question)
        except ProtocolError:
            return CorruptAnswer(question)


def _joined(output: Output) -> bytes:
    if isinstance(output, bytes):
        return output
    return b"".join(each if isinstance(each, bytes) else each.read() for each in output)


def _read_gossip(data: bytes) -> object:
    connection = PeerConnection()
    connection.receive(data)
    frame = connection.next_event()
    assert isinstance(frame, Frame)
    match frame.message:
        case m.Ping():
            return Ping()
        case m.Pong() | m.PingRequest() | m.Ack() | m.Leave() as message:
            return from_wire(message)
        case other:
            raise AssertionError(other)
