"""Counts how many records fit a Fetch answer before it is built. The binary form is measured while it is written.

Invariant: `respond` never rejects an answer of as many records as `fitting` returns; at most a few bytes stay unused.

    JSON     {"type":"FetchResponse","records":[ … , … ],"next_offset":N,"id":…}        one record:
             {"offset":N,"timestamp":N,"payload":"base64","key":"base64","headers":[["name","base64"], … ]},
    binary   type 1 | n 4 | … | next_offset 8
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from braidlog.wire.contract import base64_bytes, count_fitting
from braidlog.wire.rustlog.messages import FRAME_BYTES_MAX, FetchedRecord

BINARY_ANSWER_BYTES: Final = 1 + 4 + 8

_DIGITS: Final = 19  # digits of the largest offset or timestamp
JSON_ANSWER_BYTES: Final = len('{"type":"FetchResponse","records":[],"next_offset":,"id":""}') + 20 + 6 * 256
"""Maximum bytes around the records with the longest id: 256 characters, each of which may be escaped as six."""
JSON_RECORD_BYTES: Final = len('{"offset":,"timestamp":,"payload":""},') + 2 * _DIGITS


def json_record_bytes(record: FetchedRecord) -> int:
    """Return the maximum bytes of a record in a JSON answer, with its comma."""
    size = JSON_RECORD_BYTES + base64_bytes(len(record.payload))
    if record.key is not None:
        size += len(',"key":""') + base64_bytes(len(record.key))
    if record.headers:
        size += len(',"headers":[]') + sum(_header_bytes(name, value) for name, value in record.headers)
    return size


def _header_bytes(name: str, value: bytes | None) -> int:
    value_bytes = len("null") if value is None else len('""') + base64_bytes(len(value))
    return len("[,],") + len(msgspec.json.encode(name)) + value_bytes


def fitting(records: Sequence[FetchedRecord], answer_bytes_max: int = FRAME_BYTES_MAX) -> int:
    """Return how many of the first records fit one JSON answer; 0 if the first record is too large for this form."""
    return count_fitting(list(map(json_record_bytes, records)), answer_bytes_max - JSON_ANSWER_BYTES)
