"""What each door but Kafka's says of other nodes: a hand-made cluster of three, asked at node 2."""

import json
from typing import Any
from unittest import mock

import pytest
from tests.adapters.one_of_three import CONVERSATION, in_bytes, served
from tests.broker.node import Node
from tests.broker.three_nodes import OWN, TOPIC, addresses, assign, registered, three_nodes
from tests.model.manual_world import Job

from braidlog.adapters.contract import answer_of
from braidlog.broker.forwarding import Call
from braidlog.broker.topic_leaders import SERVED_SECONDS_MAX
from braidlog.cluster.metadata import events as e
from braidlog.model.errors import NothingDoneError, NotLeaderError, Reason
from braidlog.replication.assignment import Assignment
from braidlog.replication.replicas import ReplicaInfo, Replicas
from braidlog.server.adapters import make_adapter
from braidlog.wire.flux import messages as fm
from braidlog.wire.mayfly import messages as mm
from braidlog.wire.mayfly.connection import Request
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.errors import ErrorCode, RPCErrorResponse
from braidlog.wire.rustlog import messages as rm
from braidlog.wire.rustlog.connection import Request as RustlogRequest

# -- mlog ----------------------------------------------------------------------------------------------------------


def mlog(node: Node, request: m.Request) -> Any:
    return served(node, make_adapter("mlog", node.services), request)


def test_mlog_finds_leaders_and_tells_each_replica() -> None:
    node = three_nodes()
    host, port = addresses(3)["mlog"]
    assert mlog(node, m.FindTopicLeaderRequest(TOPIC)) == m.FindTopicLeaderResponse(f"[{host}]:{port}")
    host, port = addresses(1)["mlog"]
    assert mlog(node, m.FindRaftLeaderRequest()) == m.FindRaftLeaderResponse(f"{host}:{port}")
    (topic,) = mlog(node, m.ListTopicsRequest()).topics
    replicas = (m.ReplicaInfo("3", True, -1), m.ReplicaInfo("1", False, -1), m.ReplicaInfo("2", True, 0))
    assert topic == m.TopicInfo(TOPIC, "3", 7, replicas)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (m.ProduceRequest(TOPIC, b"v", 1), ErrorCode.NOT_TOPIC_LEADER),
        (m.FetchRequest(TOPIC), ErrorCode.TOPIC_NOT_FOUND),
    ],
)
def test_mlog_sends_clients_away_with_the_codes_that_make_them_look_again(request_: m.Request, code: int) -> None:
    answer = mlog(three_nodes(), request_)
    assert isinstance(answer, RPCErrorResponse)
    assert answer.code == code


def test_mlog_tells_how_far_followers_have_got_where_it_leads() -> None:
    """The leader knows; and who observes it from outside is listed behind the replicas, in sync if it has what is committed."""
    node = three_nodes(leader=2)
    hosted = node.services.hosting.partition(TOPIC, 0)
    told = Replicas("2", 1, (ReplicaInfo("1", 4), ReplicaInfo("3", 5)), (ReplicaInfo("mlog-7", 3, in_sync=True),))
    with mock.patch.object(type(hosted), "replicas", told):
        (topic,) = mlog(node, m.ListTopicsRequest()).topics
    assert topic.replicas == (
        m.ReplicaInfo("3", True, 5),
        m.ReplicaInfo("1", False, 4),
        m.ReplicaInfo("2", True, 0),
        m.ReplicaInfo("mlog-7", True, 3),
    )


def test_mlog_creates_a_topic_and_answers_its_followers() -> None:
    """N replicas are N + 1 nodes; a designated node leads at first; one that is unknown is refused."""
    for wished, leader in (("1", 1), ("2", 2), ("3", 3), ("", None)):
        node = three_nodes()
        told = mlog(node, m.CreateTopicRequest("new", 1, wished))
        known = node.services.hosting.meta("new").assignments[0]
        assert leader in (None, known.leader)
        assert known.leader == known.replicas[0]
        assert told == m.CreateTopicResponse("new", tuple(str(each) for each in known.replicas[1:]))
        assert len(known.replicas) == 2
    node = three_nodes()
    assert mlog(node, m.CreateTopicRequest("alone")) == m.CreateTopicResponse("alone", None), "0 is no follower"
    assert [len(each.replicas) for each in node.services.hosting.meta("alone").assignments] == [1]
    assert mlog(three_nodes(), m.CreateTopicRequest("many", 3)).code == ErrorCode.NOT_ENOUGH_NODES
    for unknown in ("9", "no number"):
        told = mlog(three_nodes(), m.CreateTopicRequest("new", 1, unknown))
        assert told.code == ErrorCode.RAFT_LEADER_UNAVAILABLE


