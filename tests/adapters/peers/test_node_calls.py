"""What nodes ask of each other for their clients: RustLog's requests, through any node, and what is not handed on."""

from typing import Any

import pytest
from tests.adapters.peers.linked_nodes import Client, KeysElsewhere, LinkedNode, linked
from tests.broker.three_nodes import TOPIC, addresses, assign

from braidlog.adapters.peers.node_calls import CallTable, requests_of
from braidlog.cluster.metadata import events as e
from braidlog.model.errors import Reason
from braidlog.security.authorization import CONSOLE, Authorize, Operation, Rule
from braidlog.server.adapters import make_adapter, of_consoles
from braidlog.wire.flux import messages as fm
from braidlog.wire.flux.connection import ClientConnection as FluxClient
from braidlog.wire.kafka.messages.calls import CallRequest, CallResponse
from braidlog.wire.mayfly import messages as mm
from braidlog.wire.mayfly.connection import ClientConnection as MayflyClient
from braidlog.wire.mayfly.connection import Request
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.connection import ClientConnection
from braidlog.wire.rustlog.messages import Form

PRODUCE = m.Produce(topic=TOPIC, partition=0, records=[b"a", b"b"], id="7")


def rustlog(node: LinkedNode, message: Any, form: Form = Form.JSON, client: Client | None = None) -> Any:
    connection = ClientConnection(form)
    connection.receive(node.ask("rustlog", connection.request(message), client))
    return connection.next_event().message


def fetch(offset: int = 0, group: str = "") -> m.Fetch:
    return m.Fetch(group_id=group, topic=TOPIC, partition=0, offset=offset, max_bytes=1000)


@pytest.mark.parametrize("leader", [1, 2, 3])
@pytest.mark.parametrize("asked", [1, 2, 3])
def test_any_node_takes_rustlogs_requests_and_their_answers_are_the_leaders(leader: int, asked: int) -> None:
    nodes = linked(leader, "rustlog")
    node = nodes[asked]
    assert rustlog(node, PRODUCE) == m.ProduceResponse(base_offset=0, record_count=2, id="7")
    assert [record.payload for record in rustlog(node, fetch()).records] == [b"a", b"b"]
    assert rustlog(node, fetch(), Form.BINARY).records == [b"a", b"b"]
    assert rustlog(node, fetch(offset=9)) == m.FetchResponse(records=[], next_offset=9)
    described = rustlog(node, m.DescribePartition(topic=TOPIC, partition=0))
    assert (described.high_watermark, described.segment_count) == (2, 1)
    assert nodes[leader].node.values(TOPIC) == [b"a", b"b"]
    assert nodes[leader].called == ["rustlog"] * (5 if asked != leader else 0)


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_group_of_rustlog_is_the_same_on_any_node(asked: int) -> None:
    nodes = linked(3, "rustlog")
    node = nodes[asked]
    assert rustlog(node, PRODUCE).record_count == 2
    assert rustlog(node, fetch(group="g"), Form.BINARY) == m.BriefFetchResponse([], 0)
    assert rustlog(node, m.OffsetCommit(group="g", topic=TOPIC, partition=0, offset=1)).success
    for each in nodes.values():
        assert rustlog(each, m.OffsetFetch(group="g", topic=TOPIC, partition=0)).offset == 1
        assert rustlog(each, fetch(group="g"), Form.BINARY).records == [b"b"]
    assert nodes[1].node.services.coordinators.coordinator_for("g").offsets.committed("g", TOPIC, 0) is not None
    assert nodes[3].node.services.coordinators.local_coordinators() == []


def test_a_forwarded_request_is_never_forwarded_again() -> None:
    """Nodes 2 and 3 each take the other for the leader: the request goes one hop, and its client is told to ask again."""
    nodes = linked(3, "rustlog")
    assign(nodes[3].node, 2)
    told = rustlog(nodes[2], PRODUCE)
    assert (told.code, told.details) == (500, {"retriable": True})
    assert "nothing was done, try again" in told.message
    assert "rustlog" in nodes[3].called
    assert nodes[2].called == []


def test_a_leader_that_is_away_is_told_as_what_may_be_tried_again_and_waited_for() -> None:
    nodes = linked(None, "rustlog")
    told = rustlog(nodes[2], PRODUCE)
    assert (told.code, told.details) == (500, {"retriable": True})
    nodes = linked(3, "rustlog")
    del nodes[2].others[3]
    assert "node 3 cannot be reached" in rustlog(nodes[2], PRODUCE).message


