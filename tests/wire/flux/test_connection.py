"""Both ends: limits of a line, answers by id in any order, what closes and what does not."""

from base64 import b64encode

import pytest
from tests.wire.conversation import feed
from tests.wire.flux.conversation import ask, serve, serve_one

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.flux.connection import ClientConnection, ServerConnection
from braidlog.wire.flux.lines import CORRELATION_ID_BYTES_MAX, ERROR_CHARS_MAX
from braidlog.wire.flux.messages import (
    Consume,
    Consumed,
    CreateTopic,
    ErrorCode,
    Failed,
    GetMetadata,
    Metadata,
    PartitionLeaderSet,
    Ping,
    Pong,
    Produce,
    Produced,
    Response,
    SetPartitionLeader,
    TopicCreated,
)
from braidlog.wire.flux.records import LINE_BYTES_MAX
from braidlog.wire.flux.tokens import KEY_BYTES_MAX


def produce_line(size: int) -> bytes:
    """A PRODUCE whose line has `size` bytes without its newline."""
    head = b"V1|1|PRODUCE|orders k:"
    return head + b"v" * (size - len(head)) + b"\n"


def test_a_line_of_exactly_the_limit_is_read() -> None:
    event = serve_one(produce_line(LINE_BYTES_MAX))
    assert isinstance(event, Produce)


@pytest.mark.parametrize("ended", [True, False], ids=["whole", "endless"])
def test_a_longer_line_is_answered_with_id_0_and_closes(ended: bool) -> None:
    line = produce_line(LINE_BYTES_MAX + 1)
    server = ServerConnection()
    ping, refused = feed(server, b"V1|7|PING|\n" + (line if ended else line[:-1]))
    assert ping == Ping("7")
    assert isinstance(refused, Refused)
    assert refused.close
    assert server.refuse(refused).startswith(b"V1|0|ERR|BAD_REQUEST|a line has more than 1048576 bytes")
    assert feed(server, b"\nV1|8|PING|\n" * 3) == []


@pytest.mark.parametrize(
    "begin", [b"\x16\x03\x01", b"\x00\x00\x00\x15", b"\xca\xfe", b"\xbe\xe5", b"\x7f", b"\xef\xbb\xbfV1|1|PING|"]
)
@pytest.mark.parametrize("end", [b"", b"\n", b"x" * LINE_BYTES_MAX * 2], ids=["cut", "whole", "endless"])
@pytest.mark.parametrize("before", [b"", b"V1|7|PING|\n"], ids=["first", "second"])
def test_a_line_that_begins_with_no_text_is_refused_at_once_and_closes(before: bytes, begin: bytes, end: bytes) -> None:
    *_, refused = events = serve(before + begin + end)
    assert len(events) == bool(before) + 1
    assert isinstance(refused, Refused)
    assert refused.close
    assert "not text" in str(refused.error)


def test_a_refusal_is_answered_like_a_request() -> None:
    refused = serve_one(b"V1|7|NOPE|\n")
    assert isinstance(refused, Refused)
    server = ServerConnection()
    assert server.respond(refused, refused.answer) == server.refuse(refused)


def test_the_bytes_of_a_line_that_is_not_whole_are_counted() -> None:
    server = ServerConnection()
    feed(server, b"V1|7|PING|\nV1|8")
    assert server.buffered_bytes == 4
    feed(server, b"|PING|\n")
    assert server.buffered_bytes == 0


def test_an_endless_line_is_refused_as_soon_as_it_is_too_long_and_then_kept_no_more() -> None:
    server = ServerConnection()
    chunk = b"x" * 65536
    for _ in range(16):
        assert feed(server, chunk) == []
    server.receive(b"x")
    assert isinstance(server.next_event(), Refused)
    for _ in range(16):
        server.receive(chunk)
    assert len(server._inbox) == 0