class Leaders:
    """Other nodes, of which some answer that they lead what they are asked for."""

    def __init__(self, node: Node, *serving: int) -> None:
        self.serving, self.asked = {*serving}, list[tuple[int, str]]()
        node.services.forwarding.calls = self

    async def call(self, node: int, call: Call, _: float) -> bytes:
        self.asked.append((node, call.name))
        if node not in self.serving:
            raise NothingDoneError(Reason.UNAVAILABLE, f"node {node} cannot be reached")
        return b"1"


def found_by(node: Node) -> Job[Any]:
    adapter = make_adapter("mlog", node.services)
    return node.spawn(answer_of(adapter.handle, CONVERSATION, m.FindTopicLeaderRequest(TOPIC)))


def test_mlog_names_a_leader_once_it_serves() -> None:
    """Node 3 is dead, and the metadata does not say so yet."""
    node = three_nodes(leader=3)
    others = Leaders(node, 1)
    job = found_by(node)
    node.runtime.advance(1_000)
    assert not job.is_done
    assert {*others.asked} == {(3, "leads")}
    assign(node, 1)
    node.runtime.advance(1_000)
    host, port = addresses(1)["mlog"]
    assert job.result() == m.FindTopicLeaderResponse(f"{host}:{port}")
    job = found_by(node)
    assert job.is_done, "it serves: nothing is waited for"


def test_mlog_names_a_leader_that_does_not_answer_for_long_as_the_metadata_has_it() -> None:
    node = three_nodes(leader=3)
    Leaders(node)
    job = found_by(node)
    node.runtime.advance(int(SERVED_SECONDS_MAX * 1000))
    host, port = addresses(3)["mlog"]
    assert job.result() == m.FindTopicLeaderResponse(f"[{host}]:{port}")


def test_mlog_changes_no_set_of_a_cluster() -> None:
    """Not even the list of who follows: the cluster's nodes join and leave by themselves."""
    node = three_nodes(leader=2)
    before = node.services.hosting.meta(TOPIC)
    assert mlog(node, m.ApplyIsrUpdateEventRequest(TOPIC, "mlog-7", True)).code == ErrorCode.UNKNOWN
    assert node.services.hosting.meta(TOPIC) == before


def test_mlog_says_that_no_leader_is_known() -> None:
    answer = mlog(three_nodes(leader=None), m.FindTopicLeaderRequest(TOPIC))
    assert answer.code == ErrorCode.LEADER_ADDR_REQUIRED


# -- Cursus --------------------------------------------------------------------------------------------------------


def cursus(node: Node, line: str) -> str:
    body = line.encode()
    answer = in_bytes(node, make_adapter("cursus", node.services), len(body).to_bytes(4, "big") + body)
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    return answer[4:].decode(errors="replace")


def test_cursus_redirects_in_the_words_of_its_document() -> None:
    """`ERROR: NOT_LEADER LEADER_IS h:p`: clients look for these words, and dial what follows."""
    told = cursus(three_nodes(), f"CONSUME topic={TOPIC} partition=0 offset=0 member=m")
    assert told == "ERROR: NOT_LEADER LEADER_IS [fd00::3]:9013"


def test_cursus_metadata_describe_and_coordinator() -> None:
    node = three_nodes(partitions=2)
    assert cursus(node, f"METADATA topic={TOPIC}") == (
        f"OK topic={TOPIC} partitions=2 leaders=[fd00::3]:9013,[fd00::3]:9013 epochs=7,7"
    )
    assert '"leader":"[fd00::3]:9013","replicas":["3","1","2"],"isr":["3","2"]' in cursus(
        node, f"DESCRIBE topic={TOPIC}"
    )
    assert "coordinator_id=1 coordinator_type=group host=10.0.0.1 port=9011" in cursus(node, "FIND_COORDINATOR group=g")
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    assert "no node coordinates the group 'g' at present; retry" in cursus(node, "FIND_COORDINATOR group=g")


