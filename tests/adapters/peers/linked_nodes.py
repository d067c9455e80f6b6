"""Three nodes of a hand-made cluster that can call each other: what one asks is served by the other's own table, in its bytes."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
from tests.broker.node import Node
from tests.broker.three_nodes import OWN, TOPIC, three_nodes

from braidlog.adapters.contract import Adapter, Relayed, answer_of
from braidlog.adapters.peers.node_calls import CallTable, call_route, requests_of
from braidlog.adapters.routing import ForwardingAdapter
from braidlog.broker.forwarding import Call
from braidlog.kv.engine import operations as o
from braidlog.model.errors import BrokerError, NothingDoneError, NotLeaderError, Reason, StorageFault
from braidlog.security.authorization import Authorize
from braidlog.server.adapters import make_adapter
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.kafka.messages.calls import CallRequest


class Client:
    """A conversation, as far as these requests need one."""

    is_forwarded = False
    is_closing = False
    principal = "anonymous"
    address = OWN
    peer = "10.9.9.9:1"
    held_bytes = 0
    connection: Any = None

    def hold(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes

    def respond_in_any_order(self) -> None:
        pass

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()


class KeysElsewhere:
    """The service of keys on a node that leads none: the leader of `orders` has them."""

    clustered = True
    changes_at_once = False

    async def execute(self, operation: o.Operation[Any], level: int) -> Any:
        raise NotLeaderError(TOPIC, 0, "another node leads it")

    async def execute_columns(self, columns: o.Columns, level: int) -> o.Results:
        rows = range(len(columns.keys))
        return o.Results([NotLeaderError(TOPIC, 0, "another node leads it") for _ in rows], list(rows))


class LinkedNode:
    """One of them, with the adapters of some dialects, and what it was called for."""

    def __init__(
        self, number: int, leader: int | None, *dialects: str, authorize: Authorize | None = None, partitions: int = 1
    ) -> None:
        self.node: Node = three_nodes(leader, name=str(number), partitions=partitions)
        if authorize is not None:
            self.node.services = msgspec.structs.replace(self.node.services, authorize=authorize)
        self.table = CallTable()
        self.adapters: dict[str, Adapter] = {}
        for dialect in dialects:
            adapter = self.adapters[dialect] = make_adapter(dialect, self.node.services)
            self.table.rows[dialect] = requests_of(adapter)
            if isinstance(adapter, ForwardingAdapter):
                self.table.rows.update({name: call_route(answer) for name, answer in adapter.calls.items()})
        self.others: dict[int, LinkedNode] = {}
        self.called: list[str] = []
        self.node.services.forwarding.calls = self
        self.node.services.forwarding.spawn = lambda work, _: self.node.spawn(work)

    def use_keys(self, keys: Any) -> None:
        """Serve Mayfly with this service of keys."""
        self.node.services = msgspec.structs.replace(self.node.services, keyvalue=keys)
        adapter = self.adapters["mayfly"] = make_adapter("mayfly", self.node.services)
        self.table.rows["mayfly"] = requests_of(adapter)

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        other = self.others.get(node)
        if other is None:
            raise NothingDoneError(Reason.UNAVAILABLE, f"node {node} cannot be reached")
        other.called.append(call.name)
        link: Any = Client()
        call_route = CallRequest(call.name, call.principal, call.body)
        answer = other.node.run(other.table.handle_call(link, call_route))
        assert link.held_bytes == 0
        if answer.reason:
            raise NothingDoneError(Reason[answer.reason], answer.text)
        return answer.body

    def ask(self, dialect: str, frame: bytes, conversation: Client | None = None) -> bytes:
        """The answer of this node to a client's bytes, in bytes."""
        client: Any = conversation or Client()
        adapter = self.adapters[dialect]
        connection = client.connection = adapter.open()
        connection.receive(frame)
        request = connection.next_event()
        assert request is not NEED_DATA
        job = self.node.spawn(answer_of(adapter.handle, client, request))
        for _ in range(200):
            if not job.is_done:
                self.node.runtime.advance(20)
        try:
            answer: Any = job.result()
        except (BrokerError, StorageFault) as error:
            answer = adapter.failure(request, error)
        assert client.held_bytes == 0
        if isinstance(answer, Relayed):
            return answer.data
        output = connection.respond(request, answer)
        return output if isinstance(output, bytes) else b"".join(output)  # type: ignore[arg-type]


def linked(
    leader: int | None, *dialects: str, authorize: Authorize | None = None, partitions: int = 1
) -> dict[int, LinkedNode]:
    nodes = {
        number: LinkedNode(number, leader, *dialects, authorize=authorize, partitions=partitions)
        for number in (1, 2, 3)
    }
    for number, node in nodes.items():
        node.others = {other: each for other, each in nodes.items() if other != number}
    return nodes