def test_an_error_keeps_the_connection_open() -> None:
    events = serve(b"nonsense\nV1|1|NOPE|\nV1|2|CONSUME|\n\n\r\nV1|3|PING|\n")
    assert [isinstance(event, Refused) for event in events] == [True] * 5 + [False]
    assert all(not event.close for event in events if isinstance(event, Refused))


def test_half_a_line_at_the_end_of_the_stream_is_no_request() -> None:
    assert serve(b"V1|1|COMMIT|g1 orders c1 3 0 41") == []


def test_a_slow_request_does_not_hold_back_a_fast_one() -> None:
    client, server = ClientConnection(), ServerConnection()
    slow = Consume("slow", "orders", 0, 9, wait_ms=30_000)
    fast = Ping("fast")
    assert feed(server, client.request(slow) + client.request(fast)) == [slow, fast]
    assert feed(client, server.respond(fast, Pong())) == [Response("fast", Pong())]
    assert feed(client, server.respond(slow, Consumed((), -1))) == [Response("slow", Consumed((), -1))]
    assert client.in_flight == 0


def test_an_id_can_be_used_again_once_it_is_answered() -> None:
    client = ClientConnection()
    client.request(Ping("1"))
    with pytest.raises(ValueError, match="unanswered"):
        client.request(Ping("1"))
    assert feed(client, b"V1|1|OK|pong\n") == [Response("1", Pong())]
    client.request(Ping("1"))


@pytest.mark.parametrize("correlation_id", ["", "0", "a|b", "a\nb", "x" * (CORRELATION_ID_BYTES_MAX + 1)])
def test_a_client_does_not_ask_with_an_id_that_cannot_be_answered(correlation_id: str) -> None:
    client = ClientConnection()
    with pytest.raises(ValueError, match="correlation id"):
        client.request(Ping(correlation_id))
    assert client.in_flight == 0


def test_an_id_is_as_long_as_an_answer_can_repeat() -> None:
    longest = b"x" * CORRELATION_ID_BYTES_MAX
    assert serve_one(b"V1|%b|PING|\n" % longest) == Ping(longest.decode())
    refused = serve_one(b"V1|%bx|PING|\n" % longest)
    assert isinstance(refused, Refused)
    assert refused.answer.correlation_id == "0"


def test_an_error_with_id_0_is_given_to_the_client_as_it_is() -> None:
    assert ask(Ping("1"), b"V1|0|ERR|BAD_REQUEST|what\n") == [Response("0", Failed(ErrorCode.BAD_REQUEST, "what"))]


@pytest.mark.parametrize(
    "line",
    [
        b"V1|2|OK|pong",
        b"V1|0|OK|pong",
        b"V2|1|OK|pong",
        b"V1|1|YES|pong",
        b"V1|1",
        b"",
        b"V1||OK|pong",
        b"V1|1|OK|pang",
        b"V1|1|ERR|",
        b"V1|1|ERR|low|x",
        b"V1|1|ERR|A|\xff",
        b"V1|\xff|OK|pong",
        b"V1|" + b"1" * 300 + b"|OK|pong",
        b"V1|2|ERR|A|b",
    ],
)
def test_what_is_no_answer_closes_the_clients_end(line: bytes) -> None:
    client = ClientConnection()
    client.request(Ping("1"))
    (event,) = feed(client, line + b"\nV1|1|OK|pong\n")
    assert isinstance(event, Refused)
    assert event.close
    assert event.answer is None
    assert client.next_event() is NEED_DATA


def test_an_answer_to_another_question_is_our_own_mistake() -> None:
    server = ServerConnection()
    with pytest.raises(ValueError, match="TopicCreated does not answer PING"):
        server.respond(Ping("1"), TopicCreated("t", 1, 1, 1, 1))
    with pytest.raises(ValueError, match="Produced does not answer PING"):
        server.respond(Ping("1"), Produced(0, 0, 0))


