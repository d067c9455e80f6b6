"""What the connections promise beyond reading and writing: limits, spellings, secrets, and what they refuse to write."""

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import feed
from tests.wire.cursus.drive import ROWS, asked
from tests.wire.cursus.strategies import BATCHES

from braidlog.codec.cursor import Reader
from braidlog.wire.contract import Refused
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import commands
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import Batch, BatchRecord, Spelling, header_bytes, read_batch, write_batch
from braidlog.wire.cursus.compressors import COMPRESSORS, Compressor
from braidlog.wire.cursus.connection import FRAME_BYTES_MAX, ClientConnection, ServerConnection
from braidlog.wire.cursus.failures import CommandError, ErrorCode, Failure, failure_line
from braidlog.wire.cursus.messages import BY_NAME, OPERATIONS, Operation, Request

CANARY = "canary-7261"


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def plain_reading(body: bytes, spelling: Spelling) -> Batch:
    """The layout read field by field, as it is drawn: what the tuned reader is held to."""
    reader = Reader(body, 2)
    topic = reader.text16("topic")
    if spelling is Spelling.DOCUMENT:
        partition, acks = int(reader.text16("partition")), reader.text16("acks")
    else:
        partition, acks = reader.i32("partition"), reader.take(reader.u8("acks"), "acks").decode()
    idempotent, first, last = bool(reader.u8("idempotent")), reader.i64("first"), reader.i64("last")
    records = []
    for _ in range(reader.i32("count")):
        offset, sequence, producer = reader.i64("offset"), reader.i64("sequence"), reader.text16("producer")
        key, epoch = reader.take(reader.u16("key"), "key"), reader.i64("epoch")
        payload, event = reader.take(reader.i32("payload"), "payload"), reader.text16("event")
        rest = (event, reader.i32("schema"), reader.i64("version"), reader.text16("metadata"))
        records.append(BatchRecord(payload, key, offset, sequence, producer, epoch, *rest))
    reader.end("batch")
    return Batch(topic, partition, tuple(records), acks, idempotent, first, last)


@given(BATCHES, st.sampled_from(Spelling))
def test_the_tuned_reader_reads_as_the_plain_one(batch: Batch, spelling: Spelling) -> None:
    body = write_batch(batch, spelling)
    assert read_batch(body) == (plain_reading(body, spelling), spelling)


BLANKS = st.text(" \t\r\n\v\f\x1c", min_size=1, max_size=2)
WORDS = st.sampled_from((
    "topic=t", "topic=u", "isolation=a", "isolation_level=b", "txn=", "a=b=c", "=", "bare", "P0:1", "metadata={", '"}',
    "message=m", "k" * 127 + "=1", "k" * 128 + "=1", "ü=1", "partition=0" * 500, "",
))  # fmt: skip


@given(st.sampled_from(OPERATIONS[1:]), st.lists(st.tuples(BLANKS, WORDS), max_size=6))
def test_short_commands_are_split_as_all_others_are(row: Operation, words: list[tuple[str, str]]) -> None:
    text = (row.name + "".join(blank + word for blank, word in words)).encode()
    found = commands._split_plain(row, text)
    try:
        wanted = commands._split(row, text)
    except CommandError:
        assert found is None
    else:
        assert found in (None, wanted)


def test_what_readers_ask_again_and_again_is_a_short_command() -> None:
    text = b"CONSUME topic=t partition=0 offset=42 member=m group=g generation=1 batch=1000 isolation=read_committed"
    found = commands._split_plain(BY_NAME[b"CONSUME"], text)
    assert found is not None
    assert found[0][b"isolation_level"] == b"read_committed"
    assert commands._split_plain(BY_NAME[b"CONSUME"], text + b" w" * 64) is None
    assert commands._split_plain(BY_NAME[b"PUBLISH"], b"PUBLISH topic=t message=a b") is None


NAMES = (b"CONSUME topic=a partition=0", b"consume topic=b partition=1", b"CONSUME topic=a", b"LIST")
AFTER = (b"", b" batch=7", b" member=c-1 group=g generation=3", b" offset=3", b"\tbatch=7", b" metadata={ offset=4 }",
    b" principal=p auth_token=t", b" nonsense", b" \xff", b" " + b"x" * 5000)  # fmt: skip
