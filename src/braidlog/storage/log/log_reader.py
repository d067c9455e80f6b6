"""Read a partition's log: find batches by offset or time, and report damage found by a read.

Invariants: a batch with an invalid checksum is never returned. Damage is reported with its exact place, once per
place.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from braidlog.codec.batch.header import CONTROL, TRANSACTIONAL
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import File
from braidlog.storage.log.durability import PartitionLocks
from braidlog.storage.recovery.damage import RecoveryReport
from braidlog.storage.segment.batch_scan import BadBatch, Place, ScannedBatch, steps
from braidlog.storage.segment.segment import CheckBudget, Segment, SegmentList
from braidlog.storage.state.partition_state import PartitionState
from braidlog.storage.state.transaction_index import Aborted


class Counted(NamedTuple):
    """A number of records in the range up to `next_offset`; the records beyond it are not counted."""

    records: int
    next_offset: int


def count_visible(places: Iterable[Place], start: int, end: int, aborted: Iterable[Aborted]) -> Counted:
    """Count the visible records in [start, end) of consecutive batches, the first of which holds `start`."""
    ahead = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
    hidden_upto: dict[int, int] = {}
    records, at = 0, start
    for place in places:
        if place.offset >= end:
            break
        while ahead and ahead[-1].first_offset < place.next_offset:
            txn = ahead.pop()
            hidden_upto[txn.producer_id] = txn.last_offset
        following = min(place.next_offset, end)
        is_hidden = place.attributes & TRANSACTIONAL and place.offset <= hidden_upto.get(place.producer_id, -1)
        if is_hidden or place.attributes & CONTROL:
            pass
        elif at == place.offset and following == place.next_offset:
            records += place.records
        elif place.records == place.next_offset - place.offset:
            records += following - at
        elif place.records:
            break  # only part of the batch is in the range, and its header does not say which offsets have records
        at = following
    return Counted(records, at)


_COUNT_WINDOW_BYTES = 4096
"""Read size for headers: covers dozens of small batches, and at most one page of a large batch."""


class FileSlice(NamedTuple):
    """Bytes of a segment file for `sendfile`: complete batches with the offsets [offset, next_offset)."""

    file: File
    position: int
    size: int
    offset: int
    next_offset: int

    @property
    def source(self) -> tuple[int, int]:
        return self.file.fileno(), self.position

    def read(self, start: int = 0) -> bytes:
        return self.file.read_at(self.size - start, self.position + start)


class Reader:
    """Read batches from a partition. Methods acquire `gate.lock` themselves."""

    def __init__(self, gate: PartitionLocks, chain: SegmentList, state: PartitionState, report: RecoveryReport) -> None:
        self._gate = gate
        self._damages = report.damages
        self.renew(chain, state)

    def renew(self, chain: SegmentList, state: PartitionState) -> None:
        """Switch to the segments and state of a reopened log."""
        self._chain = chain
        self._state = state

    def slice_at(
        self, offset: int, bytes_max: int, *, upto: int | None = None, budget: CheckBudget | None = None
    ) -> FileSlice | None:
        """Return a slice of one segment file: the batches from the one that holds `offset`, below `upto`.

        `upto` defaults to the log end.

        The slice has at least one batch, however large, and otherwise about `bytes_max` bytes. None if there is
        nothing to read yet, or if `budget` does not suffice to verify a batch (the default budget does).
        """
        with self._gate.lock:
            limit = self._state.end_offset if upto is None else min(upto, self._state.end_offset)
            self._require(offset)
            if offset >= limit:
                return None
            segment = self._chain.holding(offset)
            epochs = self._state.epochs
            if not segment.base_offset <= offset < segment.next_offset:
                raise self._missing(offset)
            try:
                extent = segment.extent(offset, max(bytes_max, 1), limit, epochs, budget)
            except BadBatch as bad:
                raise self.note_damage(segment, bad) from bad
            if extent.end == extent.position:
                return None
            return FileSlice(
                segment.file, extent.position, extent.end - extent.position, extent.offset, extent.next_offset
            )

    def _require(self, offset: int) -> None:
        if offset > self._state.end_offset and self._damages:
            # The log end itself may be damaged: do not report an offset out of range, which looks like a truncated log.
            raise StorageFault(str(self._damages[-1]))
        if not self._state.start_offset <= offset <= self._state.end_offset:
            raise BrokerError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in the log, which has [{self._state.start_offset}, {self._state.end_offset})",
            )

    def count(self, offset: int, upto: int, *, committed_only: bool, batches_max: int) -> Counted:
        """Count the records that a consumer sees from `offset` to `upto`.

        Reads at most `batches_max` batches of one segment.

        Damaged batches count as 0: reading them reports the damage.
        """
        with self._gate.lock:
            self._require(offset)
            limit = min(upto, self._state.end_offset)
            if offset >= limit or self._damages:
                return Counted(0, offset)
            segment = self._chain.holding(offset)
            try:
                position, base = segment.locate(offset, self._state.epochs)
                walked = steps(segment.file, position, segment.size, base, window_bytes=_COUNT_WINDOW_BYTES)
                places = list(islice(walked, batches_max))
            except BadBatch:
                return Counted(0, offset)
            end = min(limit, places[-1].next_offset)
            aborted = self._state.transactions.aborted_in(offset, end) if committed_only else []
            return count_visible(places, offset, end, aborted)

    def batch_start(self, offset: int) -> int:
        """Return where a truncation to `offset` cuts the log.

        The segment is verified up to there: a wrong length in a batch would remove other batches too.
        """
        with self._gate.lock:
            segment = self._chain.holding(offset)
            try:
                return segment.locate(offset, self._state.epochs, check=True)[1]
            except BadBatch as bad:
                raise self.note_damage(segment, bad) from bad

    def forget_checks(self) -> None:
        """Verify all batches again before they are next read."""
        with self._gate.lock:
            for segment in self._chain.segments:
                segment.forget_checks()

    def check_again(self, offset: int) -> None:
        """Verify the batch at `offset` again after a report of damage.

        Raise and record the damage if it is confirmed.
        """
        with self._gate.lock:
            segment = self._chain.holding(offset)
            if not segment.base_offset <= offset < segment.next_offset:
                return
            segment.forget_checks(offset)
            try:
                segment.extent(offset, 1, self._state.end_offset, self._state.epochs)
            except BadBatch as bad:
                raise self.note_damage(segment, bad) from bad

    def _missing(self, offset: int) -> StorageFault:
        """Return the fault of an offset that no segment holds: the opening of the log has reported it."""
        for damage in self._damages:
            if damage.first_offset <= offset < damage.next_offset:
                return StorageFault(str(damage))
        raise AssertionError(f"offset {offset} is in no segment and was not reported as damage")

    def note_damage(self, segment: Segment, bad: BadBatch) -> StorageFault:
        """Record the exact place of damage and index the batches behind it; the partition then accepts no writes."""
        with self._gate.lock:
            damage, _ = segment.step_over(bad, max(segment.next_offset, bad.offset))
            # Record each place once: the error text depends on where the read began.
            if not any((d.file, d.position) == (damage.file, damage.position) for d in self._damages):
                self._damages.append(damage)
            return StorageFault(str(damage))

    def batches_of(self, segment: Segment, number: int = 0) -> Iterator[ScannedBatch]:
        """Yield every batch of a segment from index entry `number` on, verified; damage is recorded and raised.

        The iterator keeps the file open: the segment may be replaced or removed during the iteration.
        """
        return self._noting_damage(segment, segment.walk_from(number, check=True, epochs=self._state.epochs))

    def _noting_damage(self, segment: Segment, batches: Iterator[ScannedBatch]) -> Iterator[ScannedBatch]:
        try:
            yield from batches
        except BadBatch as bad:
            raise self.note_damage(segment, bad) from bad

    def find_batch_by_time(self, timestamp_ms: int) -> Iterator[bytes]:
        """Yield batches in order, from the first whose latest timestamp is at least `timestamp_ms`."""
        offset = self._state.start_offset
        while True:
            with self._gate.lock:
                # One segment at a time: compaction and retention may replace segments between two steps.
                later = [
                    s for s in self._chain.segments if s.next_offset > offset and s.max_timestamp_ms >= timestamp_ms
                ]
                if not later:
                    return
                segment = later[0]
                batches = self.batches_of(segment, segment.index.first_with_time(timestamp_ms))
            for found in batches:
                if found.header.max_timestamp >= timestamp_ms and found.header.next_offset > offset:
                    yield found.window[found.at : found.at + found.header.size_bytes]
            offset = segment.next_offset
