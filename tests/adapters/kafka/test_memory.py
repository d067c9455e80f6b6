"""Compressed batches that grow: what one costs the node, wherever it is opened."""

import contextlib
import os
import re
import select
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.adapters.connected import SECONDS_MAX
from tests.adapters.flux.talk import Talk
from tests.adapters.kafka.client import TIME_MS, Client, batch_of, produce_of
from tests.adapters.rustlog.client import Client as RustlogClient

from braidlog.adapters.kafka.records.fetch_requests import WANTED_BYTES
from braidlog.codec.batch.header import HEADER, HEADER_BYTES, read_header, seal
from braidlog.codec.compression import Compression, compress
from braidlog.server.net.pending_requests import WAITING_BYTES
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import transactions as t
from braidlog.wire.kafka.rows import NO_UUID, Message

MEGABYTE = 1_000_000
LOOP_SECONDS_MAX = 0.5
"""Of processor time, for one request. Opened on the loop, the batches below take more than a second."""
GROWN_BYTES_MAX = 64 * MEGABYTE
RECORDS = 100_000
LARGE = batch_of(
    *[bytes(2000)] * (RECORDS - 1),
    b"last",
    timestamps=range(TIME_MS, TIME_MS + RECORDS),
    compression=Compression.GZIP,
)


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex}"


