"""Every operation of the dialect's table, answered; every error of its rows, provoked: over a real socket.

The tests iterate over the table itself: a row that nobody provokes fails.
"""

import asyncio
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from braidlog.adapters.contract import Conversation
from braidlog.adapters.mlog.handlers import MlogAdapter
from braidlog.broker.services import Services
from braidlog.codec.batch.records import encode_batch
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.hosted_log import Role
from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.listener import Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.testing.server import ServerProcess
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import ClientConnection
from braidlog.wire.mlog.errors import ErrorCode as E
from braidlog.wire.mlog.errors import RPCErrorResponse
from braidlog.wire.mlog.operations import OPERATIONS, Operation

from .client import MlogClient, prepared_server, receive_all

LONG = "x" * 250
BEYOND = 10_000

PROVOKED: dict[tuple[type[m.Request], E], m.Request] = {
    (m.ReplicateRequest, E.TOPIC_REQUIRED): m.ReplicateRequest(replica_node_id="n2"),
    (m.ReplicateRequest, E.TOPIC_NOT_FOUND): m.ReplicateRequest("missing", replica_node_id="n2"),
    (m.ReplicateRequest, E.NOT_TOPIC_LEADER): m.ReplicateRequest("followed", replica_node_id="n2"),
    (m.ReplicateRequest, E.READ_OFFSET): m.ReplicateRequest("replicated", BEYOND, replica_node_id="n2"),
    (m.ProduceRequest, E.TOPIC_REQUIRED): m.ProduceRequest("", b"v", 1),
    (m.ProduceRequest, E.TOPIC_NOT_FOUND): m.ProduceRequest("missing", b"v", 1),
    (m.ProduceRequest, E.NOT_TOPIC_LEADER): m.ProduceRequest("followed", b"v", 1),
    (m.ProduceRequest, E.VALUES_REQUIRED): m.ProduceRequest("led", b"", 1),
    (m.ProduceRequest, E.INVALID_ACK_MODE): m.ProduceRequest("led", b"v", 3),
    (m.ProduceRequest, E.TIMEOUT_CATCH_UP): m.ProduceRequest("replicated", b"v", 2),
    (m.ProduceBatchRequest, E.TOPIC_REQUIRED): m.ProduceBatchRequest("", (b"v",), 1),
    (m.ProduceBatchRequest, E.TOPIC_NOT_FOUND): m.ProduceBatchRequest("missing", (b"v",), 1),
    (m.ProduceBatchRequest, E.NOT_TOPIC_LEADER): m.ProduceBatchRequest("followed", (b"v",), 1),
    (m.ProduceBatchRequest, E.VALUES_REQUIRED): m.ProduceBatchRequest("led", (), 1),
    (m.ProduceBatchRequest, E.INVALID_ACK_MODE): m.ProduceBatchRequest("led", (b"v",), -1),
    (m.ProduceBatchRequest, E.TIMEOUT_CATCH_UP): m.ProduceBatchRequest("replicated", (b"v",), 2),
    (m.FetchRequest, E.TOPIC_REQUIRED): m.FetchRequest(),
    (m.FetchRequest, E.TOPIC_NOT_FOUND): m.FetchRequest("missing"),
    (m.FetchRequest, E.READ_OFFSET): m.FetchRequest("led", "", BEYOND),
    (m.FetchBatchRequest, E.TOPIC_REQUIRED): m.FetchBatchRequest(),
    (m.FetchBatchRequest, E.TOPIC_NOT_FOUND): m.FetchBatchRequest("followed"),
    (m.FetchBatchRequest, E.READ_OFFSET): m.FetchBatchRequest("replicated", "", BEYOND, 1, "n2"),
    (m.FetchStreamRequest, E.TOPIC_REQUIRED): m.FetchStreamRequest(),
    (m.FetchStreamRequest, E.TOPIC_NOT_FOUND): m.FetchStreamRequest("followed"),
    (m.FetchStreamRequest, E.READ_OFFSET): m.FetchStreamRequest("led", "", BEYOND),
    (m.CommitOffsetRequest, E.TOPIC_REQUIRED): m.CommitOffsetRequest(),
    (m.CommitOffsetRequest, E.TOPIC_NOT_FOUND): m.CommitOffsetRequest("missing"),
    (m.CommitOffsetRequest, E.COMMIT_OFFSET): m.CommitOffsetRequest("led", LONG, 1),
    (m.FetchOffsetRequest, E.TOPIC_REQUIRED): m.FetchOffsetRequest(),
    (m.FetchOffsetRequest, E.TOPIC_NOT_FOUND): m.FetchOffsetRequest("missing"),
    (m.FetchOffsetRequest, E.RECOVER_OFFSETS): m.FetchOffsetRequest("led", LONG),
    (m.CreateTopicRequest, E.TOPIC_NAME_REQUIRED): m.CreateTopicRequest(),
    (m.CreateTopicRequest, E.REPLICA_COUNT_INVALID): m.CreateTopicRequest("new", 2**32 - 1),
    (m.CreateTopicRequest, E.RAFT_LEADER_UNAVAILABLE): m.CreateTopicRequest("new", 0, "n9"),
    (m.CreateTopicRequest, E.TOPIC_EXISTS): m.CreateTopicRequest("led"),
    (m.CreateTopicRequest, E.NOT_ENOUGH_NODES): m.CreateTopicRequest("new", 2),
    (m.DeleteTopicRequest, E.TOPIC_NAME_REQUIRED): m.DeleteTopicRequest(),
    (m.DeleteTopicRequest, E.TOPIC_NOT_FOUND): m.DeleteTopicRequest("missing"),
    (m.FindTopicLeaderRequest, E.TOPIC_REQUIRED): m.FindTopicLeaderRequest(),
    (m.FindTopicLeaderRequest, E.TOPIC_NOT_FOUND): m.FindTopicLeaderRequest("missing"),
    (m.FindTopicLeaderRequest, E.LEADER_ADDR_REQUIRED): m.FindTopicLeaderRequest("followed"),
    (m.ApplyIsrUpdateEventRequest, E.TOPIC_REQUIRED): m.ApplyIsrUpdateEventRequest("", "n2", isr=True),
    (m.ApplyIsrUpdateEventRequest, E.TOPIC_NOT_FOUND): m.ApplyIsrUpdateEventRequest("missing", "n2", isr=True),
    (m.ApplyIsrUpdateEventRequest, E.RAFT_LEADER_UNAVAILABLE): m.ApplyIsrUpdateEventRequest("followed", "n2"),
}

