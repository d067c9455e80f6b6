"""From a slice of the log to what a reader is given: records one by one, or columns.

Knows: which batches a reader sees, and where an answer must stop. Refuses to know: how a slice is found or waited for.
Invariant: at least one record is given if there is any, however large; where to go on is after the last one given, or after the
slice if all of it was.
"""

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from braidlog.codec.batch import HEADER_BYTES, BatchHeader, check_crc, read_header
from braidlog.codec.columns import Columns
from braidlog.codec.layout import Layout
from braidlog.codec.records import append_to_columns, decode_batch
from braidlog.codec.rows import write_rows
from braidlog.codec.section import Row
from braidlog.codec.visible import visible
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.record import Record
from braidlog.storage.partition import FileSlice
from braidlog.storage.transactions import Aborted, ranges

PIECE_BYTES = 256 * 1024


class Fetched(msgspec.Struct, frozen=True):
    """What one partition gave: a slice of whole batches, or nothing; and where its log stands."""

    slice: FileSlice | None
    start_offset: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[Aborted]


class Limits(msgspec.Struct, frozen=True):
    """Where an answer stops. Bytes are those of keys and values (and of headers, where each record is looked at)."""

    bytes_max: int
    records_max: int


class Records(msgspec.Struct, frozen=True):
    """Records one by one, for dialects that carry no batches. `next_offset` is where to go on, also past what was left out."""

    records: list[Record]
    next_offset: int
    high_watermark: int


class Rows(msgspec.Struct, frozen=True):
    """The first `count` rows of columns; None when there are none."""

    columns: Columns | None
    count: int
    next_offset: int
    high_watermark: int

    @property
    def has_headers(self) -> bool:
        """Whether a record has headers, which rows do not carry."""
        return self.columns is not None and self.columns.header_lists.nulls < self.columns.rows

    def write(self, layout: Layout, bytes_max: int, between: bytes = b"") -> tuple[bytes, int, int]:
        """As many rows as fit: their bytes, how many they are, and where to go on after them."""
        if self.columns is None:
            return b"", 0, self.next_offset
        data, written = write_rows(self.columns, layout, rows=self.count, bytes_max=bytes_max, between=between)
        return data, written, self.next_offset if written == self.count else self.offset_of(written)

    def offset_of(self, row: int) -> int:
        assert self.columns is not None
        with memoryview(self.columns.offsets) as raw, raw.cast("q") as offsets:
            return offsets[row]


def decode_slice(fetched: Fetched, offset: int, *, limits: Limits) -> tuple[list[Record], int]:
    """The records of a slice from `offset` on, and where to go on."""
    assert fetched.slice is not None
    found: list[Record] = []
    left = limits.bytes_max
    for data, position, _ in visible(batches_of(fetched.slice), ranges(fetched.aborted)):
        for row in decode_batch(data, position, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            if row[0] < offset:
                continue
            left -= _size(row)
            if found and (left < 0 or len(found) >= limits.records_max):
                return found, row[0]
            found.append(Record(*row))
    return found, fetched.slice.next_offset


def slice_to_columns(fetched: Fetched, offset: int, *, limits: Limits) -> tuple[tuple[Columns, int] | None, int]:
    """The same as columns and how many of their rows count."""
    assert fetched.slice is not None
    columns = Columns()
    next_offset = fetched.slice.next_offset
    for data, position, header in visible(batches_of(fetched.slice), ranges(fetched.aborted)):
        check_crc(data, position, header)
        limit = DECOMPRESSED_BYTES_MAX
        append_to_columns(columns, data, position, header, decompressed_bytes_max=limit, start_offset=offset)
        if columns.rows >= limits.records_max or columns.key.size + columns.value.size > limits.bytes_max:
            next_offset = header.last_offset + 1
            break
    if not columns.rows:
        return None, next_offset
    columns.finish()
    count = _fitting(columns, limits)
    if count < columns.rows:
        next_offset = Rows(columns, count, 0, 0).offset_of(count)
    return (columns, count), next_offset


def _fitting(columns: Columns, limits: Limits) -> int:
    """How many rows stay within the limits: one at least."""
    count = min(columns.rows, limits.records_max)
    if columns.key.size + columns.value.size <= limits.bytes_max:
        return count
    with (
        memoryview(columns.key.ends) as raw_keys,
        memoryview(columns.value.ends) as raw_values,
        raw_keys.cast("i") as keys,
        raw_values.cast("i") as values,
    ):
        fitting = bisect_right(range(count + 1), limits.bytes_max, key=lambda row: keys[row] + values[row]) - 1
    return max(fitting, 1)


def batches_of(found: FileSlice) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Each batch of a slice. Read in pieces: who has enough after the first has not paid for the rest."""
    start, end = found.position, found.position + found.size
    size = PIECE_BYTES
    while start < end:
        data = found.file.read_at(min(size, end - start), start)
        position = 0
        header = read_header(data)
        while position + header.size_bytes <= len(data):
            yield data, position, header
            position += header.size_bytes
            if len(data) - position < HEADER_BYTES:
                break
            header = read_header(data, position)
        start += position
        size = PIECE_BYTES if position else header.size_bytes  # a batch that is larger than a piece is read alone


def _size(row: Row) -> int:
    """What a record weighs in an answer: its key, value and headers; what a dialect adds around them is its own affair."""
    _, _, key, value, headers = row
    size = len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"")
    return size
