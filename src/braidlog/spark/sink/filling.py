"""Packs the rows of one topic into batches, spread over its partitions.

Does not handle: producers, networks, Spark. Rows of one key, or of one chosen partition, keep their order. A key is
always in the partition that Kafka's default partitioner chooses. Rows with neither key nor partition fill one batch,
then the next partition's. Rows are packed in C; only those of a DataFrame with headers become Python objects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from braidlog.client.drivers.kafka.staging import Section
from braidlog.codec.batch.header import HEADER_BYTES
from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.batch.records_section import Header
from braidlog.codec.columns.arrow_to_records import Strings, append_rows, group_rows

Emit = Callable[[int, Section], None]
"""emit(partition, section): called with each full batch."""
Announce = Callable[[Sequence[int]], None]
"""announce(partitions): called before partitions are written to."""

_OBJECT_BYTES, _HEADER_BYTES = 64, 16
"""Overhead of a record and of a header, for rows with headers."""


_SMALL = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}
"""Arrow types that a session's settings may produce instead."""


class RowError(ValueError):
    """A row that cannot be written."""


class _Open:
    """A batch that is being filled."""

    __slots__ = ("base_time", "data", "latest", "records")

    def __init__(self) -> None:
        self.data = bytearray()
        self.records = 0
        self.base_time = self.latest = 0

    def take(self) -> Section:
        """Return the batch's contents and empty it."""
        section = Section(self.data, self.records, self.base_time, self.latest)
        self.data, self.records = bytearray(), 0
        return section


class _Rows:
    """The columns of one Arrow batch, in the form of the packing functions."""

    def __init__(self, batch: pa.RecordBatch, now_ms: int) -> None:
        self.count: int = batch.num_rows
        self.values = _strings(batch.column("value"))
        names = batch.schema.names
        self.keys = _strings(batch.column("key")) if "key" in names else None
        self.times = _times(batch.column("timestamp"), now_ms) if "timestamp" in names else None
        self.chosen = _numbers(batch.column("partition")) if "partition" in names else None
        self.headers = batch.column("headers").to_pylist() if "headers" in names else None
        self.now_ms = now_ms

    def time_of(self, row: int) -> int:
        return (
            self.now_ms
            if self.times is None
            else int.from_bytes(self.times[8 * row : 8 * row + 8], "little", signed=True)
        )


