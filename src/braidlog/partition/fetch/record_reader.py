"""Decode a slice of the log for a consumer: as records, or as rows already encoded for a dialect.

Invariant: at least one record is returned if any exists, however large. The next offset follows the last returned
record, or the slice if all of it was returned.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from braidlog.codec.batch.header import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    check_crc,
    read_header,
)
from braidlog.codec.batch.read_committed import visible
from braidlog.codec.batch.records import decode_section, read_section, write_section
from braidlog.codec.batch.records_section import Row
from braidlog.codec.batch.row_layout import RowForm
from braidlog.codec.batch.rows import Ended
from braidlog.codec.compression import Compression, DecompressedTooLarge
from braidlog.codec.errors import ProtocolError
from braidlog.model.record import Record
from braidlog.partition.produce.append import HERE_BYTES_MAX, HERE_COMPRESSED_BYTES_MAX
from braidlog.storage.log.partition_log import FileSlice, PartitionLog
from braidlog.storage.segment.segment import CheckBudget
from braidlog.storage.state.transaction_index import Aborted, ranges

PIECE_BYTES = 256 * 1024
HERE_RECORDS_MAX = 128 * 1024
"""Records decoded in one turn of the event loop where each becomes an object."""
HERE_ROWS_MAX = 1024 * 1024
"""Records decoded in one turn where none becomes an object."""

Found_co = TypeVar("Found_co", covariant=True)
Batch = tuple[bytes, int, BatchHeader]
"""Bytes, the position of the batch in them, its header."""


class Fetched(msgspec.Struct, frozen=True):
    """The result for one partition of a fetch: a slice of complete batches or nothing, and the offsets of its log."""

    slice: FileSlice | None
    start_offset: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[Aborted]
    preferred_replica: int | None = None
    """A node closer to the consumer that has the records: nothing was read here."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of a response. Bytes count keys and values, and headers too where records are decoded one by one."""

    bytes_max: int
    records_max: int


class Records(msgspec.Struct, frozen=True):
    """Decoded records, for dialects without batches.

    `next_offset` is the next fetch offset, also after skipped records.
    """

    records: list[Record]
    next_offset: int
    high_watermark: int


class Rows(msgspec.Struct, frozen=True):
    """Records encoded for a dialect. `next_offset` is the next fetch offset."""

    data: bytes
    count: int
    next_offset: int
    high_watermark: int
    ended: Ended = Ended.ALL

    @property
    def has_headers(self) -> bool:
        """Whether the rows end before a record with headers: a dialect with headers must fetch records instead."""
        return self.ended is Ended.HEADERS

    @property
    def is_too_large(self) -> bool:
        """Whether there is a record and not even the first one fits."""
        return self.ended is Ended.FULL and not self.count


class LargeBatch(Exception):  # noqa: N818 - not an error
    """The first requested batch is too large to be decompressed on the event loop."""

    def __init__(self, batch: bytes) -> None:
        super().__init__(f"a batch of {len(batch)} bytes")
        self.batch = batch


class Decode(Protocol[Found_co]):
    """Converts batches for a consumer: `decode` or `write`."""

    def __call__(
        self, batches: Iterable[Batch], offset: int, next_offset: int, *, limits: Limits
    ) -> tuple[Found_co | None, int]: ...


class Sections:
    """Iterate over the records sections of batches, as far as one turn of the event loop allows; then read `ended`.

    Raises `LargeBatch` if the first batch is too large; a later one ends the iteration.
    """

    def __init__(self, batches: Iterable[Batch], offset: int, *, records_max: int) -> None:
        self._batches = batches
        self._offset = offset
        self._records_left = self._records_max = records_max
        self._bytes_left = HERE_BYTES_MAX
        self.ended: int | None = None
        """The next offset, if the iteration did not reach the last batch."""

    def __iter__(self) -> Iterator[tuple[Buffer, BatchHeader]]:
        for data, position, header in self._batches:
            if header.last_offset < self._offset:
                continue
            if self._bytes_left <= 0 or self._records_left <= 0:
                self.ended = header.base_offset
                return
            check_crc(data, position, header)
            section = self._open(data, position, header)
            if section is None:
                if self._bytes_left == HERE_BYTES_MAX and self._records_left == self._records_max:
                    raise LargeBatch(bytes(memoryview(data)[position : position + header.size_bytes]))
                self.ended = header.base_offset
                return
            self._records_left -= header.record_count
            yield section, header

    def _open(self, data: bytes, position: int, header: BatchHeader) -> Buffer | None:
        if header.record_count > self._records_left:
            return None
        if header.compression == Compression.NONE:
            return read_section(data, position, header, decompressed_bytes_max=0)
        if header.size_bytes > HERE_COMPRESSED_BYTES_MAX:
            return None
        try:
            section = read_section(data, position, header, decompressed_bytes_max=self._bytes_left)
        except DecompressedTooLarge:
            return None
        self._bytes_left -= len(section)
        return section


def slice_of(
    log: PartitionLog, offset: int, room: int, upto: int, budget: CheckBudget, *, is_first: bool
) -> FileSlice | None:
    """Return complete batches: the first one of a fetch however large it is, later ones only if they fit."""
    if room <= 0 and not is_first:
        return None
    found = log.slice_at(offset, room, upto=upto, budget=budget)
    return found if found is None or is_first or found.size <= room else None


def visible_batches(found: FileSlice, aborted: Iterable[Aborted]) -> Iterator[Batch]:
    """Yield the batches of a slice that are not aborted."""
    return visible(batches_of(found), ranges(aborted))


