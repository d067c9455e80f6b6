"""Track the transactions in one partition: open ones, aborted ranges, and markers that may still be truncated.

Does not handle: coordinators and timeouts. Invariant: a fold over the batches of the log and over its high
watermark.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from braidlog.codec.batch.header import BatchHeader
from braidlog.codec.batch.read_committed import AbortedRange
from braidlog.codec.batch.records import EndMarker, read_marker
from braidlog.storage.files import Buffer


class Aborted(NamedTuple):
    """A marker at `last_offset` aborted the records of `producer_id` in [first_offset, last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def covers(self, header: BatchHeader) -> bool:
        return header.producer_id == self.producer_id and self.first_offset <= header.base_offset <= self.last_offset


def ranges(aborted: Iterable[Aborted]) -> list[AbortedRange]:
    """Convert aborted transactions to ranges for `codec.visible`."""
    return [AbortedRange(txn.first_offset, txn.producer_id, txn.last_offset) for txn in aborted]


class TransactionIndex:
    """The open and aborted transactions, which decide what a read_committed consumer sees."""

    def __init__(
        self,
        opened: Iterable[tuple[int, int]] = (),
        aborted: Iterable[Aborted] = (),
        ended: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._open = dict(opened)
        self._aborted = list(aborted)
        self._ended = deque(ended)
        """Marker offset and first offset of transactions whose marker was not known to be committed at the last
        check.
        """

    def open_image(self) -> list[tuple[int, int]]:
        return list(self._open.items())

    def aborted_image(self) -> list[Aborted]:
        return list(self._aborted)

    def ended_image(self) -> list[tuple[int, int]]:
        return list(self._ended)

    def apply(self, header: BatchHeader, *, commit: bool | None) -> None:
        """Apply a batch of the log. `commit` is None for data, otherwise whether the marker commits."""
        if commit is None:
            if header.is_transactional:
                self._open.setdefault(header.producer_id, header.base_offset)
            return
        first = self._open.pop(header.producer_id, None)
        if first is None:
            return
        self._ended.append((header.last_offset, first))
        if not commit:
            stable = self.last_stable_offset(header.next_offset)
            self._aborted.append(Aborted(header.producer_id, first, header.last_offset, stable))

    def settle(self, committed: int) -> None:
        """Drop the uncertain markers below the high watermark: they cannot be truncated any longer."""
        while self._ended and self._ended[0][0] < committed:
            self._ended.popleft()

    def last_stable_offset(self, end_offset: int) -> int:
        """Return the last stable offset below `end_offset`: no transaction is open below it.

        A transaction whose marker is not below `end_offset` counts as open: a new leader may truncate that marker.
        """
        if not self._open and not self._ended:
            return end_offset
        undecided = (first for at, first in self._ended if at >= end_offset)
        return min((end_offset, *self._open.values(), *undecided))

    def open_producers(self) -> Iterable[int]:
        return self._open.keys()

    def aborted_in(self, start: int, end: int) -> list[Aborted]:
        """Return the aborted transactions with records in [start, end)."""
        found = []
        for txn in self._aborted[bisect_left(self._aborted, start, key=lambda txn: txn.last_offset) :]:
            if txn.first_offset < end:
                found.append(txn)
            if txn.last_stable_offset >= end:
                break  # every later marker ends a transaction that began at or after this one's stable offset
        return found

    def cut_start(self, start_offset: int) -> None:
        self._aborted = [txn for txn in self._aborted if txn.last_offset >= start_offset]


def read_end(data: Buffer, position: int, header: BatchHeader) -> EndMarker | None:
    """Decode a control batch's transaction marker; None if the batch is data."""
    return read_marker(data, position, header) if header.is_control else None
