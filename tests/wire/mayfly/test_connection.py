"""Ids, limits, turning away: what the vectors do not show."""

import pytest
from tests.wire.conversation import feed

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Burst, ClientConnection, RefusedFrame, Request, Response, ServerConnection
from braidlog.wire.mayfly.messages import Consistency, Status


def test_ids_wrap_and_pass_over_what_is_unanswered() -> None:
    client = ClientConnection()
    assert [client.next_id(), client.next_id()] == [1, 2]
    client._last_id = 2**32 - 2
    client.request(Request(1, m.Ping()))
    assert [client.next_id(), client.next_id()] == [2**32 - 1, 2]


def test_an_id_that_is_in_flight_cannot_be_used_again_before_its_answer() -> None:
    client = ClientConnection()
    client.request(Request(5, m.Ping()))
    with pytest.raises(ValueError, match="still unanswered"):
        client.request(Request(5, m.Ping()))
    assert feed(client, ServerConnection().respond(Request(5, m.Ping()), m.DONE)) == [Response(5, m.Done(), m.Ping)]
    client.request(Request(5, m.Ping()))


def test_requests_in_flight_are_bounded() -> None:
    client = ClientConnection(in_flight_max=3)
    for number in (1, 2, 3):
        client.request(Request(number, m.Ping()))
    with pytest.raises(ValueError, match="3 requests are unanswered"):
        client.request(Request(4, m.Ping()))
    assert client.in_flight == 3


def test_an_answer_that_was_not_asked_for_ends_the_connection() -> None:
    client = ClientConnection()
    client.request(Request(1, m.Ping()))
    (event,) = feed(client, ServerConnection().respond(Request(2, m.Ping()), m.DONE))
    assert isinstance(event, Refused)
    assert event.close
    assert feed(client, ServerConnection().respond(Request(1, m.Ping()), m.DONE)) == []


def test_a_client_that_is_turned_away_is_told_so_without_having_asked() -> None:
    server, client = ServerConnection(), ClientConnection()
    client.request(Request(1, m.Get(b"k")))
    refused = server.turn_away("authentication failed")
    assert refused.close
    assert feed(client, server.respond(refused, refused.answer)) == [
        Response(0, m.Failure(Status.AUTH_FAILED, "authentication failed"), None)
    ]
    assert feed(server, b"\xca\xfe") == []


def test_a_lower_limit_holds_for_every_command_and_names_itself() -> None:
    server = ServerConnection(burst_max=64)
    server.frame_bytes_max = 64
    ping, large = bytes.fromhex("CAFE0104 00000001 00000000"), bytes.fromhex("CAFE0101 00000002 00000041") + bytes(65)
    server.receive(ping + large)
    assert server.next_event() == Request(1, m.Ping())
    event = server.next_event()
    assert isinstance(event, RefusedFrame)
    assert (event.close, event.id, event.answer.status) == (True, 2, Status.VALUE_TOO_LARGE)
    assert "the limit is 64" in event.answer.message


def test_a_burst_of_version_2_ends_where_another_consistency_or_none_is_asked_for() -> None:
    levels = (Consistency.ONE, Consistency.ONE, Consistency.ALL, Consistency.ALL)
    frames = [
        ClientConnection().request(Request(number, m.Get(b"k"), level), version=2)
        for number, level in enumerate(levels, 1)
    ]
    wrong = [frames[3][:12] + bytes([byte]) + frames[3][13:] for byte in (0, 9, 9)]
    server = ServerConnection(burst_max=64)
    server.receive(b"".join(frames) + b"".join(wrong))
    for ids, level in (([1, 2], Consistency.ONE), ([3, 4], Consistency.ALL)):
        burst = server.next_event()
        assert isinstance(burst, Burst)
        assert burst.requests == [Request(number, m.Get(b"k"), level, 2) for number in ids]
    for _ in wrong:
        event = server.next_event()
        assert isinstance(event, RefusedFrame)
        assert event.answer.status is Status.BAD_PAYLOAD
    assert server.next_event() is NEED_DATA


def test_a_burst_ends_before_what_is_over_the_limit() -> None:
    server = ServerConnection(burst_max=64)
    server.frame_bytes_max = 20
    small = Request(1, m.Set(b"k", b"v"))
    server.receive(ClientConnection().request(small) + ClientConnection().request(Request(2, m.Set(b"k", b"v" * 20))))
    assert server.next_event() == small
    event = server.next_event()
    assert isinstance(event, RefusedFrame)
    assert event.close


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (m.Get(b""), "1 to 256"),
        (m.Get(b"k" * 257), "1 to 256"),
        (m.Set(b"k", b"v" * 65537), "up to 65536"),
        (m.Set(b"k", b"v", 2**32), "ttl_seconds .* does not fit u32"),
        (m.IncrBy(b"k", 2**63), "delta .* does not fit i64"),
        (m.LPush(b"k", ()), "at least one item"),
        (m.RPush(b"k", (b"v" * 65536,) * 17), "the limit is 1048576"),
        (m.Auth(b"t" * 1025), "up to 1024"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_the_dialect_cannot_say_is_not_sent(message: m.Message, words: str) -> None:
    client = ClientConnection()
    with pytest.raises(ProtocolError, match=words):
        client.request(Request(1, message))
    assert client.in_flight == 0


def test_version_1_cannot_say_a_consistency() -> None:
    with pytest.raises(ValueError, match="cannot express ONE"):
        ClientConnection().request(Request(1, m.Ping(), Consistency.ONE))


def test_an_answer_larger_than_a_frame_is_a_mistake_of_who_made_it() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        ServerConnection().respond(Request(1, m.LRange(b"l", 0, -1)), m.Values((b"v" * 65536,) * 129))


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Request(1, m.Auth(b"secret")))