WITHOUT_A_LEADER: dict[tuple[type[m.Request], E], m.Request] = {
    (m.DeleteTopicRequest, E.RAFT_LEADER_UNAVAILABLE): m.DeleteTopicRequest("led"),
    (m.FindRaftLeaderRequest, E.RAFT_LEADER_UNAVAILABLE): m.FindRaftLeaderRequest(),
}
"""One node alone always leads its metadata: these come from an adapter whose services say that nobody does."""

ANSWERED: dict[type[m.Request], tuple[m.Request, m.Response]] = {
    m.ReplicateRequest: (
        m.ReplicateRequest("empty", 0, 10, "n2"),
        m.ReplicateResponse("empty", None, end_of_stream=True, leader_leo=0),
    ),
    m.ProduceRequest: (m.ProduceRequest("written", b"v", 1), m.ProduceResponse(0)),
    m.ProduceBatchRequest: (m.ProduceBatchRequest("batched", (b"v", b"w"), 2), m.ProduceBatchResponse(0, 1, 2)),
    m.FetchRequest: (m.FetchRequest("led", "", 1), m.FetchResponse(m.LogEntry(1, b"one"))),
    m.FetchBatchRequest: (
        m.FetchBatchRequest("led", "", 0, 2),
        m.FetchBatchResponse((m.LogEntry(0, b"zero"), m.LogEntry(1, b"one"))),
    ),
    m.FetchStreamRequest: (m.FetchStreamRequest("led", "", 1), m.FetchStreamResponse(m.LogEntry(1, b"one"))),
    m.CommitOffsetRequest: (m.CommitOffsetRequest("led", "c1", 2), m.CommitOffsetResponse(success=True)),
    m.FetchOffsetRequest: (m.FetchOffsetRequest("led", "nobody"), m.FetchOffsetResponse(0)),
    m.CreateTopicRequest: (m.CreateTopicRequest("created", 1, "0"), m.CreateTopicResponse("created", ("n2",))),
    m.DeleteTopicRequest: (m.DeleteTopicRequest("doomed"), m.DeleteTopicResponse("doomed")),
    m.ApplyIsrUpdateEventRequest: (
        m.ApplyIsrUpdateEventRequest("isr", "n2", isr=True),
        m.ApplyIsrUpdateEventResponse(),
    ),
}
"""The three others answer with addresses and lists: tested below."""


async def _topics(services: Services) -> None:
    topics = services.topics
    for name in ("led", "followed", "written", "batched", "doomed"):
        await topics.create(name, 1)
    for name in ("replicated", "empty", "isr"):
        await topics.create(name, 1, followers=["n2"], min_in_sync=2)
    await topics.create("many", 3)
    for name in ("led", "replicated"):
        batch = encode_batch([b"zero", b"one"], base_timestamp=1)
        await services.append.append(name, 0, batch, acks=1)  # type: ignore[arg-type]
    await services.placement.set_role("followed", 0, Role.FOLLOWER)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with prepared_server(tmp_path_factory.mktemp("mlog") / "data", _topics) as running:
        yield running


ROWS = [(operation, code) for operation in OPERATIONS for code in operation.errors]


