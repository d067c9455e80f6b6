"""What a Cursus client asks of any node, the node that serves it answers: three nodes of a hand-made cluster."""

import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.adapters.peers.linked_nodes import Client, LinkedNode, linked
from tests.broker.three_nodes import OWN, TOPIC, assign
from tests.cluster.topics import placed

from braidlog.adapters.cursus.forwarding import at_partition, is_repeatable
from braidlog.adapters.peers.node_calls import call_route, client_call, requests_of
from braidlog.broker.coordination import producer_names, stream_snapshots, transaction_checks
from braidlog.broker.forwarding import Call
from braidlog.coordinator.shards import shard_for_name
from braidlog.model.errors import BrokerError, Reason
from braidlog.security.authorization import Authorize, Operation, Rule, hash_token
from braidlog.server.adapters import make_adapter
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch, BatchRecord, Spelling
from braidlog.wire.cursus.connection import ClientConnection
from braidlog.wire.cursus.failures import Failure
from braidlog.wire.cursus.messages import BY_REQUEST, Request

LEADER = 3
ADDRESS = "[fd00::3]:9013"
NODES = (1, 2, 3)
TOKENS = {"ann": hash_token(b"t").hex()}


def cluster(
    leader: int | None = LEADER, *, partitions: int = 1, authorize: Authorize | None = None
) -> dict[int, LinkedNode]:
    """Node 1 coordinates everything."""
    nodes = linked(leader, "cursus", partitions=partitions, authorize=authorize)
    for each in nodes.values():
        services = each.node.services
        each.table.rows |= {
            producer_names.CALL: client_call(services.producer_names.handle_call),
            stream_snapshots.CALL: client_call(services.stream_snapshots.handle_call),
            transaction_checks.CALL: call_route(services.transaction_checks.handle_call),
        }
    return nodes


def spread() -> dict[int, LinkedNode]:
    """Partition 0 is led by node 1, partition 1 by node 2, partition 2 by node 3."""
    nodes = cluster(partitions=3)
    for each in nodes.values():
        for number in range(3):
            assign(each.node, number + 1, number)
    return nodes


def cursus(node: LinkedNode, message: Any, client: Client | None = None, spelling: Spelling = Spelling.CLIENTS) -> Any:
    connection = ClientConnection(spelling=spelling)
    connection.receive(node.ask("cursus", connection.request(message), client))
    return connection.next_event()


def forwarded(nodes: dict[int, LinkedNode]) -> int:
    return sum(node.called.count("cursus") for node in nodes.values())


def values(nodes: dict[int, LinkedNode], number: int = 0, leader: int = LEADER) -> list[bytes | None]:
    return nodes[leader].node.values(TOPIC, number)


def keep_asked(node: LinkedNode) -> list[Call]:
    calls: list[Call] = []
    call = node.call

    async def keep(number: int, each: Call, seconds: float) -> bytes:
        calls.append(each)
        return await call(number, each, seconds)

    node.call = keep  # type: ignore[method-assign, assignment]
    return calls


RECORDS = [BatchRecord(b"a", producer_id="p", sequence=1), BatchRecord(b"b", producer_id="p", sequence=2)]


@pytest.mark.parametrize("asked_node", NODES)
@pytest.mark.parametrize("spelling", Spelling)
def test_any_node_takes_records_and_gives_them(asked_node: int, spelling: Spelling) -> None:
    """The acknowledgement names the leader's address, as that node registered it."""
    nodes = cluster()
    node = nodes[asked_node]
    ack = cursus(node, Batch(TOPIC, 0, RECORDS), spelling=spelling)
    leader = "dialled.example:4002" if asked_node == LEADER else ADDRESS
    assert (ack.status, ack.last_offset, ack.leader) == ("OK", 1, leader)
    assert [each.payload for each in cursus(node, r.Consume(TOPIC, 0, 0), spelling=spelling).records] == [b"a", b"b"]
    assert values(nodes) == [b"a", b"b"]
    assert forwarded(nodes) == (0 if asked_node == LEADER else 2)


@pytest.mark.parametrize("asked_node", NODES)
def test_publish_without_a_partition_asks_the_leader_of_the_partition_that_is_chosen_here_once(asked_node: int) -> None:
    nodes = spread()
    places = [cursus(nodes[asked_node], r.Publish(TOPIC, b"%d" % number)) for number in range(6)]
    assert [ack.status for ack in places] == ["OK"] * 6
    assert [len(values(nodes, number, number + 1)) for number in range(3)] == [2, 2, 2], "one after the other"
    assert forwarded(nodes) == 4, "each to one node, and no further"


