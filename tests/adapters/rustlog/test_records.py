"""Records through RustLog: written and read in both forms, with what only JSON carries, at the limits of a frame."""

import base64
import itertools
import json
import threading
from pathlib import Path

import pytest
from tests.adapters.rustlog.client import Client, payloads
from tests.adapters.rustlog.folders import write_topic

from braidlog.adapters.rustlog.handlers import WAIT_MS_MAX
from braidlog.codec.batch.records import encode_batch
from braidlog.codec.compression import Compression
from braidlog.testing.server import ServerProcess
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX, BinaryErrorCode, ErrorCode, Form

FORMS = pytest.mark.parametrize("form", list(Form))
_names = itertools.count()


@pytest.fixture
def topic(braid_server_shared: ServerProcess) -> str:
    name = f"records-{next(_names)}"
    with Client(braid_server_shared) as client:
        assert client.create(name, 2) == m.CreateTopicResponse(success=True, partitions_created=2)
    return name


def read_all(client: Client, topic: str, max_bytes: int = 1 << 20) -> list[bytes]:
    """Follow next_offset to the end."""
    found: list[bytes] = []
    offset = 0
    while True:
        answer = client.fetch(topic, offset, max_bytes=max_bytes)
        if not answer.records:
            return found
        assert answer.next_offset > offset
        found += payloads(answer.records)
        offset = answer.next_offset


# ── Writing and reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


@FORMS
def test_what_is_written_in_either_form_is_read_in_both(
    braid_server_shared: ServerProcess, topic: str, form: Form
) -> None:
    with Client(braid_server_shared, form) as client:
        assert client.produce(topic, b"one", b"") == m.ProduceResponse(base_offset=0, record_count=2)
        assert client.produce(topic, bytes(range(256))) == m.ProduceResponse(base_offset=2, record_count=1)
    for other in Form:
        with Client(braid_server_shared, other) as client:
            answer = client.fetch(topic)
            assert payloads(answer.records) == [b"one", b"", bytes(range(256))]
            assert answer.next_offset == 3
            assert client.fetch(topic, partition=1).records == []