def decode(batches: Iterable[Batch], offset: int, next_offset: int, *, limits: Limits) -> tuple[list[Record], int]:
    """Decode the records from `offset` on; return them and the next offset, `next_offset` if all batches were used."""
    found: list[Record] = []
    left = limits.bytes_max
    sections = Sections(batches, offset, records_max=HERE_RECORDS_MAX)
    for section, header in sections:
        for row in decode_section(section, header):
            if row[0] < offset:
                continue
            left -= _size(row)
            if found and (left < 0 or len(found) >= limits.records_max):
                return found, row[0]
            found.append(Record(*row))
    return found, next_offset if sections.ended is None else sections.ended


def write(
    batches: Iterable[Batch], offset: int, next_offset: int, *, limits: Limits, form: RowForm
) -> tuple[tuple[bytes, int, Ended] | None, int]:
    """Encode the records as rows; return (bytes, count, end reason), or None without a record, and the next offset."""
    pieces: list[bytes] = []
    count = size = 0
    ended = Ended.ALL
    sections = Sections(batches, offset, records_max=HERE_ROWS_MAX)
    for section, header in sections:
        written = write_section(
            section,
            header,
            form,
            start_offset=offset,
            records_max=limits.records_max - count,
            content_bytes_max=limits.bytes_max - size,
            follows=count > 0,
        )
        pieces.append(written.data)
        count += written.count
        size += written.content_bytes
        ended = written.ended
        if ended:
            next_offset = written.next_offset
            break
        if count >= limits.records_max or size >= limits.bytes_max:
            next_offset = header.last_offset + 1
            break
        form = form._replace(bytes_max=form.bytes_max - len(written.data))
    else:
        next_offset = next_offset if sections.ended is None else sections.ended
    if not count and not ended:
        return None, next_offset
    return (pieces[0] if len(pieces) == 1 else b"".join(pieces), count, ended), next_offset


class RowsOf(NamedTuple):
    """Rows, the slice that they come from, and the next offset."""

    data: bytes
    number: int
    ended: Ended
    offset: int
    next_offset: int
    slice: FileSlice

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record in the slice, rounded up; 0 without records."""
        if not self.number:
            return 0
        offsets = self.slice.next_offset - self.slice.offset
        return self.slice.size * (self.next_offset - self.offset) * 9 // (offsets * self.number * 8) + 1

    def could_be_more(self, upto: int, limits: Limits) -> bool:
        """Whether the rows end with their slice, and neither the log end nor a limit was reached."""
        return self.ended is Ended.ALL and self.number < limits.records_max and self.slice.next_offset < upto


def write_slice(
    log: PartitionLog, offset: int, upto: int, room: int, *, limits: Limits, form: RowForm, committed_only: bool
) -> RowsOf | None:
    """Encode about `room` bytes of a log as rows; None if there is nothing to read, or no record in it."""
    found = log.slice_at(offset, room, upto=upto)
    if found is None:
        return None
    aborted = log.aborted_in(offset, found.next_offset) if committed_only else ()
    data = _first_piece(found, limits.records_max)
    if not aborted and (alone := _write_lone(found, data, offset, limits, form)) is not None:
        return alone
    batches = visible(batches_of(found, data), ranges(aborted))
    written, next_offset = write(batches, offset, found.next_offset, limits=limits, form=form)
    return None if written is None else RowsOf(*written, offset, next_offset, found)


def _write_lone(found: FileSlice, data: bytes, offset: int, limits: Limits, form: RowForm) -> RowsOf | None:
    """Encode a slice that is one uncompressed data batch: the common case of a consumer at the log end.

    None if the slice is different, or has no record from `offset` on.
    """
    if len(data) != found.size:
        return None
    header = read_header(data)
    is_plain = not header.attributes & (COMPRESSION_MASK | CONTROL)
    if header.size_bytes != found.size or not is_plain or header.record_count > HERE_ROWS_MAX:
        return None
    check_crc(data, 0, header)
    rows, count, _, ended, next_offset = write_section(
        memoryview(data)[HEADER_BYTES:],
        header,
        form,
        start_offset=offset,
        records_max=limits.records_max,
        content_bytes_max=limits.bytes_max,
        follows=False,
    )
    if not ended:
        if not count:
            return None
        next_offset = found.next_offset
    return tuple.__new__(RowsOf, (rows, count, ended, offset, next_offset, found))


def _first_piece(found: FileSlice, records_max: int) -> bytes:
    """Read about as many bytes as `records_max` records take, so that a small request does not read the whole slice."""
    average = found.size * records_max // (found.next_offset - found.offset)
    return found.file.read_at(min(PIECE_BYTES, average + (average >> 4) + HEADER_BYTES, found.size), found.position)


def batches_of(found: FileSlice, first: bytes = b"") -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Yield each batch of a slice, reading in pieces, so that a caller that stops early has not read the rest.

    `first` is the beginning of the slice if the caller has read it.
    """
    start, end = found.position, found.position + found.size
    size = PIECE_BYTES
    while start < end:
        asked = len(first) or min(size, end - start)
        data, first = first or found.file.read_at(asked, start), b""
        position = 0
        header = read_header(data)
        while position + header.size_bytes <= len(data):
            yield data, position, header
            position += header.size_bytes
            if len(data) - position < HEADER_BYTES:
                break
            header = read_header(data, position)
        if not position and (len(data) < asked or header.size_bytes > end - start):
            # Since its verification the file has become shorter, or the batch states a larger size.
            raise ProtocolError(f"batch of {header.size_bytes} bytes is truncated after {len(data)}", start)
        start += position
        size = PIECE_BYTES if position else header.size_bytes  # a batch that is larger than a piece is read alone


def _size(row: Row) -> int:
    """Return the size of a record's key, value and headers, without a dialect's overhead."""
    _, _, key, value, headers = row
    size = len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"")
    return size
