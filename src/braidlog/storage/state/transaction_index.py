"""Transactions as one partition sees them: which are open, which were aborted where.

Knows: first offset of each open transaction, ranges of the aborted ones, which ends may still be taken back. Refuses to know:
coordinators and timeouts.
Invariant: like the producer table, a fold over the batches of the log, and over what of them is known to be committed.
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
    """Records of `producer_id` in [first_offset, last_offset] were aborted by the marker at last_offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def covers(self, header: BatchHeader) -> bool:
        return header.producer_id == self.producer_id and self.first_offset <= header.base_offset <= self.last_offset


def ranges(aborted: Iterable[Aborted]) -> list[AbortedRange]:
    """As `codec.visible` wants them."""
    return [AbortedRange(txn.first_offset, txn.producer_id, txn.last_offset) for txn in aborted]


class TransactionIndex:
    """What a reader of committed records needs to know."""

    def __init__(
        self,
        opened: Iterable[tuple[int, int]] = (),
        aborted: Iterable[Aborted] = (),
        ended: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._open = dict(opened)
        self._aborted = list(aborted)
        self._ended = deque(ended)
        """Offset of the marker, first offset: of those whose marker was not known to be committed when it was last looked."""

    def open_image(self) -> list[tuple[int, int]]:
        return list(self._open.items())

    def aborted_image(self) -> list[Aborted]:
        return list(self._aborted)

    def ended_image(self) -> list[tuple[int, int]]:
        return list(self._ended)

    def apply(self, header: BatchHeader, *, commit: bool | None) -> None:
        """Take note of a batch that is in the log; `commit` is None for data and tells what a marker says."""
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
        """Markers below this offset stay."""
        while self._ended and self._ended[0][0] < committed:
            self._ended.popleft()

    def last_stable_offset(self, end_offset: int) -> int:
        """No transaction is open below this offset: committed readers may go so far. One whose marker is not below `end_offset`
        counts as open: a new leader may take that marker back."""
        if not self._open and not self._ended:
            return end_offset
        undecided = (first for at, first in self._ended if at >= end_offset)
        return min((end_offset, *self._open.values(), *undecided))

    def open_producers(self) -> Iterable[int]:
        return self._open.keys()

    def aborted_in(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions with records in [start, end)."""
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
    """What a batch says about the end of its transaction; None if it is not a marker."""
    return read_marker(data, position, header) if header.is_control else None