def test_cursus_lists_the_nodes_and_tells_of_each_partition() -> None:
    node = three_nodes(partitions=2)
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    assert cursus(node, "LIST_CLUSTER") == (
        'OK brokers=[{"id":"1","addr":"10.0.0.1:9011","status":"inactive","client_addr":"10.0.0.1:9011"},'
        '{"id":"2","addr":"dialled.example:4002","status":"active","client_addr":"dialled.example:4002"},'
        '{"id":"3","addr":"[fd00::3]:9013","status":"active","client_addr":"[fd00::3]:9013"}]'
    )
    assign(node, None, 1)
    start, _, document = cursus(node, "CLUSTER_STATUS").partition("=")
    told = json.loads(document)
    assert start == "OK cluster"
    assert (told["raft_leader"], told["raft_applied_index"]) == ("dialled.example:4002", node.services.metadata.seq)
    names = ("broker_count", "active_brokers", "inactive_brokers", "partition_count", "leaderless_partitions")
    assert [told[name] for name in names] == [3, 2, 1, 2, 1]
    assert (told["under_replicated_partitions"], told["min_isr_unsatisfied_partitions"], told["healthy"]) == (
        2,
        0,
        False,
    )
    first, second = told["partitions"]
    assert (first["key"], first["leader"], first["leader_epoch"], first["isr"]) == (f"{TOPIC}-0", "3", 7, ["3", "2"])
    assert (first["leader_available"], first["under_replicated"], first["healthy"]) == (True, True, False)
    assert (second["leader"], second["leader_available"], second["healthy"]) == ("", False, False)


def test_cursus_elects_a_leader_that_is_in_sync() -> None:
    node = three_nodes()
    asked = f"ELECT_LEADER topic={TOPIC} partition=0 broker="
    rejected = f"ERROR: leader_election_rejected topic={TOPIC} partition=0 broker="
    assert cursus(node, asked + "1").startswith(rejected + '1 reason="node 1, which should lead')
    assert cursus(node, asked + "first").startswith(rejected + 'first reason="a node must be given by its number')
    told = f"OK topic={TOPIC} partition=0 previous_leader="
    assert cursus(node, asked + "3") == told + "3 leader=3 leader_epoch=7 changed=false"
    assert cursus(node, asked + "2") == told + "3 leader=2 leader_epoch=8 changed=true"
    assert cursus(node, asked.replace("partition=0", "partition=9") + "2").startswith("ERROR: partition_not_found")


def test_cursus_creates_as_many_replicas_as_it_is_told() -> None:
    node = three_nodes()
    assert cursus(node, "CREATE topic=one partitions=1 replication_factor=1").startswith("OK topic=one")
    assert cursus(node, "CREATE topic=usual partitions=1").startswith("OK topic=usual")
    assert [len(node.services.hosting.meta(name).assignments[0].replicas) for name in ("one", "usual")] == [1, 3]
    assert cursus(node, "CREATE topic=four replication_factor=4").startswith("ERROR: create_topic_failed")
    assert cursus(Node(), "CREATE topic=two replication_factor=2").startswith("ERROR: create_topic_failed")


# -- Flux ----------------------------------------------------------------------------------------------------------


def test_flux_ends_a_refusal_with_the_leaders_address_and_lists_the_nodes() -> None:
    node = three_nodes()
    adapter = make_adapter("flux", node.services)
    told = served(node, adapter, fm.Produce("1", TOPIC, b"k", b"v", fm.Acks.LEADER))
    assert told.code == fm.ErrorCode.NOT_LEADER
    assert told.message.endswith("; leader=[fd00::3]:9043")
    assert served(node, adapter, fm.GetMetadata("1")).brokers == (1, 2, 3)


def test_flux_changes_leaders_among_those_in_sync_only() -> None:
    """Whatever in-sync set a request names: nobody is in sync by being named, and roles follow the metadata."""
    node = three_nodes()
    adapter = make_adapter("flux", node.services)

    def lead(number: int) -> Any:
        return served(node, adapter, fm.SetPartitionLeader("1", TOPIC, 0, number, (1, 2, 3)))

    def role(wanted: fm.Role) -> Any:
        return served(node, adapter, fm.SetPartitionRole("1", TOPIC, 0, wanted))

    def known() -> Assignment:
        return node.services.metadata.image.assignment(TOPIC, 0)

    assert lead(1).code == lead(9).code == fm.ErrorCode.BAD_REQUEST
    assert known().leader == 3
    index = node.services.metadata.seq
    assert lead(2) == fm.PartitionLeaderSet(TOPIC, 0, 2, (3, 2), 8, index + 1)
    assert role(fm.Role.FOLLOWER).code == fm.ErrorCode.UNAVAILABLE
    assert role(fm.Role.LEADER).role is fm.Role.LEADER
    assert (known().leader, known().leader_epoch) == (2, 8), "as it was"
    assert lead(3).leader == 3
    assert role(fm.Role.FOLLOWER).role is fm.Role.FOLLOWER
    assert role(fm.Role.LEADER).role is fm.Role.LEADER
    assert (known().leader, known().leader_epoch, known().in_sync) == (2, 10, (3, 2))


