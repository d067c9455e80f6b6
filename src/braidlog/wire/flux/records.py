"""Records on a line of CONSUME or BROKER_FETCH, in two spellings that cannot be misread.

Invariant: any client that follows the document reads the same records back. Values that plain text cannot express are
never written plainly.

    plain               messages=0:created,1:paid hw=1                      offset:value
    enc=b64 (ours)      messages=0:dXNlcjE=:Y3JlYXRlZA==,1:-:cGFpZA== hw=1  offset:key:value, `-` for null
"""

import re
from collections.abc import Sequence
from typing import Final

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import base64_bytes
from braidlog.wire.flux.messages import (
    BrokerFetch,
    BrokerFetched,
    Consumed,
    ConsumedRecord,
    Encoding,
    ErrorCode,
    Failed,
    RecordsAsked,
    ShownRecord,
)
from braidlog.wire.flux.tokens import I64_MAX, read_base64, shown, write_base64

LINE_BYTES_MAX: Final = 1024 * 1024
"""Lines have at most 1 MiB in both directions (the Flux page, §5), without the newline; one byte more is rejected."""

RECORDS_PER_LINE_MAX: Final = 100_000
"""Maximum records of a line, checked by a client before it creates objects: a megabyte of text must not take a
hundred of memory.
"""

# Published clients cut the payload at " hw=" and trim the rest by their own language's definition of whitespace:
# Python's (which has 1C..1F), Go's, and JavaScript's (which has U+FEFF). They could change a value that contains any
# of it.
_ASCII_BLANKS: Final = tuple(bytes((byte,)) for byte in b" \t\n\v\f\r\x1c\x1d\x1e\x1f")
_BLANK: Final = re.compile(r"[\s\ufeff]")


def plain_text_problem(value: bytes | None) -> str | None:
    """Return why plain text cannot express a value; None if it can."""
    if value is None:
        return "is null"
    if b"," in value:
        return "has a comma"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return "is not UTF-8"
    return "has a blank" if _BLANK.search(text) else None


def plain_text(records: Sequence[ShownRecord]) -> bytes | None:
    """Return `0:created,1:paid`, or None if some value cannot be written plainly.

    The finished text is checked as a whole, not value by value: values are separated by commas, so commas are
    counted, and a blank or an invalid character must come from a value.
    """
    try:
        parts = [b"%d:%b" % (record.offset, record.value) for record in records]  # type: ignore[str-format]
    except TypeError:  # a null value
        return None
    text = b",".join(parts)
    if text.count(b",") != max(len(parts) - 1, 0):
        return None
    if text.isascii():
        return None if any(blank in text for blank in _ASCII_BLANKS) else text
    try:
        return None if _BLANK.search(text.decode("utf-8")) else text
    except UnicodeDecodeError:
        return None


def base64_text(records: Sequence[ShownRecord]) -> bytes:
    """`0:dXNlcjE=:Y3JlYXRlZA==,1:-:cGFpZA==`"""
    return b",".join(
        [b"%d:%b:%b" % (record.offset, write_base64(record.key), write_base64(record.value)) for record in records]
    )


def write_records(request: RecordsAsked, records: Sequence[ShownRecord]) -> bytes | Failed:
    """Return the text after `messages=` or `records=`.

    A plain answer is never ambiguous (the Flux page, §7). It ends before the first record that cannot be written
    plainly. If that record is the first, the answer is an error that names it and the remedy.
    """
    text = base64_text(records) if request.encoding is Encoding.BASE64 else plain_text(records)
    if text is None:
        at, fault = first_fault(records)
        if at == 0:
            offset = records[0].offset
            return Failed(
                ErrorCode.BAD_REQUEST, f"record {offset} {fault} and cannot be sent as plain text: use enc=b64"
            )
        text = plain_text(records[:at])
        assert text is not None, "a record fits plain text alone and not among others"
    return text


def first_fault(records: Sequence[ShownRecord]) -> tuple[int, str]:
    """Return index and problem of the first record that plain text cannot express. One exists."""
    for at, record in enumerate(records):
        if fault := plain_text_problem(record.value):
            return at, fault
    raise AssertionError("each record fits plain text, but their text was rejected")


