"""As many records as `fitting` says make an answer that can be sent, and hardly one more would."""

from hypothesis import given
from hypothesis import strategies as st
from tests.wire.rustlog import strategies

from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog import sizes
from braidlog.wire.rustlog.connection import Request, ServerConnection
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX, Form


def fetch(form: Form, request_id: m.Id = None) -> Request:
    return Request(m.Fetch("g", "t", 0, 0, 1, id=request_id), form)


@given(st.lists(strategies.fetched, max_size=12), strategies.u64, strategies.ids, st.integers(2000, 4000))
def test_a_json_answer_of_what_fits_is_within_the_limit(
    records: list[m.FetchedRecord], next_offset: int, request_id: m.Id, limit: int
) -> None:
    count = sizes.fitting(records, limit)
    answer = m.FetchResponse(records[:count], next_offset)
    assert len(ServerConnection().respond(fetch(Form.JSON, request_id), answer)) - 4 <= limit


@given(strategies.fetched)
def test_a_json_record_is_measured_within_its_digits(record: m.FetchedRecord) -> None:
    with_one = m.FetchResponse([record, record], 0)
    without = m.FetchResponse([record], 0)
    server = ServerConnection()
    real = len(server.respond(fetch(Form.JSON), with_one)) - len(server.respond(fetch(Form.JSON), without))
    digits = 38 - len(str(record.offset)) - len(str(record.timestamp))
    assert sizes.json_record_bytes(record) == real + digits + (1 if record.headers else 0)


def test_a_record_too_large_for_any_answer_does_not_fit() -> None:
    assert sizes.fitting([m.FetchedRecord(0, 0, bytes(FRAME_BYTES_MAX))]) == 0


def test_the_longest_id_is_counted_in() -> None:
    """256 control characters, six bytes each, beside records that fill the answer to the brim."""
    record = m.FetchedRecord(2**63 - 1, 2**63 - 1, b"")
    limit = sizes.JSON_ANSWER_BYTES + 10 * sizes.json_record_bytes(record)
    assert sizes.fitting([record] * 11, limit) == 10
    answer = m.FetchResponse([record] * 10, 2**64 - 1)
    size = len(ServerConnection().respond(fetch(Form.JSON, "\x01" * 256), answer)) - 4
    assert size == limit - 1  # the last record has no comma


def test_what_a_binary_client_wrote_may_be_too_large_for_json() -> None:
    value = bytes(8 * 1024 * 1024)
    assert ServerConnection().respond(fetch(Form.BINARY), m.BriefFetchResponse([value], 1))
    assert sizes.fitting([m.FetchedRecord(0, 0, value)]) == 0
