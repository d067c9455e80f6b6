"""Counts how many entries fit one frame, so that an answer is limited before it is built.

Invariant: entries counted by `entries_that_fit` make a FetchBatchResponse that `respond` accepts and our client
reads.

    {"Entries":[{"Offset":7,"Value":"aGVsbG8="},{"Offset":8,"Value":null}]}
    ~~~~~~~~~~~~                                                         ~~   13 bytes + 1 comma for each entry but the first
                {"Offset":7,"Value":"aGVsbG8="}                               21 bytes + digits + the value
"""

from collections.abc import Sequence
from typing import Final

from braidlog.codec.json_guard import TOKENS_MAX
from braidlog.wire.contract import base64_bytes, count_fitting
from braidlog.wire.mlog.messages import LogEntry
from braidlog.wire.mlog.replication import batch_bytes

PAYLOAD_BYTES_MAX: Final = 4 * 1024 * 1024
"""The document's MaxFrameSize: it limits the payload; a frame has six more bytes."""

ENTRIES_PER_ANSWER_MAX: Final = (TOKENS_MAX - 8) // 3
"""Maximum entries: each has three JSON tokens (a brace, a comma inside, a comma after), which `check_json` limits."""

_OFFSET_DIGITS_MAX: Final = 19
ANSWER_BYTES: Final = len('{"Entries":[]}') - 1  # the first entry has no comma before it
_ENTRY_BYTES: Final = len(',{"Offset":,"Value":}')

VALUE_BYTES_MAX: Final = (PAYLOAD_BYTES_MAX - ANSWER_BYTES - _ENTRY_BYTES - _OFFSET_DIGITS_MAX - 2) // 4 * 3
"""Maximum bytes of a value that can be fetched at any offset. A produce frame could hold a slightly larger value,
which could never be read.
"""


def entry_bytes(entry: LogEntry) -> int:
    """Return the bytes that one entry adds to a FetchBatchResponse, with its comma."""
    value = 4 if entry.value is None else 2 + base64_bytes(len(entry.value))
    return _ENTRY_BYTES + len(str(entry.offset)) + value


def entries_that_fit(entries: Sequence[LogEntry], payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> int:
    """Return how many of the first entries fit one FetchBatchResponse; 0 if the first does not fit."""
    sizes = [entry_bytes(entry) for entry in entries[:ENTRIES_PER_ANSWER_MAX]]
    return count_fitting(sizes, payload_bytes_max - ANSWER_BYTES)


def raw_chunk_bytes_max(topic: str) -> int:
    """Return the largest replication batch that one ReplicateResponse of this (valid, hence ASCII) topic can hold."""
    around = len('{"Topic":"","RawChunk":"","EndOfStream":false,"LeaderLEO":-9223372036854775808}') + len(topic)
    return (PAYLOAD_BYTES_MAX - around) // 4 * 3


def value_bytes_max(topic: str) -> int:
    """Return the largest value of this topic that can be fetched and replicated; a produce of a larger one fails."""
    return min(VALUE_BYTES_MAX, raw_chunk_bytes_max(topic) - batch_bytes(0, 1))