def test_a_timestamp_is_in_microseconds_and_about_now(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as client:
        client.produce(topic, b"x")
        (record,) = client.fetch(topic).records
    assert record.timestamp % 1000 == 0
    assert 1_700_000_000_000_000 < record.timestamp < 4_000_000_000_000_000


@FORMS
def test_past_the_end_there_is_nothing_yet(braid_server_shared: ServerProcess, topic: str, form: Form) -> None:
    with Client(braid_server_shared, form) as client:
        client.produce(topic, b"x")
        for offset in (1, 2, 5000, 2**64 - 1):
            answer = client.fetch(topic, offset)
            assert (answer.records, answer.next_offset) == ([], offset)


@FORMS
def test_a_produce_of_nothing(braid_server_shared: ServerProcess, topic: str, form: Form) -> None:
    with Client(braid_server_shared, form) as client:
        client.produce(topic, b"x")
        assert client.produce(topic) == m.ProduceResponse(base_offset=0, record_count=0)
        assert isinstance(client.produce("absent"), m.Error)
        assert isinstance(client.produce(topic, partition=2), m.Error)
        assert payloads(client.fetch(topic).records) == [b"x"]


@FORMS
def test_max_bytes_is_a_soft_limit(braid_server_shared: ServerProcess, topic: str, form: Form) -> None:
    """A batch is cut where the limit is reached, however large it was written; there is always one record."""
    values = [bytes([n]) * 100 for n in range(50)]
    with Client(braid_server_shared, form) as client:
        client.produce(topic, *values)
        assert payloads(client.fetch(topic, max_bytes=0).records) == values[:1]
        assert payloads(client.fetch(topic, max_bytes=1).records) == values[:1]
        some = client.fetch(topic, 10, max_bytes=1000)
        assert payloads(some.records) == values[10:20]
        assert some.next_offset == 20
        assert payloads(client.fetch(topic, 45, max_bytes=2**32 - 1).records) == values[45:]
        assert read_all(client, topic, max_bytes=333) == values


def test_a_described_topic(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as client, Client(braid_server_shared, Form.BINARY) as narrow:
        client.produce(topic, b"a", b"b", partition=1)
        assert client.ask(m.DescribeTopic(topic=topic)) == m.DescribeTopicResponse(
            topic=topic, partitions=[m.PartitionSummary(0, 0, 0, 1), m.PartitionSummary(1, 2, 0, 1)]
        )
        assert client.ask(m.DescribePartition(topic=topic, partition=1)) == m.DescribePartitionResponse(
            topic=topic, partition=1, high_watermark=2, log_start_offset=0, segment_count=1
        )
        assert narrow.ask(m.DescribeTopic(topic=topic)) == m.BriefDescribeTopicResponse(
            topic, 2, [m.BriefPartition(0, 0), m.BriefPartition(1, 2)]
        )
        assert narrow.ask(m.DescribePartition(topic=topic, partition=1)) == m.BriefDescribePartitionResponse(
            topic, 1, 2
        )


@FORMS
def test_topics_are_listed_sorted(braid_server: ServerProcess, form: Form) -> None:
    with Client(braid_server, form) as client:
        for name in ("b", "a.c", "_a", "Z-9", "a"):
            client.create(name, 3)
        topics = client.ask(m.ListTopics()).topics
    assert topics == [m.TopicSummary(name, 3) for name in ("Z-9", "_a", "a", "a.c", "b")]


@FORMS
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "__state", "a\x00"])
def test_names_that_no_topic_has(braid_server_shared: ServerProcess, name: str, form: Form) -> None:
    with Client(braid_server_shared, form) as client:
        refused = client.create(name)
        assert refused.code == (ErrorCode.INVALID_REQUEST if form is Form.JSON else BinaryErrorCode.INTERNAL)
        assert isinstance(client.produce(name, b"x"), m.Error)
        assert isinstance(client.fetch(name), m.Error)
        assert name not in [topic.name for topic in client.ask(m.ListTopics()).topics]


@FORMS
def test_metrics_count_what_was_written(braid_server_shared: ServerProcess, topic: str, form: Form) -> None:
    with Client(braid_server_shared, form) as client:
        client.produce(topic, b"a", b"b", b"c")
        client.commit("counter", topic, 1)
        metrics = client.ask(m.MetricsFetch()).metrics
    assert f'braidlog_partition_high_watermark{{topic="{topic}",partition="0"}} 3\n' in metrics
    assert f'braidlog_group_lag_records{{group="counter",topic="{topic}",partition="0"}} 2\n' in metrics


# ── Groups ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@FORMS
def test_commits_belong_to_a_group_and_a_partition(braid_server_shared: ServerProcess, topic: str, form: Form) -> None:
    with Client(braid_server_shared, form) as client:
        assert client.committed("g", topic) is None
        assert client.commit("g", topic, 150) == m.OffsetCommitResponse(success=True)
        assert client.committed("g", topic) == 150
        assert client.committed("other", topic) is None
        assert client.committed("g", topic, 1) is None
        client.commit("g", topic, 3)  # going back is allowed: a reader may want to read again
        assert client.committed("g", topic) == 3


@FORMS
def test_a_commit_to_what_is_not_there_is_no_success(
    braid_server_shared: ServerProcess, topic: str, form: Form
) -> None:
    with Client(braid_server_shared, form) as client:
        assert client.commit("g", "absent", 1) == m.OffsetCommitResponse(success=False)
        assert client.commit("g", topic, 1, partition=2) == m.OffsetCommitResponse(success=False)
        assert client.committed("g", "absent") is None