def test_flux_creates_as_many_replicas_as_it_is_told() -> None:
    node = three_nodes()
    adapter = make_adapter("flux", node.services)
    for replicas in (1, 2, 3):
        served(node, adapter, fm.CreateTopic("1", f"of-{replicas}", 1, replicas))
        assert len(node.services.hosting.meta(f"of-{replicas}").assignments[0].replicas) == replicas
    refused = served(node, adapter, fm.CreateTopic("1", "of-5", 1, 5))
    assert (refused.code, refused.message) == (
        fm.ErrorCode.BAD_REQUEST,
        "5 replicas need 5 nodes, but 3 are registered",
    )


def test_fluxs_own_brokers_are_observers_that_copy_at_the_leader() -> None:
    """They are shown, and nothing is committed by their word; at another node they are told where the leader is."""
    node = three_nodes(leader=2)
    adapter = make_adapter("flux", node.services)
    hosted = node.services.hosting.partition(TOPIC, 0)
    before = node.services.metadata.image.assignment(TOPIC, 0)
    copied = served(node, adapter, fm.BrokerFetch("1", TOPIC, 0, 7, 0))
    assert copied == fm.BrokerFetched(TOPIC, 0, 7, -1, [])
    acked = served(node, adapter, fm.BrokerReplicaAck("1", TOPIC, 0, 7, 5))
    assert acked.code == fm.ErrorCode.BAD_REQUEST, "more than the leader has"
    assert (node.services.metadata.image.assignment(TOPIC, 0), hosted.high_watermark) == (before, 0)
    follower = three_nodes()
    told = served(follower, make_adapter("flux", follower.services), fm.BrokerFetch("1", TOPIC, 0, 7, 0))
    assert (told.code, told.message.rpartition("; ")[2]) == (fm.ErrorCode.NOT_LEADER, "leader=[fd00::3]:9043")


def test_flux_fences_a_node_by_draining_it_and_elects_preferred_leaders() -> None:
    node = three_nodes(leader=2, partitions=2)
    adapter = make_adapter("flux", node.services)

    def asked(request: fm.Request) -> Any:
        return served(node, adapter, request)

    assert asked(fm.FenceBroker("1", 3)) == fm.BrokerFenced(3, 1, node.services.metadata.seq)
    assert node.services.metadata.image.cluster.members["3"].is_draining
    assert asked(fm.GetMetadata("1")).fenced == (3,)
    assert asked(fm.ElectTopicLeaders("1", TOPIC)) == fm.LeadersChanged(TOPIC, 0), "what is drained does not lead"
    assert asked(fm.UnfenceBroker("1", 3)) == fm.BrokerUnfenced(3, 1, node.services.metadata.seq)
    assert asked(fm.ElectTopicLeaders("1", TOPIC)) == fm.LeadersChanged(TOPIC, 2)
    assert asked(fm.ElectTopicLeaders("1", TOPIC)) == fm.LeadersChanged(TOPIC, 0)
    assert {each.leader for each in node.services.hosting.meta(TOPIC).assignments} == {3}
    assert asked(fm.FenceBroker("1", 9)).code == fm.ErrorCode.BAD_REQUEST
    assert asked(fm.ReconcileBrokerHealth("1", 1)) == fm.BrokerHealthReconciled(0), "nodes find out by themselves"
    node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    assert asked(fm.FenceBroker("1", 1)).broker_id == 1, "it is fenced already"
    assert asked(fm.UnfenceBroker("1", 1)).code == fm.ErrorCode.BAD_REQUEST, "it ends with its next start"
    assert asked(fm.GetMetadata("1")).fenced == (1,)


# -- Mayfly --------------------------------------------------------------------------------------------------------


