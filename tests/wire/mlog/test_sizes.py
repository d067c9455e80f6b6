"""What is said to fit fits, and what is said not to does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.conversation import feed

from braidlog.wire.contract import Refused
from braidlog.wire.mlog.connection import ClientConnection, ServerConnection, frame
from braidlog.wire.mlog.gojson import write
from braidlog.wire.mlog.messages import (
    FetchBatchRequest,
    FetchBatchResponse,
    FetchResponse,
    FetchStreamResponse,
    LogEntry,
    ReplicateResponse,
)
from braidlog.wire.mlog.sizes import (
    ENTRIES_PER_ANSWER_MAX,
    PAYLOAD_BYTES_MAX,
    VALUE_BYTES_MAX,
    entries_that_fit,
    raw_chunk_bytes_max,
)

from .strategies import any_of


@given(st.lists(any_of(LogEntry), max_size=12), st.integers(0, 700))
def test_as_many_entries_as_can_be(entries: list[LogEntry], limit: int) -> None:
    count = entries_that_fit(entries, limit)
    if count:
        assert len(write(FetchBatchResponse(tuple(entries[:count])))) <= limit
    if count < len(entries):
        assert len(write(FetchBatchResponse(tuple(entries[: count + 1])))) > limit


@pytest.mark.parametrize("offset", [0, 99, 2**63 - 1])
@pytest.mark.parametrize("value", [None, b"", b"1", b"12", b"123", b"1234"])
def test_an_answer_that_fits_to_the_byte_fits(offset: int, value: bytes | None) -> None:
    for count in range(1, 60):
        entries = [LogEntry(offset, value)] * count
        exact = len(write(FetchBatchResponse(tuple(entries))))
        assert entries_that_fit(entries, exact) == count
        assert entries_that_fit(entries, exact - 1) == count - 1


@pytest.mark.parametrize("value_bytes", [0, 1, 2, 3, 100, 1_000_000])
def test_a_full_answer_goes_through(value_bytes: int) -> None:
    value = bytes(value_bytes)
    entries = [LogEntry(offset, value) for offset in range(150_000 if value_bytes < 1000 else 20)]
    count = entries_that_fit(entries)
    assert 0 < count < len(entries)
    client, server = ClientConnection(), ServerConnection()
    client.request(FetchBatchRequest("t"))
    (event,) = feed(client, server.respond(FetchBatchRequest("t"), FetchBatchResponse(tuple(entries[:count]))))
    assert not isinstance(event, Refused)
    assert event == FetchBatchResponse(tuple(entries[:count]))
    assert (
        count == ENTRIES_PER_ANSWER_MAX
        or len(write(FetchBatchResponse(tuple(entries[: count + 1])))) > PAYLOAD_BYTES_MAX
    )


def test_the_largest_value_can_be_fetched_at_the_largest_offset() -> None:
    entry = LogEntry(2**63 - 1, bytes(VALUE_BYTES_MAX))
    assert entries_that_fit([entry]) == 1
    for message in (FetchResponse(entry), FetchBatchResponse((entry,)), FetchStreamResponse(entry)):
        frame(message)
    assert entries_that_fit([LogEntry(2**63 - 1, bytes(VALUE_BYTES_MAX + 1))]) == 0


@given(st.text("abc._-", max_size=249))
def test_the_largest_chunk_can_be_sent(topic: str) -> None:
    largest = raw_chunk_bytes_max(topic)
    around = len(write(ReplicateResponse(topic, b"", False, -(2**63))))
    assert around + (largest + 2) // 3 * 4 <= PAYLOAD_BYTES_MAX < around + (largest + 3) // 3 * 4
