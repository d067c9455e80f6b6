"""What one end writes, the other end reads: every message of the table, both directions, both spellings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.conversation import feed
from tests.wire.cursus.drive import ROWS, asked, client_that_asked, say
from tests.wire.cursus.strategies import BATCHES, CREDENTIALS, FAILURES, RECORDS, answer_of, request_of

from braidlog.wire.contract import count_fitting
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus.batch import (
    Batch,
    BatchRecord,
    Spelling,
    header_bytes,
    record_bytes,
    write_batch,
)
from braidlog.wire.cursus.connection import ClientConnection, ServerConnection
from braidlog.wire.cursus.failures import Failure
from braidlog.wire.cursus.messages import OPERATIONS, Operation, Request

SPELLINGS = st.sampled_from(Spelling)
few = settings(max_examples=25)  # per row; there are many rows
ANSWERS = [(row, kind) for row in OPERATIONS for kind in row.answers]


@pytest.mark.parametrize("row", OPERATIONS, ids=[row.name for row in OPERATIONS])
@few
@given(data=st.data(), spelling=SPELLINGS, envelope=st.sampled_from([None, "", "admin"]))
def test_requests(row: Operation, data: st.DataObject, spelling: Spelling, envelope: str | None) -> None:
    message = data.draw(request_of(row, spelling))
    wire = ClientConnection(spelling=spelling, envelope=envelope).request(message)
    (event,) = feed(ServerConnection(), wire)
    assert isinstance(event, Request), event
    assert event.message == message
    assert event.operation is row
    if row.positional is not None or isinstance(message, Batch):
        assert event.spelling is spelling or row.name == "LIST"


@pytest.mark.parametrize("row", OPERATIONS[1:], ids=[row.name for row in OPERATIONS[1:]])
@few
@given(data=st.data(), credentials=CREDENTIALS)
def test_credentials_travel_with_any_command(row: Operation, data: st.DataObject, credentials: object) -> None:
    if row.name == "AUTH":
        return
    message = data.draw(request_of(row, Spelling.CLIENTS))
    (event,) = feed(ServerConnection(), ClientConnection().request(message, credentials))  # type: ignore[arg-type]
    assert (event.message, event.credentials) == (message, credentials)


@pytest.mark.parametrize(("row", "kind"), ANSWERS, ids=[f"{row.name}-{kind.__name__}" for row, kind in ANSWERS])
@few
@given(data=st.data(), spelling=SPELLINGS)
def test_answers(row: Operation, kind: type, data: st.DataObject, spelling: Spelling) -> None:
    answer = data.draw(answer_of(kind))
    wire = say(ServerConnection(), asked(row, spelling), answer)
    assert feed(client_that_asked(row, spelling), wire) == [answer]


@pytest.mark.parametrize("row", OPERATIONS, ids=[row.name for row in OPERATIONS])
@few
@given(failure=FAILURES)
def test_failures(row: Operation, failure: Failure) -> None:
    wire = say(ServerConnection(), asked(row), failure)
    assert feed(client_that_asked(row), wire) == [failure]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@few
@given(batch=BATCHES, spelling=SPELLINGS)
def test_compressed_both_ways(compression: str, batch: Batch, spelling: Spelling) -> None:
    server = ServerConnection(compression=compression)
    client = ClientConnection(spelling=spelling, compression=compression)
    (event,) = feed(server, client.request(batch))
    assert (event.message, event.spelling) == (batch, spelling)
    reader = client_that_asked(ROWS["CONSUME"], spelling, compression=compression)
    assert feed(reader, server.respond(asked(ROWS["CONSUME"], spelling), batch)) == [batch]


@few
@given(st.lists(st.sampled_from([row for row in OPERATIONS if row.name != "STREAM"]), max_size=6), st.data())
def test_a_pipeline_is_answered_in_order(rows: list[Operation], data: st.DataObject) -> None:
    client, server = ClientConnection(), ServerConnection()
    messages = [data.draw(request_of(row, Spelling.CLIENTS)) for row in rows]
    requests = feed(server, *[client.request(message) for message in messages])
    assert [request.message for request in requests] == messages
    answers = [data.draw(answer_of(row.answers[0])) for row in rows]
    replies = [server.respond(request, answer) for request, answer in zip(requests, answers, strict=True)]
    assert feed(client, *replies) == answers


@given(st.lists(BATCHES, max_size=4), SPELLINGS)
def test_a_stream_is_pushed_until_it_is_closed(batches: list[Batch], spelling: Spelling) -> None:
    client, server = ClientConnection(spelling=spelling), ServerConnection()
    (request,) = feed(server, client.request(asked(ROWS["STREAM"], spelling).message))
    frames: list[Batch | a.KeepAlive | a.StreamControl] = [
        *batches,
        a.KeepAlive(),
        a.StreamControl("CLOSE", "stopped", 5),
    ]
    assert feed(client, *[server.push(request, frame) for frame in frames]) == frames
    # The stream is over: the next answer belongs to the next request.
    (request,) = feed(server, client.request(asked(ROWS["LIST"]).message))
    assert feed(client, server.respond(request, a.TopicList(0))) == [a.TopicList(0)]


@given(st.lists(RECORDS, max_size=6).map(tuple), SPELLINGS, st.integers(0, 99_999), st.data())
def test_sizes_are_exact(
    records: tuple[BatchRecord, ...], spelling: Spelling, partition: int, data: st.DataObject
) -> None:
    partition = min(partition, 0xFFFF)
    body = write_batch(Batch("tøpic", partition, records), spelling)
    head = header_bytes("tøpic", spelling, partition)
    assert len(body) == head + sum(map(record_bytes, records))
    room = data.draw(st.integers(0, len(body)))
    fitting = count_fitting([*map(record_bytes, records)], room)
    assert sum(map(record_bytes, records[:fitting])) <= room
    assert fitting == len(records) or sum(map(record_bytes, records[: fitting + 1])) > room
