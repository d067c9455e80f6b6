"""Connections and restarts: frames cut anywhere, a thousand requests at once, strangers, stop and kill -9."""

import socket

import pytest
from tests.adapters.rustlog.client import Client, framed, payloads

from braidlog.testing.server import ServerProcess
from braidlog.wire.rustlog import binary, jsonform
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.messages import Form

FORMS = pytest.mark.parametrize("form", list(Form))


def written(message: m.Message, form: Form) -> bytes:
    return framed(binary.write_request(message) if form is Form.BINARY else jsonform.write(message))


@FORMS
def test_frames_cut_at_every_byte(braid_server_shared: ServerProcess, form: Form) -> None:
    """Each request in two pieces, cut at every place; the second piece brings the beginning of the next request."""
    requests: list[m.Message] = [
        m.Produce(topic="cut", partition=0, records=[b"some bytes", b""]),
        m.Fetch(group_id="g", topic="cut", partition=0, offset=0, max_bytes=10),
        m.OffsetCommit(group="g", topic="cut", partition=0, offset=1),
        m.Ping(),
    ]
    with Client(braid_server_shared, form) as client:
        client.create("cut")
        for request in requests:
            frame = written(request, form)
            for cut in range(1, len(frame)):
                client.socket.sendall(frame[:cut])
                client.socket.sendall(frame[cut:] + written(m.Ping(), form)[:2])
                answer = client.receive_raw()
                assert b"Error" not in answer
                assert answer[0] != 0xFE
                client.socket.sendall(written(m.Ping(), form)[2:])
                assert client.receive_raw() in (b'{"type":"Pong"}', b"\xff")


@FORMS
def test_a_thousand_requests_at_once_are_answered_in_order(braid_server_shared: ServerProcess, form: Form) -> None:
    """Slow ones (a sync each) and fast ones take turns; by order alone the client knows which answer is whose."""
    topic = f"pipeline-{form.value}"
    with Client(braid_server_shared, form) as client:
        client.create(topic)
        requests: list[m.Message] = []
        for n in range(250):
            requests += [
                m.Produce(topic=topic, partition=0, records=[str(n).encode()]),
                m.Ping(),
                m.OffsetCommit(group="g", topic=topic, partition=0, offset=n),
                m.DescribePartition(topic="absent", partition=n),
            ]
        client.send(*requests)
        for n in range(250):
            assert client.receive() == m.ProduceResponse(base_offset=n, record_count=1)
            assert client.receive() == m.Pong()
            assert client.receive() == m.OffsetCommitResponse(success=True)
            assert isinstance(client.receive(), m.Error)
        assert client.connection.in_flight == 0
        assert payloads(client.fetch(topic).records) == [str(n).encode() for n in range(250)]


def test_a_json_id_tells_a_thousand_answers_apart(braid_server_shared: ServerProcess) -> None:
    with Client(braid_server_shared) as client:
        client.send(*[m.Ping(id=n) for n in range(1000)])
        assert [client.receive().id for _ in range(1000)] == list(range(1000))


def test_both_forms_take_turns_on_one_connection(braid_server_shared: ServerProcess) -> None:
    with Client(braid_server_shared) as client:
        for _ in range(3):
            assert client.ask_raw(b"\xff") == b"\xff"
            assert client.ask_raw(b'{"type":"Ping"}') == b'{"type":"Pong"}'
            assert client.ask_raw(b'\t\n {"type":"Ping"} ') == b'{"type":"Pong"}'


@pytest.mark.parametrize(
    "stranger",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"*1\r\n$4\r\nPING\r\n",
    ],
    ids=["HTTP", "TLS", "RESP"],
)
def test_a_stranger_gets_one_error_and_the_end(braid_server_shared: ServerProcess, stranger: bytes) -> None:
    with Client(braid_server_shared) as client:
        client.socket.sendall(stranger)
        assert client.receive().code == 400
        assert client.is_closed()


def test_a_client_that_sends_no_more_is_still_answered(braid_server_shared: ServerProcess) -> None:
    """As of `printf … | nc`: the sending half is closed while the answers are on their way."""
    with Client(braid_server_shared) as client:
        assert client.create("sends-no-more").success
        client.send(*[m.Produce(topic="sends-no-more", partition=0, records=[b"x"]) for _ in range(10)])
        client.socket.shutdown(socket.SHUT_WR)
        offsets = [client.receive().base_offset for _ in range(10)]
        assert offsets == list(range(10)), f"answers came as {offsets}"
        assert client.is_closed()


def test_a_produce_whose_client_has_gone_is_still_seen(braid_server_shared: ServerProcess) -> None:
    """It was appended; that nobody waits for the answer must not hide it."""
    with Client(braid_server_shared) as reader:
        reader.create("orphans")
        with Client(braid_server_shared) as writer:
            writer.send(m.Produce(topic="orphans", partition=0, records=[b"x"]))
        assert payloads(reader.fetch("orphans", wait_ms=20_000).records) == [b"x"]


# ── Restarts ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@FORMS
@pytest.mark.parametrize("gracefully", [True, False], ids=["stop", "kill -9"])
def test_what_was_acknowledged_is_there_after_a_restart(
    braid_server: ServerProcess, form: Form, gracefully: bool
) -> None:
    for life in range(3):
        with Client(braid_server, form) as client:
            if life == 0:
                client.create("kept", 2)
                client.create("empty", 7)
            assert client.produce("kept", f"life {life}".encode(), partition=1).base_offset == life
            assert client.commit("g", "kept", life + 1, 1).success
            assert client.commit(f"group-of-{life}", "empty", 10 * life, 6).success
        if gracefully:
            assert braid_server.stop() == 0
        else:
            braid_server.kill()
        braid_server.restart()
        with Client(braid_server, form) as client:
            assert [(t.name, t.partition_count) for t in client.ask(m.ListTopics()).topics] == [
                ("empty", 7),
                ("kept", 2),
            ]
            answer = client.fetch("kept", partition=1)
            assert payloads(answer.records) == [f"life {n}".encode() for n in range(life + 1)]
            assert client.committed("g", "kept", 1) == life + 1
            assert [client.committed(f"group-of-{n}", "empty", 6) for n in range(life + 1)] == [
                10 * n for n in range(life + 1)
            ]
            assert client.committed("g", "kept", 0) is None
            if form is Form.BINARY:
                assert client.fetch("kept", partition=1, group="g").next_offset == life + 1


def test_a_kill_in_the_middle_of_a_thousand_produces(braid_server: ServerProcess) -> None:
    """Whatever was acknowledged is there, at the offset that was said; what is there besides was sent."""
    with Client(braid_server) as client:
        client.create("torn")
        client.send(*[m.Produce(topic="torn", partition=0, records=[str(n).encode()]) for n in range(1000)])
        acknowledged = [(client.receive().base_offset, str(n).encode()) for n in range(100)]
        braid_server.kill()
    braid_server.restart()
    with Client(braid_server) as client:
        found = {record.offset: record.payload for record in client.fetch("torn").records}
        assert all(found[offset] == value for offset, value in acknowledged)
        assert found == {n: str(n).encode() for n in range(len(found))}
        assert client.produce("torn", b"more").base_offset == len(found)