def test_mayfly_lists_the_nodes_and_which_are_dead_or_leave() -> None:
    node = three_nodes()
    drained = [e.DrainNode(node=number, incarnation=1, is_draining=True) for number in (1, 3)]
    node.services.metadata.change_exclusively([*drained, e.FenceNode(node=3, incarnation=1)])
    adapter = make_adapter("mayfly", node.services)
    assert served(node, adapter, Request(1, mm.ClusterNodes())).nodes == (
        mm.Node("1", mm.NodeState.LEAVING, *addresses(1)["mayfly"]),
        mm.Node("2", mm.NodeState.ALIVE, *OWN),
        mm.Node("3", mm.NodeState.DEAD, *addresses(3)["mayfly"]),
    )


def test_a_node_among_others_leaves_when_mayfly_says_so() -> None:
    stopped: list[int] = []
    node = three_nodes(stop_node=lambda: stopped.append(1))
    assert served(node, make_adapter("mayfly", node.services), Request(1, mm.Leave())) == mm.DONE
    assert stopped == [1]


# -- groups, transactions and keys, which one node keeps -----------------------------------------------------------


def test_cursus_names_the_coordinator_which_need_not_lead() -> None:
    line = f"FETCH_OFFSET topic={TOPIC} partition=0 group=g"
    assert cursus(three_nodes(), line) == "ERROR: NOT_COORDINATOR host=10.0.0.1 port=9011"
    assert cursus(three_nodes(name="1"), line).startswith("OK")
    assert cursus(three_nodes(name="1"), f"COMMIT_OFFSET topic={TOPIC} partition=0 group=g offset=0").startswith("OK")


def test_cursus_members_read_at_a_leader_that_does_not_know_their_group() -> None:
    node = three_nodes(leader=2)
    asked = f"topic={TOPIC} partition=0 group=g member=m generation=1"
    assert not cursus(node, f"CONSUME {asked} offset=0").startswith("ERROR")
    assert cursus(three_nodes(leader=1, name="1"), f"CONSUME {asked} offset=0").startswith("ERROR: group_not_found")


def test_flux_and_mlog_refuse_to_keep_commits_elsewhere() -> None:
    node = three_nodes()
    told = served(node, make_adapter("flux", node.services), fm.ReadOffset("1", "g", TOPIC, 0))
    assert (told.code, "another node leads coordinator shard" in told.message) == (fm.ErrorCode.NOT_LEADER, True)
    assert mlog(node, m.CommitOffsetRequest(TOPIC, "c", 0)).code == ErrorCode.COMMIT_OFFSET
    assert mlog(three_nodes(leader=2), m.FetchRequest(TOPIC, "c", 0)).code != ErrorCode.READ_OFFSET
    assert mlog(three_nodes(leader=2), m.FetchRequest(TOPIC)).code == ErrorCode.READ_OFFSET  # it is empty


def test_mayfly_sends_keys_to_the_leader_of_their_slot() -> None:
    """Clients of version 2 follow; what those of version 1 ask is handed on, and so is nothing that they could read as MOVED."""
    node = three_nodes(leader=3)
    adapter = make_adapter("mayfly", node.services)
    refused = NotLeaderError(TOPIC, 0, "node 3 leads it")
    asked = Request(1, mm.Get(b"k"), version=2)
    assert adapter.failure(asked, refused) == mm.Moved(*addresses(3)["mayfly"])
    assert isinstance(adapter.failure(asked, NotLeaderError("nope", 0, "no such one")), mm.TopologyChanged)
    by_name = registered(3, 9, doors={"mayfly": ("braid.example", 1)})
    for event in (e.FenceNode(node=3, incarnation=1), by_name):
        node.services.metadata.change_exclusively([event])
        assign(node, 3)
        told = adapter.failure(asked, refused)
        assert isinstance(told, mm.TopologyChanged), "neither a fenced node nor a name is told"
        assert told.epoch == node.services.routing.epoch > 0


def test_rustlog_refuses_a_fetch_from_where_a_group_is() -> None:
    node = three_nodes(leader=2)
    adapter = make_adapter("rustlog", node.services)
    for group, form, is_served in (("g", rm.Form.BINARY, False), ("", rm.Form.BINARY, True), ("g", rm.Form.JSON, True)):
        asked = rm.Fetch(group_id=group, topic=TOPIC, partition=0, offset=0, max_bytes=100)
        answer = served(node, adapter, RustlogRequest(asked, form))
        assert isinstance(answer, rm.Error) is not is_served
