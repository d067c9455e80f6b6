"""Every documented operation succeeds, and every documented error is provoked, in both forms, over real sockets.

The tests iterate over the dialect's own table: a row that nobody provokes here fails.
"""

import errno
import hashlib
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.rustlog.client import Client, framed
from tests.adapters.rustlog.folders import damage, follow, lose, write_topic

from braidlog.adapters.rustlog import handlers
from braidlog.adapters.rustlog.errors import CODES, FAILED, failure, json_error
from braidlog.adapters.rustlog.handlers import RustlogAdapter
from braidlog.codec.batch.records import encode_batch
from braidlog.model.errors import BrokerError, NothingDoneError, Reason, StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.testing.server import ServerProcess
from braidlog.wire.rustlog import binary
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.connection import Request
from braidlog.wire.rustlog.messages import BinaryErrorCode as B
from braidlog.wire.rustlog.messages import ErrorCode as E
from braidlog.wire.rustlog.messages import Form
from braidlog.wire.rustlog.operations import OPERATIONS, Operation


def batch(*values: bytes) -> bytes:
    return encode_batch(values, base_timestamp=1_700_000_000_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with every ailment: damage, a lost partition, a partition it follows, a log without beginning, small batches."""
    path = tmp_path_factory.mktemp("ailing") / "data"
    write_topic(path, "well", batch(b"a", b"b"))
    write_topic(path, "late", batch(b"a"), batch(b"b"), batch(b"c"), start=2)
    write_topic(path, "small", settings=TopicSettings(batch_bytes_max=1024))
    write_topic(path, "large", batch(bytes(8_000_000)), batch(b"after"))
    write_topic(path, "larger", batch(bytes(11_000_000)), batch(b"after"))
    write_topic(path, "followed")
    write_topic(path, "damaged", *[batch(bytes([n]) * 100) for n in range(20)])
    write_topic(path, "lost", batch(b"a"))
    follow(path, "followed")  # from here on the folder has metadata, and the topics above are in it
    damage(path, "damaged")
    lose(path, "lost")
    with ServerProcess(path) as process:
        yield process


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node that wants a token, which RustLog has no way to give."""
    folder = tmp_path_factory.mktemp("guarded")
    settings = folder / "braid.toml"
    settings.write_text(f'[auth.tokens]\nalice = "{hashlib.sha256(b"secret").hexdigest()}"\n')
    with ServerProcess(folder / "data", "--config", str(settings)) as process:
        yield process


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node where everyone may use topics that begin with `open-`, and only know of those."""
    folder = tmp_path_factory.mktemp("ruled")
    write_topic(folder / "data", "open-a", batch(b"seen"))
    write_topic(folder / "data", "secret", batch(b"hidden"))
    settings = folder / "braid.toml"
    settings.write_text('[[auth.rules]]\nprincipal = "*"\noperations = ["read", "create"]\ntopic = "open-*"\n')
    with ServerProcess(folder / "data", "--config", str(settings)) as process:
        yield process


# ── Requests that are served ──────────────────────────────────────────────────────────────────────────────────────────────────

PROPER: dict[type, m.Message] = {
    m.Produce: m.Produce(topic="proper", partition=0, records=[b"x"]),
    m.Fetch: m.Fetch(group_id="", topic="proper", partition=0, offset=0, max_bytes=100),
    m.OffsetCommit: m.OffsetCommit(group="g", topic="proper", partition=0, offset=1),
    m.OffsetFetch: m.OffsetFetch(group="g", topic="proper", partition=0),
    m.CreateTopic: m.CreateTopic(topic="proper-new", partition_count=2),
    m.ListTopics: m.ListTopics(),
    m.DescribeTopic: m.DescribeTopic(topic="proper"),
    m.DescribePartition: m.DescribePartition(topic="proper", partition=0),
    m.MetricsFetch: m.MetricsFetch(),
    m.Ping: m.Ping(),
}


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_every_operation_is_served(braid_server_shared: ServerProcess, row: Operation, form: Form) -> None:
    message = PROPER[row.request]
    with Client(braid_server_shared, form) as client:
        client.create("proper")
        if isinstance(message, m.CreateTopic):
            message = m.CreateTopic(topic=f"proper-new-{form.value}", partition_count=2)
        answer = client.ask(message)
    assert type(answer) is (row.response if form is Form.JSON else row.binary_response)


def test_every_operation_has_a_route_and_a_code_of_failure() -> None:
    assert set(RustlogAdapter.routes) == {row.request for row in OPERATIONS} == set(FAILED)


# ── JSON errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

Provoke = Callable[["Doors"], Any]


class Doors:
    """The nodes, and connections to them."""

    def __init__(self, server: ServerProcess, guarded: ServerProcess, ruled: ServerProcess, form: Form) -> None:
        self.server = server
        self.ailing = Client(server, form)
        self.guarded = Client(guarded, form)
        self.ruled = Client(ruled, form)

    def close(self) -> None:
        for client in (self.ailing, self.guarded, self.ruled):
            client.close()

    def without_room(self, ask: Callable[[Client], Any]) -> Any:
        """Ask while no file of the node may grow, as on a full disk."""
        soft, hard = resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (0, hard))
        try:
            return ask(self.ailing)
        finally:
            resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (soft, hard))


def _json(**fields: object) -> Provoke:
    return lambda doors: m.Error(
        **{k: v for k, v in doors.ailing.ask_json(**fields).items() if k in ("code", "message", "details")}
    )


def _without_topics_folder(doors: Doors) -> Any:
    """Somebody moved the folder of topics away."""
    topics = Path(doors.server.data_dir) / "topics"
    moved = topics.with_name("elsewhere")
    shutil.move(topics, moved)
    try:
        return doors.ailing.create("nowhere")
    finally:
        shutil.rmtree(topics, ignore_errors=True)
        shutil.move(moved, topics)


JSON_ERRORS: dict[tuple[type, E], Provoke] = {
    (m.Produce, E.INVALID_REQUEST): _json(type="Produce", topic="well", partition=0, records=["not base64!"]),
    (m.Produce, E.TOPIC_NOT_FOUND): lambda d: d.ailing.produce("absent", b"x"),
    (m.Produce, E.PARTITION_NOT_FOUND): lambda d: d.ailing.produce("well", b"x", partition=1),
    (m.Produce, E.RECORD_TOO_LARGE): lambda d: d.ailing.produce("small", bytes(2000)),
    (m.Produce, E.INTERNAL_SERVER_ERROR): lambda d: d.ailing.produce("followed", b"x"),
    (m.Produce, E.STORAGE_ERROR): lambda d: d.ailing.produce("damaged", b"x"),
    (m.Produce, E.INSUFFICIENT_SPACE): lambda d: d.without_room(lambda c: c.produce("well", b"x")),
    (m.Fetch, E.INVALID_REQUEST): _json(type="Fetch", group_id="", topic="well", partition=0, offset=-1, max_bytes=1),
    (m.Fetch, E.TOPIC_NOT_FOUND): lambda d: d.ailing.fetch("absent"),
    (m.Fetch, E.PARTITION_NOT_FOUND): lambda d: d.ailing.fetch("well", partition=7),
    (m.Fetch, E.RECORD_TOO_LARGE): lambda d: d.ailing.fetch("large"),
    (m.Fetch, E.OFFSET_OUT_OF_RANGE): lambda d: d.ailing.fetch("late", 1),
    (m.Fetch, E.STORAGE_ERROR): lambda d: d.ailing.fetch("lost"),
    (m.OffsetCommit, E.INVALID_REQUEST): lambda d: d.ailing.commit("", "well", 1),
    (m.OffsetCommit, E.OFFSET_OUT_OF_RANGE): lambda d: d.ailing.commit("g", "well", 2**63),
    (m.OffsetCommit, E.INSUFFICIENT_SPACE): lambda d: d.without_room(lambda c: c.commit("g", "well", 1)),
    (m.OffsetFetch, E.INVALID_REQUEST): _json(type="OffsetFetch", topic="well", partition=0),
    (m.OffsetFetch, E.TOPIC_NOT_FOUND): lambda d: d.ruled.ask(m.OffsetFetch(group="g", topic="secret", partition=0)),
    (m.CreateTopic, E.INVALID_REQUEST): lambda d: d.ailing.create("well"),
    (m.CreateTopic, E.STORAGE_ERROR): _without_topics_folder,
    (m.CreateTopic, E.INSUFFICIENT_SPACE): lambda d: d.without_room(lambda c: c.create("no-room")),
    (m.ListTopics, E.INVALID_REQUEST): lambda d: d.guarded.ask(m.ListTopics()),
    (m.DescribeTopic, E.INVALID_REQUEST): _json(type="DescribeTopic", topic=7),
    (m.DescribeTopic, E.TOPIC_NOT_FOUND): lambda d: d.ailing.ask(m.DescribeTopic(topic="absent")),
    (m.DescribeTopic, E.STORAGE_ERROR): lambda d: d.ailing.ask(m.DescribeTopic(topic="lost")),
    (m.DescribePartition, E.INVALID_REQUEST): _json(type="DescribePartition", topic="well", partition=2**32),
    (m.DescribePartition, E.TOPIC_NOT_FOUND): lambda d: d.ailing.ask(m.DescribePartition(topic="absent", partition=0)),
    (m.DescribePartition, E.PARTITION_NOT_FOUND): lambda d: d.ailing.ask(
        m.DescribePartition(topic="well", partition=1)
    ),
    (m.DescribePartition, E.STORAGE_ERROR): lambda d: d.ailing.ask(m.DescribePartition(topic="lost", partition=0)),
    (m.MetricsFetch, E.INVALID_REQUEST): lambda d: d.guarded.ask(m.MetricsFetch()),
    (m.Ping, E.INVALID_REQUEST): _json(type="Ping", id=[]),
}

NOT_BY_SOCKET = {
    # A commit meets a disk that fails (not full: broken) only where the journal is; see test_a_broken_disk.
    (m.OffsetCommit, E.STORAGE_ERROR),
    # It takes tens of thousands of topics to fill a frame; see test_an_answer_that_outgrew_the_frame.
    (m.ListTopics, E.INTERNAL_SERVER_ERROR),
    (m.MetricsFetch, E.INTERNAL_SERVER_ERROR),
}
JSON_ROWS = [(row, code) for row in OPERATIONS for code in row.errors if (row.request, code) not in NOT_BY_SOCKET]


@pytest.fixture
def json_doors(server: ServerProcess, guarded: ServerProcess, ruled: ServerProcess) -> Iterator[Doors]:
    doors = Doors(server, guarded, ruled, Form.JSON)
    yield doors
    doors.close()


@pytest.mark.parametrize(("row", "code"), JSON_ROWS, ids=[f"{row.name}-{code.value}" for row, code in JSON_ROWS])
def test_every_json_error_is_given(json_doors: Doors, row: Operation, code: E) -> None:
    error = JSON_ERRORS[row.request, code](json_doors)
    assert isinstance(error, m.Error), error
    assert error.code == code
    assert error.message
    assert json_doors.ailing.ask(m.Ping()) == m.Pong()  # and the connection goes on


def test_every_provoked_error_is_documented() -> None:
    assert set(JSON_ERRORS) == {(row.request, code) for row, code in JSON_ROWS}
    assert set(BINARY_ERRORS) == {(row.request, code) for row, code in BINARY_ROWS}
    assert {code for _, code in JSON_ROWS} == set(E)
    assert {code for _, code in BINARY_ROWS} | {B.FRAME} == set(B)


def test_a_full_disk_is_no_end(server: ServerProcess) -> None:
    """What was refused for want of room is not there; when there is room again, all goes on."""
    with Client(server) as client:
        before = client.ask(m.DescribePartition(topic="well", partition=0)).high_watermark
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
        try:
            assert client.produce("well", b"no room").code == E.INSUFFICIENT_SPACE
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (soft, hard))
        assert client.produce("well", b"room").base_offset == before
        assert client.fetch("well", before).records[0].payload == b"room"


def test_a_full_disk_that_leaves_doubt_does_not_ask_for_a_retry() -> None:
    """507 says that nothing was kept; of what was written and found no room when it was synced nobody knows that."""
    fault = StorageFault("no room")
    fault.__cause__ = OSError(errno.ENOSPC, "no room")
    assert json_error(fault).code == E.INSUFFICIENT_SPACE
    fault.left_remains = True
    assert json_error(fault).code == E.STORAGE_ERROR
    assert "may have been stored" in json_error(fault).message


# ── Binary errors ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _damaged(message: m.Message) -> Provoke:
    """The request with a byte too many at its end."""

    def provoke(doors: Doors) -> Any:
        raw = doors.ailing.ask_raw(binary.write_request(message) + b"\x00")
        return binary.read_answer(raw)[1]

    return provoke


BINARY_ERRORS: dict[tuple[type, B], Provoke] = {
    **{(kind, B.DECODE): _damaged(message) for kind, message in PROPER.items() if kind is not m.MetricsFetch},
    (m.Produce, B.DOES_NOT_EXIST): lambda d: d.ailing.produce("absent", b"x"),
    (m.Produce, B.INTERNAL): lambda d: d.ailing.produce("followed", b"x"),
    (m.Fetch, B.FETCH_FAILED): lambda d: d.ailing.fetch("late", 0),
    (m.Fetch, B.DOES_NOT_EXIST): lambda d: d.ailing.fetch("well", partition=9),
    (m.OffsetCommit, B.COMMIT_FAILED): lambda d: d.ailing.commit("g", "well", 2**63),
    (m.OffsetFetch, B.DOES_NOT_EXIST): lambda d: d.ruled.ask(m.OffsetFetch(group="g", topic="secret", partition=0)),
    (m.OffsetFetch, B.INTERNAL): lambda d: d.guarded.ask(m.OffsetFetch(group="g", topic="well", partition=0)),
    (m.CreateTopic, B.ALREADY_EXISTS): lambda d: d.ailing.create("well"),
    (m.CreateTopic, B.BAD_PARTITION_COUNT): lambda d: d.ailing.create("none", 0),
    (m.CreateTopic, B.INTERNAL): lambda d: d.ailing.create("no/slash"),
    (m.ListTopics, B.INTERNAL): lambda d: d.guarded.ask(m.ListTopics()),
    (m.DescribeTopic, B.DESCRIBE_TOPIC_FAILED): lambda d: d.ailing.ask(m.DescribeTopic(topic="absent")),
    (m.DescribePartition, B.DESCRIBE_PARTITION_FAILED): lambda d: d.ailing.ask(
        m.DescribePartition(topic="well", partition=3)
    ),
    (m.MetricsFetch, B.INTERNAL): lambda d: d.guarded.ask(m.MetricsFetch()),
}
BINARY_ROWS = [(row, code) for row in OPERATIONS for code in row.binary_errors]
WORDS = {B.DOES_NOT_EXIST: "does not exist", B.ALREADY_EXISTS: "already exists", B.DESCRIBE_PARTITION_FAILED: "failed"}


@pytest.fixture
def binary_doors(server: ServerProcess, guarded: ServerProcess, ruled: ServerProcess) -> Iterator[Doors]:
    doors = Doors(server, guarded, ruled, Form.BINARY)
    yield doors
    doors.close()


@pytest.mark.parametrize(("row", "code"), BINARY_ROWS, ids=[f"{row.name}-{code.value}" for row, code in BINARY_ROWS])
def test_every_binary_error_is_given(binary_doors: Doors, row: Operation, code: B) -> None:
    error = BINARY_ERRORS[row.request, code](binary_doors)
    assert isinstance(error, m.Error), error
    assert error.code == code
    assert WORDS.get(code, "") in error.message  # the published clients look for these words
    assert binary_doors.ailing.ask_raw(b"\xff") == b"\xff"


def test_a_frame_over_the_limit_is_refused_in_the_form_of_the_last_one(server: ServerProcess) -> None:
    with Client(server, Form.BINARY) as client:
        client.ask(m.Ping())
        client.socket.sendall((10_485_761).to_bytes(4, "big"))
        assert client.receive().code == B.FRAME
        assert client.is_closed()


@pytest.mark.parametrize("count", [0, 1001, 2**32 - 1])
def test_a_partition_count_out_of_range(server: ServerProcess, count: int) -> None:
    with Client(server, Form.BINARY) as client:
        assert client.create("counted", count).code == B.BAD_PARTITION_COUNT
    with Client(server) as client:
        assert client.ask_json(type="CreateTopic", topic="counted", partition_count=count)["code"] == 400


# ── What the errors say ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_offset_before_the_start_says_what_there_is(server: ServerProcess) -> None:
    with Client(server) as client:
        error = client.fetch("late", 0)
    assert error.details == {"valid_range": {"start": 2, "end": 3}, "high_watermark": 3}


def test_a_topic_that_exists_says_that_it_was_no_success(server: ServerProcess) -> None:
    with Client(server) as client:
        assert client.create("well").details == {"success": False}


def test_a_record_that_does_not_fit_is_named_and_can_be_stepped_over(server: ServerProcess) -> None:
    with Client(server) as client, Client(server, Form.BINARY) as narrow:
        error = client.fetch("large", 0)
        assert error.code == E.RECORD_TOO_LARGE
        assert "offset 0" in error.message
        assert [r.payload for r in client.fetch("large", 1).records] == [b"after"]
        assert [len(r) for r in narrow.fetch("large", 0, max_bytes=2**32 - 1).records] == [8_000_000, 5]
        assert "offset 0" in narrow.fetch("larger", 0).message  # too large for either form
        assert narrow.fetch("larger", 1).records == [b"after"]


def test_damage_is_met_where_it_is(server: ServerProcess) -> None:
    """Records before the damage are read; where it begins the reader is told, and never gets the end of the log instead."""
    with Client(server) as client:
        offset = 0
        while isinstance(answer := client.fetch("damaged", offset, max_bytes=1), m.FetchResponse):
            assert answer.records
            assert answer.records[0].payload == bytes([offset]) * 100
            offset = answer.next_offset
        assert answer.code == E.STORAGE_ERROR
        assert 0 < offset < 20


def test_a_lost_partition_does_not_hide_the_others(server: ServerProcess) -> None:
    with Client(server) as client:
        assert "braidlog_partitions_offline 1\n" in client.ask(m.MetricsFetch()).metrics
        assert "lost/0 is offline" in server.errors()


# ── Rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", list(Form))
def test_a_hidden_topic_is_not_there(ruled: ServerProcess, form: Form) -> None:
    with Client(ruled, form) as client:
        assert [topic.name for topic in client.ask(m.ListTopics()).topics] == ["open-a"]
        metrics = client.ask(m.MetricsFetch()).metrics
        assert "open-a" in metrics
        assert "secret" not in metrics
        hidden, absent = client.fetch("secret"), client.fetch("absent")
        assert (hidden.code, hidden.message.replace("secret", "absent")) == (absent.code, absent.message)


def test_what_no_rule_allows_is_refused(ruled: ServerProcess) -> None:
    with Client(ruled) as client:
        assert client.produce("open-a", b"x").code == E.INVALID_REQUEST
        assert client.create("closed").code == E.INVALID_REQUEST
        assert client.commit("g", "secret", 1) == m.OffsetCommitResponse(success=False)
        assert client.fetch("open-a").records[0].payload == b"seen"


def test_a_ping_needs_no_token(guarded: ServerProcess) -> None:
    with Client(guarded) as client:
        assert client.ask(m.Ping()) == m.Pong()
        assert "authentication" in client.fetch("any").message


# ── The tables ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_late_says_that_it_may_be_done() -> None:
    """So a client that can live with a record stored twice sends it again; what failed otherwise will fail again."""
    for reason in (Reason.TIMED_OUT, Reason.ACKS_TIMED_OUT):
        assert json_error(BrokerError(reason, "late")).details == {"outcome": "unknown"}
    assert json_error(BrokerError(Reason.LOG_CLOSED, "closed")).details is None


def test_what_was_not_done_says_that_it_may_be_tried_again() -> None:
    """A message of "nothing was written" and `outcome: unknown` contradict each other."""
    for error in (
        BrokerError(Reason.NOT_ENOUGH_REPLICAS, "nothing was written"),
        NothingDoneError(Reason.TIMED_OUT, "nothing was changed"),
    ):
        assert json_error(error).details == {"retriable": True}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_code(reason: Reason) -> None:
    error = BrokerError(reason, "why")
    for message in PROPER.values():
        told = failure(Request(message, Form.JSON), error)
        assert isinstance(told, m.Error | m.OffsetCommitResponse)
        assert not isinstance(told, m.Error) or told.code == CODES[reason]
        narrow = failure(Request(message, Form.BINARY), error)
        assert isinstance(narrow, m.Error | m.OffsetCommitResponse)
        assert not isinstance(narrow, m.Error) or narrow.code in set(B)


def test_a_broken_disk() -> None:
    for message in PROPER.values():
        told = failure(Request(message, Form.JSON), StorageFault("the disk is broken", "/data"))
        assert isinstance(told, m.Error)
        assert told.code == E.STORAGE_ERROR
        assert "/data" not in told.message


@pytest.mark.parametrize("form", list(Form))
def test_an_answer_that_outgrew_the_frame(form: Form) -> None:
    assert isinstance(failure(Request(m.ListTopics(), form), _outgrown()), m.Error)
    assert CODES[_outgrown().reason] is E.INTERNAL_SERVER_ERROR


def _outgrown() -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        handlers._check_answer(m.FRAME_BYTES_MAX)
    return caught.value


def test_refusals_of_frames(server: ServerProcess) -> None:
    """What is no request: one error in JSON, then the end; the page lists them."""
    for data in (
        framed(b""),
        framed(b"hello"),
        framed(b'{"type":'),
        framed(b'["type"]'),
        framed(b'{"type":"Ping","x":"\xff"}'),
        framed(b"[" * 100_000),
        b"\xff\xff\xff\xff",
    ):
        with Client(server) as client:
            client.socket.sendall(data)
            assert client.receive().code == E.INVALID_REQUEST
            assert client.is_closed()