def test_a_batch_of_many_keys_goes_to_all_leaders() -> None:
    nodes = spread()
    records = [BatchRecord(b"%d" % number, b"key %d" % number) for number in range(30)]
    ack = cursus(nodes[2], Batch(TOPIC, -1, records))
    assert ack.status == "OK"
    stored = [values(nodes, number, number + 1) for number in range(3)]
    assert sorted(each or b"" for part in stored for each in part) == sorted(record.payload for record in records)
    assert all(stored)
    assert forwarded(nodes) == 2
    again = cursus(nodes[3], Batch(TOPIC, -1, records))
    assert again.last_offset == max(map(len, stored)) * 2 - 1, "the same partitions, whichever node divides"


def test_a_part_that_cannot_be_appended_leaves_the_others() -> None:
    nodes = spread()
    records = [BatchRecord(b"%d" % number, b"key %d" % number) for number in range(30)]
    del nodes[2].others[3]
    ack = cursus(nodes[2], Batch(TOPIC, -1, records))
    assert ack.status == "PARTIAL"
    assert "NOT_LEADER" in ack.error
    assert values(nodes, 0, 1)
    assert values(nodes, 1, 2)
    nodes[2].others.clear()
    for each in nodes.values():
        assign(each.node, 3, 1)
    assert cursus(nodes[2], Batch(TOPIC, -1, records)).code == "NOT_LEADER"


def test_a_leader_that_cannot_be_reached_is_named() -> None:
    nodes = cluster()
    nodes[2].others.clear()
    for message in (Batch(TOPIC, 0, RECORDS), r.Publish(TOPIC, b"v", partition=0), r.Consume(TOPIC, 0, 0)):
        answer = cursus(nodes[2], message)
        assert (answer.code, answer.get("LEADER_IS")) == ("NOT_LEADER", ADDRESS)
    answer = cursus(nodes[2], r.ListOffsets(TOPIC))
    assert (answer.code, answer.get("LEADER_IS")) == ("NOT_LEADER", ADDRESS)
    assert cursus(nodes[2], r.JoinGroup(TOPIC, "g", "m")) == Failure.of("NOT_COORDINATOR", host="10.0.0.1", port=9011)
    nobody = cluster(None)
    answer = cursus(nobody[2], Batch(TOPIC, 0, RECORDS))
    assert answer.code == "NOT_LEADER"
    assert "nothing was done, try again" in answer.get("reason")


def test_a_batch_too_large_for_a_call_is_for_the_leader_itself() -> None:
    nodes = cluster()

    async def refuse(node: int, call: Call, seconds: float) -> bytes:
        raise BrokerError(Reason.RECORD_TOO_LARGE, "too large")

    nodes[2].call = refuse  # type: ignore[method-assign]
    assert cursus(nodes[2], Batch(TOPIC, 0, RECORDS)) == Failure.of("NOT_LEADER", LEADER_IS=ADDRESS)


@pytest.mark.parametrize(("idempotent", "stored"), [(True, 1), (False, 0)])
def test_only_what_has_sequences_is_sent_again_after_silence(idempotent: bool, stored: int) -> None:
    nodes = cluster()
    call, asked_of = nodes[2].call, list[str]()

    async def lose(node: int, each: Call, seconds: float) -> bytes:
        if each.name == "cursus":
            asked_of.append(each.name)
            if len(asked_of) == 1:
                raise BrokerError(Reason.TIMED_OUT, "no answer")
        return await call(node, each, seconds)

    nodes[2].call = lose  # type: ignore[method-assign, assignment]
    answer = cursus(nodes[2], Batch(TOPIC, 0, RECORDS[:1], idempotent=idempotent))
    assert answer.status == "OK" if idempotent else answer.code == "timed_out"
    assert (len(asked_of), len(values(nodes))) == (1 + stored, stored)


def test_an_append_that_is_repeated_is_stored_once() -> None:
    nodes = cluster()
    batch = Batch(TOPIC, -1, RECORDS, idempotent=True)
    for number in NODES:
        assert cursus(nodes[number], batch).last_offset == 1
    assert values(nodes) == [b"a", b"b"]
    assert not is_repeatable(r.Publish(TOPIC, b"v"))
    assert is_repeatable(r.Publish(TOPIC, b"v", idempotent=True))
    assert is_repeatable(r.TxnPublish("t", TOPIC, "1", 1, 0, b"v"))