BEFORE = (b"", b" batch=7", b" offset=6", b" topic=b", *(b' metadata={"a":" offset=%d "}' % each for each in (5, 8)))
DIGITS = (b"12", b"0", b"007", b"9" * 18, b"9" * 19, b"9" * 30, b"-1", b"", b"x", b"5\n", b"\xb2", b"42")


def read_or_refused(read: Callable[[bytes], Request], text: bytes) -> Request | Failure:
    try:
        return read(text)
    except CommandError as error:
        return error.failure


def test_what_was_asked_before_changes_no_command() -> None:
    read = commands.CommandReader().read
    for name, after in product(NAMES, AFTER):
        for before, digits in [*product(BEFORE, DIGITS), *((before, each) for each in DIGITS for before in BEFORE)]:
            text = name + before + b" offset=" + digits + after
            assert read_or_refused(read, text) == read_or_refused(commands.read_command, text), text


def test_a_reader_that_goes_on_is_understood_by_its_offset_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerConnection()
    first, second = (r.Consume("orders", 3, offset, records_max=100, member="c-1") for offset in (42, 142))
    (event,) = feed(server, ClientConnection().request(first))
    monkeypatch.setattr(commands, "read_command", None)
    (again,) = feed(server, ClientConnection().request(second))
    assert (event.message, again.message) == (first, second)


def test_the_limit_itself_is_allowed() -> None:
    server = ServerConnection(frame_bytes_max=100)
    (event,) = feed(server, frame(b"PUBLISH topic=t message=" + b"x" * 76))
    assert isinstance(event, Request)
    (event,) = feed(server, frame(b"PUBLISH topic=t message=" + b"x" * 77))
    assert isinstance(event, Refused)
    assert event.close
    assert FRAME_BYTES_MAX == 67_108_864


def test_a_length_over_the_limit_is_refused_before_its_body_comes() -> None:
    server = ServerConnection()
    assert feed(server, b"\x04\x00\x00") == []
    (event,) = feed(server, b"\x01")
    assert isinstance(event, Refused)
    server.receive(b"x" * 1000)
    assert len(server._inbox) == 0, "after a refusal nothing is kept"


def test_the_limit_may_grow_after_authentication() -> None:
    server = ServerConnection(frame_bytes_max=64)
    assert isinstance(feed(server, frame(b"AUTH principal=ann token=x"))[0], Request)
    server.frame_bytes_max = FRAME_BYTES_MAX
    assert isinstance(feed(server, frame(b"PUBLISH topic=t message=" + b"x" * 500))[0], Request)


@pytest.mark.parametrize("compression", ["none", *sorted(COMPRESSORS)])
@pytest.mark.parametrize("spelling", Spelling)
def test_what_is_said_to_fit_fits(compression: str, spelling: Spelling) -> None:
    server = ServerConnection(frame_bytes_max=20_000, compression=compression)
    request = asked(ROWS["CONSUME"], spelling)
    # Bytes that do not compress: the worst case for what a compressor adds.
    noise = b"".join(i.to_bytes(3, "big")[::-1] for i in range(7919, 7919 + 40_000 * 131, 131))
    records = [BatchRecord(noise[i * 100 : i * 100 + 100], offset=i) for i in range(1000)]
    count = server.count_fitting(request, "orders", 3, records)
    assert 100 < count < 140
    answer = server.respond(request, Batch("orders", 3, tuple(records[:count])))
    assert len(answer) <= 20_004
    with pytest.raises(ValueError, match="limit"):
        server.respond(request, Batch("orders", 3, tuple(records)))
    if compression == "none":
        assert len(server.respond(request, Batch("orders", 3, tuple(records[:count])))) > 20_004 - 148
        with pytest.raises(ValueError, match="limit"):
            server.respond(request, Batch("orders", 3, tuple(records[: count + 1])))


def test_a_record_that_does_not_fit_alone() -> None:
    server = ServerConnection(frame_bytes_max=200)
    assert server.count_fitting(asked(ROWS["CONSUME"]), "t", 0, [BatchRecord(b"x" * 200)]) == 0


def test_answers_take_the_spelling_of_their_request() -> None:
    server = ServerConnection()
    seed, clients = feed(server, frame(b"CONSUME t 0 5"), frame(b"CONSUME topic=t partition=0 offset=5"))
    batch = Batch("t", 0, ())
    assert server.respond(seed, batch)[9:12] == b"\x00\x010"
    assert server.respond(clients, batch)[9:13] == b"\x00\x00\x00\x00"
    assert header_bytes("t", Spelling.DOCUMENT) == len(server.respond(seed, batch)) - 4


