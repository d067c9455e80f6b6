"""Every message of the table, both ways, with whatever hypothesis puts into it; and the hand-tuned paths against the table's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.flux.conversation import ask_one, serve_one
from tests.wire.flux.strategies import PRODUCE, answers, requests

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import Refused
from braidlog.wire.flux.connection import ClientConnection, ServerConnection
from braidlog.wire.flux.lines import (
    READERS,
    read_arguments,
    read_produce,
    write_arguments,
    write_payload,
    write_produce,
)
from braidlog.wire.flux.messages import Produce, Produced, Request, Response
from braidlog.wire.flux.operations import OPERATIONS, Operation

by_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.command)


@by_operation
@given(st.data())
def test_a_request_comes_back_as_it_was(operation: Operation, data: st.DataObject) -> None:
    request = data.draw(requests(operation))
    line = ClientConnection().request(request)
    assert line.index(b"\n") == len(line) - 1
    assert serve_one(line) == request


@by_operation
@given(st.data())
def test_an_answer_comes_back_as_it_was(operation: Operation, data: st.DataObject) -> None:
    request = data.draw(requests(operation))
    answer = data.draw(answers(operation, request))
    line = ServerConnection().respond(request, answer)
    assert line.index(b"\n") == len(line) - 1
    assert ask_one(request, line) == Response(request.correlation_id, answer)


WORDS = st.sampled_from(
    [
        b"orders",
        b"k:v",
        b":",
        b"k",
        b"acks=0",
        b"acks=1",
        b"acks=all",
        b"acks=2",
        b"acks=",
        b"acks",
        b"enc=b64",
        b"enc=b6",
        b"-:-",
        b"dXNlcjE=:",
        b"aGk",
        b"t" * 249,
        b"t" * 250,
        b"k" * 16384 + b":v",
        b"k" * 16385 + b":v",
        b"\xff",
        b"\xc3\xa9",
        b"a\x01b",
        b"\x1c",
    ]
)
BLANKS = st.sampled_from([b" ", b"  ", b"\t", b"\r", b" \r\n"])


@given(
    st.lists(st.tuples(WORDS, BLANKS), max_size=6).map(lambda parts: b"".join(word + blank for word, blank in parts))
)
def test_the_hot_reader_of_produce_says_what_the_table_says(args: bytes) -> None:
    slow: Request | str
    fast: Request | str | None
    try:
        slow = read_arguments(READERS[b"PRODUCE"], "1", args)
    except ProtocolError as error:
        slow = str(error)
    try:
        fast = read_produce("1", args)
    except ProtocolError as error:
        fast = str(error)
    assert fast in (slow, None)
    event = serve_one(b"V1|1|PRODUCE|" + args.replace(b"\n", b" ") + b"\n")
    assert isinstance(event, Refused) == isinstance(slow, str)


def test_the_hot_reader_of_produce_reads_what_is_usual() -> None:
    for args in (
        b"orders k:v",
        b"orders k:v acks=all",
        b"orders k:v acks=1 ",
        b"orders azE=:djE= enc=b64",
        b"t -:- enc=b64 acks=0",
    ):
        assert isinstance(read_produce("1", args), Produce)


@given(PRODUCE)
def test_the_hot_writer_of_produce_writes_what_the_table_says(request: Produce) -> None:
    reader = READERS[b"PRODUCE"]
    hot = write_produce(request, reader)
    assert read_arguments(reader, request.correlation_id, hot) == request
    tail = hot.split(b" ", 2)[2:]
    options = [argument for argument in reader.operation.arguments if argument.word in ("acks", "enc")]
    slow = [
        b"%b=%b" % (a.word.encode(), a.kind.write(getattr(request, a.field)))
        for a in options
        if _differs(request, a.field)
    ]
    assert b" ".join(tail) == b" ".join(slow)


def _differs(request: Produce, field: str) -> bool:
    return bool(getattr(request, field) != getattr(Produce("1", "t", b"", b""), field))


@given(st.builds(Produced, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1)))
def test_the_hot_answer_to_produce_is_the_tables(answer: Produced) -> None:
    table = write_payload(READERS[b"PRODUCE"].operation, answer)
    assert ServerConnection().respond(Produce("7", "t", b"", b""), answer) == b"V1|7|OK|" + table + b"\n"


@by_operation
@given(st.data())
def test_arguments_are_written_in_the_tables_order(operation: Operation, data: st.DataObject) -> None:
    if operation.request is Produce:
        return
    request = data.draw(requests(operation))
    reader = READERS[operation.command.encode()]
    words = write_arguments(request, reader).split()
    assert read_arguments(reader, request.correlation_id, b"\t ".join(words)) == request