def test_a_coordinator_is_not_asked_for_what_it_does_not_serve() -> None:
    """The leader has to ask it for the producer's id; the batch stays at its leader."""
    nodes = cluster()
    calls = keep_asked(nodes[LEADER])
    del nodes[LEADER].others[1]
    assert cursus(nodes[LEADER], Batch(TOPIC, 0, RECORDS, idempotent=True)).code == "NOT_COORDINATOR"
    assert {each.name for each in calls} == {producer_names.CALL}


def test_who_asks_and_for_how_long_travel_along() -> None:
    rules = [Rule("ann", [Operation.WRITE, Operation.READ], TOPIC)]
    nodes = cluster(authorize=Authorize(TOKENS, rules))
    calls = keep_asked(nodes[2])
    client = Client()
    client.principal = "ann"
    assert cursus(nodes[2], Batch(TOPIC, 0, RECORDS), client).status == "OK"
    assert len(cursus(nodes[2], r.Consume(TOPIC, 0, 0, wait_ms=5000), client).records) == 2
    assert [(each.principal, each.wait_seconds) for each in calls] == [("ann", 0.0), ("ann", 5.0)]
    others = [Rule("ann", [Operation.READ], TOPIC)]
    stricter = msgspec.structs.replace(nodes[3].node.services, authorize=Authorize(TOKENS, others))
    nodes[3].table.rows["cursus"] = requests_of(make_adapter("cursus", stricter))
    assert cursus(nodes[2], Batch(TOPIC, 0, RECORDS), client).code == "NOT_AUTHORIZED_FOR_TOPIC", "judged there, too"


def test_a_command_with_credentials_is_forwarded_in_their_name() -> None:
    """The token is proved by the node that the client has reached, and stays there."""

    class Proving(Client):
        async def prove(self, principal: str, token: bytes) -> bool:
            return (principal, token) == ("ann", b"t")

    nodes = cluster(authorize=Authorize(TOKENS, [Rule("ann", [Operation.WRITE], TOPIC)]))
    calls = keep_asked(nodes[2])

    def publish(token: str) -> Any:
        connection = ClientConnection()
        frame = connection.request(r.Publish(TOPIC, b"v", partition=0), r.Credentials("ann", token))
        connection.receive(nodes[2].ask("cursus", frame, Proving()))
        return connection.next_event()

    assert publish("t").status == "OK"
    assert [(each.principal, b"auth_token" in each.body) for each in calls] == [("ann", False)]
    assert publish("wrong").code == "authentication_failed"
    assert len(calls) == 1


def test_every_leader_is_asked_how_far_its_partitions_reach() -> None:
    nodes = cluster()
    assert cursus(nodes[LEADER], Batch(TOPIC, 0, RECORDS)).status == "OK"
    shown = {}
    for number, node in nodes.items():
        (shown[number],) = cursus(node, r.Describe(TOPIC)).partitions
        assert (shown[number].leo, shown[number].hwm) == (2, 2), number
    assert shown[1].leader == shown[2].leader == ADDRESS, "where its clients reach it"
    assert forwarded(nodes) == 2
    nodes[2].others.clear()
    (alone,) = cursus(nodes[2], r.Describe(TOPIC)).partitions
    assert (alone.leo, alone.hwm) == (0, 0), "of the copy here"


def test_offsets_of_a_topic_are_those_of_all_its_leaders() -> None:
    nodes = spread()
    for number in range(3):
        cursus(nodes[number + 1], Batch(TOPIC, number, [BatchRecord(b"v")] * (number + 1)))
    for node in nodes.values():
        answer = cursus(node, r.ListOffsets(TOPIC))
        assert [(each.partition, each.latest) for each in answer.offsets] == [(0, 1), (1, 2), (2, 3)]
        assert cursus(node, r.ListOffsets(TOPIC, 2)).offsets == answer.offsets[2:]


def test_topics_by_pattern_are_read_at_all_their_leaders() -> None:
    nodes = cluster()
    names = [f"{TOPIC}-{number}" for number in NODES]
    for node in nodes.values():
        for leader, name in zip(NODES, names, strict=True):
            made_for(node, name, leader)
    for leader, name in zip(NODES, names, strict=True):
        cursus(nodes[leader], Batch(name, 0, [BatchRecord(b"%d %d" % (leader, at)) for at in range(leader)]))
    for node in nodes.values():
        found = cursus(node, r.Consume(f"{TOPIC}-*", 0, 0))
        assert found.topic == f"{TOPIC}-*"
        assert sorted(each.payload for each in found.records) == [b"1 0", b"2 0", b"2 1", b"3 0", b"3 1", b"3 2"]
        assert [each.offset for each in found.records] == [0, 0, 0, 1, 1, 2]
        assert (found.sequence_start, found.sequence_end) == (0, 0)
        few = cursus(node, r.Consume(f"{TOPIC}-*", 0, 0, records_max=1))
        assert {each.offset for each in few.records} == {0}, "no further than the topic of which more is to come"
    del nodes[2].others[3]
    assert cursus(nodes[2], r.Consume(f"{TOPIC}-*", 0, 0)).code == "NOT_LEADER", "not without some of them"