def test_while_the_coordinator_is_away_its_clients_are_told_to_try_again() -> None:
    nodes = linked(2, "rustlog")
    nodes[2].node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    told = rustlog(nodes[2], m.OffsetCommit(group="g", topic=TOPIC, partition=0, offset=1))
    assert (told.code, told.details) == (500, {"retriable": True})
    assert nodes[1].called == []


def test_an_error_of_the_leader_is_the_clients_answer() -> None:
    nodes = linked(3, "rustlog")
    rustlog(nodes[2], PRODUCE)
    nodes[3].node.run(nodes[3].node.services.trim.delete_before(TOPIC, 0, 1))
    told = rustlog(nodes[2], fetch())
    assert (told.code, told.details["high_watermark"]) == (416, 2)


def test_a_principal_is_authorised_where_it_is_served() -> None:
    allowed = Authorize({"alice": "00" * 32}, [Rule("alice", [Operation.ALL])])
    denied = Authorize({"alice": "00" * 32}, [Rule("alice", [Operation.DESCRIBE])])
    nodes = linked(3, "rustlog", authorize=allowed)
    nodes[3] = nodes[2].others[3] = LinkedNode(3, 3, "rustlog", authorize=denied)
    alice = Client()
    alice.principal = "alice"
    assert rustlog(nodes[2], PRODUCE, client=alice).code == 400
    assert nodes[3].called
    assert nodes[3].node.values(TOPIC) == []


def test_a_topic_that_the_leader_has_not_heard_of_yet_is_no_answer_for_the_client() -> None:
    nodes = linked(3, "rustlog")
    nodes[3].node.run(nodes[3].node.services.topics.delete(TOPIC))
    told = rustlog(nodes[2], PRODUCE)
    assert told.details == {"retriable": True}
    assert len(nodes[3].called) > 1


def answered(table: CallTable, call: CallRequest) -> CallResponse:
    link: Any = Client()
    coroutine = table.handle_call(link, call)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        answer: CallResponse = stop.value
        return answer
    raise AssertionError("it waits")


@pytest.mark.parametrize(
    "body", [b"", b"\x00", b"garbage" * 9, b"\x00\x00\x00\x01\x09" * 2, b"\x00\x00\x00\x01\x09\x00"]
)
def test_what_is_not_one_request_is_refused_before_anything_is_done(body: bytes) -> None:
    table = linked(3, "rustlog")[3].table
    assert answered(table, CallRequest("rustlog", "a", body)).reason == Reason.INVALID_RECORD.name


def test_only_what_stands_in_the_table_can_be_called() -> None:
    table = linked(3, "rustlog")[3].table
    assert set(table.rows) == {"rustlog"}
    assert answered(table, CallRequest("kafka", "a", b"")).reason == Reason.UNAVAILABLE.name


# -- Flux ----------------------------------------------------------------------------------------------------------


def flux(node: LinkedNode, message: Any) -> Any:
    connection = FluxClient()
    connection.receive(node.ask("flux", connection.request(message)))
    return connection.next_event().answer


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_any_node_takes_what_flux_asks_of_records_and_groups(asked: int) -> None:
    nodes = linked(3, "flux")
    node = nodes[asked]
    produced = flux(node, fm.Produce("id-1", TOPIC, b"k", b"v", fm.Acks.LEADER, fm.Encoding.BASE64))
    assert (produced.partition, produced.offset) == (0, 0)
    consumed = flux(node, fm.Consume("2", TOPIC, 0, 0, fm.Encoding.BASE64, records_max=1))
    assert [(record.key, record.value) for record in consumed.records] == [(b"k", b"v")]
    joined = flux(node, fm.Join("3", "g", TOPIC, "me"))
    assert joined.assigned == (0,)
    committed = fm.Commit("4", "g", TOPIC, "me", joined.generation, 0, 1)
    assert isinstance(flux(node, committed), fm.Committed)
    for each in nodes.values():
        assert flux(each, fm.ReadOffset("5", "g", TOPIC, 0)).offset == 1
        heartbeat = fm.Heartbeat("6", "g", TOPIC, "me", joined.generation)
        assert isinstance(flux(each, heartbeat), fm.HeartbeatAccepted)
    told = flux(node, fm.Heartbeat("7", "g", TOPIC, "me", joined.generation + 1))
    assert (told.code, told.message) == (fm.ErrorCode.GENERATION_MISMATCH, "stale generation")