# --- how many records fit

_FRAME_BYTES = len(b"V1||OK|topic= partition= follower= hw= records=") + 40
_RECORD_OVERHEAD_MAX = len(b"9223372036854775807::,") + 8  # two base64 texts are padded to four bytes each


def record_bytes(request: RecordsAsked, record: ShownRecord) -> int:
    """Return the bytes of one record on the answer's line, with its comma."""
    size = len(b"%d:," % record.offset)
    if request.encoding is Encoding.BASE64:
        return size + 1 + _base64_bytes(record.key) + _base64_bytes(record.value)
    return size + len(record.value or b"")


def _base64_bytes(data: bytes | None) -> int:
    return 1 if data is None else base64_bytes(len(data))


def records_that_fit(request: RecordsAsked, records: Sequence[ShownRecord]) -> int:
    """Return how many of the first records fit one answer to `request`: limited by its `max` and by the length of a
    line.
    """
    count = min(len(records), request.records_max or len(records), RECORDS_PER_LINE_MAX)
    room = LINE_BYTES_MAX - _FRAME_BYTES - len(request.correlation_id.encode()) - len(request.topic.encode())
    if _bytes_bound(request, records) <= room:  # the usual case, without measuring each record
        return count
    for at in range(count):
        room -= record_bytes(request, records[at])
        if room < -1:  # the last record has no comma
            return at
    return count


def _bytes_bound(request: RecordsAsked, records: Sequence[ShownRecord]) -> int:
    values = sum([len(record.value or b"") for record in records])
    if request.encoding is Encoding.BASE64:
        values = (values + sum([len(record.key or b"") for record in records])) * 4 // 3
    return values + len(records) * _RECORD_OVERHEAD_MAX


def answer_records(
    request: RecordsAsked, records: Sequence[ShownRecord], high_watermark: int
) -> Consumed | BrokerFetched | Failed:
    """Return the answer with as many of these records as fit; an error if not even the first fits a line."""
    count = records_that_fit(request, records)
    if records and not count:
        size = f"{record_bytes(request, records[0])} bytes, a line may have {LINE_BYTES_MAX}"
        fault = f"record {records[0].offset} takes {size}: read it through another listener"
        return Failed(ErrorCode.BAD_REQUEST, fault)
    fitting = records if count == len(records) else records[:count]
    if isinstance(request, BrokerFetch):
        return BrokerFetched(request.topic, request.partition, request.follower_id, high_watermark, fitting)
    return Consumed(fitting, high_watermark)


# --- the client's side ------------------------------------------------------------------------------------------------------


def read_records(request: RecordsAsked, text: bytes) -> tuple[ConsumedRecord, ...]:
    """Parse the records of such a text. Offsets must rise: an unescaped comma in a value usually breaks that."""
    if not text:
        return ()
    if text.count(b",") >= RECORDS_PER_LINE_MAX:
        raise ProtocolError(f"a line may have at most {RECORDS_PER_LINE_MAX} records")
    read = _read_base64_item if request.encoding is Encoding.BASE64 else _read_plain_item
    records = tuple(map(read, text.split(b",")))
    last = -1
    for record in records:
        if not last < record.offset <= I64_MAX:
            raise ProtocolError(f"offset {record.offset} follows offset {last}")
        last = record.offset
    return records


def _read_offset(word: bytes) -> int:
    if not word.isdigit() or len(word) > 19:
        raise ProtocolError(f"{shown(word)} is not an offset")
    return int(word)


def _read_plain_item(item: bytes) -> ConsumedRecord:
    offset, colon, value = item.partition(b":")
    if not colon:
        raise ProtocolError(f"{shown(item)} is not offset:value")
    return ConsumedRecord(_read_offset(offset), None, value)


def _read_base64_item(item: bytes) -> ConsumedRecord:
    parts = item.split(b":", 3)
    if len(parts) != 3:
        raise ProtocolError(f"{shown(item)} is not offset:key:value")
    return ConsumedRecord(_read_offset(parts[0]), read_base64(parts[1]), read_base64(parts[2]))