def test_acknowledgements_and_events_are_never_compressed() -> None:
    """Clients decompress only what CONSUME and STREAM give them."""
    server = ServerConnection(compression="gzip")
    assert server.respond(asked(ROWS["0xBA7C"]), a.Ack("OK"))[4:5] == b"{"
    contents = a.StreamContents("t", "k", 0, Batch("t", 0, ()))
    envelope, events_frame = server.respond(asked(ROWS["READ_STREAM"]), contents).split(b"\xba\x7c", 1)
    assert envelope[4:5] == b"{"
    assert events_frame
    assert server.respond(asked(ROWS["CONSUME"]), Batch("t", 0, ()))[4:6] == b"\x1f\x8b"
    assert server.push(asked(ROWS["STREAM"]), Batch("t", 0, ()))[4:6] == b"\x1f\x8b"
    assert server.push(asked(ROWS["STREAM"]), a.KeepAlive()) == bytes(4)
    assert server.respond(asked(ROWS["LIST"]), a.TopicList(0))[4:6] == b"OK"


def test_a_compressor_of_ones_own() -> None:
    mine = Compressor("rot", b"\x99", lambda d: b"\x99" + d[::-1], lambda d, _: d[:0:-1])
    registry = {**COMPRESSORS, "rot": mine}
    batch = Batch("t", 0, (BatchRecord(b"x"),))
    client = ClientConnection(compression="rot", compressors=registry)
    assert feed(ServerConnection(compression="rot", compressors=registry), client.request(batch))[0].message == batch
    liar = Compressor("rot", b"\x99", lambda _: b"\x99", lambda _data, _max: b"LIST" + b" " * 4000)
    small = ServerConnection(compression="rot", compressors={"rot": liar}, frame_bytes_max=2000)
    assert isinstance(feed(small, frame(b"\x99"))[0], Refused)
    with pytest.raises(ValueError, match="brotli"):
        ServerConnection(compression="brotli")


def test_no_secret_is_shown() -> None:
    server = ServerConnection()
    commands = [
        f"AUTH principal=ann token={CANARY}",
        f"LIST principal=ann auth_token={CANARY}",
        f"AUTH token={CANARY}",
        f"LIST auth_token={CANARY}",
        f"AUTH principal=ann {CANARY}",
        f"AUTH principal=ann token={CANARY} token={CANARY}",
        f"CONSUME topic=t partition=x offset=0 principal=ann auth_token={CANARY}",
    ]
    for event in feed(server, *[frame(command.encode()) for command in commands]):
        shown = repr(event) + str(event)
        if isinstance(event, Refused):
            shown += str(event.error) + server.respond(event, event.answer).decode()
        assert CANARY not in shown
    found = feed(server, frame(commands[0].encode()), frame(commands[1].encode()))
    assert found[0].message.token == CANARY
    assert found[1].credentials == r.Credentials("ann", CANARY)


def test_what_a_peer_sent_cannot_forge_a_field() -> None:
    (event,) = feed(ServerConnection(), frame(b'CONSUME topic=t partition=1"x=y offset=0'))
    assert event.answer.code == "invalid_partition"
    assert event.answer.get("value") == '1"x=y'
    assert '"1\\"x=y"' in failure_line(event.answer)
    (event,) = feed(ServerConnection(), frame(b"X" * 5000))
    assert len(failure_line(event.answer)) < 200


def test_answers_of_another_kind_are_not_sent() -> None:
    server = ServerConnection()
    with pytest.raises(TypeError):
        server.respond(asked(ROWS["LIST"]), a.Ok())
    with pytest.raises(TypeError):
        server.respond(asked(ROWS["STREAM"]), Batch("t", 0, ()))
    with pytest.raises(TypeError):
        server.push(asked(ROWS["CONSUME"]), Batch("t", 0, ()))


@pytest.mark.parametrize(
    "answer",
    [
        a.TopicList(1, ("a,b",)),
        a.TopicList(1, ("a b",)),
        a.TopicList(1, ("",)),
    ],
)
def test_lists_that_clients_would_misread_are_not_written(answer: object) -> None:
    with pytest.raises(ValueError, match="list"):
        ServerConnection().respond(asked(ROWS["LIST"]), answer)


