"""Keys between nodes, in their bytes and without a socket: who is served, where a request ends, whose clock is believed."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from tests.adapters.peers.linked_nodes import Client, LinkedNode
from tests.adapters.peers.test_node_calls import leads_no_keys, mayfly, with_keys
from tests.broker.three_nodes import TOPIC, addresses, assign, folder_id
from tests.model.manual_world import StuckError

from braidlog.adapters.mayfly.handlers import MayflyAdapter
from braidlog.adapters.peers.node_calls import ForwardedConversation
from braidlog.adapters.peers.node_port import MAYFLY, NodePortAdapter, client_frame, to_forward
from braidlog.adapters.routing import ForwardingAdapter
from braidlog.broker.forwarding import Call
from braidlog.broker.keys.kv_peer_service import KeyPeerService
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import DRIFT_MS_MAX, Stamp, unpack_stamp
from braidlog.kv.replicated.slots import KEY_LOGS, log_of, slot_of
from braidlog.model.errors import BrokerError, NothingDoneError, NotLeaderError, Reason
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mayfly import messages as mm
from braidlog.wire.mayfly.connection import ClientConnection as MayflyClient
from braidlog.wire.mayfly.connection import Request
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.asking import RequestingConnection, Response
from braidlog.wire.peer.connection import Frame


def sender_of(number: int) -> bytes:
    return bytes.fromhex(folder_id(number))


class Port(Client):
    """The nodes' port of one of three, and its way to the others: all in bytes."""

    def __init__(self, linked_node: LinkedNode, number: int, *, needs_certificate: bool = False) -> None:
        self.is_closing = False
        self.linked = linked_node
        services = linked_node.node.services
        self.exchange = KeyPeerService(sender_of(number), services.runtime)
        self.adapter = NodePortAdapter(
            sender_of(number), services.routing, self.exchange, linked_node.table, needs_certificate=needs_certificate
        )
        self.others: dict[int, Port] = {}
        self.asked: list[m.Message] = []
        services.forwarding.ways[MAYFLY] = self

    def close(self) -> None:
        self.is_closing = True

    def answer(self, data: bytes, principal: str = "anonymous") -> bytes:
        connection = self.adapter.open()
        connection.receive(data)
        frame = connection.next_event()
        assert isinstance(frame, Frame)
        self.asked.append(frame.message)
        self.principal = principal
        link: Any = self
        return connection.respond(frame, self.linked.node.run(self.adapter.handle(link, frame)))

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        if node not in self.others:
            raise NothingDoneError(Reason.UNAVAILABLE, f"node {node} cannot be reached")
        answer = asked(self.others[node], to_forward(call, self.exchange.stamp()), self.exchange.sender)
        assert isinstance(answer, m.Answer | m.TopologyChanged)
        return client_frame(call, answer)


def asked(port: Port, message: Any, sender: bytes = sender_of(2), principal: str = "anonymous") -> Any:
    """What is answered; None if the connection is closed upon."""
    connection = RequestingConnection(sender)
    connection.receive(port.answer(connection.request(message), principal))
    event = connection.next_event()
    if event is NEED_DATA:
        assert port.is_closing
        return None
    assert isinstance(event, Response)
    return event.message


def ports(**options: Any) -> dict[int, Port]:
    """Of three nodes; the first leads all keys."""
    made = {number: Port(node, number, **options) for number, node in with_keys().items()}
    for number, port in made.items():
        port.others = {other: each for other, each in made.items() if other != number}
    return made


def forward(port: Port, command: int = 0x02, body: bytes = b"\x00\x01k", **changes: Any) -> m.Forward:
    said: dict[str, Any] = {
        "consistency": 2,
        "hops": 1,
        "stamp": port.exchange.stamp(),
        "principal": "anonymous",
    } | changes
    return m.Forward(request=0, command=command, body=body, **said)


def test_what_a_client_of_version_1_asks_of_any_node_travels_in_forwards() -> None:
    made = ports()
    assert mayfly(made[2].linked, mm.Set(b"k", b"v"), mm.Set(b"l", b"w")) == [mm.STORED, mm.STORED]
    assert mayfly(made[3].linked, mm.Get(b"k"), mm.Get(b"none"), mm.Get(b"l")) == [
        mm.Value(b"v"), mm.MISSING, mm.Value(b"w"),
    ]  # fmt: skip
    assert [type(each) for each in made[1].asked] == [m.Forward] * 5
    assert made[1].linked.called == []


