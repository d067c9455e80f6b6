"""A plain answer to CONSUME is never ambiguous, and an answer is never longer than a line."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wire.flux.conversation import ask_one

from braidlog.model.record import Record
from braidlog.wire.contract import Refused
from braidlog.wire.flux.connection import ServerConnection
from braidlog.wire.flux.messages import Consume, Consumed, ConsumedRecord, Encoding, ErrorCode, Failed, Response
from braidlog.wire.flux.records import (
    LINE_BYTES_MAX,
    RECORDS_PER_LINE_MAX,
    answer_records,
    record_bytes,
    records_that_fit,
)

PLAIN = Consume("1", "orders", 0, 0)
BASE64 = Consume("1", "orders", 0, 0, Encoding.BASE64)
# What Python's strip, Go's TrimSpace and JavaScript's trim take away, all together.
TRIMMED = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)


def recorded(*values: bytes | None, first: int = 0) -> list[Record]:
    return [Record(first + at, 1_700_000_000_000, b"user1", value) for at, value in enumerate(values)]


def naive_client(line: bytes) -> list[tuple[int, str]]:
    """An answer as the published clients read it: cut at the first ` hw=`, trim, split at commas, split at the first colon."""
    text = line.decode("utf-8").strip(TRIMMED)
    payload = "|".join(text.split("|")[3:])
    shown = payload.split("messages=", 1)[1].split(" hw=", 1)[0].strip(TRIMMED)
    pairs = [item.split(":", 1) for item in shown.split(",") if item]
    return [(int(offset), value) for offset, value in pairs]


TRICKY = st.text(st.sampled_from("ab,:|=;[] hw0123" + TRIMMED), max_size=8).map(str.encode)
VALUE = st.none() | TRICKY | st.binary(max_size=8) | st.text(max_size=8).map(str.encode) | st.just(b"ok")


@given(st.lists(VALUE, max_size=6), st.integers(0, 10**6))
@example([b"a", b"\xc3", b"\xa9"], 0)  # two halves of one character
@example([b"a hw=5"], 0)
@example([b"x,1:y"], 0)
@example([b"messages=", b" "], 0)
def test_any_client_reads_the_records_that_were_meant_or_is_told_of_base64(
    values: list[bytes | None], first: int
) -> None:
    records = recorded(*values, first=first)
    line = ServerConnection().respond(PLAIN, Consumed(records, 99))
    if line.startswith(b"V1|1|ERR|BAD_REQUEST|"):
        assert b"enc=b64" in line
        assert b"record %d " % first in line
        return
    shown = naive_client(line)
    assert shown == [(record.offset, (record.value or b"").decode()) for record in records[: len(shown)]]
    # What is missing begins with a record that cannot be shown: asked for from there, it is the error.
    if len(shown) < len(records):
        assert b"enc=b64" in ServerConnection().respond(PLAIN, Consumed(records[len(shown) :], 99))
    ours = ask_one(PLAIN, line)
    assert isinstance(ours, Response)
    assert isinstance(ours.answer, Consumed)
    assert [(record.offset, record.value) for record in ours.answer.records] == [(o, v.encode()) for o, v in shown]


@pytest.mark.parametrize(
    "value",
    [
        b"a b",
        b"a,b",
        b"a\nb",
        b"a\r",
        b"\xff",
        None,
        "a\u00a0".encode(),
        b" hw=7",
        "\ufeffa".encode(),
        b"a\x1c",
        b"a\x1f",
    ],
)
def test_a_value_that_plain_text_cannot_say_is_an_error_that_names_the_cure(value: bytes | None) -> None:
    records = recorded(value, first=17)
    line = ServerConnection().respond(PLAIN, Consumed(records, 17))
    assert line.startswith(b"V1|1|ERR|BAD_REQUEST|record 17 ")
    assert b"enc=b64" in line
    assert line.count(b"\n") == 1
    answered = ask_one(BASE64, ServerConnection().respond(BASE64, Consumed(records, 17)))
    assert answered == Response("1", Consumed((ConsumedRecord(17, b"user1", value),), 17))


def test_the_records_before_one_that_cannot_be_shown_are_shown() -> None:
    line = ServerConnection().respond(PLAIN, Consumed(recorded(b"a", b"b", b"c d", b"e"), 3))
    assert line == b"V1|1|OK|messages=0:a,1:b hw=3\n"


@pytest.mark.parametrize("value", ["", "é", "a:b", "a|b", "a=b", "[a]", "日本", "a\x00b", "messages=", "-", "\u200b"])
def test_what_plain_text_can_say_is_said_plainly(value: str) -> None:
    line = ServerConnection().respond(PLAIN, Consumed(recorded(value.encode()), 0))
    assert line == f"V1|1|OK|messages=0:{value} hw=0\n".encode()


SIZES = (
    st.integers(0, 3 * LINE_BYTES_MAX // 2) | st.integers(LINE_BYTES_MAX - 60, LINE_BYTES_MAX) | st.integers(0, 2000)
)


@given(
    st.lists(SIZES, max_size=5),
    st.sampled_from(Encoding),
    st.none() | st.integers(1, 6),
    st.text("é7", min_size=1, max_size=20),
)
def test_as_many_records_fit_as_fit(
    sizes: list[int], encoding: Encoding, records_max: int | None, correlation_id: str
) -> None:
    request = Consume(correlation_id, "orders", 0, 0, encoding, records_max)
    records = recorded(*[b"v" * size for size in sizes], first=2**62)
    fit = records_that_fit(request, records)
    assert fit <= min(len(records), records_max or len(records))
    line = ServerConnection().respond(request, Consumed(records[:fit], 2**63 - 1))
    assert len(line) <= LINE_BYTES_MAX + 1
    if fit < min(len(records), records_max or len(records)):
        room = LINE_BYTES_MAX + 1 - len(line)
        assert record_bytes(request, records[fit]) + 20 > room  # 20: the watermark may have any length


@pytest.mark.parametrize("encoding", Encoding)
def test_what_one_record_takes_is_measured_exactly(encoding: Encoding) -> None:
    request = Consume("1", "orders", 0, 0, encoding)
    server = ServerConnection()
    empty = len(server.respond(request, Consumed([], 5)))
    for offset in (0, 9, 10, 99, 2**63 - 1):
        for size in range(8):
            record = ConsumedRecord(offset, b"k" * (size // 2), b"v" * size)
            assert len(server.respond(request, Consumed([record], 5))) == empty + record_bytes(request, record) - 1


def test_an_answer_that_is_too_long_is_not_written() -> None:
    records = recorded(b"v" * (LINE_BYTES_MAX - 10))
    with pytest.raises(ValueError, match="too long"):
        ServerConnection().respond(PLAIN, Consumed(records, 0))


def test_an_answer_of_exactly_the_limit_is_written_and_read() -> None:
    size = LINE_BYTES_MAX - len(b"V1|1|OK|messages=0: hw=0")
    line = ServerConnection().respond(PLAIN, Consumed(recorded(b"v" * size), 0))
    assert len(line) == LINE_BYTES_MAX + 1
    assert isinstance(ask_one(PLAIN, line), Response)
    with pytest.raises(ValueError, match="too long"):
        ServerConnection().respond(PLAIN, Consumed(recorded(b"v" * (size + 1)), 0))


@pytest.mark.parametrize(("key", "value"), [(0, 800_000), (800_000, 0), (400_000, 400_000)])
def test_base64_is_longer_than_what_it_says(key: int, value: int) -> None:
    record = ConsumedRecord(0, b"k" * key, b"v" * value)
    assert records_that_fit(PLAIN, [record]) == 1
    assert records_that_fit(BASE64, [record]) == 0


def test_a_record_that_no_line_holds_is_an_error_and_not_an_empty_answer() -> None:
    answer = answer_records(PLAIN, recorded(b"v" * LINE_BYTES_MAX, b"w"), 1)
    assert isinstance(answer, Failed)
    assert answer.code == ErrorCode.BAD_REQUEST
    assert "another listener" in answer.message


def test_records_are_cut_by_max_and_by_the_line() -> None:
    records = recorded(*[b"v" * 400_000] * 3)
    assert answer_records(PLAIN, records, 2) == Consumed(records[:2], 2)
    assert answer_records(BASE64, records, 2) == Consumed(records[:1], 2)
    assert answer_records(Consume("1", "t", 0, 0, records_max=1), records, 2) == Consumed(records[:1], 2)
    assert answer_records(PLAIN, [], -1) == Consumed([], -1)


def test_a_line_never_shows_more_records_than_a_client_takes() -> None:
    records = [ConsumedRecord(at, None, b"") for at in range(RECORDS_PER_LINE_MAX + 1)]
    answer = answer_records(PLAIN, records, 5)
    assert isinstance(answer, Consumed)
    assert len(answer.records) == RECORDS_PER_LINE_MAX
    read = ask_one(PLAIN, ServerConnection().respond(PLAIN, answer))
    assert isinstance(read, Response)
    too_many = b",".join(b"%d:" % at for at in range(RECORDS_PER_LINE_MAX + 1))
    assert isinstance(ask_one(PLAIN, b"V1|1|OK|messages=%b hw=5\n" % too_many), Refused)


@pytest.mark.parametrize(
    "payload",
    [
        "messages=1:a,1:b hw=1",
        "messages=2:a,1:b hw=1",
        "messages=a hw=1",
        "messages=0:a b hw=1",
        "messages=0:a",
        "hw=1",
        "messages=-1:a hw=1",
    ],
)
def test_a_client_does_not_guess(payload: str) -> None:
    event = ask_one(PLAIN, f"V1|1|OK|{payload}\n".encode())
    assert isinstance(event, Refused)
    assert event.close


@pytest.mark.parametrize("item", [b"0:aGk=", b"0:a:aGk=", b"0:-:-:-", b"0:aGk", b":-:-", b"0:--:-"])
def test_a_client_does_not_guess_base64(item: bytes) -> None:
    assert isinstance(ask_one(BASE64, b"V1|1|OK|messages=%b hw=1\n" % item), Refused)
