"""Read one segment file from its first batch to its last byte, and say for each byte what it is.

Knows: whole batches, batches that one flipped bit put out of place, bytes that are neither, and where batches begin again
behind them. Refuses to know: other files, and what is done about any of it.
Invariant: the pieces follow each other without a gap in bytes or offsets, and no byte is called lost that belongs to a batch
whose checksum holds and whose place is certain.

Base offset, length, epoch and magic lie outside a batch's checksum. Where exactly one bit of them, flipped back, makes the
batch whole and in its place, the batch is kept and that bit is put right (`Mend`). More than one bit is not bit rot: it may be an
older write that came back, or another file's bytes, and a batch with a valid checksum in a wrong place is not ours to believe.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from braidlog.codec.batch import HEADER, HEADER_BYTES, MAGIC, BatchHeader, check_crc, read_header
from braidlog.codec.errors import ProtocolError
from braidlog.model.limits import BATCH_BYTES_MAX
from braidlog.storage.epochs import NO_EPOCH, EpochHistory
from braidlog.storage.files import File
from braidlog.storage.head import DATA_START
from braidlog.storage.walk import BadBatch, Found, resume, walk

_UNCHECKED_BYTES = 17


class Run(msgspec.Struct):
    """Whole batches, one behind the other."""

    position: int
    end: int
    first_offset: int
    next_offset: int


class Mend(msgspec.Struct):
    """One whole batch with one wrong bit outside its checksum. `placed` are its first 17 bytes as they should be."""

    position: int
    end: int
    first_offset: int
    next_offset: int
    why: str
    placed: bytes


class Loss(msgspec.Struct):
    """Bytes that are no batch, and the offsets that are gone with them (either may be none)."""

    position: int
    end: int
    first_offset: int
    next_offset: int
    why: str


Piece = Run | Mend | Loss


class Rules(NamedTuple):
    """What makes a batch the right one, besides its checksum."""

    epochs: EpochHistory | None
    epochs_from: int
    """Below this offset the history says nothing any more."""
    following: int | None
    """Base offset of the next segment: no batch may reach beyond it."""
    is_readable: Callable[[Found], str | None]
    """Why the records of a whole batch must not be kept; None to keep it."""


class SegmentScan(msgspec.Struct):
    pieces: list[Piece]
    next_offset: int

    @property
    def losses(self) -> list[Loss]:
        return [piece for piece in self.pieces if isinstance(piece, Loss)]

    @property
    def mends(self) -> list[Mend]:
        return [piece for piece in self.pieces if isinstance(piece, Mend)]

    def lose(self, loss: Loss) -> None:
        """Add a loss at the end, joined with one that is there already."""
        last = self.pieces[-1] if self.pieces else None
        if isinstance(last, Loss) and last.end == loss.position and last.next_offset == loss.first_offset:
            last.end, last.next_offset = loss.end, loss.next_offset
        else:
            self.pieces.append(loss)
        self.next_offset = loss.next_offset


class SegmentScanner:
    """One pass over one file; `visit` sees every batch that is kept, as it should be."""

    def __init__(self, file: File, size: int, base_offset: int, rules: Rules, visit: Callable[[Found], None]) -> None:
        self._file = file
        self._size = size
        self._rules = rules
        self._visit = visit
        self._position = DATA_START
        self._offset = base_offset
        self._scan = SegmentScan([], base_offset)

    def run(self) -> SegmentScan:
        while self._position < self._size:
            try:
                self._take_run()
            except BadBatch as bad:
                self._step_over(bad)
        self._scan.next_offset = self._offset
        return self._scan

    def _take_run(self) -> None:
        for found in walk(self._file, self._position, self._size, self._offset):
            fault = self._misplaced(found.header) or self._rules.is_readable(found)
            if fault is not None:
                raise BadBatch(found.position, found.header.base_offset, fault)
            self._keep(found)

    def _keep(self, found: Found) -> None:
        header = found.header
        last = self._scan.pieces[-1] if self._scan.pieces else None
        end = found.position + header.size_bytes
        if isinstance(last, Run) and last.end == found.position:
            last.end, last.next_offset = end, header.next_offset
        else:
            self._scan.pieces.append(Run(found.position, end, header.base_offset, header.next_offset))
        self._visit(found)
        self._position, self._offset = end, header.next_offset

    def _misplaced(self, header: BatchHeader) -> str | None:
        expected = self._epoch_at(header.base_offset)
        if expected is not None and header.leader_epoch != expected:
            return f"leader epoch is {header.leader_epoch}, offset {header.base_offset} was written in {expected}"
        if self._rules.following is not None and header.next_offset > self._rules.following:
            return f"it reaches to offset {header.next_offset}, the next segment begins with {self._rules.following}"
        return None

    def _epoch_at(self, offset: int) -> int | None:
        if self._rules.epochs is None or offset < self._rules.epochs_from:
            return None
        return self._rules.epochs.at(offset)

    # -- behind a batch that is not one ----------------------------------------------------------------------

    def _step_over(self, bad: BadBatch) -> None:
        """Account for the bytes at `bad`: a batch that can be put right, or a loss up to where batches begin again."""
        piece: Mend | Loss | None = self._mend(bad)
        if piece is None:
            found = resume(self._file, self._size, bad, self._rules.following)
            end, next_offset = found or (self._size, bad.offset)
            piece = Loss(bad.position, end, bad.offset, next_offset, bad.why)
        self._scan.pieces.append(piece)
        self._position, self._offset = piece.end, piece.next_offset

    def _mend(self, bad: BadBatch) -> Mend | None:
        head = self._file.read_at(HEADER_BYTES, bad.position)
        if len(head) < HEADER_BYTES:
            return None
        for placed in self._candidates(head, bad.offset):
            size = int.from_bytes(placed[8:12], "big", signed=True) + 12
            if not HEADER_BYTES <= size <= min(BATCH_BYTES_MAX, self._size - bad.position):
                continue
            batch = placed + self._file.read_at(size - _UNCHECKED_BYTES, bad.position + _UNCHECKED_BYTES)
            try:
                header = read_header(batch)
                check_crc(batch, 0, header)
            except ProtocolError:
                continue
            if header.base_offset != bad.offset or self._misplaced(header) is not None:
                continue
            found = Found(bad.position, header, batch, 0)
            if self._rules.is_readable(found) is None:
                self._visit(found)
                end = bad.position + size
                return Mend(bad.position, end, header.base_offset, header.next_offset, bad.why, placed)
        return None

    def _candidates(self, head: bytes, offset: int) -> Iterator[bytes]:
        """The first 17 bytes with one bit put right: the one that is wrong, if just one is; else each bit of the length."""
        fields = HEADER.unpack(head)
        expected = self._epoch_at(offset)
        epoch = fields[2] if expected is None else expected
        wrong_bits = (
            ((fields[0] ^ offset) & (2**64 - 1)).bit_count()
            + ((fields[2] ^ epoch) & (2**32 - 1)).bit_count()
            + ((fields[3] ^ MAGIC) & 0xFF).bit_count()
        )
        placed = HEADER.pack(offset, fields[1], epoch, MAGIC, *fields[4:])[:_UNCHECKED_BYTES]
        if wrong_bits == 1 and not (fields[2] != epoch and self._is_known_epoch(fields[2])):
            yield placed
        if wrong_bits == 0:
            length = int.from_bytes(head[8:12], "big")
            for bit in range(32):
                yield placed[:8] + (length ^ (1 << bit)).to_bytes(4, "big") + placed[12:]

    def _is_known_epoch(self, epoch: int) -> bool:
        """A batch of another epoch of this log may be one that was truncated and came back: not a flipped bit."""
        epochs = self._rules.epochs
        return epochs is not None and any(epoch == known for known, _ in epochs.entries())


def learn_epochs(runs: list[tuple[int, int, int]]) -> EpochHistory:
    """The likeliest history behind (epoch, first offset, batches) runs: the one that contradicts the fewest batches.

    Epochs never go back, so of runs that do not ascend some are wrong; the heaviest ascending choice is taken.
    """
    best: dict[int, tuple[int, int]] = {}  # epoch -> (batches, number of the run that ends this choice)
    before: list[int] = []
    for number, (epoch, _, batches) in enumerate(runs):
        weight, previous = max(((w, n) for e, (w, n) in best.items() if e <= epoch), default=(0, -1))
        before.append(previous)
        if weight + batches > best.get(epoch, (0, -1))[0]:
            best[epoch] = (weight + batches, number)
    history = EpochHistory()
    chosen = []
    number = max(best.values(), default=(0, -1))[1]
    while number >= 0:
        chosen.append(number)
        number = before[number]
    for number in reversed(chosen):
        if runs[number][0] > NO_EPOCH:
            history.begin(runs[number][0], runs[number][1])
    return history