def loop_seconds(pid: int) -> float:
    """Processor time of a process's first thread, which has the loop."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


class Costs:
    """What the node and its worker process took since this was made."""

    def __init__(self, server: ServerProcess) -> None:
        self._pid = server.pid
        self._seconds = loop_seconds(self._pid)
        self._peak = peak_bytes(self._pid)

    def check(self) -> None:
        assert loop_seconds(self._pid) - self._seconds < LOOP_SECONDS_MAX
        assert peak_bytes(self._pid) - self._peak < GROWN_BYTES_MAX


def test_a_batch_that_grows_too_large_is_refused_and_costs_little(tmp_path: Path, topic: str) -> None:
    with ServerProcess(tmp_path / "data") as server, Client(server) as client:
        client.topic_id(topic)
        client.produce(topic, batch_of(b"warm", compression=Compression.GZIP))
        assert children(server.pid) == [], "nothing large was sent yet"
        client.produce(topic, batch_of(bytes(3 * MEGABYTE), compression=Compression.GZIP))
        (worker,) = children(server.pid)
        before = peak_bytes(worker)
        costs = Costs(server)
        refused = client.produce(topic, LARGE)
        assert refused.error_code == E.MESSAGE_TOO_LARGE
        costs.check()
        assert peak_bytes(worker) - before < GROWN_BYTES_MAX
        assert client.fetch(topic).high_watermark == 2


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
def test_a_lying_end_costs_no_more(braid_server_shared: ServerProcess, topic: str, codec: Compression) -> None:
    """Several members, frames or streams joined: the last one says how little is in it, and not what came before."""
    plain = batch_of(*[os.urandom(1000) * 1000] * 70)
    packed = bytearray(plain[:HEADER_BYTES] + compress(codec, plain[HEADER_BYTES:]) + compress(codec, b""))
    header = read_header(packed)._replace(batch_length=len(packed) - 12, attributes=codec)
    HEADER.pack_into(packed, 0, *header)
    with Client(braid_server_shared) as client:
        client.topic_id(topic)
        assert client.produce(topic, batch_of(bytes(3 * MEGABYTE), compression=codec)).error_code == 0
        costs = Costs(braid_server_shared)
        assert client.produce(topic, seal(packed)).error_code == E.MESSAGE_TOO_LARGE
        costs.check()


def test_many_small_bombs_in_one_request_are_one_large_one(braid_server_shared: ServerProcess, topic: str) -> None:
    bomb = batch_of(bytes(900_000), compression=Compression.ZSTD)
    with Client(braid_server_shared) as client:
        client.topic_id(topic)
        costs = Costs(braid_server_shared)
        answer = client.ask(produce_of(*[(topic, 0, bomb)] * 100), 12)
        codes = [each.partition_responses[0].error_code for each in answer.responses]
        assert codes[:50] == [0] * 50
        assert set(codes[60:]) == {E.MESSAGE_TOO_LARGE}
        costs.check()


def test_a_pipeline_stays_in_order_around_a_large_batch(braid_server_shared: ServerProcess, topic: str) -> None:
    large = batch_of(bytes(5 * MEGABYTE), compression=Compression.GZIP)
    with Client(braid_server_shared) as client:
        client.topic_id(topic)
        sent = [large if number % 3 == 0 else batch_of(b"%d" % number) for number in range(12)]
        client.send(*[produce_of((topic, 0, batch)) for batch in sent], version=12)
        offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in sent]
        assert offsets == list(range(12))


# -- partitions that are named ---------------------------------------------------------------------------------


def fetch_naming(topic: str, numbers: Iterable[int], *, max_wait_ms: int = 0) -> d.FetchRequest:
    asked = [d.FetchRequestPartition(number, -1, 0, partition_max_bytes=1) for number in numbers]
    return d.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[d.FetchRequestTopic(topic, NO_UUID, asked)])


def list_naming(topic: str, numbers: Iterable[int]) -> d.ListOffsetsRequest:
    asked = [d.ListOffsetsRequestPartition(number, timestamp=TIME_MS) for number in numbers]
    return d.ListOffsetsRequest(-1, 0, [d.ListOffsetsRequestTopic(topic, asked)])


@pytest.mark.parametrize("naming", [fetch_naming, list_naming])
@pytest.mark.parametrize("numbers", [[0, 0], range(20_001)], ids=["twice", "too many"])
def test_a_request_names_each_partition_once_and_not_too_many(
    braid_server_shared: ServerProcess, topic: str, naming: Callable[..., Message], numbers: Sequence[int]
) -> None:
    with Client(braid_server_shared) as client:
        client.topic_id(topic)
        request = client.connection.request(naming(topic, numbers), 11)
        costs = Costs(braid_server_shared)
        client.socket.sendall(request)
        answer = client.receive()
        costs.check()
        (told,) = answer.responses if naming is fetch_naming else answer.topics
        assert [each.error_code for each in told.partitions] == [E.INVALID_REQUEST] * len(told.partitions)
        assert len(told.partitions) == len(numbers)
        assert client.ask(c.MetadataRequest([]), 9).topics == [], "the connection stays"


@pytest.mark.parametrize("version", [6, 12])
def test_a_fetch_that_is_too_large_to_be_understood_is_answered_where_its_version_can_say_so(
    braid_server_shared: ServerProcess, topic: str, version: int
) -> None:
    with Client(braid_server_shared) as client:
        request = client.connection.request(fetch_naming(topic, [0] * 200_000), version)
        costs = Costs(braid_server_shared)
        client.socket.sendall(request)
        if version < 7:
            assert client.is_closed()
        else:
            assert client.receive() == d.FetchResponse(error_code=E.INVALID_REQUEST)
            assert client.ask(c.MetadataRequest([]), 9).topics == [], "the connection stays"
        costs.check()


NAMING: dict[str, Callable[[list[str]], Message]] = {
    "Fetch": lambda topics: d.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=MEGABYTE,
        topics=[
            d.FetchRequestTopic(name, partitions=[d.FetchRequestPartition(0, partition_max_bytes=1000)])
            for name in topics
        ],
    ),
    "Metadata": lambda topics: c.MetadataRequest(
        [c.MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False
    ),
    "ListOffsets": lambda topics: d.ListOffsetsRequest(
        -1,
        0,
        [d.ListOffsetsRequestTopic(name, [d.ListOffsetsRequestPartition(0, timestamp=-1)]) for name in topics],
    ),
    "Produce": lambda topics: d.ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[d.ProduceRequestTopic(name, NO_UUID, [d.ProduceRequestPartition(0, b"")]) for name in topics],
    ),
    "OffsetFetch": lambda topics: g.OffsetFetchRequest(
        group_id="g", topics=[g.OffsetFetchRequestTopic(name, partition_indexes=[0]) for name in topics]
    ),
    "AddPartitionsToTxn": lambda topics: t.AddPartitionsToTxnRequest(
        "tx", 1, 0, topics=[t.AddPartitionsToTxnRequestTopic(name, [0]) for name in topics]
    ),
}


@pytest.mark.parametrize(
    ("api", "version"),
    [("Fetch", 11), ("Metadata", 9), ("ListOffsets", 6), ("Produce", 9), ("OffsetFetch", 7), ("AddPartitionsToTxn", 3)],
)
def test_a_request_of_twenty_thousand_topics_is_answered(
    braid_server_shared: ServerProcess, api: str, version: int
) -> None:
    with Client(braid_server_shared) as client:
        assert client.ask(NAMING[api]([f"none-{number}" for number in range(20_000)]), version) is not None


def test_as_many_partitions_as_a_node_has_may_be_named(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as client:
        client.topic_id(topic)
        found = client.ask(fetch_naming(topic, range(20_000)), 12).responses[0].partitions
        assert [each.error_code for each in found] == [0] + [E.UNKNOWN_TOPIC_OR_PARTITION] * 19_999


def test_long_polls_of_many_partitions_count_in_the_memory_of_the_node(tmp_path: Path) -> None:
    small = ("--set", "limits.memory_bytes_max=200000", "--set", "listeners.kafka.partitions=100")
    with ServerProcess(tmp_path / "data", *small) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(10)]
        clients[0].topic_id("wide")
        for client in clients:  # each waits with a quarter of what there is
            client.send(fetch_naming("wide", range(100), max_wait_ms=300_000), version=12)
        told, _, _ = select.select([client.socket for client in clients], [], [], SECONDS_MAX)
        assert told, "nobody was cut off"
        assert all(client.is_closed() for client in clients if client.socket in told)
        held_bytes = WAITING_BYTES + 100 * WANTED_BYTES
        assert f"holds {held_bytes} bytes, node memory limit exceeded" in server.errors()


# -- readers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """A node that has a large batch, taken while its limits were wider."""
    wide = ("--set", "limits.decompressed_bytes_max=268435456")
    with ServerProcess(tmp_path_factory.mktemp("large") / "data", *wide) as server, Client(server) as client:
        client.topic_id("large")
        assert client.produce("large", LARGE).error_code == 0
        assert server.stop() == 0
        server.start()  # what it took to store it is forgotten
        yield server, "large"


def by_flux(server: ServerProcess, topic: str) -> None:
    with Talk(server.address("flux")) as talk:
        assert talk.ask("CONSUME", f"{topic} 0 {RECORDS - 1} enc=b64 max=2").startswith(
            f"OK|messages={RECORDS - 1}:-:bGFzdA=="
        )


def by_rustlog(server: ServerProcess, topic: str) -> None:
    with RustlogClient(server) as client:
        found = client.fetch(topic, RECORDS - 2, max_bytes=5000)
        assert [bytes(record.payload) for record in found.records] == [bytes(2000), b"last"]


def by_kafka(server: ServerProcess, topic: str) -> None:
    with Client(server) as client:
        records = client.fetch(topic).records
        assert isinstance(records, memoryview)
        assert bytes(records)[16:] == LARGE[16:], "what Kafka's clients fetch stays compressed"


def by_time(server: ServerProcess, topic: str) -> None:
    with Client(server) as client:
        found = client.list_offset(topic, TIME_MS + 50_000)
        assert (found.offset, found.timestamp) == (50_000, TIME_MS + 50_000)


@pytest.mark.parametrize("read", [by_flux, by_rustlog, by_kafka, by_time])
def test_a_reader_of_a_large_batch_holds_nobody_up(
    stored: tuple[ServerProcess, str], read: Callable[[ServerProcess, str], None]
) -> None:
    server, topic = stored
    costs = Costs(server)
    read(server, topic)
    costs.check()
