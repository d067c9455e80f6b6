"""What a connection does beyond single frames: two forms side by side, order, ids, ends, and what it refuses to write."""

import pytest
from tests.wire.conversation import feed

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.connection import ClientConnection, RefusedFrame, Request, Response, ServerConnection
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX, Form


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def served(data: bytes) -> ServerConnection:
    server = ServerConnection()
    server.receive(data)
    return server


def refused(event: object) -> RefusedFrame:
    assert isinstance(event, RefusedFrame)
    return event


def test_both_forms_take_turns_on_one_connection_and_each_answer_has_its_own() -> None:
    server = served(frame(b"\xff") + frame(b'{"type":"Ping"}') + frame(b"\x09") + frame(b'\t{"type":"ListTopics"}'))
    answers: list[m.Answer] = [m.Pong(), m.Pong(), m.MetricsFetchResponse("up"), m.ListTopicsResponse([])]
    sent = []
    for answer in answers:
        request = server.next_event()
        assert isinstance(request, Request)
        sent.append(server.respond(request, answer))
    assert sent == [
        frame(b"\xff"),
        frame(b'{"type":"Pong"}'),
        frame(b"\x09\x00\x00\x00\x02up"),
        frame(b'{"type":"ListTopicsResponse","topics":[]}'),
    ]
    assert server.next_event() is NEED_DATA


def test_a_frame_whose_form_cannot_be_told_is_refused_in_the_form_of_the_last() -> None:
    ping = frame(b"\xff")
    for heads, form, code in (
        ([], Form.JSON, 400),
        ([ping], Form.BINARY, 1),
        ([ping, frame(b"{}")], Form.JSON, 400),
        ([frame(b"{}"), ping], Form.BINARY, 1),
    ):
        server = served(b"".join(heads) + bytes(4))
        for _ in heads:
            server.next_event()
        event = refused(server.next_event())
        assert (event.form, event.answer.code, event.close) == (form, code, True)


def test_an_unknown_first_byte_after_a_binary_request_is_refused_in_binary() -> None:
    server = served(frame(b"\xff") + frame(b"\x0b"))
    server.next_event()
    event = refused(server.next_event())
    assert (event.form, event.answer.code, event.close) == (Form.BINARY, m.BinaryErrorCode.DECODE, True)


def test_after_the_end_nothing_more_is_taken() -> None:
    server = served(frame(b"nonsense") + frame(b"\xff"))
    assert refused(server.next_event()).close
    assert feed(server, frame(b"\xff")) == []


def test_after_a_recoverable_fault_the_next_request_is_read() -> None:
    server = served(frame(b'{"type":"Nope"}') + frame(b"\x07") + frame(b"\xff"))
    assert [refused(server.next_event()).close, refused(server.next_event()).close] == [False, False]
    assert server.next_event() == Request(m.Ping(), Form.BINARY)


def test_a_refusal_echoes_the_id() -> None:
    server = served(frame(b'{"id":"q","type":"Fetch","topic":1}'))
    event = refused(server.next_event())
    assert server.respond(event, event.answer).endswith(b',"details":null,"id":"q"}')


def test_a_refusal_says_what_was_wrong_but_not_at_length() -> None:
    server = served(frame(b'{"type":"' + b"x" * 5000 + b'"}'))
    message = refused(server.next_event()).answer.message
    assert message.startswith("Invalid value 'xxx")
    assert len(message) == 300


def test_batches_of_a_thousand_records_are_the_most_in_json() -> None:
    def produce(count: int) -> bytes:
        return frame(b'{"type":"Produce","topic":"t","partition":0,"records":[' + b",".join([b'""'] * count) + b"]}")

    assert isinstance(served(produce(1000)).next_event(), Request)
    event = refused(served(produce(1001)).next_event())
    assert (event.close, event.answer.code) == (False, m.ErrorCode.INVALID_REQUEST)


def test_an_answer_to_another_request_is_our_mistake() -> None:
    server = ServerConnection()
    for form in Form:
        with pytest.raises(TypeError):
            server.respond(Request(m.Ping(), form), m.OffsetCommitResponse(success=True))
        with pytest.raises(TypeError):
            server.respond(RefusedFrame(ProtocolError("x"), None, close=False, form=form), m.Pong())
    with pytest.raises(TypeError):
        server.respond(Request(m.CreateTopic("t", 1), Form.JSON), m.BriefCreateTopicResponse(success=True))


@pytest.mark.parametrize("form", list(Form))
def test_an_answer_over_the_limit_is_not_built(form: Form) -> None:
    request = Request(m.MetricsFetch(), form)
    envelope = len(ServerConnection().respond(request, m.MetricsFetchResponse(""))) - 4
    fits = m.MetricsFetchResponse("x" * (FRAME_BYTES_MAX - envelope))
    assert len(ServerConnection().respond(request, fits)) == FRAME_BYTES_MAX + 4
    with pytest.raises(ValueError, match="does not fit a frame"):
        ServerConnection().respond(request, m.MetricsFetchResponse(fits.metrics + "x"))


