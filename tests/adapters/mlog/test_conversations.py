"""What clients do with mlog, over real sockets: writing, reading, going on, replicating, streaming, coming back."""

import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.connected import SECONDS_MAX
from tests.wire.mlog.batches import read_batch

from braidlog.broker.services import Services
from braidlog.codec.batch.records import encode_batch
from braidlog.testing.server import ServerProcess
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mlog import messages as m
from braidlog.wire.mlog.connection import frame
from braidlog.wire.mlog.errors import ErrorCode as E
from braidlog.wire.mlog.errors import RPCErrorResponse
from braidlog.wire.mlog.replication import ReplicationRecord
from braidlog.wire.mlog.sizes import VALUE_BYTES_MAX, value_bytes_max

from .client import MlogClient, prepared_server


@pytest.fixture
def topic(request: pytest.FixtureRequest, braid_server_shared: ServerProcess) -> str:
    """A topic of the test's own on the shared node."""
    name = request.node.name.replace("[", ".").replace("]", "")[:200]
    with MlogClient(braid_server_shared) as client:
        client.create(name)
    return str(name)


# -- bytes ---------------------------------------------------------------------------------------------------------


def test_frames_cut_at_every_byte(topic: str, braid_server_shared: ServerProcess) -> None:
    for message in (
        m.ProduceRequest(topic, b"v", 1),
        m.FetchBatchRequest(topic, "cut", 0, 3),
        m.FindRaftLeaderRequest(),
    ):
        data = frame(message)
        clients = [MlogClient(braid_server_shared) for _ in range(1, len(data))]
        with MlogClient(braid_server_shared) as barrier:
            for client in clients:
                client.connection.request(message)  # so that it expects the answer
            for at, client in enumerate(clients, 1):
                client.socket.sendall(data[:at])
            barrier.ask(m.FindRaftLeaderRequest())
            for at, client in enumerate(clients, 1):
                client.socket.sendall(data[at:])
            answers = [client.receive() for client in clients]
        assert not any(isinstance(answer, RPCErrorResponse) for answer in answers)
        for client in clients:
            client.close()