def test_flux_is_told_where_the_leader_is_only_where_nothing_is_forwarded() -> None:
    produce = fm.Produce("1", TOPIC, b"k", b"v", fm.Acks.LEADER, fm.Encoding.BASE64)
    nodes = linked(3, "flux")
    for of_brokers in (fm.BrokerFetch("1", TOPIC, 0, 7, 0), fm.BrokerReplicaAck("1", TOPIC, 0, 7, 0)):
        told = flux(nodes[2], of_brokers)
        assert (told.code, told.message.endswith("leader=[fd00::3]:9043")) == (fm.ErrorCode.NOT_LEADER, True)
    assert nodes[3].called == [], "brokers find the leader themselves"
    del nodes[2].others[3]
    told = flux(nodes[2], produce)
    assert (told.code, told.message.endswith("nothing was done, try again")) == (fm.ErrorCode.NOT_LEADER, True)
    nodes[2].adapters["flux"] = make_adapter("flux", nodes[2].node.services, forward=False)
    told = flux(nodes[2], produce)
    assert (told.code, told.message.endswith("leader=[fd00::3]:9043")) == (fm.ErrorCode.NOT_LEADER, True)


# -- Mayfly --------------------------------------------------------------------------------------------------------


def mayfly(node: LinkedNode, *messages: mm.Message, version: int = 1, principal: str = "anonymous") -> list[mm.Message]:
    connection, client = MayflyClient(), Client()
    client.principal = principal
    frames = [connection.request(Request(connection.next_id(), each), version=version) for each in messages]
    connection.receive(node.ask("mayfly", b"".join(frames), client))
    return [connection.next_event().message for _ in messages]


def with_keys(authorize: Authorize | None = None) -> dict[int, LinkedNode]:
    """Node 1 has all keys."""
    nodes = linked(1, "mayfly", authorize=authorize)
    keyvalue = nodes[1].node.services.keyvalue
    keyvalue.open()
    for _, work in keyvalue.background():
        nodes[1].node.spawn(work())
    for other in (2, 3):
        nodes[other].use_keys(KeysElsewhere())
    return nodes


def leads_no_keys(linked_node: LinkedNode) -> None:
    """From now on this node takes node 3 for the leader of all keys."""
    linked_node.use_keys(KeysElsewhere())
    assign(linked_node.node, 3)


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_any_node_takes_the_keys_of_mayflys_version_1(asked: int) -> None:
    nodes = with_keys()
    assert mayfly(nodes[asked], mm.Set(b"k", b"v"), mm.Set(b"l", b"w")) == [mm.STORED, mm.STORED]
    assert mayfly(nodes[asked], mm.Incr(b"n")) == [mm.Number(1)]
    for each in nodes.values():
        assert mayfly(each, mm.Get(b"k"), mm.Get(b"none"), mm.Get(b"l")) == [mm.Value(b"v"), mm.MISSING, mm.Value(b"w")]
    assert (nodes[2].called, nodes[3].called) == ([], [])


def test_the_console_of_another_node_reads_keys_whatever_rules_hold() -> None:
    """Its own node has let it in; clients of the same rules are refused."""
    nodes = with_keys(Authorize({"ann": "00" * 32}, [Rule("ann", [Operation.WRITE])]))
    for number, each in nodes.items():
        privileged = of_consoles("mayfly", each.node.services)
        each.table.rows["mayfly"] = requests_of(each.adapters["mayfly"], privileged)
        each.adapters["mayfly"] = privileged[CONSOLE]  # as on the door of its console
        assert mayfly(each, mm.Set(b"k", b"%d" % number), principal=CONSOLE) == [mm.STORED]
    assert mayfly(nodes[2], mm.Get(b"k"), principal=CONSOLE) == [mm.Value(b"3")]
    assert nodes[1].called == ["mayfly"] * 3
    call = CallRequest("mayfly", "ann", MayflyClient().request(Request(1, mm.Get(b"k")), version=1))
    link: Any = Client()
    refused = nodes[1].node.run(nodes[1].table.handle_call(link, call))
    assert b"may not read key" in refused.body


def test_mayflys_version_2_is_sent_to_the_node_that_leads_the_keys() -> None:
    nodes = with_keys()
    assert mayfly(nodes[2], mm.Get(b"k"), version=2) == [mm.Moved(*addresses(1)["mayfly"])]
    assert mayfly(nodes[1], mm.Get(b"k"), version=2) == [mm.MISSING]


def test_when_the_keys_cannot_be_reached_version_1_is_told_that_the_topology_changes() -> None:
    """Also if the node that was asked takes another for their leader: the request goes one hop."""
    nodes = with_keys()
    leads_no_keys(nodes[1])
    (told,) = mayfly(nodes[2], mm.Set(b"k", b"v"))
    assert isinstance(told, mm.TopologyChanged)
    assert nodes[1].called
    del nodes[2].others[1]
    two = mayfly(nodes[2], mm.Set(b"k", b"v"), mm.Set(b"l", b"w"))
    assert [type(each) for each in two] == [mm.TopologyChanged] * 2