def test_a_request_makes_one_hop() -> None:
    """Node 1 takes another for the leader of the keys: what came from node 2 ends there, and nothing was done."""
    made = ports()
    leads_no_keys(made[1].linked)
    one_hop(made)


def test_a_request_that_hops_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what was forwarded is taken for a client's own request, and handed on."""
    monkeypatch.setattr(ForwardedConversation, "is_forwarded", False)
    monkeypatch.setattr(MayflyAdapter, "should_forward", ForwardingAdapter.should_forward)  # whatever its version
    made = ports()
    leads_no_keys(made[1].linked)
    del made[1].others[3]
    with pytest.raises(AssertionError, match="handed on"):
        one_hop(made)


def one_hop(made: dict[int, Port]) -> None:
    told = []
    with suppress(StuckError):  # node 1 waits for a third
        told = mayfly(made[2].linked, mm.Set(b"k", b"v"))
    assert not made[1].linked.node.services.forwarding.counts, "handed on"
    assert made[1].asked
    assert [type(each) for each in told] == [mm.TopologyChanged]


def test_what_was_handed_on_before_is_not_served_even_here() -> None:
    made = ports()
    epoch = made[1].linked.node.services.routing.epoch
    for hops in (0, 2, 255):
        assert asked(made[1], forward(made[2], hops=hops)) == m.TopologyChanged(1, epoch)
    assert asked(made[1], forward(made[2])) == m.Answer(1, mm.Status.NOT_FOUND, b"")
    assert asked(made[3], forward(made[2])) == m.TopologyChanged(1, epoch)


def test_the_answer_has_the_status_and_body_that_the_client_reads() -> None:
    made = ports()
    set_k = b"\x00\x01k\x00\x00\x00\x01v"
    assert asked(made[1], forward(made[2], 0x01, set_k)) == m.Answer(1, mm.Status.OK, b"")
    assert asked(made[1], forward(made[2])) == m.Answer(1, mm.Status.OK, b"\x00\x00\x00\x01v")
    assert asked(made[1], forward(made[2], 0x7F)).status == mm.Status.UNKNOWN_CMD
    assert asked(made[1], forward(made[2], consistency=9)).status == mm.Status.BAD_PAYLOAD
    assert asked(made[1], forward(made[2], body=b"\x00\x09k")).status == mm.Status.BAD_PAYLOAD


@pytest.mark.parametrize("sender", [bytes(16), sender_of(1), b"\xff" * 16])
def test_who_is_no_node_of_this_cluster_is_closed_upon(sender: bytes) -> None:
    port = ports()[1]
    assert asked(port, forward(port), sender) is None


@pytest.mark.parametrize(("name", "is_served"), [("node-2", True), ("node-3", False), ("ann", False), ("", False)])
def test_a_certificate_is_of_the_node_that_the_message_is_from(name: str, *, is_served: bool) -> None:
    made = ports(needs_certificate=True)
    assert (asked(made[1], forward(made[2]), principal=name) is not None) is is_served


