"""Scan a segment file batch by batch and verify that each batch follows the one before it.

The caller decides what to do about a bad batch. Invariant: a batch is returned only if it has the expected offset,
ends inside the range, has the epoch that the history gives for that offset, and (with `check`) has a valid checksum.
Base offset, length and epoch lie outside the checksum; these rules verify them.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from braidlog.codec.batch.header import HEADER, HEADER_BYTES, MAGIC, BatchHeader, check_crc, read_header
from braidlog.codec.errors import ProtocolError
from braidlog.model.limits import BATCH_BYTES_MAX
from braidlog.storage.files import File
from braidlog.storage.state.partition_state import EpochHistory

CHECK_WINDOW_BYTES = 1024 * 1024
HEADER_WINDOW_BYTES = 64 * 1024
UNCHECKED_BYTES = 17
"""The header bytes outside the checksum: base offset, length, epoch and magic."""
_CANDIDATES_MAX = 64
_STEP = Struct(">qi9xhi16xq6xi").unpack_from
"""Base offset, length, attributes, last offset delta, producer id, record count."""
_LENGTH_END = 12
_SIZE_MIN = HEADER_BYTES - _LENGTH_END
_NOWHERE = (-1, 0, 0, 0, 0, 0)


class BadBatch(Exception):  # noqa: N818 - a finding, which the caller turns into a truncation or a fault
    """The bytes at `position` are not the batch that starts with `offset`."""

    def __init__(self, position: int, offset: int, why: str) -> None:
        super().__init__(f"no whole batch at byte {position}, offset {offset}: {why}")
        self.position = position
        self.offset = offset
        self.why = why


class ScannedBatch(NamedTuple):
    """A batch of the segment. With `check`, `window[at : at + header.size_bytes]` are its bytes."""

    position: int
    header: BatchHeader
    window: bytes
    at: int

    @property
    def end(self) -> int:
        return self.position + self.header.size_bytes


def walk(
    file: File, start: int, end: int, offset: int, *, epochs: EpochHistory | None = None, check: bool = True
) -> Iterator[ScannedBatch]:
    """Yield the batches in [start, end), the first of which must begin with `offset`.

    Raise `BadBatch` at the first bad one.
    """
    position = start
    window = b""
    window_at = start
    while position < end:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            window, window_at, at = (
                _read(file, position, end, CHECK_WINDOW_BYTES if check else HEADER_WINDOW_BYTES),
                position,
                0,
            )
        try:
            header = read_header(window, at)
            _check_place(header, position, end, offset, epochs)
            if check:
                if at + header.size_bytes > len(window):
                    window, window_at, at = (
                        _read(file, position, end, max(CHECK_WINDOW_BYTES, header.size_bytes)),
                        position,
                        0,
                    )
                check_crc(window, at, header)
        except ProtocolError as error:
            raise BadBatch(position, offset, str(error)) from error
        yield ScannedBatch(position, header, window, at)
        position += header.size_bytes
        offset = header.next_offset


class Place(NamedTuple):
    """The offsets, record count and producer of the batch at bytes [position, end), as its header states.

    None of it is verified.
    """

    position: int
    end: int
    offset: int
    next_offset: int
    records: int
    attributes: int
    producer_id: int


def steps(file: File, start: int, end: int, offset: int, *, window_bytes: int = HEADER_WINDOW_BYTES) -> Iterator[Place]:
    """Scan batches without verification, to find a position or to count: reads only the header fields that it needs.

    A header that is evidently wrong is left to `walk`, which raises. Other faults are found when the batch is
    verified before it is read.
    """
    position = start
    window = b""
    window_at = start
    while position < end:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            window, window_at, at = _read(file, position, end, window_bytes), position, 0
        base, size, attributes, last, producer_id, count = (
            _STEP(window, at) if len(window) - at >= HEADER_BYTES else _NOWHERE
        )
        batch_end = position + size + _LENGTH_END
        if (
            base != offset
            or not _SIZE_MIN <= size <= BATCH_BYTES_MAX
            or not 0 <= count <= last + 1
            or last < 0
            or batch_end > end
        ):
            header = next(walk(file, position, end, offset, check=False)).header
            last, batch_end = header.last_offset_delta, position + header.size_bytes
            attributes, producer_id, count = header.attributes, header.producer_id, header.record_count
        next_offset = offset + last + 1
        yield Place(position, batch_end, offset, next_offset, count, attributes, producer_id)
        position, offset = batch_end, next_offset


def _read(file: File, position: int, end: int, size: int) -> bytes:
    return file.read_at(min(size, end - position), position)


def _check_place(header: BatchHeader, position: int, end: int, offset: int, epochs: EpochHistory | None) -> None:
    if header.base_offset != offset:
        raise ProtocolError(f"base offset is {header.base_offset}, {offset} is next")
    if header.size_bytes > min(BATCH_BYTES_MAX, end - position):
        raise ProtocolError(f"batch of {header.size_bytes} bytes does not fit in the {end - position} that are left")
    if epochs is not None and header.leader_epoch != epochs.at(offset):
        raise ProtocolError(
            f"leader epoch is {header.leader_epoch}, offset {offset} was written in {epochs.at(offset)}"
        )


def find_batch(file: File, start: int, end: int, offset_min: int) -> tuple[int, int] | None:
    """Search [start, end) byte by byte for a valid batch at or beyond `offset_min`.

    Return its position and base offset.

    Used behind a bad batch, to find where the damage ends. A false match has a probability of 2^-32.
    """
    step = CHECK_WINDOW_BYTES
    for window_at in range(start, end, step):
        window = file.read_at(min(step + HEADER_BYTES, end - window_at), window_at)
        at = window.find(b"\x02", 16)
        while 0 <= at < step + 16:
            found = _batch_at(file, window, at - 16, window_at + at - 16, end, offset_min)
            if found is not None:
                return window_at + at - 16, found
            at = window.find(b"\x02", at + 1)
    return None


class Gap(NamedTuple):
    """Bytes from `bad` to `end` are damaged; batches resume with `next_offset`, or None if no valid batch follows."""

    bad: BadBatch
    end: int
    next_offset: int | None


def walk_past(
    file: File, start: int, end: int, offset: int, *, epochs: EpochHistory | None = None
) -> Iterator[ScannedBatch | Gap]:
    """Scan like `walk`, but yield damaged bytes as a gap and continue behind them."""
    while True:
        try:
            yield from walk(file, start, end, offset, epochs=epochs)
        except BadBatch as bad:
            found = resume(file, end, bad)
            if found is not None:
                start, offset = found
                yield Gap(bad, start, offset)
                continue
            yield Gap(bad, end, None)
        return


def resume(file: File, end: int, bad: BadBatch, following: int | None = None) -> tuple[int, int] | None:
    """Return where batches resume behind `bad`, as (position, base offset) below offset `following`.

    Return None if no valid batch follows.

    A record may contain batches. So the end that the damaged batch states comes first, then a position from which
    valid batches reach the end of the file.
    """
    stated = _stated_end(file, end, bad, following)
    if stated is not None:
        return stated
    first = None
    position = bad.position + 1
    for _ in range(_CANDIDATES_MAX):
        found = find_batch(file, position, end, bad.offset + 1)
        if found is None:
            break
        if following is None or found[1] < following:
            first = first or found
            if _reaches_end(file, end, *found):
                return found
        position = found[0] + 1
    return first


def _stated_end(file: File, end: int, bad: BadBatch, following: int | None) -> tuple[int, int] | None:
    try:
        header = read_header(file.read_at(HEADER_BYTES, bad.position))
    except ProtocolError:
        return None
    position, offset = bad.position + header.size_bytes, header.next_offset
    if header.base_offset != bad.offset or position >= end or (following is not None and offset >= following):
        return None
    try:
        next(walk(file, position, end, offset))
    except BadBatch:
        return None
    return position, offset


def _reaches_end(file: File, end: int, position: int, offset: int) -> bool:
    try:
        for _ in walk(file, position, end, offset, check=False):
            pass
    except BadBatch:
        return False
    return True


def _batch_at(file: File, window: bytes, at: int, position: int, end: int, offset_min: int) -> int | None:
    try:
        header = read_header(window, at)
        if header.base_offset < offset_min or header.size_bytes > min(BATCH_BYTES_MAX, end - position):
            return None
        check_crc(file.read_at(header.size_bytes, position), 0, header)
    except ProtocolError:
        return None
    return header.base_offset


# -- single-bit errors outside the checksum -----------------------------------------------------------------------


def truncate_tail(file: File, end: int, bad: BadBatch, epochs: EpochHistory) -> ScannedBatch | None:
    """Return the batch at `bad` with one bit outside its checksum flipped, if that makes it valid.

    More than one wrong bit is not bit rot: the bytes may be an older write or another file's. A batch with a valid
    checksum in the wrong place must not be accepted.
    """
    head = file.read_at(HEADER_BYTES, bad.position)
    for placed in _truncated_headers(head, bad.offset, epochs) if len(head) == HEADER_BYTES else ():
        size = int.from_bytes(placed[8:12], "big", signed=True) + 12
        if HEADER_BYTES <= size <= min(BATCH_BYTES_MAX, end - bad.position):
            batch = placed + file.read_at(size - UNCHECKED_BYTES, bad.position + UNCHECKED_BYTES)
            try:
                header = read_header(batch)
                _check_place(header, bad.position, end, bad.offset, epochs)
                check_crc(batch, 0, header)
            except ProtocolError:
                continue
            return ScannedBatch(bad.position, header, batch, 0)
    return None


def _truncated_headers(head: bytes, offset: int, epochs: EpochHistory) -> Iterator[bytes]:
    """Yield candidates for the first 17 bytes with one bit flipped.

    That is the wrong bit if there is exactly one, otherwise each bit of the length.
    """
    fields = HEADER.unpack(head)
    epoch = epochs.at(offset)
    wrong_bits = (
        ((fields[0] ^ offset) & (2**64 - 1)).bit_count()
        + ((fields[2] ^ epoch) & (2**32 - 1)).bit_count()
        + ((fields[3] ^ MAGIC) & 0xFF).bit_count()
    )
    placed = HEADER.pack(offset, fields[1], epoch, MAGIC, *fields[4:])[:UNCHECKED_BYTES]
    # A batch of another epoch of this log may be a truncated batch that reappeared: not a flipped bit.
    if wrong_bits == 1 and (fields[2] == epoch or all(fields[2] != known for known, _ in epochs.entries())):
        yield placed
    if wrong_bits == 0:
        length = int.from_bytes(head[8:12], "big")
        for bit in range(32):
            yield placed[:8] + (length ^ (1 << bit)).to_bytes(4, "big") + placed[12:]
