"""Fetch between nodes: what is said is read, Kafka's own rows can be read by whoever knows only those, nonsense is refused."""

import random

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.kafka.apis import BY_KEY, CALL_BYTES_MAX, Key
from braidlog.wire.kafka.compiler import read_message
from braidlog.wire.kafka.connection import ClientConnection, Request, Response, ServerConnection
from braidlog.wire.kafka.messages import calls as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import replicas as r
from braidlog.wire.kafka.replica_fetch import VERSION, caller_connection, follower_connection, leader_connection

ID = b"0123456789abcdef"
ASKED = r.ReplicaFetchRequest(
    replica_state=d.FetchRequestReplicaState(2, 42),
    session_id=7,
    session_epoch=1,
    topics=[
        r.ReplicaFetchRequestTopic(
            ID,
            [
                r.ReplicaFetchRequestPartition(3, 1, 5, question=9),
                r.ReplicaFetchRequestPartition(4, 1, -1, complaint=17),
            ],
        )
    ],
)
TOLD = r.ReplicaFetchResponse(
    session_id=7,
    responses=[
        r.ReplicaFetchResponseTopic(
            ID, [r.ReplicaFetchResponsePartition(3, 0, 7, records=b"batches", question=9, common_end=4)]
        )
    ],
)


def asked(server: ServerConnection, frame: bytes) -> Request:
    server.receive(frame)
    event = server.next_event()
    assert isinstance(event, Request)
    return event


def test_both_ways() -> None:
    follower, leader = follower_connection(), leader_connection()
    request = asked(leader, follower.request(ASKED))
    assert (request.message, request.version, request.api.name) == (ASKED, VERSION, "ReplicaFetch")
    output = leader.respond(request, TOLD)
    assert isinstance(output, bytes)
    follower.receive(output)
    event = follower.next_event()
    assert isinstance(event, Response)
    (partition,) = event.message.responses[0].partitions
    assert (partition.question, partition.common_end, bytes(partition.records)) == (9, 4, b"batches")


def test_who_knows_kafkas_rows_only_passes_over_ours() -> None:
    """And a leader of ours reads Kafka's, as a question of nobody."""
    frame = follower_connection().request(ASKED)
    request = asked(ServerConnection(), frame)
    assert type(request.message) is d.FetchRequest
    assert [each.fetch_offset for each in request.message.topics[0].partitions] == [5, -1]
    leader = leader_connection()
    output = leader.respond(asked(leader, frame), TOLD)
    assert isinstance(output, bytes)
    response, end = read_message(d.FetchResponse, VERSION, output, 9, flexible=True)
    assert end == len(output)
    assert isinstance(response, d.FetchResponse)
    assert response.responses[0].partitions[0].high_watermark == 7
    plain = d.FetchRequest(topics=[d.FetchRequestTopic("", ID, [d.FetchRequestPartition(3, 1, 5)])])
    found = asked(leader_connection(), ClientConnection("x").request(plain, VERSION)).message.topics[0].partitions[0]
    assert (found.fetch_offset, found.question, found.complaint) == (5, 0, -1)


def test_nothing_but_fetch_in_one_version_is_served() -> None:
    for key, version in ((Key.FETCH, VERSION - 1), (Key.FETCH, VERSION + 1), (Key.API_VERSIONS, 3), (Key.PRODUCE, 9)):
        leader = leader_connection()
        leader.receive(ClientConnection("x").request(BY_KEY[key].request(), version))
        event = leader.next_event()
        assert isinstance(event, Refused)
        assert event.close


def test_damaged_requests_are_refused_or_read_and_nothing_else() -> None:
    chance = random.Random("replicas")
    frame = follower_connection().request(ASKED)
    for _ in range(1000):
        data = bytearray(frame)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        leader = leader_connection()
        leader.receive(bytes(data))
        event = leader.next_event()
        assert event is NEED_DATA or isinstance(event, Request | Refused)


CALLED = c.CallRequest("rustlog", "alice", bytes(range(200)))


def test_calls_are_answered_in_any_order() -> None:
    caller, served = caller_connection(), leader_connection()
    requests = [asked(served, caller.request(c.CallRequest("a", "b", bytes([each])))) for each in range(3)]
    for each in (2, 0, 1):
        output = served.respond(requests[each], c.CallResponse(body=requests[each].message.body))
        assert isinstance(output, bytes)
        caller.receive(output)
        answer = caller.next_event()
        assert (answer.correlation_id, answer.message.body) == (each, bytes([each]))
    assert caller.in_flight == 0


def test_a_follower_takes_answers_in_their_order_only() -> None:
    follower, leader = follower_connection(), leader_connection()
    requests = [asked(leader, follower.request(ASKED)) for _ in range(2)]
    output = leader.respond(requests[1], TOLD)
    assert isinstance(output, bytes)
    follower.receive(output)
    assert isinstance(follower.next_event(), Refused)


def test_a_damaged_call_is_read_or_refused() -> None:
    rng = random.Random(61)
    frame = caller_connection().request(CALLED)
    for _ in range(2_000):
        damaged = bytearray(frame)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        served = leader_connection()
        served.receive(bytes(damaged[: rng.randint(1, len(damaged))]))
        event = served.next_event()
        assert event is NEED_DATA or isinstance(event, Request | Refused)


def test_a_call_that_is_too_large_is_refused_by_its_first_bytes() -> None:
    served = leader_connection()
    head = caller_connection().request(CALLED)[4:]
    served.receive((CALL_BYTES_MAX + 1).to_bytes(4, "big") + head)
    assert isinstance(served.next_event(), Refused)


def test_no_client_is_served_calls() -> None:
    server = ServerConnection()
    server.receive(caller_connection().request(CALLED))
    assert isinstance(server.next_event(), Refused)