@pytest.mark.parametrize("form", list(Form))
def test_a_request_over_the_limit_is_not_built_and_not_awaited(form: Form) -> None:
    client = ClientConnection(form)
    with pytest.raises(ValueError, match="does not fit a frame"):
        client.request(m.Produce("t", 0, [bytes(FRAME_BYTES_MAX)]))
    assert client.in_flight == 0


@pytest.mark.parametrize(
    "message",
    [m.Ping(id=1), m.Produce("t", 0, [b""], [b"k"]), m.Fetch("", "t", 0, 0, 1, 5)],
    ids=lambda message: type(message).__name__,
)
def test_what_only_json_carries_is_not_dropped_silently(message: m.Message) -> None:
    with pytest.raises(ValueError, match="does not have"):
        ClientConnection(Form.BINARY).request(message)


def test_a_field_that_does_not_fit_is_a_value_error() -> None:
    binary, json = ClientConnection(Form.BINARY), ClientConnection(Form.JSON)
    with pytest.raises(ValueError, match="does not fit its bytes"):
        binary.request(m.Fetch("", "t", 0, 0, 2**32))
    with pytest.raises(ValueError, match="16-bit length"):
        binary.request(m.DescribeTopic("x" * 65536))
    with pytest.raises(ValueError, match="cannot be written"):
        json.request(m.DescribeTopic("\ud800"))
    with pytest.raises(ValueError, match="unsigned 64-bit"):
        m.OffsetCommit("g", "t", 0, 2**64)


def test_a_long_binary_error_is_cut_between_characters() -> None:
    data = ServerConnection().respond(Request(m.Ping(), Form.BINARY), m.Error(500, "é" * 40_000, None))
    assert data[4:9] == b"\xfe\x01\xf4\xff\xfe"
    assert data[9:].decode() == "é" * 32_767


def ask(message: m.Message, form: Form = Form.JSON) -> ClientConnection:
    client = ClientConnection(form)
    client.request(message)
    return client


@pytest.mark.parametrize(
    ("client", "payload"),
    [
        (ClientConnection(), b'{"type":"Pong"}'),
        (ClientConnection(Form.BINARY), b"\xff"),
        (ask(m.ListTopics()), b'{"type":"Pong"}'),
        (ask(m.ListTopics(), Form.BINARY), b"\xff"),
        (ask(m.Ping(), Form.BINARY), b'{"type":"Pong"}'),
        (ask(m.Ping()), b"\xff"),
        (ask(m.Ping(id=1)), b'{"type":"Pong","id":2}'),
        (ask(m.Ping()), b'{"type":"Pong","id":2}'),
        (ask(m.Ping()), b'{"type":"Ping"}'),
        (ask(m.Ping(), Form.BINARY), b"\x0a"),
        (ask(m.Ping(), Form.BINARY), b"\xff\x00"),
        (ask(m.OffsetFetch("g", "t", 0), Form.BINARY), b"\x04\x02"),
        (ask(m.MetricsFetch(), Form.BINARY), b"\x09\x00\x00\x00\x01\xff"),
        (ask(m.Ping()), b""),
    ],
)
def test_an_answer_out_of_step_ends_the_connection(client: ClientConnection, payload: bytes) -> None:
    (event,) = feed(client, frame(payload) + frame(b'{"type":"Pong"}'))
    assert isinstance(event, Refused)
    assert event.close
    assert event.answer is None
    assert feed(client, frame(b'{"type":"Pong"}')) == []


def test_a_binary_client_understands_a_refusal_in_json() -> None:
    client = ask(m.Ping(), Form.BINARY)
    server = served(b"\xff\xff\xff\xff")
    event = refused(server.next_event())
    (response,) = feed(client, server.respond(event, event.answer))
    assert response == Response(event.answer, Form.JSON, m.Ping)


def test_answers_are_matched_in_order() -> None:
    client, server = ClientConnection(), ServerConnection()
    asked: list[m.Message] = [m.Ping(id="a"), m.OffsetFetch("g", "t", 0, id="b"), m.Ping(id="c")]
    for message in asked:
        server.receive(client.request(message))
    assert client.in_flight == 3
    for answer in (m.Pong(), m.Error(404, "no", None), m.Pong()):
        request = server.next_event()
        assert isinstance(request, Request)
        client.receive(server.respond(request, answer))
    responses = [client.next_event() for _ in asked]
    assert [(each.message.id, each.request) for each in responses if isinstance(each, Response)] == [  # type: ignore[union-attr]
        ("a", m.Ping),
        ("b", m.OffsetFetch),
        ("c", m.Ping),
    ]