@pytest.mark.parametrize("asked_for", [TOPIC, f"{TOPIC}*"])
def test_what_was_acknowledged_is_read_once_it_is_committed(asked_for: str) -> None:
    """Clients read what they wrote with acks=1, and name no time to wait: the published broker acknowledges later."""
    leader = cluster()[LEADER]
    runtime = leader.node.runtime
    with runtime.holding_syncs():
        cursus(leader, r.Publish(TOPIC, b"v", partition=0, acks=r.Acks.NONE))
        leader.node.spawn(later(leader, runtime.sync))
        assert [each.payload for each in cursus(leader, r.Consume(asked_for, 0, 0)).records] == [b"v"]
        cursus(leader, r.Publish(TOPIC, b"w", partition=0, acks=r.Acks.NONE))
        assert cursus(leader, r.ListOffsets(TOPIC)).offsets[0].latest == 1
        assert [each.payload for each in cursus(leader, r.Consume(asked_for, 0, 0)).records] == [b"v"], "for a while"
        assert cursus(leader, r.Consume(TOPIC, 0, 0, records_max=1)).records, "what is committed is enough"
        leader.node.spawn(later(leader, runtime.sync))
        assert cursus(leader, r.ListOffsets(TOPIC)).offsets[0].latest == 2


def made_for(node: LinkedNode, name: str, leader: int, **settings: Any) -> None:
    created = placed(
        (leader, *(each for each in NODES if each != leader)),
        topic=name,
        topic_id=uuid.uuid5(uuid.NAMESPACE_URL, name).hex,
        settings=msgspec.structs.replace(node.node.services.hosting.meta(TOPIC).settings, **settings),
        replicas=(str(leader),),
        min_in_sync=1,
    )
    node.node.services.metadata.change_exclusively([created])
    assert not node.node.run(node.node.services.reconciler.apply_metadata())


@pytest.mark.parametrize("asked_node", NODES)
def test_a_group_is_the_same_on_any_node(asked_node: int) -> None:
    nodes = cluster()
    node = nodes[asked_node]
    assert cursus(node, r.RegisterGroup(TOPIC, "g")) == a.Registered("g", TOPIC)
    joined = cursus(node, r.JoinGroup(TOPIC, "g", "m"))
    assert joined.assignments == (0,)
    assert cursus(node, r.SyncGroup(TOPIC, "g", "m", joined.generation)).assignments == (0,)
    assert cursus(node, r.Heartbeat(TOPIC, "g", "m", joined.generation)).generation == joined.generation
    assert isinstance(cursus(node, r.CommitOffset(TOPIC, 0, "g", 1, joined.generation, "m")), a.Ok)
    assert isinstance(cursus(node, r.Commit(TOPIC, "g", 0, 2)), a.Ok)
    committed = cursus(node, r.BatchCommit(TOPIC, "g", "m", joined.generation, (r.PartitionOffset(0, 3),)))
    assert isinstance(committed, a.BatchCommitted)
    for each in nodes.values():
        assert cursus(each, r.FetchOffset(TOPIC, 0, "g")).offset == 3
        assert cursus(each, r.GroupStatus("g")).member_count == 1
        assert cursus(each, r.ListGroups()).groups == ("g",)
    assert isinstance(cursus(node, r.LeaveGroup(TOPIC, "g", "m", joined.generation)), a.Left)
    assert nodes[2].node.services.coordinators.local_coordinators() == [], "the coordinator alone has it"


def unload(coordinator: LinkedNode) -> Callable[[], None]:
    """The shard of the group `g` is not read yet; what reads it."""
    shards = coordinator.node.services.coordinators._shards
    assert shards is not None
    shard = shards._led[shard_for_name("g")]
    loaded, shard.content = shard.content, None

    def load() -> None:
        shard.content = loaded

    return load


def test_a_member_waits_until_its_coordinator_is_loaded() -> None:
    nodes = cluster()
    nodes[1].node.spawn(later(nodes[1], unload(nodes[1])))
    assert cursus(nodes[1], r.JoinGroup(TOPIC, "g", "m")).assignments == (0,)