def test_an_error_message_is_made_fit_for_a_line() -> None:
    line = ServerConnection().respond(
        Ping("1"), Failed(ErrorCode.UNAVAILABLE, "disk\nV1|2|OK|\x1b[31m\ud800" + "x" * 10_000)
    )
    assert line.startswith(b"V1|1|ERR|UNAVAILABLE|disk V1|2|OK| [31m xxx")
    assert line.count(b"\n") == 1
    assert len(line) < ERROR_CHARS_MAX + 40
    with pytest.raises(ValueError, match="error code"):
        ServerConnection().respond(Ping("1"), Failed("NO|CODE", ""))


def test_a_peers_words_are_quoted_short() -> None:
    refused = serve_one(b"V1|1|" + b"\x00" * 100_000 + b"|\n")
    assert isinstance(refused, Refused)
    assert len(ServerConnection().refuse(refused)) < 300


def test_names_in_answers_cannot_break_the_line() -> None:
    server = ServerConnection()
    for topic in ("a b", "a\nb", "", "a\u2028b", "x" * 250):
        with pytest.raises(ValueError, match="name"):
            server.respond(CreateTopic("1", topic, 1, 1), TopicCreated(topic, 1, 1, 1, 1))
    with pytest.raises(ValueError, match="brackets"):
        server.respond(GetMetadata("1"), Metadata(("a]b",), ()))


@pytest.mark.parametrize("topic", ["[a", "a]", "[", "[]", "[a=", "a=b"])
def test_a_name_with_brackets_is_not_taken_for_a_list(topic: str) -> None:
    request = SetPartitionLeader("1", topic, 0, 1, (1, 0))
    answer = PartitionLeaderSet(topic, 0, 1, (1, 0), 1, 1)
    assert ask(request, ServerConnection().respond(request, answer)) == [Response("1", answer)]


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"a:b", b""), (b"a b", b""), (b"", b"a b"), (b"", b"a\n"), (b"", b"\ra"), (None, b""), (b"", None)],
)
def test_a_client_does_not_send_plainly_what_would_be_read_otherwise(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ValueError, match="enc=b64"):
        ClientConnection().request(Produce("1", "t", key, value))


def test_a_client_refuses_to_write_what_a_server_would_refuse() -> None:
    client = ClientConnection()
    for message in (
        Produce("1", "t", b"", b"v" * LINE_BYTES_MAX),
        Produce("1", "t", b"k" * 16_385, b""),
        Produce("1", "a b", b"", b""),
        Consume("1", "t", 0, -1),
        Consume("1", "t", 0, 0, wait_ms=60_001),
        SetPartitionLeader("1", "t", 0, 0, ()),
        SetPartitionLeader("1", "t", 0, 0, tuple(range(1001))),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - each has its own sentence
            client.request(message)
    assert client.in_flight == 0


def test_a_long_list_is_refused_before_it_is_split() -> None:
    refused = serve_one(b"V1|1|ADMIN_SET_PARTITION_LEADER|t 0 0 " + b"1," * 400_000 + b"1\n")
    assert isinstance(refused, Refused)
    assert "at most 1000" in str(refused.error)


def test_many_words_are_refused_without_being_split() -> None:
    refused = serve_one(b"V1|1|PRODUCE|" + b"ab " * 300_000 + b"\n")
    assert isinstance(refused, Refused)


@pytest.mark.parametrize("tail", [b":v", b":v acks=all", b":dg== enc=b64"])
def test_a_key_has_a_limit(tail: bytes) -> None:
    longest = b64encode(b"k" * KEY_BYTES_MAX) if b"b64" in tail else b"k" * KEY_BYTES_MAX
    longer = b64encode(b"k" * (KEY_BYTES_MAX + 1)) if b"b64" in tail else b"k" * (KEY_BYTES_MAX + 1)
    assert isinstance(serve_one(b"V1|1|PRODUCE|t " + longest + tail + b"\n"), Produce)
    refused = serve_one(b"V1|1|PRODUCE|t " + longer + tail + b"\n")
    assert isinstance(refused, Refused)
    assert "a key may have at most" in str(refused.error)
