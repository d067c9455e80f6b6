"""Kafka's Fetch among several nodes: asked in bytes at a leader and at a follower, by clients in racks (KIP-392)."""

from typing import Any

import msgspec
import pytest
from tests.adapters.kafka.client import fetch_of, values_of
from tests.adapters.one_of_three import Client
from tests.broker.node import Node
from tests.broker.three_nodes import registered
from tests.partition.peers import TOPIC, Peers

from braidlog.adapters.contract import answer_of
from braidlog.cluster.metadata import events as e
from braidlog.codec.batch.header import BLOCK_MAGIC, iter_batches
from braidlog.server.adapters import make_adapter
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import ClientConnection, Response
from braidlog.wire.kafka.messages import data as d


class Door:
    """Kafka's port of one node of `Peers`; nodes 1, 2 and 3 are in racks r1, r2 and r3."""

    def __init__(self, peers: Peers, number: int) -> None:
        self.node = Node(name=str(number))
        self.node.create(TOPIC)
        self.change(*(registered(each) for each in (1, 2, 3)))
        self._adapter = make_adapter("kafka", msgspec.structs.replace(self.node.services, fetch=peers[number].fetch))
        self._talk: Any = Client()

    def change(self, *events: e.Event) -> None:
        self.node.services.metadata.change_exclusively(events)

    def fetch(self, version: int = 12, offset: int = 0, **more: Any) -> d.FetchResponse:
        client, connection = ClientConnection("c"), self._adapter.open()
        connection.receive(client.request(fetch_of((TOPIC, 0, offset), **more), version))
        request = connection.next_event()
        answer: Any = connection.respond(request, self.node.run(answer_of(self._adapter.handle, self._talk, request)))
        parts = [answer] if isinstance(answer, bytes) else answer
        client.receive(b"".join(part if isinstance(part, bytes) else part.read() for part in parts))
        told = client.next_event()
        assert isinstance(told, Response)
        return told.message  # type: ignore[no-any-return]


def read(answer: d.FetchResponse) -> tuple[int, int, list[bytes | None]]:
    """Error, preferred replica, values."""
    ((partition,),) = [topic.partitions for topic in answer.responses]
    return (
        partition.error_code,
        partition.preferred_read_replica,
        [value for _, value in values_of(partition.records or b"")],
    )


@pytest.fixture
def peers() -> Peers:
    made = Peers()
    made[1].append(b"x")
    made.carry()
    return made


def test_columns_are_sent_to_who_says_so(peers: Peers) -> None:
    peers[1].append(b"v" * 3000)
    peers.carry()
    for number in (1, 3):
        ((answer,),) = [topic.partitions for topic in Door(peers, number).fetch(bare=1).responses]
        ((_, header),) = iter_batches(answer.records, blocks=True)  # type: ignore[arg-type]
        assert (header.magic, header.base_offset, header.record_count) == (BLOCK_MAGIC, 0, 2), "by a follower too"
    whole = [b"x", b"v" * 3000]
    for bare in (0, 3, -1):
        assert read(Door(peers, 1).fetch(bare=bare))[2] == whole
    assert read(Door(peers, 1).fetch(11, bare=1))[2] == whole, "it is not told in this version"


def test_a_client_in_another_rack_is_told_which_replica_is_there(peers: Peers) -> None:
    leader = Door(peers, 1)
    answer = leader.fetch(rack_id="r3")
    assert read(answer) == (E.NONE, 3, [])
    (partition,) = answer.responses[0].partitions
    assert (partition.high_watermark, partition.last_stable_offset, partition.log_start_offset) == (1, 1, 0)
    for rack in ("r1", "r9", ""):
        assert read(leader.fetch(rack_id=rack)) == (E.NONE, -1, [b"x"])
    assert read(leader.fetch(10)) == (E.NONE, -1, [b"x"]), "racks are not told in this version"
    assert read(Door(peers, 3).fetch(rack_id="r3")) == (E.NONE, -1, [b"x"])


def test_nobody_is_sent_to_a_node_that_is_fenced_drains_or_has_no_such_door(peers: Peers) -> None:
    leader = Door(peers, 1)
    leader.change(e.DrainNode(node=3, incarnation=1, is_draining=True))
    assert read(leader.fetch(rack_id="r3")) == (E.NONE, -1, [b"x"])
    leader.change(e.DrainNode(node=3, incarnation=1, is_draining=False))
    assert read(leader.fetch(rack_id="r3")) == (E.NONE, 3, [])
    leader.change(e.FenceNode(node=3, incarnation=1))
    assert read(leader.fetch(rack_id="r3")) == (E.NONE, -1, [b"x"])
    leader.change(registered(2, 2, doors={}))
    assert read(leader.fetch(rack_id="r2")) == (E.NONE, -1, [b"x"])


def test_a_session_tells_the_preferred_replica_each_time(peers: Peers) -> None:
    leader = Door(peers, 1)
    first = leader.fetch(rack_id="r3", session_epoch=0)
    assert (read(first), first.session_id) == ((E.NONE, 3, []), 1)
    assert read(leader.fetch(rack_id="r3", session_id=1, session_epoch=1)) == (E.NONE, 3, [])


def test_a_follower_serves_clients_that_can_go_back(peers: Peers) -> None:
    follower = Door(peers, 2)
    assert read(follower.fetch()) == (E.NONE, -1, [b"x"])
    assert read(follower.fetch(10))[0] == E.NOT_LEADER_OR_FOLLOWER, "it would not find the way back"
    assert read(follower.fetch(offset=2))[0] == E.OFFSET_NOT_AVAILABLE
    peers.assign(peers.assignment.with_changes(in_sync=(1, 3)))
    assert read(follower.fetch())[0] == E.NOT_LEADER_OR_FOLLOWER
