"""Whatever one end writes, the other reads; and the tuned path says what the declaration says, byte for byte."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.conversation import feed
from tests.wire.mayfly import strategies

from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mayfly import fields, hot
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import (
    Burst,
    ClientConnection,
    Request,
    Response,
    ServerConnection,
    _declared_frame,
    write_frame,
)
from braidlog.wire.mayfly.messages import Consistency
from braidlog.wire.mayfly.operations import OPERATIONS, Operation

every_row = pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)


@every_row
@given(data=st.data())
@settings(max_examples=40)
def test_there_and_back(row: Operation, data: st.DataObject) -> None:
    client, server = ClientConnection(), ServerConnection()
    request = data.draw(strategies.request(row.request))
    version = 1 if request.consistency is Consistency.QUORUM else 2
    assert feed(server, client.request(request, version=version)) == [msgspec.structs.replace(request, version=version)]

    answer = data.draw(strategies.message(row.answer) | strategies.failures)
    assert feed(client, server.respond(request, answer)) == [Response(request.id, answer, row.request)]


@pytest.mark.parametrize("kind", hot.READS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_tuned_request_reads_as_declared(kind: type[m.Message], data: st.DataObject) -> None:
    """Also when it is damaged: then the tuned path must not see anything in it."""
    payload = bytearray(fields.write_request(data.draw(strategies.message(kind))))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(payload)))
        payload[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    read = hot.READS[kind](b"##" + bytes(payload) + b"##", 2, 2 + len(payload))
    if read is not None:
        assert read == fields.read_request(kind, bytes(payload))


@pytest.mark.parametrize("kind", hot.READS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_plain_request_takes_the_tuned_path(kind: type[m.Message], data: st.DataObject) -> None:
    message = data.draw(strategies.message(kind))
    payload = fields.write_request(message)
    read = hot.READS[kind](payload, 0, len(payload))
    assert read == message or getattr(message, "condition", m.Condition.ALWAYS) is not m.Condition.ALWAYS


@pytest.mark.parametrize("kind", hot.ANSWERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_tuned_answer_reads_as_declared(kind: type[m.Message], data: st.DataObject) -> None:
    payload = fields.write_answer(data.draw(strategies.message(kind))) + data.draw(st.just(b"") | st.binary(max_size=3))
    read = hot.ANSWERS[kind](payload, 0, len(payload))
    if read is not None:
        assert read == fields.read_answer(kind, payload)


@pytest.mark.parametrize("kind", hot.WRITES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_tuned_answer_writes_as_declared(kind: type[m.Message], data: st.DataObject) -> None:
    failing = strategies.failures.filter(lambda each: type(each) is m.Failure)
    answer = data.draw(failing if kind is m.Failure else strategies.message(kind))
    assert write_frame(7, answer) == _declared_frame(7, answer)


SAID = [(Consistency.QUORUM, 1), *((level, 2) for level in Consistency)]


@given(st.lists(st.sampled_from([m.Get, m.Set, m.Del, m.Incr, m.Ping, m.LPop, m.Stats]), max_size=80), st.data())
def test_bursts_are_the_same_requests_in_the_same_order(kinds: list[type[m.Message]], data: st.DataObject) -> None:
    said = (Consistency.QUORUM, 1)
    requests = []
    for number, kind in enumerate(kinds, 1):
        said = data.draw(st.sampled_from([said] * 6 + SAID))
        requests.append(Request(number, data.draw(strategies.message(kind)), *said))
    client, server = ClientConnection(), ServerConnection(burst_max=16)
    server.receive(b"".join(client.request(request, version=request.version) for request in requests))
    found: list[Request] = []
    while (event := server.next_event()) is not NEED_DATA:
        if isinstance(event, Request):
            found.append(event)
            continue
        assert isinstance(event, Burst)
        assert 1 < len(event.requests) <= 16
        changing = {type(each.message) in (m.Set, m.Del, m.Incr) for each in event.requests}
        assert changing == {event.mutates}
        assert {(each.consistency, each.version) for each in event.requests} == {(event.consistency, event.version)}
        answers: list[m.Message] = [m.Failure(m.Status.NOT_FOUND)] * len(event.requests)
        assert server.respond(event, answers) == b"".join(server.respond(r, m.MISSING) for r in event.requests)
        found += event.requests
    assert found == requests