def test_a_thousand_requests_are_answered_in_order(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        assert client.ask(m.ApplyIsrUpdateEventRequest(topic, "n2", isr=True)) == m.ApplyIsrUpdateEventResponse()
        requests: list[m.Request] = []
        for number in range(250):
            requests += [
                m.ProduceRequest(topic, b"%d" % number, 1),
                m.CommitOffsetRequest(topic, "c", number),
                m.ReplicateRequest(topic, 0, 0, "n2"),
                m.FetchRequest("missing"),
            ]
        sender = threading.Thread(target=client.send, args=requests)
        sender.start()
        # The client's connection holds every answer against the oldest request: a wrong order does not pass.
        for number in range(250):
            assert client.receive() == m.ProduceResponse(number)
            assert client.receive() == m.CommitOffsetResponse(success=True)
            while not client.receive().end_of_stream:
                pass
            assert client.receive().code == E.TOPIC_NOT_FOUND
        sender.join()


# -- writing and reading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", m.AckMode)
def test_each_ack_mode_appends(acks: m.AckMode, topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        assert client.ask(m.ProduceRequest(topic, b"first", acks)) == m.ProduceResponse(0)
        assert client.ask(m.ProduceBatchRequest(topic, (b"a", b"b"), acks)) == m.ProduceBatchResponse(1, 2, 2)
        assert client.ask(m.ProduceRequest(topic, b"last", m.AckMode.LEADER)) == m.ProduceResponse(3)
        assert client.values(topic) == [b"first", b"a", b"b", b"last"]


def test_an_empty_value_in_a_batch_appends_nothing(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        assert client.code(m.ProduceBatchRequest(topic, (b"a", b""), 1)) == E.VALUES_REQUIRED
        assert client.code(m.ProduceBatchRequest(topic, (b"a", None), 1)) == E.VALUES_REQUIRED
        assert client.values(topic) == []


def test_a_batch_of_many_values(topic: str, braid_server_shared: ServerProcess) -> None:
    values = [b"%d" % number for number in range(20_000)]
    with MlogClient(braid_server_shared) as client:
        assert client.produce(topic, *values) == 0
        assert client.ask(m.FetchRequest(topic, "", 19_999)).entry.value == b"19999"
        assert client.values(topic, count=30_000) == values
        assert client.values(topic, 500, 3) == [b"500", b"501", b"502"]


def test_past_the_end(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        for offset in (0, 1, 2**63 - 1):
            assert client.code(m.FetchRequest(topic, "", offset)) == E.READ_OFFSET
            assert client.ask(m.FetchBatchRequest(topic, "", offset, 10)) == m.FetchBatchResponse(None)
        client.produce(topic, b"v")
        assert client.ask(m.FetchRequest(topic)).entry.value == b"v"
        assert client.code(m.FetchRequest(topic, "", 1)) == E.READ_OFFSET


def test_offset_0_goes_on_where_the_consumer_was(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        client.produce(topic, b"a", b"b", b"c")
        assert client.ask(m.CommitOffsetRequest(topic, "", 1)).success
        assert client.ask(m.CommitOffsetRequest(topic, "other", 2)).success
        assert client.ask(m.FetchRequest(topic)).entry == m.LogEntry(1, b"b")
        assert client.ask(m.FetchRequest(topic, "default")).entry == m.LogEntry(1, b"b")
        assert client.values(topic, consumer="other") == [b"c"]
        assert client.values(topic, consumer="new") == [b"a", b"b", b"c"]
        assert client.ask(m.FetchOffsetRequest(topic)).offset == 1
        assert client.ask(m.CommitOffsetRequest(topic, "other", 3)).success
        assert client.code(m.FetchRequest(topic, "other")) == E.READ_OFFSET
        assert client.values(topic, consumer="other") == []
        assert client.ask(m.CommitOffsetRequest(topic, "other", 0)).success
        assert client.values(topic, consumer="other") == [b"a", b"b", b"c"], "what it sends for --from-beginning"


def test_max_count_0_means_1(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        client.produce(topic, b"a", b"b")
        assert client.values(topic, count=0) == [b"a"]


def test_a_deleted_topic_takes_its_commits_along(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        client.produce(topic, b"old", b"old")
        client.ask(m.CommitOffsetRequest(topic, "", 1))
        assert client.ask(m.DeleteTopicRequest(topic)) == m.DeleteTopicResponse(topic)
        client.create(topic)
        client.produce(topic, b"new")
        assert client.ask(m.FetchRequest(topic)).entry == m.LogEntry(0, b"new")


def test_the_largest_value_comes_back_and_a_larger_one_is_refused(braid_server_shared: ServerProcess) -> None:
    topic = "t"
    largest, small = bytes(value_bytes_max(topic)), bytes(100)
    with MlogClient(braid_server_shared) as client:
        client.create(topic)
        assert client.ask(m.ProduceRequest(topic, largest, 1)) == m.ProduceResponse(0)
        assert client.produce(topic, small) == 1
        assert client.code(m.ProduceRequest(topic, largest + b"x", 1)) == E.UNKNOWN
        assert client.ask(m.FetchRequest(topic)).entry.value == largest
        assert client.values(topic) == [largest]  # no frame holds both
        assert client.values(topic, 1) == [small]
        client.ask(m.ApplyIsrUpdateEventRequest(topic, "n2", isr=True))
        client.send(m.ReplicateRequest(topic, 0, 0, "n2"))
        assert read_batch(client.receive().raw_chunk).records == (ReplicationRecord(0, largest),)
        assert read_batch(client.receive().raw_chunk).records == (ReplicationRecord(1, small),)
        assert client.receive().end_of_stream
        client.send(m.FetchStreamRequest(topic))
        assert [client.receive().entry.offset for _ in range(2)] == [0, 1]


# -- replicas ------------------------------------------------------------------------------------------------------


def _replicate(client: MlogClient, topic: str, offset: int, size: int = 0) -> tuple[list[int], int, int]:
    """(records per frame, leader's end, frames)"""
    client.send(m.ReplicateRequest(topic, offset, size, "n2"))
    counts: list[int] = []
    while not (answer := client.receive()).end_of_stream:
        assert answer.topic == topic
        batch = read_batch(answer.raw_chunk)
        assert batch.leader_epoch == 1
        assert [record.offset for record in batch.records] == list(range(offset, offset + len(batch.records)))
        offset += len(batch.records)
        counts.append(len(batch.records))
    assert answer.raw_chunk is None
    return counts, answer.leader_leo, len(counts) + 1


def _replica(client: MlogClient, topic: str) -> m.ReplicaInfo:
    topics = client.ask(m.ListTopicsRequest()).topics
    (found,) = [info for info in topics if info.name == topic]
    (replica,) = found.replicas[1:]
    assert isinstance(replica, m.ReplicaInfo)
    return replica


def test_a_replica_copies_in_batches_and_is_in_sync(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        client.produce(topic, *[b"%d" % number for number in range(25)])
        assert client.code(m.ReplicateRequest(topic, 0, 0, "n2")) == E.UNKNOWN  # not named yet
        client.ask(m.ApplyIsrUpdateEventRequest(topic, "n2", isr=True))
        assert _replica(client, topic) == m.ReplicaInfo("n2", is_isr=False, leo=0)
        assert _replicate(client, topic, 0, 10) == ([10, 10, 5], 25, 4)
        assert _replicate(client, topic, 7) == ([18], 25, 2)
        assert _replica(client, topic) == m.ReplicaInfo("n2", is_isr=False, leo=7)
        assert _replicate(client, topic, 25) == ([], 25, 1)
        assert _replica(client, topic) == m.ReplicaInfo("n2", is_isr=True, leo=25)
        assert client.ask(m.ApplyIsrUpdateEventRequest(topic, "n2", isr=False)) == m.ApplyIsrUpdateEventResponse()
        assert not _replica(client, topic).is_isr
        assert client.ask(m.ApplyIsrUpdateEventRequest(topic, "n2", isr=True)) == m.ApplyIsrUpdateEventResponse()
        assert _replica(client, topic).is_isr


def test_what_a_replica_lacks_is_not_committed(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as producer, MlogClient(braid_server_shared) as client:
        client.ask(m.ApplyIsrUpdateEventRequest(topic, "n2", isr=True))
        _replicate(client, topic, 0)
        producer.send(m.ProduceRequest(topic, b"v", m.AckMode.ALL))
        while _replicate(client, topic, 0)[1] == 0:
            pass
        # A consumer sees nothing yet, the replica does.
        assert client.code(m.FetchRequest(topic)) == E.READ_OFFSET
        assert client.values(topic) == []
        assert client.ask(m.FetchRequest(topic, "", 0, "n2")).entry == m.LogEntry(0, b"v")
        assert client.ask(m.FetchBatchRequest(topic, "", 0, 9, "n2")).entries == (m.LogEntry(0, b"v"),)
        # Asking from 1 on, it says that it has 0.
        assert client.code(m.FetchRequest(topic, "", 1, "n2")) == E.READ_OFFSET
        assert producer.receive() == m.ProduceResponse(0)
        assert client.ask(m.FetchRequest(topic)).entry == m.LogEntry(0, b"v")
        # Out of the in-sync set, it is waited for no more.
        client.ask(m.ApplyIsrUpdateEventRequest(topic, "n2", isr=False))
        assert client.ask(m.ProduceRequest(topic, b"w", m.AckMode.ALL)) == m.ProduceResponse(1)


def test_acks_all_time_out_while_an_in_sync_replica_is_behind(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        client.ask(m.ApplyIsrUpdateEventRequest(topic, "n2", isr=True))
        _replicate(client, topic, 0)
        assert client.code(m.ProduceRequest(topic, b"v", m.AckMode.ALL)) == E.TIMEOUT_CATCH_UP
        assert client.ask(m.ProduceRequest(topic, b"w", m.AckMode.LEADER)) == m.ProduceResponse(1)


@pytest.mark.parametrize("node", ["", "0", "n" * 250])
def test_nodes_that_cannot_follow(node: str, topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        assert client.code(m.ApplyIsrUpdateEventRequest(topic, node, isr=True)) == E.UNKNOWN
        assert client.code(m.ApplyIsrUpdateEventRequest(topic, node, isr=False)) == E.UNKNOWN
        assert client.code(m.ReplicateRequest(topic, 0, 0, node)) == E.UNKNOWN


def test_there_are_only_so_many_followers(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        for number in range(32):
            client.ask(m.ApplyIsrUpdateEventRequest(topic, f"n{number + 2}", isr=True))
        assert client.code(m.ApplyIsrUpdateEventRequest(topic, "one-more", isr=True)) == E.UNKNOWN


# -- streams -------------------------------------------------------------------------------------------------------


def test_a_stream_pushes_what_is_committed(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as producer, MlogClient(braid_server_shared) as client:
        producer.produce(topic, b"a", b"b")
        client.send(m.FetchStreamRequest(topic))
        for number in range(2, 50):
            assert client.receive().entry.offset == number - 2
            producer.produce(topic, b"%d" % number)
        assert [client.receive().entry.value for _ in range(2)] == [b"48", b"49"]


def test_a_stream_goes_on_where_the_consumer_was(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        client.produce(topic, b"a", b"b")
        client.ask(m.CommitOffsetRequest(topic, "c", 1))
        client.send(m.FetchStreamRequest(topic, "c"))
        assert client.receive().entry == m.LogEntry(1, b"b")


def _next(client: MlogClient) -> tuple[int, dict[str, Any]]:
    """The next frame, as it is."""
    stream = client.socket.makefile("rb", buffering=0)
    number, size = struct.unpack(">HI", stream.read(6) or b"")
    data = b""
    while len(data) < size:
        data += stream.read(size - len(data)) or b""
    return number, json.loads(data)


def test_other_requests_are_answered_between_pushed_frames(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        # The stream is asked for behind two others: it begins after their answers.
        pipelined = (m.ProduceRequest(topic, b"a", 1), m.FetchOffsetRequest(topic), m.FetchStreamRequest(topic))
        client.socket.sendall(b"".join([frame(message) for message in pipelined]))
        assert [_next(client)[0] for _ in range(3)] == [3, 15, 11]
        for number in range(1, 20):
            client.socket.sendall(frame(m.ProduceRequest(topic, b"%d" % number, 1)))
            seen = dict([_next(client), _next(client)])
            assert seen[3] == {"Offset": number}
            assert seen[11]["Entry"]["Offset"] == number
        # A second stream could not be told from the first: refused, and the first goes on.
        client.socket.sendall(frame(m.FetchStreamRequest(topic)))
        number_of_error, error = _next(client)
        assert (number_of_error, error["code"]) == (20, E.UNKNOWN)
        client.socket.sendall(frame(m.ProduceRequest(topic, b"z", 1)))
        assert {_next(client)[0], _next(client)[0]} == {3, 11}


def test_an_error_of_an_open_stream_is_the_last_frame(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client, MlogClient(braid_server_shared) as other:
        other.produce(topic, b"a")
        client.send(m.FetchStreamRequest(topic))
        assert client.receive().entry.offset == 0
        other.ask(m.DeleteTopicRequest(topic))
        assert client.receive().code == E.TOPIC_NOT_FOUND
        assert client.is_closed()


def test_a_replica_does_not_stream(topic: str, braid_server_shared: ServerProcess) -> None:
    with MlogClient(braid_server_shared) as client:
        assert client.code(m.FetchStreamRequest(topic, "", 0, "n2")) == E.UNKNOWN


def test_a_client_that_takes_nothing_costs_little(topic: str, braid_server: ServerProcess) -> None:
    """32 MiB wait for two streams and a replica that do not read; the node holds a few of them, and serves others."""
    value, count = bytes(1024 * 1024), 32
    with MlogClient(braid_server) as client:
        client.create("large")
        for _ in range(count):
            client.produce("large", value)
        client.ask(m.ApplyIsrUpdateEventRequest("large", "n2", isr=True))
        before = braid_server.resident_bytes()
        slow = [MlogClient(braid_server) for _ in range(3)]
        for one in slow[:2]:
            one.send(m.FetchStreamRequest("large"))
        slow[2].send(m.ReplicateRequest("large", 0, 1, "n2"))
        for one in slow:
            one.receive()
        for _ in range(300):
            assert client.ask(m.FetchRequest("large", "", 1)).entry.offset == 1
        assert braid_server.resident_bytes() - before < 48 * 1024 * 1024
        for one in slow[:2]:
            assert [one.receive().entry.offset for _ in range(1, count)] == list(range(1, count))
        while not slow[2].receive().end_of_stream:
            pass
        for one in slow:
            one.close()


# -- other doors, other lives --------------------------------------------------------------------------------------


def _rustlog(server: ServerProcess, request: dict[str, Any]) -> dict[str, Any]:
    with socket.create_connection(server.address("rustlog"), SECONDS_MAX) as connected:
        body = json.dumps(request).encode()
        connected.sendall(struct.pack(">I", len(body)) + body)
        stream = connected.makefile("rb")
        answer: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(4), "big")))
        return answer


def test_one_topic_two_doors(topic: str, braid_server_shared: ServerProcess) -> None:
    produced = _rustlog(
        braid_server_shared,
        {"type": "Produce", "topic": topic, "partition": 0, "records": ["aGVsbG8="], "keys": ["aw=="]},
    )
    assert produced["type"] == "ProduceResponse", produced
    with MlogClient(braid_server_shared) as client:
        assert client.values(topic) == [b"hello"]
        client.produce(topic, b"hi")
    found = _rustlog(
        braid_server_shared,
        {"type": "Fetch", "group_id": "", "topic": topic, "partition": 0, "offset": 0, "max_bytes": 1000},
    )
    first, second = found["records"]
    assert (first["payload"], first["key"]) == ("aGVsbG8=", "aw==")
    assert second["payload"] == "aGk="
    assert second["timestamp"] >= first["timestamp"] > 10**15  # microseconds: the time of the append


async def _of_another_door(services: Services) -> None:
    await services.topics.create("foreign", 1, settings={"batch_bytes_max": 64 * 1024 * 1024})
    batch = encode_batch(
        [b"v", None], keys=[b"k", b"k"], headers=[(("h", b"x"),), None], timestamps=[5, 6], base_timestamp=5
    )
    await services.append.append("foreign", 0, batch)
    await services.append.append("foreign", 0, encode_batch([bytes(VALUE_BYTES_MAX + 100)], base_timestamp=7))
    await services.append.append("foreign", 0, encode_batch([b"after"], base_timestamp=8))


def test_records_of_another_door(tmp_path: Path) -> None:
    with prepared_server(tmp_path / "data", _of_another_door) as server, MlogClient(server) as client:
        assert client.values("foreign") == [b"v", None]
        assert client.ask(m.FetchRequest("foreign", "", 1)).entry == m.LogEntry(1, None)
        for request in (m.FetchRequest("foreign", "", 2), m.FetchBatchRequest("foreign", "", 2, 5)):
            answer = client.ask(request)
            assert (answer.code, "offset 2" in answer.message) == (E.UNKNOWN, True)
        assert client.values("foreign", 3) == [b"after"]
        client.ask(m.ApplyIsrUpdateEventRequest("foreign", "n2", isr=True))
        client.send(m.ReplicateRequest("foreign", 0, 0, "n2"))
        assert [r.value for r in read_batch(client.receive().raw_chunk).records] == [b"v", b""]
        assert client.receive().code == E.UNKNOWN
        client.send(m.FetchStreamRequest("foreign"))
        assert [client.receive().entry.value for _ in range(2)] == [b"v", None]
        assert client.receive().code == E.UNKNOWN
        assert client.is_closed()


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_new_life_keeps_everything(ending: str, braid_server: ServerProcess) -> None:
    with MlogClient(braid_server) as client:
        client.create("kept")
        client.create("gone")
        client.produce("kept", b"a", b"b", b"c")
        client.ask(m.CommitOffsetRequest("kept", "", 2))
        client.ask(m.CommitOffsetRequest("kept", "other", 1))
        client.ask(m.ApplyIsrUpdateEventRequest("kept", "n2", isr=True))
        client.ask(m.DeleteTopicRequest("gone"))
        client.send(m.FetchStreamRequest("kept", "", 2))
        client.receive()
        if ending == "stop":
            assert braid_server.stop() == 0  # an open stream does not hold it up
        else:
            braid_server.kill()
        assert client.is_closed()
    braid_server.restart()
    with MlogClient(braid_server) as client:
        (info,) = client.ask(m.ListTopicsRequest()).topics
        assert (info.name, info.leader_epoch) == ("kept", 1)
        assert [replica.node_id for replica in info.replicas] == ["0", "n2"]
        assert client.values("kept", consumer="new") == [b"a", b"b", b"c"]
        assert client.values("kept") == [b"c"]
        assert client.ask(m.FetchOffsetRequest("kept", "other")).offset == 1
        assert client.produce("kept", b"d") == 3
        assert client.connection.next_event() is NEED_DATA


# -- who may -------------------------------------------------------------------------------------------------------


def test_rules_hold(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text(
        '[[auth.rules]]\nprincipal = "*"\noperations = ["create", "read", "write"]\ntopic = "open*"\n', "utf-8"
    )
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server, MlogClient(server) as client:
        client.create("open")
        client.produce("open", b"v")
        assert client.values("open") == [b"v"]
        assert client.code(m.FetchRequest("hidden")) == E.TOPIC_NOT_FOUND
        for request in (
            m.DeleteTopicRequest("open"),
            m.FetchRequest("open", "", 0, "n2"),
            m.FetchBatchRequest("open", "", 0, 1, "n2"),
            m.ReplicateRequest("open", 0, 0, "n2"),
            m.ApplyIsrUpdateEventRequest("open", "n2", isr=True),
        ):
            assert client.code(request) == E.UNKNOWN
        assert client.ask(m.FindRaftLeaderRequest()).raft_leader_addr


async def _a_long_list(services: Services) -> None:
    followers = [f"{number:03}" + "n" * 246 for number in range(400)]
    for number in range(40):
        await services.topics.create(f"t{number:02}", 1, followers=followers)


def test_a_list_that_fits_no_frame_is_an_error(tmp_path: Path) -> None:
    with prepared_server(tmp_path / "data", _a_long_list) as server, MlogClient(server) as client:
        answer = client.ask(m.ListTopicsRequest())
        assert answer.code == E.UNKNOWN
        assert "does not fit one answer" in answer.message
        for number in range(8):
            client.ask(m.DeleteTopicRequest(f"t{number:02}"))
        assert len(client.ask(m.ListTopicsRequest()).topics) == 32
