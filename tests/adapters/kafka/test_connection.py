"""Connections and restarts: frames cut anywhere, a thousand requests at once, answers in order, stop and kill -9."""

import socket
from collections.abc import Callable

import pytest
from tests.adapters.kafka.client import Client, batch_of, fetch_of, produce_of, values_of

from braidlog.codec.compression import Compression
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.rows import Message


def test_frames_cut_at_every_byte(braid_server_shared: ServerProcess) -> None:
    """Each request in two pieces, cut at every place; the second piece brings the beginning of the next request."""
    with Client(braid_server_shared) as client:
        client.topic_id("cut")
        requests: list[tuple[Message, int]] = [
            (produce_of(("cut", 0, batch_of(b"some bytes"))), 9),
            (fetch_of(("cut", 0, 0), max_bytes=1), 11),
            (c.MetadataRequest([c.MetadataRequestTopic(name="cut")]), 12),
            (c.ApiVersionsRequest("x", "y"), 3),
        ]
        for message, version in requests:
            for cut in range(1, len(client.connection.request(message, version))):
                client.connection = type(client.connection)("test")
                frame = client.connection.request(message, version)
                following = client.connection.request(c.MetadataRequest([]), 1)
                client.socket.sendall(frame[:cut])
                client.socket.sendall(frame[cut:] + following[:2])
                first = client.receive()
                assert "error_code=0" in repr(first)
                client.socket.sendall(following[2:])
                assert client.receive().topics == []


def test_a_thousand_requests_at_once_are_answered_in_order(braid_server_shared: ServerProcess) -> None:
    """Slow ones (a sync each), waiting ones and fast ones take turns."""
    with Client(braid_server_shared) as client:
        client.topic_id("pipeline")
        requests: list[Message] = []
        for number in range(250):
            requests += [
                produce_of(("pipeline", 0, batch_of(b"%d" % number))),
                c.MetadataRequest([]),
                fetch_of(("pipeline", 0, number), max_wait_ms=5_000),
                t.InitProducerIdRequest(transactional_id=None),
            ]
        versions = {d.ProduceRequest: 9, d.FetchRequest: 12}
        client.socket.sendall(
            b"".join(client.connection.request(message, versions.get(type(message))) for message in requests)
        )
        ids = set()
        for number in range(250):
            (partition,) = client.receive().responses[0].partition_responses
            assert (partition.error_code, partition.base_offset) == (0, number)
            assert client.receive().topics == []
            (fetched,) = client.receive().responses[0].partitions
            assert values_of(fetched.records)[0] == (number, b"%d" % number)
            ids.add(client.receive().producer_id)
        assert len(ids) == 250
        assert client.connection.in_flight == 0


def test_what_is_asked_after_a_long_poll_is_answered_after_it(braid_server_shared: ServerProcess) -> None:
    with Client(braid_server_shared) as client, Client(braid_server_shared) as producer:
        client.topic_id("order")
        client.send(fetch_of(("order", 0, 0), max_wait_ms=30_000), version=12)
        client.send(c.MetadataRequest([]), version=9)
        producer.produce("order", batch_of(b"x"))
        assert isinstance(client.receive(), d.FetchResponse)
        assert isinstance(client.receive(), c.MetadataResponse)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        bytes.fromhex("0000000a 7f00 0000 00000001 ffff"),
        bytes.fromhex("0000000a 0000 0002 00000001 ffff"),
        bytes.fromhex("0000000c 0003 0001 00000001 ffff 7fff"),
    ],
    ids=["http", "tls", "negative", "2 GiB", "unknown api", "old produce", "damaged"],
)
def test_strangers_are_closed_upon(braid_server_shared: ServerProcess, data: bytes) -> None:
    with Client(braid_server_shared) as client:
        client.socket.sendall(data)
        assert client.is_closed()
    with Client(braid_server_shared) as client:
        assert client.ask(c.MetadataRequest([]), 9).brokers


def test_an_unknown_version_of_api_versions_is_answered_and_the_connection_goes_on(
    braid_server_shared: ServerProcess,
) -> None:
    with Client(braid_server_shared) as client:
        frame = client.connection.request(c.ApiVersionsRequest(), 4)
        client.socket.sendall(frame[:6] + b"\x00\x63" + frame[8:])
        told = client.receive()
        assert told.error_code == 35
        assert {each.api_key for each in told.api_keys} >= {0, 1, 2, 3, 18}
        client.connection.set_server_versions(told)
        assert client.ask(c.ApiVersionsRequest("a", "b")).error_code == 0


def test_a_client_that_sends_no_more_is_still_answered(braid_server_shared: ServerProcess) -> None:
    with Client(braid_server_shared) as client:
        client.topic_id("half")
        client.send(produce_of(("half", 0, batch_of(b"last"))), version=9)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive().responses[0].partition_responses[0].base_offset == 0


@pytest.mark.parametrize("end", [ServerProcess.stop, ServerProcess.kill], ids=["stop", "kill"])
def test_what_was_acknowledged_is_there_after_a_restart(
    braid_server: ServerProcess, end: Callable[[ServerProcess], object]
) -> None:
    sent: list[bytes] = []
    batch = b""
    with Client(braid_server) as client:
        identity = client.topic_id("kept")
        cluster_id = client.ask(c.MetadataRequest([]), 9).cluster_id
        who = client.ask(t.InitProducerIdRequest(transactional_id=None)).producer_id
        for number, compression in enumerate(list(Compression) * 4):
            value = b"%d %s" % (number, compression.name.encode())
            batch = batch_of(value, compression=compression, producer=(who, 0, number))
            assert client.produce("kept", batch).base_offset == number
            sent.append(value)
    end(braid_server)
    braid_server.restart()
    with Client(braid_server) as client:
        assert client.topic_id("kept") == identity
        assert client.ask(c.MetadataRequest([]), 9).cluster_id == cluster_id
        assert client.values("kept") == sent
        # The producer's past is there too: its last batch is recognised, its next one follows.
        assert client.produce("kept", batch).base_offset == len(sent) - 1
        assert client.produce("kept", batch_of(b"more", producer=(who, 0, len(sent)))).base_offset == len(sent)
        assert client.ask(t.InitProducerIdRequest(transactional_id=None)).producer_id > who
        assert client.list_offset("kept", -1).offset == len(sent) + 1


def test_a_stopping_node_lets_a_long_poll_go(braid_server: ServerProcess) -> None:
    with Client(braid_server) as client:
        client.topic_id("quiet")
        client.send(fetch_of(("quiet", 0, 0), max_wait_ms=300_000), version=12)
        with Client(braid_server) as other:
            other.ask(c.MetadataRequest([]), 9)
        assert braid_server.stop() == 0
        assert client.is_closed()
