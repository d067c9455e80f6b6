"""Replicas of a slot on three nodes in one process, compared in the messages of the nodes' port: alike, rotten, written to."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.adapters.peers.linked_nodes import Client
from tests.broker.keys.test_slot_service import KeyPeers
from tests.model.manual_world import Job

from braidlog.adapters.peers.node_port import NodePortAdapter
from braidlog.broker.keys import replica_comparison
from braidlog.broker.keys.kv_peer_service import KeyPeerService
from braidlog.broker.keys.replica_comparison import HOLD_SECONDS_MAX
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import DRIFT_MS_MAX, Stamp, unpack_stamp
from braidlog.kv.replicated.anti_entropy import Ask, LeafState, Narrower, Reply, Unknown
from braidlog.kv.replicated.merkle import LEAVES
from braidlog.kv.replicated.slots import KEY_LOGS, log_of, slot_of
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.peers.kv_peer_client import KeyCalls
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.asking import RequestingConnection, Response
from braidlog.wire.peer.connection import Frame

KEYS = [key for key in (b"key-%d" % at for at in range(8_000)) if log_of(slot_of(key), KEY_LOGS) == 0][:40]


class Link(Client):
    """A connection between two nodes: what is pushed stands before the answer."""

    def __init__(self) -> None:
        self.pushed = b""

    async def push(self, data: bytes) -> None:
        self.pushed += data


class Questions(KeyCalls):
    """Of one node to the leader of slot 0, all in bytes."""

    def __init__(self, peers: "ComparedPeers") -> None:
        self.peers = peers
        self.asked: list[m.SyncRequest] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def _leader_of(self, slot: int) -> int:
        leader = self.peers.assignment.leader
        assert leader is not None
        return leader

    async def ask(
        self, node: int, message: Any, size: int, seconds: float, *, changes: bool, polls: bool = False
    ) -> Any:
        if node in self.peers.away:
            raise BrokerError(Reason.UNAVAILABLE, f"node {node} cannot be reached")
        self.asked.append(message)
        end, serving, link = RequestingConnection(bytes(16)), self.peers.ports[node].open(), Link()
        serving.receive(end.request(message))
        frame = serving.next_event()
        assert isinstance(frame, Frame)
        conversation: Any = link
        answer = await self.peers.ports[node]._compared(conversation, message)
        self.meanwhile()
        end.receive(link.pushed + serving.respond(frame, answer))
        event = end.next_event()
        assert isinstance(event, Response)
        assert end.next_event() is NEED_DATA
        return event.message


class ComparedPeers(KeyPeers):
    """All of them with some keys, of each kind."""

    def __init__(self) -> None:
        super().__init__()
        routing: Any = None
        calls: Any = None
        self.exchanges: dict[int, KeyPeerService] = {}
        self.ports: dict[int, NodePortAdapter] = {}
        for number, slots in self.slots.items():
            exchange = self.exchanges[number] = KeyPeerService(
                bytes([number]) * 16,
                self.runtime,
                lambda slots=slots: slots,  # type: ignore[misc]
            )
            self.ports[number] = NodePortAdapter(exchange.sender, routing, exchange, calls, needs_certificate=False)
        self.questions = Questions(self)
        for key in KEYS:
            self.ask(1, o.Set(key, b"value of " + key, 1000))
        self.ask(1, o.Push(KEYS[0] + b"-list", o.End.LEFT, (b"a", b"b")))
        self.settle()

    def settle(self) -> None:
        for _ in range(3):
            self.tick()

    def compare(self, number: int) -> Job[Any]:
        job = self.runtime.spawn(self.exchanges[number].comparing.compare(0, self.questions.compare))
        for _ in range(200):
            if not job.is_done:
                self.runtime.advance(10)
                self.carry()
        return job

    def keys(self, number: int) -> dict[bytes, Any]:
        slot = self.slots[number].local_logs()[0].slot
        return {key: (value, slot.stamp_of(key)) for key, value in slot.keyspace.data.items()}

    def keyspace(self, number: int) -> Any:
        return self.slots[number].local_logs()[0].slot.keyspace


def test_replicas_that_are_alike_are_found_so_by_one_question() -> None:
    peers = ComparedPeers()
    assert peers.compare(2).result() == []
    assert [(each.first_leaf, each.next_leaf) for each in peers.questions.asked] == [(0, LEAVES)]
    comparing = peers.exchanges[2].comparing
    assert (comparing.compared, peers.slots[2].differed, comparing.repaired_keys) == (1, 0, 0)


def test_what_has_gone_bad_is_told_loudly_and_put_right(caplog: pytest.LogCaptureFixture) -> None:
    peers = ComparedPeers()
    good = peers.keys(1)
    bad = peers.keyspace(2)
    bad.data[KEYS[3]] = b"rotten"
    bad.remove(KEYS[4])
    bad.put(KEYS[5] + b"-extra", b"never written", 0)
    peers.exchanges[2].comparing._trees.clear()
    repaired = peers.compare(2).result()
    assert {key for each in repaired for key in each.put} == {KEYS[3], KEYS[4]}
    assert peers.keys(2) == good
    comparing = peers.exchanges[2].comparing
    assert (peers.slots[2].differed, comparing.repaired_keys) == (1, 3)
    (told,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "log 0 of keys diverged from its leader" in told.getMessage()
    assert peers.compare(2).result() == []
    assert comparing.compared == 2


def test_it_is_put_right_while_keys_are_written() -> None:
    """What is told of a leaf is of later than what the follower has: it applies no further, and then goes on."""
    peers = ComparedPeers()
    peers.keyspace(2).data[KEYS[3]] = b"rotten"
    written: list[Any] = []

    def write() -> None:
        if peers.questions.asked[-1].next_leaf - peers.questions.asked[-1].first_leaf == 1:
            written.append(peers.runtime.spawn(peers.slots[1].execute(o.Set(KEYS[7], b"new"), 2)))  # type: ignore[arg-type]

    peers.questions.meanwhile = write
    peers.compare(2)
    peers.settle()
    assert written
    assert peers.slots[2].local_logs()[0].hold_at is None
    assert peers.keys(2) == peers.keys(1)
    assert peers.keys(2)[KEYS[7]][0] == b"new"


def test_a_leader_that_cannot_be_asked_holds_nothing_back(caplog: pytest.LogCaptureFixture) -> None:
    peers = ComparedPeers()
    peers.away = {1}
    assert peers.compare(2).result() == []
    assert "could not be compared" in caplog.text
    assert peers.slots[2].local_logs()[0].hold_at is None


def test_what_is_told_of_later_than_what_comes_in_time_is_given_up() -> None:
    peers = ComparedPeers()
    peers.keyspace(2).data[KEYS[3]] = b"rotten"

    def later(reply: Reply) -> Reply:
        return reply._replace(offset=reply.offset + 5) if isinstance(reply, LeafState) else reply

    async def ask(slot: int, question: Ask) -> Reply:
        return later(await peers.questions.compare(slot, question))

    job = peers.runtime.spawn(peers.exchanges[2].comparing.compare(0, ask))
    for _ in range(20):
        peers.runtime.advance(int(HOLD_SECONDS_MAX * 1000))
    assert job.result() == []
    assert peers.slots[2].local_logs()[0].hold_at is None
    assert peers.keys(2)[KEYS[3]][0] == b"rotten"
    assert {key for each in peers.compare(2).result() for key in each.put} == {KEYS[3]}, "the next one finds it"


def test_a_leader_that_answers_slowly_holds_a_slot_for_so_long_only() -> None:
    peers = ComparedPeers()
    peers.keyspace(2).data[KEYS[3]] = b"rotten"

    def late() -> None:
        peers.clock.advance(int(HOLD_SECONDS_MAX * 500))

    peers.questions.meanwhile = late
    peers.compare(2).result()
    single = [each for each in peers.questions.asked if each.next_leaf - each.first_leaf == 1]
    assert len(single) <= 3
    assert peers.slots[2].local_logs()[0].hold_at is None


def test_a_leader_whose_clock_is_far_ahead_puts_nothing_right(caplog: pytest.LogCaptureFixture) -> None:
    peers = ComparedPeers()
    ahead = Stamp(peers.runtime.now_ms() + DRIFT_MS_MAX + 1, 0, bytes(16))
    peers.slots[1].local_logs()[0].slot.restamp(KEYS[3], ahead)
    peers.keyspace(2).data[KEYS[3]] = b"rotten"
    assert peers.compare(2).result() == []
    assert "more than a minute ahead" in caplog.text
    assert peers.keys(2)[KEYS[3]][0] == b"rotten"


def test_of_a_slot_that_is_not_led_here_in_that_epoch_nothing_is_known() -> None:
    peers = ComparedPeers()
    slot = peers.slots[1].local_logs()[0]
    asked = Ask(slot.epoch, slot.slot.applied, (0, LEAVES), 0)

    def told(number: int, slot: int, ask: Ask) -> type[Reply]:
        return type(peers.runtime.run(peers.exchanges[number].comparing.answer(slot, ask)))

    assert told(1, 0, asked) is Narrower
    assert told(2, 0, asked) is told(1, 0, asked._replace(epoch=7)) is told(1, 5, asked) is Unknown


def test_a_leader_compares_with_nobody_and_trees_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_comparison, "KEYS_PER_TURN", 3)
    peers = ComparedPeers()
    assert peers.compare(1).result() == []
    assert peers.questions.asked == []
    assert peers.compare(3).result() == []
    assert len(peers.questions.asked) == 1


def test_what_is_written_is_later_than_what_another_node_said_and_the_other_way_round() -> None:
    peers = ComparedPeers()
    slots, exchange = peers.slots[1], peers.exchanges[1]
    ahead = Stamp(peers.runtime.now_ms() + 20_000, 7, bytes(16))
    exchange.observe(ahead.pack())
    peers.ask(1, o.Set(KEYS[0], b"after it"))
    written = slots.local_logs()[0].slot.stamp_of(KEYS[0])
    assert written is not None
    assert ahead < written < unpack_stamp(exchange.stamp()), (
        "whoever is asked next for the same client writes later still"
    )
    too_far = Stamp(peers.runtime.now_ms() + DRIFT_MS_MAX + 60_000, 0, bytes(16))
    with pytest.raises(BrokerError, match="ahead"):
        exchange.observe(too_far.pack())
    peers.ask(1, o.Set(KEYS[1], b"not dragged along"))
    last = slots.local_logs()[0].slot.stamp_of(KEYS[1])
    assert last is not None
    assert written < last < too_far


def test_a_wall_clock_that_jumps_and_is_set_right_makes_no_node_one_that_others_refuse() -> None:
    peers = ComparedPeers()
    first = unpack_stamp(peers.exchanges[2].stamp())
    peers.runtime.clock.step(600_000)
    peers.exchanges[1].observe(first.pack())
    assert unpack_stamp(peers.exchanges[1].stamp()).wall_ms > first.wall_ms + 590_000
    peers.ask(1, o.Set(KEYS[0], b"slots have a steady clock"))
    peers.settle()
    peers.runtime.clock.step(-600_000)
    for exchange in peers.exchanges.values():
        for other in peers.exchanges.values():
            other.observe(exchange.stamp())
    stamp = peers.slots[2].local_logs()[0].slot.stamp_of(KEYS[0])
    assert stamp is not None
    assert stamp.wall_ms < first.wall_ms + DRIFT_MS_MAX


def test_what_a_node_that_was_started_with_a_wrong_clock_has_written_holds_up_nobody() -> None:
    """It is committed, ten minutes ahead: who is asked, and who compares, does not wait until then."""
    peers = ComparedPeers()
    ahead = Stamp(peers.runtime.now_ms() + 600_000, 0, bytes(16))
    peers.slots[1].clock.advance_past(ahead)
    peers.ask(1, o.Set(KEYS[0], b"ten minutes ahead"))
    peers.settle()
    assert [stamp > ahead for _, stamp in [peers.keys(number)[KEYS[0]] for number in peers.exchanges]] == [True] * 3
    for exchange in peers.exchanges.values():
        for other in peers.exchanges.values():
            other.observe(exchange.stamp())
    peers.keyspace(2).data[KEYS[0]] = b"rotten"
    peers.exchanges[2].comparing._trees.clear()
    assert [set(each.put) for each in peers.compare(2).result()] == [{KEYS[0]}]
