"""Reads closed segments as Arrow columns: committed records only, in log order.

Every byte that is used has a valid checksum; a file that differs from the planned one is not read. Does not handle:
tables.
"""

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from braidlog.codec.batch.header import BatchHeader
from braidlog.codec.batch.read_committed import visible
from braidlog.codec.columns.arrow import COLUMN_NAMES, PieceBuilder, PieceLimits, arrow_schema
from braidlog.codec.errors import ProtocolError
from braidlog.model.errors import StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.storage.compaction.compaction_merge import Source
from braidlog.storage.files import Disk, File
from braidlog.storage.segment.batch_scan import BadBatch, walk
from braidlog.storage.segment.segment_files import DATA_START, read_generation
from braidlog.storage.state.transaction_index import ranges
from braidlog.tables.plan import Part

PIECES = PieceLimits(128 * 1024, 32 * 1024 * 1024)


class MissedError(Exception):
    """A segment was replaced or removed after it was planned."""


class UnreadError(Exception):
    """A segment cannot be read."""


SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("partition", pa.int32()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_type", pa.int32()),
        *(arrow_schema(("key", "value", "headers"))),
    ]
)
"""The columns of every table. `timestamp_type`: 0 for the producer's time, 1 for the log's, as in Kafka."""


def read(disk: Disk, part: Part, begin: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a part from `begin` on, as columns of `SCHEMA`."""
    pieces = PieceBuilder(COLUMN_NAMES, PIECES, end_offset=part.end, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    sources = [source for source in part.sources if source.next_offset > begin]
    with contextlib.ExitStack() as opened:
        files = []
        for source in sources:  # open all files first: an open file keeps its content even if its name is removed
            files.append(_open_one(disk, source))
            opened.callback(files[-1].close)
        yield from _rows(pieces, files, sources, part, begin)


def _rows(
    pieces: PieceBuilder, files: list[File], sources: list[Source], part: Part, begin: int
) -> Iterator[pa.RecordBatch]:
    try:
        seen = visible(_batches(files, sources), ranges(part.aborted))
        for window, at, header in seen:
            if header.record_count and header.next_offset > begin:
                data = memoryview(window)[at : at + header.size_bytes]
                for piece, append_time in pieces.add(data, max(begin, part.start)):
                    yield _columns(piece, part.partition, append_time=append_time)
        for piece, append_time in pieces.flush():
            yield _columns(piece, part.partition, append_time=append_time)
    except (BadBatch, ProtocolError) as error:
        raise UnreadError(str(error)) from error


def _columns(piece: pa.RecordBatch, partition: int, *, append_time: bool) -> pa.RecordBatch:
    columns = dict(zip(COLUMN_NAMES, piece.columns, strict=True))
    columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), piece.num_rows)
    columns["timestamp_type"] = pa.repeat(pa.scalar(int(append_time), pa.int32()), piece.num_rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _open_one(disk: Disk, source: Source) -> File:
    try:
        file = disk.open(source.path, writable=False)
    except StorageFault as fault:
        if disk.exists(source.path):
            raise
        raise MissedError(source.path) from fault
    if read_generation(file.read_at(DATA_START, 0)) != source.generation:
        file.close()
        raise MissedError(source.path)
    return file


def _batches(files: list[File], sources: list[Source]) -> Iterator[tuple[bytes, int, BatchHeader]]:
    for file, source in zip(files, sources, strict=True):
        for batch in walk(file, DATA_START, source.end, source.base_offset):
            yield batch.window, batch.at, batch.header