def test_a_clock_that_is_far_ahead_is_refused_and_one_that_is_near_is_followed() -> None:
    made = ports()
    now_ms = made[1].linked.node.clock.now_ms()
    far, last, near = (
        Stamp(now_ms + ms, 0, sender_of(2)).pack() for ms in (DRIFT_MS_MAX + 1, DRIFT_MS_MAX, DRIFT_MS_MAX // 2)
    )
    set_k = b"\x00\x01k\x00\x00\x00\x01v"
    told = asked(made[1], forward(made[2], 0x01, set_k, stamp=far))
    assert (told.status, b"ahead" in told.body) == (mm.Status.SERVER_ERROR, True)
    assert asked(made[1], forward(made[2])).status == mm.Status.NOT_FOUND, "nothing was done"
    assert asked(made[1], forward(made[2], 0x01, set_k, stamp=near)).status == mm.Status.OK
    assert unpack_stamp(made[1].exchange.stamp()) > unpack_stamp(near)
    assert asked(made[1], forward(made[2], 0x01, set_k, stamp=last)).status == mm.Status.OK
    said = unpack_stamp(made[1].exchange.stamp()).wall_ms
    assert said <= now_ms + DRIFT_MS_MAX // 2, "who is a little behind us would refuse it"


def test_where_keys_are_in_no_slots_nothing_is_taken_that_was_cut_and_nothing_compared() -> None:
    made = ports()
    log = log_of(slot_of(b"k"), KEY_LOGS)
    cut = m.Replicate(0, log, 1, bytes(28), 0, 1, 5, b"k", b"v")
    epoch = made[1].linked.node.services.routing.epoch
    assert asked(made[1], cut) == m.TopologyChanged(1, epoch)
    compared = asked(made[1], m.SyncRequest(log, 1, 0, 0, 1024, 0))
    assert compared == m.SyncEnd(log, 1, 0, 0, 1024, 0, m.Verdict.UNKNOWN)


class PartedKeys:
    """The service of keys on a node of which others lead some: those that begin with `3` are of node 3."""

    clustered = True
    changes_at_once = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.done: list[bytes] = []
        self.levels: list[int] = []

    async def execute(self, operation: Any, level: int = 2) -> Any:
        self.levels.append(int(level))
        if operation.key.startswith(b"3") and self.number != 3:
            raise NotLeaderError(TOPIC, 0, "node 3 leads it")
        self.done.append(operation.key)
        return True

    async def execute_columns(self, columns: o.Columns, level: int) -> o.Results:
        found: list[Any] = []
        for key in columns.keys:
            try:
                found.append(await self.execute(o.Get(key), level))
            except BrokerError as error:
                found.append(error)
        return o.Results(found, [row for row, each in enumerate(found) if isinstance(each, BrokerError)])


@pytest.fixture
def parted() -> dict[int, Port]:
    made = ports()
    for number, port in made.items():
        assign(port.linked.node, 3)
        port.linked.use_keys(PartedKeys(number))
    return made


KEYS = [b"a", b"3b", b"c", b"3d", b"3e"]
SETS = [mm.Set(key, b"v") for key in KEYS]


def test_a_burst_is_parted_among_the_nodes_and_answered_in_one_piece(parted: dict[int, Port]) -> None:
    assert mayfly(parted[2].linked, *SETS) == [mm.STORED] * 5
    done = {number: port.linked.node.services.keyvalue.done for number, port in parted.items()}  # type: ignore[attr-defined]
    assert done == {1: [], 2: [b"a", b"c"], 3: [b"3b", b"3d", b"3e"]}
    assert [type(each) for each in parted[3].asked] == [m.Forward] * 3


def test_of_a_burst_of_version_2_each_is_told_where_it_is(parted: dict[int, Port]) -> None:
    moved = mm.Moved(*addresses(3)["mayfly"])
    assert mayfly(parted[2].linked, *SETS, version=2) == [mm.STORED, moved, mm.STORED, moved, moved]
    assert parted[3].asked == []


def test_version_2_is_handed_on_too_where_the_leader_has_no_address_that_can_be_told(parted: dict[int, Port]) -> None:
    node = parted[2].linked.node
    named = {"mayfly": ("braid.example", 1)}
    members = node.services.metadata.image.cluster.members
    members["3"] = msgspec.structs.replace(members["3"], addresses=named)
    assert mayfly(parted[2].linked, *SETS, version=2) == [mm.STORED] * 5
    assert mayfly(parted[2].linked, SETS[1], version=2) == [mm.STORED]
    assert len(parted[3].asked) == 4


def test_what_of_a_burst_nobody_serves_is_refused_and_the_rest_is_not(parted: dict[int, Port]) -> None:
    del parted[2].others[3]
    told = mayfly(parted[2].linked, *SETS)
    assert [type(each) for each in told] == [mm.Stored, mm.TopologyChanged, mm.Stored, *[mm.TopologyChanged] * 2]


@pytest.mark.parametrize("level", list(mm.Consistency))
def test_the_consistency_that_is_asked_for_reaches_whoever_serves_it(
    parted: dict[int, Port], level: mm.Consistency
) -> None:
    """Also by way of another node; version 1 asks for QUORUM."""
    connection, node = MayflyClient(), parted[2].linked
    frames = [connection.request(Request(number, each, level), version=2) for number, each in enumerate(SETS, 1)]
    node.ask("mayfly", b"".join(frames))
    node.ask("mayfly", MayflyClient().request(Request(1, SETS[0], level), version=2))
    assert set(node.node.services.keyvalue.levels) == {level}  # type: ignore[attr-defined]
    asked(parted[3], forward(parted[2], 0x01, b"\x00\x023k\x00\x00\x00\x01v", consistency=level))
    mayfly(node, SETS[1])
    assert parted[3].linked.node.services.keyvalue.levels == [level, mm.Consistency.QUORUM]  # type: ignore[attr-defined]