@pytest.mark.parametrize("asked_node", NODES)
def test_groups_are_not_listed_without_those_of_a_shard_that_is_loading(asked_node: int) -> None:
    """A node that has begun to lead a shard reads it first."""
    nodes = cluster()
    node = nodes[asked_node]
    cursus(nodes[1], r.RegisterGroup(TOPIC, "g"))
    load = unload(nodes[1])
    assert cursus(node, r.ListGroups()).code == "NOT_COORDINATOR"
    node.node.spawn(later(node, load))
    assert cursus(node, r.ListGroups()).groups == ("g",)


async def later(node: LinkedNode, act: Callable[[], None]) -> None:
    await node.node.runtime.wakeup().wait(0.5)
    act()


def test_groups_are_not_listed_without_those_of_a_node_that_is_away() -> None:
    nodes = cluster()
    cursus(nodes[1], r.RegisterGroup(TOPIC, "g"))
    nodes[2].others.clear()
    assert cursus(nodes[2], r.ListGroups()).code == "NOT_COORDINATOR"


def test_a_members_commit_by_pattern_is_for_what_its_group_assigns() -> None:
    nodes = cluster()
    for node in nodes.values():
        for leader, name in ((1, f"{TOPIC}-1"), (2, f"{TOPIC}-2")):
            made_for(node, name, leader)
    first = cursus(nodes[2], r.JoinGroup(f"{TOPIC}-1", "g", "m"))
    commit = r.CommitOffset(f"{TOPIC}-*", 0, "g", 5, first.generation, "m")
    assert isinstance(cursus(nodes[2], commit), a.Ok)
    assert cursus(nodes[3], r.FetchOffset(f"{TOPIC}-*", 0, "g")).offset == 5
    assert cursus(nodes[2], r.CommitOffset(f"{TOPIC}-2", 0, "g", 6, first.generation, "m")).code == "NOT_OWNER"
    assert cursus(nodes[2], r.CommitOffset(f"{TOPIC}-?", 0, "g", 6, first.generation, "x")).code == "member_not_found"
    other = cursus(nodes[2], r.JoinGroup(f"{TOPIC}-2", "g", "n"))
    taken = r.CommitOffset(f"{TOPIC}-*", 0, "g", 7, other.generation, "m")
    assert cursus(nodes[2], taken).code == "NOT_OWNER", "one of them is another member's"


@pytest.mark.parametrize("asked_node", NODES)
def test_events_are_those_of_the_leader(asked_node: int) -> None:
    nodes = cluster()
    node = nodes[asked_node]
    for each in nodes.values():
        made_for(each, "events", LEADER, event_streams=True)
    assert cursus(node, r.AppendStream("events", "k", 1, b"one")).version == 1
    assert cursus(node, r.AppendStream("events", "k", 1, b"again")).code == "version_conflict"
    assert cursus(node, r.SaveSnapshot("events", "k", 1, b"state")).version == 1
    for each in nodes.values():
        assert cursus(each, r.StreamVersion("events", "k")).version == 1
        assert cursus(each, r.ReadSnapshot("events", "k")).snapshot == a.Snapshot(1, "state")
        (event,) = cursus(each, r.ReadStream("events", "k", 1)).events.records
        assert event.payload == b"one"


def test_a_stream_is_at_its_leader() -> None:
    nodes = cluster()
    assert cursus(nodes[2], r.Stream(TOPIC, 0)) == Failure.of("NOT_LEADER", LEADER_IS=ADDRESS)
    assert forwarded(nodes) == 0
    nodes[LEADER].others.clear()
    answer = cursus(nodes[LEADER], r.Stream(TOPIC, 0, "g", "m", 1))
    assert answer == Failure.of("NOT_COORDINATOR", host="10.0.0.1", port=9011), "which knows where the group is"


def test_metadata_names_a_node_that_can_be_dialled_where_nobody_leads() -> None:
    nodes = cluster(None)
    assert cursus(nodes[2], r.GetMetadata(TOPIC)).leaders == ("{}:{}".format(*OWN),)


def test_what_travels_names_the_partition() -> None:
    for message in (Batch(TOPIC, -1, RECORDS), r.Publish(TOPIC, b"v"), r.TxnPublish("t", TOPIC, "1", 1, 0, b"v")):
        request = Request(BY_REQUEST[type(message)], message, Spelling.CLIENTS)
        assert at_partition(request, 2).message.partition == 2
    request = Request(BY_REQUEST[r.Describe], r.Describe(TOPIC), Spelling.CLIENTS)
    assert at_partition(request, 2) is request