def test_a_binary_fetch_of_a_group_starts_where_it_committed(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared, Form.BINARY) as client:
        client.produce(topic, b"a", b"b", b"c")
        assert client.fetch(topic, 1, group="g") == m.BriefFetchResponse([], 0)
        client.commit("g", topic, 2)
        assert client.fetch(topic, 0, group="g") == m.BriefFetchResponse([b"c"], 3)
        client.commit("g", topic, 3)
        assert client.fetch(topic, 0, group="g") == m.BriefFetchResponse([], 3)
        assert client.fetch(topic, 0) == m.BriefFetchResponse([b"a", b"b", b"c"], 3)
        assert client.fetch("absent", 0).code == BinaryErrorCode.DOES_NOT_EXIST


def test_a_binary_group_may_speak_of_a_topic_that_is_not_there(braid_server_shared: ServerProcess) -> None:
    with Client(braid_server_shared, Form.BINARY) as client:
        client.commit("g", "absent", 2)
        assert client.fetch("absent", 0, group="g") == m.BriefFetchResponse([], 0)
        assert client.ask(m.OffsetFetch(group="g", topic="absent", partition=0)) == m.OffsetFetchResponse(offset=None)


def test_json_tells_which_topics_there_are(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as client:
        told = client.fetch("absent", 0)
        assert told.code == 404
        assert set(told.details) == {"available_topics"}
        assert len(told.details["available_topics"]) <= 100


def test_a_json_fetch_of_a_group_starts_where_it_asks(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as client:
        client.produce(topic, b"a", b"b")
        client.commit("g", topic, 2)
        assert payloads(client.fetch(topic, 0, group="g").records) == [b"a", b"b"]


# ── What only JSON carries ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, "", "ü\n" * 100, "x" * 256])
def test_an_id_is_echoed(braid_server_shared: ServerProcess, topic: str, number: int | str) -> None:
    with Client(braid_server_shared) as client:
        assert client.ask_json(type="Ping", id=number) == {"type": "Pong", "id": number}
        assert client.ask_json(type="DescribeTopic", topic="absent", id=number)["id"] == number
        assert client.ask_json(type="Nonsense", id=number)["id"] == number
        assert client.ask_json(type="Produce", topic=topic, partition=0, records=["!"], id=number)["id"] == number


def test_who_sends_no_id_gets_none(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as client:
        assert client.ask_json(type="Ping") == {"type": "Pong"}
        client.produce(topic, b"x")
        (record,) = client.ask_json(type="Fetch", group_id="", topic=topic, partition=0, offset=0, max_bytes=1)[
            "records"
        ]
        assert set(record) == {"offset", "timestamp", "payload"}


def test_keys_are_kept(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as client:
        client.produce(topic, b"a", b"b", b"c", keys=[b"k", None, b""])
        assert [record.key for record in client.fetch(topic).records] == [b"k", None, b""]
        refused = client.ask_json(type="Produce", topic=topic, partition=0, records=["AA=="], keys=[])
        assert refused["code"] == 400


def test_what_other_doors_wrote_is_shown(tmp_path: Path) -> None:
    """Keys, headers, times, tombstones, compression: a JSON client sees what the record has, a binary one its value."""
    headers = (("trace", b"\x00\xff"), ("trace", None), ("ü", b""))
    write_topic(
        tmp_path,
        "foreign",
        encode_batch(
            [b"value", None], keys=[b"key", b"gone"], headers=[headers, None], base_timestamp=1_700_000_000_123
        ),
        encode_batch([b"zipped"], base_timestamp=0, compression=Compression.ZSTD),
        encode_batch([b"strange time"], base_timestamp=2**62),
        encode_batch([b"before the epoch"], base_timestamp=-5),
    )
    with ServerProcess(tmp_path) as server:
        with Client(server) as client:
            answer = client.fetch("foreign")
        with Client(server, Form.BINARY) as narrow:
            assert narrow.fetch("foreign").records == [b"value", b"", b"zipped", b"strange time", b"before the epoch"]
    assert answer.records == [
        m.FetchedRecord(0, 1_700_000_000_123_000, b"value", b"key", headers),
        m.FetchedRecord(1, 1_700_000_000_123_000, b"", b"gone"),
        m.FetchedRecord(2, 0, b"zipped"),
        m.FetchedRecord(3, 2**63 - 1, b"strange time"),
        m.FetchedRecord(4, 0, b"before the epoch"),
    ]


# ── Waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_poll_wakes_when_another_connection_produces(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as reader, Client(braid_server_shared, Form.BINARY) as writer:
        reader.send(
            m.Fetch(group_id="", topic=topic, partition=0, offset=0, max_bytes=100, max_wait_ms=WAIT_MS_MAX, id="poll")
        )
        writer.ask(m.Ping())
        reader.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            reader.receive()
        reader.socket.settimeout(WAIT_MS_MAX / 1000 / 2)  # half of what it would wait: it was woken
        writer.produce(topic, b"news")
        answer = reader.receive()
    assert payloads(answer.records) == [b"news"]
    assert answer.id == "poll"


def test_a_long_poll_ends_with_nothing_when_its_time_is_up(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as reader:
        assert reader.fetch(topic, wait_ms=50) == m.FetchResponse(records=[], next_offset=0)
        assert reader.fetch(topic, wait_ms=0) == m.FetchResponse(records=[], next_offset=0)


def test_a_long_poll_does_not_wait_when_there_is_something(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as reader:
        reader.produce(topic, b"x")
        assert payloads(reader.fetch(topic, wait_ms=2**32 - 1).records) == [b"x"]


def test_answers_behind_a_long_poll_keep_their_order(braid_server_shared: ServerProcess, topic: str) -> None:
    """Also when the request behind it is the one that wakes it."""
    with Client(braid_server_shared) as client:
        client.send(
            m.Fetch(group_id="", topic=topic, partition=0, offset=0, max_bytes=9, max_wait_ms=WAIT_MS_MAX),
            m.Ping(),
            m.Produce(topic=topic, partition=0, records=[b"self"]),
        )
        assert payloads(client.receive().records) == [b"self"]
        assert client.receive() == m.Pong()
        assert client.receive() == m.ProduceResponse(base_offset=0, record_count=1)


def test_a_client_that_goes_away_while_it_waits_leaves_nothing_behind(
    braid_server_shared: ServerProcess, topic: str
) -> None:
    before = len(braid_server_shared.errors())
    for _ in range(20):
        with Client(braid_server_shared) as reader:
            reader.send(
                *[
                    m.Fetch(group_id="", topic=topic, partition=0, offset=0, max_bytes=9, max_wait_ms=WAIT_MS_MAX)
                    for _ in range(50)
                ]
            )
    with Client(braid_server_shared) as client:
        client.produce(topic, b"x")
        assert payloads(client.fetch(topic).records) == [b"x"]
    said = braid_server_shared.errors()[before:]
    assert "Traceback" not in said, said


# ── The limits of a frame ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fetch_answers_never_exceed_a_frame(braid_server_shared: ServerProcess, topic: str) -> None:
    """Large records, asked for with no limit: the client's own connection refuses a frame over the limit."""
    sizes = [3_000_000, 3_000_000, 3_000_000, 7_000_000, 1, 2_500_000, 9_000_000]
    with Client(braid_server_shared, Form.BINARY) as narrow:
        for size in sizes:
            narrow.produce(topic, bytes(size))
        assert [len(value) for value in read_all(narrow, topic, max_bytes=2**32 - 1)] == sizes
    with Client(braid_server_shared) as client:
        offset, found = 0, []
        while isinstance(answer := client.fetch(topic, offset, max_bytes=2**64 - 1), m.FetchResponse):
            assert answer.records
            found += [len(record.payload) for record in answer.records]
            offset = answer.next_offset
        assert found == sizes[:-1]
        assert answer.code == ErrorCode.RECORD_TOO_LARGE  # written through binary, too large for JSON
        assert client.fetch(topic, len(sizes)).records == []


def test_the_largest_produce_of_each_form(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared, Form.BINARY) as narrow:
        overhead = 1 + 2 + len(topic) + 4 + 4 + 4
        largest = FRAME_BYTES_MAX - overhead
        assert narrow.produce(topic, bytes(largest)).record_count == 1
        (value,) = narrow.fetch(topic).records
        assert len(value) == largest
    with Client(braid_server_shared) as client:
        around = len(
            json.dumps({"type": "Produce", "topic": topic, "partition": 0, "records": [""]}, separators=(",", ":"))
        )
        largest = (FRAME_BYTES_MAX - around) // 4 * 3
        assert client.produce(topic, bytes(largest)).record_count == 1
        # What JSON could just write, it may not be able to read: the answer has more around it.
        assert client.fetch(topic, 1).code == ErrorCode.RECORD_TOO_LARGE


def test_many_small_records(braid_server_shared: ServerProcess, topic: str) -> None:
    """A thousand in a JSON frame, no more; in a binary one, whatever fits."""
    with Client(braid_server_shared) as client:
        assert client.produce(topic, *[b"x"] * 1000).record_count == 1000
        assert client.ask_json(type="Produce", topic=topic, partition=0, records=["eA=="] * 1001)["code"] == 400
    with Client(braid_server_shared, Form.BINARY) as narrow:
        assert narrow.produce(topic, *[b"ab"] * 300_000).record_count == 300_000
        assert len(read_all(narrow, topic, max_bytes=2**32 - 1)) == 301_000


@pytest.mark.parametrize("text", ["A", "AA", "AAA", "AA=", "====", "A===", "A-_A", "AAAA AAAA", "AA==AA==", "ä"])
def test_wrong_base64(braid_server_shared: ServerProcess, topic: str, text: str) -> None:
    with Client(braid_server_shared) as client:
        assert client.ask_json(type="Produce", topic=topic, partition=0, records=["AAAA", text])["code"] == 400
        assert client.fetch(topic).records == []


def test_base64_is_padded_and_standard(braid_server_shared: ServerProcess, topic: str) -> None:
    with Client(braid_server_shared) as client:
        client.produce(topic, b"\xfb\xff\xfe")
        answer = client.ask_json(type="Fetch", group_id="", topic=topic, partition=0, offset=0, max_bytes=1)
        assert answer["records"][0]["payload"] == "+//+" == base64.b64encode(b"\xfb\xff\xfe").decode()


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"produce"}',
        b'{"type":"Pong"}',
        b'{"type":7}',
        b'{"type":null}',
        b"{}",
        b'{"topic":"x"}',
        b'{"type":"Error"}',
    ],
)
def test_unknown_types(braid_server_shared: ServerProcess, payload: bytes) -> None:
    with Client(braid_server_shared) as client:
        assert json.loads(client.ask_raw(payload))["code"] == 400
        assert client.ask(m.Ping()) == m.Pong()


def test_an_unknown_type_byte_ends_the_connection(braid_server_shared: ServerProcess) -> None:
    for byte in (0x00, 0x0B, 0x80, 0xFE):
        with Client(braid_server_shared) as client:
            assert json.loads(client.ask_raw(bytes([byte])))["code"] == 400
            assert client.is_closed()


# ── Many at once ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_writers_of_one_partition_get_offsets_of_their_own(braid_server_shared: ServerProcess, topic: str) -> None:
    """Eight connections, both forms: no offset is given twice, none is missing, each writer's records keep their order."""
    bases: list[tuple[int, int]] = []

    def write(number: int) -> None:
        with Client(braid_server_shared, list(Form)[number % 2]) as client:
            for n in range(25):
                answer = client.produce(topic, f"{number} {n} a".encode(), f"{number} {n} b".encode())
                bases.append((answer.base_offset, number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(base for base, _ in bases) == list(range(0, 400, 2))
    with Client(braid_server_shared, Form.BINARY) as client:
        values = read_all(client, topic)
    for number in range(8):
        mine = [value for value in values if value.startswith(f"{number} ".encode())]
        assert mine == [f"{number} {n} {part}".encode() for n in range(25) for part in "ab"]