@pytest.mark.parametrize(("operation", "code"), ROWS, ids=[f"{row.name}-{code.name}" for row, code in ROWS])
def test_every_documented_error_is_given(operation: Operation, code: E, server: ServerProcess) -> None:
    key = (operation.request, code)
    if key in WITHOUT_A_LEADER:
        assert asyncio.run(_ask_leaderless(WITHOUT_A_LEADER[key])).code == code
        return
    request = PROVOKED[key]
    assert type(request) is operation.request
    with MlogClient(server) as client:
        assert client.code(request) == code
        assert client.ask(m.FindRaftLeaderRequest()).raft_leader_addr  # an error leaves the connection as it was


class _Leaderless(MlogAdapter):
    def serve(self, route: object, conversation: Conversation, request: object) -> object:
        raise BrokerError(Reason.UNAVAILABLE, "nobody leads the metadata")


async def _ask_leaderless(request: m.Request) -> RPCErrorResponse:
    stub: Any = SimpleNamespace(forwarding=SimpleNamespace(names=set(), calls=None))
    adapter = _Leaderless(stub)
    listener = Listener(
        adapter, session_limits=SessionLimits(), connection_limits=ConnectionLimits(), budget=Budget(2**30)
    )
    await listener.start("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        client = ClientConnection()
        writer.write(client.request(request))
        client.receive(await reader.readexactly(6))
        client.receive(await asyncio.wait_for(reader.readuntil(b"}"), 60))
        answer = client.next_event()
        assert isinstance(answer, RPCErrorResponse)
        writer.close()
        await writer.wait_closed()
        return answer
    finally:
        await listener.stop(1.0)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda row: row.name)
def test_every_operation_is_answered(operation: Operation, server: ServerProcess) -> None:
    with MlogClient(server) as client:
        if operation.request is m.FindTopicLeaderRequest:
            host, port = server.address("mlog")
            assert client.ask(m.FindTopicLeaderRequest("led")) == m.FindTopicLeaderResponse(f"{host}:{port}")
        elif operation.request is m.FindRaftLeaderRequest:
            host, port = server.address("mlog")
            assert client.ask(m.FindRaftLeaderRequest()) == m.FindRaftLeaderResponse(f"{host}:{port}")
        elif operation.request is m.ListTopicsRequest:
            topics = {topic.name: topic for topic in client.ask(m.ListTopicsRequest()).topics}
            assert topics["led"] == m.TopicInfo("led", "0", 1, (m.ReplicaInfo("0", is_isr=True, leo=2),))
            assert topics["replicated"].replicas[1] == m.ReplicaInfo("n2", is_isr=False, leo=0)
            assert list(topics) == sorted(topics)
            assert "__state" not in topics
        else:
            request, answer = ANSWERED[operation.request]
            assert client.ask(request) == answer


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda row: row.name)
def test_what_is_no_request_is_code_0_and_the_end(operation: Operation, server: ServerProcess) -> None:
    with MlogClient(server) as client:
        client.socket.sendall(struct.pack(">HI", operation.number, 2) + b"[]")
        answer = client.receive()
        assert isinstance(answer, RPCErrorResponse)
        assert answer.code == E.UNKNOWN
        assert client.is_closed()


@pytest.mark.parametrize("number", sorted({0xFFFF, 20, *(row.response_number for row in OPERATIONS)}))
def test_an_unknown_type_is_answered_before_the_end(number: int, server: ServerProcess) -> None:
    with MlogClient(server) as client:
        client.socket.sendall(struct.pack(">HI", number, 0))
        assert client.receive().code == E.UNKNOWN
        assert client.is_closed()


@pytest.mark.parametrize(
    "request_",
    [
        m.ProduceRequest("many", b"v", 1),
        m.ProduceBatchRequest("many", (b"v",), 1),
        m.FetchRequest("many"),
        m.FetchBatchRequest("many"),
        m.FetchStreamRequest("many"),
        m.ReplicateRequest("many", 0, 0, "n2"),
        m.CommitOffsetRequest("many", "", 1),
        m.FetchOffsetRequest("many"),
        m.FindTopicLeaderRequest("many"),
        m.ApplyIsrUpdateEventRequest("many", "n2", isr=True),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_topic_of_several_partitions_is_a_clear_error(request_: m.Request, server: ServerProcess) -> None:
    with MlogClient(server) as client:
        answer = client.ask(request_)
        assert answer.code == E.UNKNOWN
        assert "3 partitions" in answer.message


@pytest.mark.parametrize("name", ["a/b", "..", LONG, "__state", "ü"])
def test_names_that_no_topic_can_have(name: str, server: ServerProcess) -> None:
    with MlogClient(server) as client:
        assert client.code(m.CreateTopicRequest(name)) == E.TOPIC_NAME_REQUIRED
        assert client.code(m.FetchRequest(name + "x")) == E.TOPIC_NOT_FOUND


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(range(189)),
        b"\x00\x02\xff\xff\xff\xff",
    ],
    ids=["http", "tls", "4 GiB"],
)
def test_other_protocols_get_one_error(opening: bytes, server: ServerProcess) -> None:
    with MlogClient(server) as client:
        client.socket.sendall(opening)
        client.connection.receive(receive_all(client.socket))
        assert client.receive().code == E.UNKNOWN
        with pytest.raises(EOFError):
            client.receive()