class Filling:
    """One task's open batches of one topic."""

    def __init__(
        self, topic: str, partitions: int, batch_bytes: int, *, first: int, emit: Emit, announce: Announce
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._bytes_max = max(batch_bytes - HEADER_BYTES, 1)
        self._emit = emit
        self._announce_partitions = announce
        self._open = [_Open() for _ in range(partitions)]
        self._current = first % partitions
        """The partition for rows without key and partition."""
        self._announced: set[int] = set()

    def append(self, batch: pa.RecordBatch, now_ms: int) -> None:
        rows = _Rows(batch, now_ms)
        if rows.keys is None and rows.chosen is None:
            self._spread(rows, None, 0, rows.count)
            return
        numbers, validity = rows.chosen or (None, None)
        try:
            order, ends = group_rows(rows.count, rows.keys, numbers, validity, self._partitions)
        except ValueError as error:
            raise RowError(f"topic {self._topic!r} has {self._partitions} partitions: {error}") from error
        starts = [0, *ends[:-1]]
        self._announce([number for number in range(self._partitions) if ends[number] > starts[number]])
        for number in range(self._partitions):
            self._fill(number, rows, order, starts[number], ends[number])
        self._spread(rows, order, starts[-1], ends[-1])

    @property
    def held_bytes(self) -> int:
        """The bytes in batches that are not full yet."""
        return sum(len(opened.data) for opened in self._open)

    def finish(self) -> None:
        """Emit the batches that are not full."""
        for number, opened in enumerate(self._open):
            if opened.records:
                self._emit(number, opened.take())

    def _announce(self, numbers: Sequence[int]) -> None:
        missing = [number for number in numbers if number not in self._announced]
        if missing:
            self._announce_partitions(missing)
            self._announced.update(missing)

    def _fill(self, number: int, rows: _Rows, order: bytearray | None, at: int, until: int) -> None:
        while at < until:
            at = self._pack(number, rows, order, at, until)
            if at < until:
                self._emit(number, self._open[number].take())

    def _spread(self, rows: _Rows, order: bytearray | None, at: int, until: int) -> None:
        """Fill one partition's batch, then continue with the next partition: batches stay large, and partitions take
        turns."""
        while at < until:
            self._announce([self._current])
            at = self._pack(self._current, rows, order, at, until)
            if at < until:
                self._emit(self._current, self._open[self._current].take())
                self._current = (self._current + 1) % self._partitions
                # Rows that fill more than one batch reach all partitions: announce all of them together.
                self._announce(range(self._partitions))

    def _pack(self, number: int, rows: _Rows, order: bytearray | None, at: int, until: int) -> int:
        """Pack rows into a partition's open batch until it is full; return the next row."""
        opened = self._open[number]
        if rows.headers is not None:
            return self._pack_objects(opened, rows, order, at, until)
        if not opened.records:
            opened.base_time = opened.latest = rows.time_of(_row(order, at))
        stop, latest = append_rows(
            opened.data,
            opened.records,
            rows.values,
            rows.keys,
            rows.times,
            opened.base_time,
            order,
            at,
            until,
            self._bytes_max,
        )
        opened.records += stop - at
        opened.latest = max(opened.latest, latest)
        return stop

    def _pack_objects(self, opened: _Open, rows: _Rows, order: bytearray | None, at: int, until: int) -> int:
        """Pack rows with headers, which are rare: Python objects, encoded a batch at a time."""
        assert rows.headers is not None
        if opened.records:
            return at  # the batch is full: the caller emits it and calls again
        chosen: list[int] = []
        size = 0
        while at < until:
            row = _row(order, at)
            size += _OBJECT_BYTES + len(rows.values.row(row) or b"") + _weight(rows.headers[row])
            if chosen and size > self._bytes_max:
                break
            chosen.append(row)
            at += 1
        times = [rows.time_of(row) for row in chosen]
        opened.data += encode_records(
            [rows.values.row(row) for row in chosen],
            None if rows.keys is None else [rows.keys.row(row) for row in chosen],
            times,
            [_pairs(rows.headers[row]) for row in chosen],
            times[0],
        )
        opened.records, opened.base_time, opened.latest = len(chosen), times[0], max(times)
        return at


# -- Arrow's arrays --------------------------------------------------------------------------------------------------


def _strings(column: pa.Array) -> Strings:
    small = _SMALL.get(column.type)
    if small is not None:
        column = column.cast(small)
    validity, ends, data = column.buffers()
    return Strings(len(column), column.offset, validity, ends or bytes(4), data or b"")


def _times(column: pa.Array, now_ms: int) -> memoryview:
    """Return milliseconds; rows without a timestamp get `now_ms`."""
    millis = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    filled = millis.fill_null(now_ms) if millis.null_count else millis
    if len(filled) and pc.min(filled).as_py() < 0:
        raise RowError("a record's timestamp must not be before 1970")
    return memoryview(filled.buffers()[1]).cast("B")[8 * filled.offset :]


def _numbers(column: pa.Array) -> tuple[memoryview, memoryview | None]:
    if column.offset:
        column = pa.concat_arrays([column])  # copy: a bitmap can only be sliced at whole bytes
    validity, data = column.buffers()
    return memoryview(data or b"").cast("B"), None if validity is None else memoryview(validity).cast("B")


def _row(order: bytearray | None, at: int) -> int:
    return at if order is None else int.from_bytes(order[4 * at : 4 * at + 4], "little")


def _pairs(headers: Sequence[Mapping[str, Any] | None] | None) -> tuple[Header, ...]:
    headers_of_row: list[Header] = []
    for header in headers or ():
        if header is None or header["key"] is None:
            raise RowError("a header needs a name, but a row has a header without one")
        headers_of_row.append((header["key"], header["value"]))
    return tuple(headers_of_row)


def _weight(headers: Sequence[Mapping[str, Any] | None] | None) -> int:
    return sum(
        _HEADER_BYTES + len(header["key"] or "") + len(header["value"] or b"") for header in headers or () if header
    )