def test_lines_that_clients_would_misread_are_not_written() -> None:
    with pytest.raises(ValueError, match="blank"):
        ServerConnection().respond(asked(ROWS["JOIN_GROUP"]), a.Assignment(1, "a b", ()))
    with pytest.raises(ValueError, match="code"):
        ServerConnection().respond(asked(ROWS["LIST"]), Failure("two words"))
    with pytest.raises(ValueError, match="field"):
        ServerConnection().respond(asked(ROWS["LIST"]), Failure("x", (("a=b", "c"),)))


@pytest.mark.parametrize(
    ("message", "spelling"),
    [
        (r.Create("a b"), Spelling.CLIENTS),
        (r.Create("a b", 1), Spelling.DOCUMENT),
        (r.Create("a=b", 1), Spelling.DOCUMENT),
        (r.Create("", 1), Spelling.CLIENTS),
        (r.Create("", 1), Spelling.DOCUMENT),
        (r.Create("a", 1, event_sourcing=True), Spelling.DOCUMENT),
        (r.Heartbeat("t", "g", "m", 1), Spelling.DOCUMENT),
        (r.Publish("t", b""), Spelling.CLIENTS),
        (r.Publish("t", b"\xff"), Spelling.CLIENTS),
        (r.AppendStream("t", "k", 1, b"x", metadata="a b"), Spelling.CLIENTS),
        # Read on, it would end in the message: {"a":"x message="}
        (r.AppendStream("t", "k", 1, b'"}', metadata='{"a":"x'), Spelling.CLIENTS),
        (Batch("t", 65536, ()), Spelling.CLIENTS),
        (Batch("t", -2, ()), Spelling.DOCUMENT),
        (Batch("t", 0, (BatchRecord(b"", b"k" * 65536),)), Spelling.DOCUMENT),
        (Batch("t", 0, (BatchRecord(b"", producer_id="p" * 65536),)), Spelling.DOCUMENT),
        (Batch("t", 0, (BatchRecord(b"", metadata="p" * 65536),)), Spelling.DOCUMENT),
        (Batch("t", 0, (BatchRecord(b"", offset=2**63),)), Spelling.DOCUMENT),
    ],
)
def test_requests_that_would_be_misread_are_not_written(message: object, spelling: Spelling) -> None:
    with pytest.raises(ValueError, match=r"."):
        ClientConnection(spelling=spelling).request(message)


def test_json_metadata_keeps_its_blanks_wherever_it_stands() -> None:
    text = b'APPEND_STREAM topic=t key=k version=1 metadata={"a": "x } message=y"} event_type=E message={"b": 1}'
    (event,) = feed(ServerConnection(), frame(text))
    assert event.message == r.AppendStream("t", "k", 1, b'{"b": 1}', event_type="E", metadata='{"a": "x } message=y"}')
    # What only looks like JSON ends at its blank, as in the published brokers.
    (event,) = feed(ServerConnection(), frame(b"APPEND_STREAM topic=t key=k version=1 metadata={a message={x}}"))
    assert (event.message.metadata, event.message.message) == ("{a", b"{x}}")


def test_words_are_counted() -> None:
    def create(unknown: int) -> bytes:
        return frame(b"CREATE topic=t " + b" ".join(b"k%d=1" % i for i in range(unknown)))

    assert isinstance(feed(ServerConnection(), create(63))[0], Request)
    assert feed(ServerConnection(), create(64))[0].answer.code == ErrorCode.UNEXPECTED_ARGUMENT
    (event,) = feed(ServerConnection(), frame(b"CREATE topic=" + b"t" * (1024 * 1024)))
    assert event.answer.code == ErrorCode.UNEXPECTED_ARGUMENT


def test_offsets_are_counted() -> None:
    def commit(partitions: int) -> bytes:
        offsets = b",".join(b"P%d:1" % i for i in range(partitions))
        return frame(b"BATCH_COMMIT topic=t group=g member=m generation=1 " + offsets)

    assert len(feed(ServerConnection(), commit(10_000))[0].message.offsets) == 10_000
    assert feed(ServerConnection(), commit(10_001))[0].answer.code == "invalid_offsets"
