"""Derive a partition's state from its batches; save images of it in two checkpoints and beside each segment.

The state has the leader epochs, producers, transactions, the log start and the compacted offset. Invariants:

- The image at offset n plus the batches from n on gives the same state as all batches from the start. Recovery relies
  on this, so a checkpoint may be late but never wrong.
- Images are saved in order. Only an image that was saved completely is the base of the next one.
- An epoch is durable in the history before the first batch that carries it: a batch's epoch lies outside its
  checksum, and the history verifies it.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from braidlog.codec.batch.header import NO_PRODUCER, BatchHeader
from braidlog.codec.batch.records import EndMarker
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import Disk, join, read_whole, write_whole
from braidlog.storage.segment.segment_files import state_name
from braidlog.storage.state.producer_table import Producer, ProducerTable
from braidlog.storage.state.transaction_index import Aborted, TransactionIndex
from braidlog.storage.two_copy_file import TwoCopyFile, pack_copy, unpack_copy

NO_EPOCH = -1
_CERTAIN = 2**62


class EpochHistory:
    """Maps an offset to its leader epoch, and an epoch to its end offset."""

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or []]
        self._starts = [start for _, start in entries or []]

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def start_epoch(self, epoch: int, start_offset: int) -> None:
        """Record that offsets from `start_offset` on belong to `epoch`; epochs never go back."""
        if epoch < self.latest:
            raise BrokerError(Reason.STALE_LEADER_EPOCH, f"leader epoch {epoch} is over, the log is in {self.latest}")
        if epoch == self.latest:
            return
        while self._starts and self._starts[-1] >= start_offset:
            # The previous epoch wrote nothing: its leader changed again before the first record.
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def at(self, offset: int) -> int:
        """Return the epoch that wrote `offset`."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end: int, log_start: int = 0) -> tuple[int, int]:
        """Return the largest known epoch not above `epoch` and its end offset; (-1, -1) for a future epoch.

        Kafka's rule after KIP-279: a follower repeats the request until the answer is an epoch that it has itself.
        """
        if not self._epochs or epoch > self.latest:
            return NO_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end
        above = bisect_right(self._epochs, epoch)
        # The history starts at the first batch on the disk, which may be below the log start.
        return (self._epochs[above - 1] if above else epoch), max(self._starts[above], log_start)

    def cut_end(self, end_offset: int) -> None:
        """Drop epochs that began at or after `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()

    def truncate_watermark(self, end_offset: int) -> None:
        """Move the latest epoch to `end_offset` after the log lost a tail that was never durable.

        It is not dropped: a deposed leader could otherwise write again.
        """
        latest = self.latest
        self.cut_end(end_offset + 1)
        self.start_epoch(latest, end_offset)

    def cut_start(self, start_offset: int) -> None:
        """Drop epochs that ended before `start_offset`; the epoch of that offset now begins there."""
        keep = max(bisect_right(self._starts, start_offset) - 1, 0)
        del self._epochs[:keep], self._starts[:keep]
        if self._starts and self._starts[0] < start_offset:
            self._starts[0] = start_offset


def learn_epochs(known: list[tuple[int, int]], headers: Iterable[BatchHeader]) -> EpochHistory:
    """Extend the known history by the batches that follow it, so that it contradicts as few of them as possible.

    Epochs never go back. So if the epochs of consecutive runs of batches do not ascend, some are wrong; the ascending
    choice with the most batches wins.
    """
    runs = [(epoch, start, _CERTAIN) for epoch, start in known]
    for header in headers:
        if runs and runs[-1][0] == header.leader_epoch:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((header.leader_epoch, header.base_offset, 1))
    best: dict[
        int, tuple[int, list[int]]
    ] = {}  # epoch -> (batches, numbers of the runs) of the best choice that ends with it
    for number, (epoch, _, batches) in enumerate(runs):
        weight, chosen = max((best[earlier] for earlier in best if earlier <= epoch), default=(0, []))
        if weight + batches > best.get(epoch, (0,))[0]:
            best[epoch] = (weight + batches, [*chosen, number])
    history = EpochHistory()
    for number in max(best.values(), default=(0, []))[1]:
        if runs[number][0] > NO_EPOCH:
            history.start_epoch(runs[number][0], runs[number][1])
    return history


NOTHING_TO_CUT = -1


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """The sizes and times of a partition's segments when it was closed."""

    segments: int
    size_bytes: int
    newest_ms: int
    """The latest timestamp of all records; -1 without any."""
    dirty_ratio: float
    """See `segment.dirty_ratio`."""
    dirty_since_ms: int
    """When the first segment with uncompacted records was created; -1 without one."""
    first_base: int
    first_bytes: int
    """Size of the first segment, which retention examines first."""
    first_newest_ms: int
    first_full_ms: int
    """When the second segment was created; -1 without one."""


class Restart(NamedTuple):
    """The intent to reset a log to another offset."""

    offset: int
    created_ms: int
    sets_aside: bool = False
    """The previous content is damaged and is quarantined."""


class StateImage(msgspec.Struct, kw_only=True):
    """The state at `end_offset`, as saved in a checkpoint and beside each segment."""

    start_offset: int
    end_offset: int
    cleaned_offset: int = 0
    truncate_to: int = NOTHING_TO_CUT
    """The intent to truncate: recovery completes it before it trusts any batch beyond."""
    restart: Restart | None = None
    """Recovery completes the reset and ignores the rest of the image."""
    watermark: int = 0
    """The high watermark as of the save. It may be behind; the log end never stands in for it."""
    begun: int = 0
    """The last save of the leader epoch file (storage/state/leader_epoch_file.py) that `epochs` includes."""
    clean_stop: bool = False
    shape: Shape | None = None
    """The summary of a clean stop, read without opening the partition (storage/recovery/clean_shutdown.py)."""
    epochs: list[tuple[int, int]] = []
    producers: list[Producer] = []
    open_transactions: list[tuple[int, int]] = []
    aborted_transactions: list[Aborted] = []
    ended_transactions: list[tuple[int, int]] = []
    """Marker offset and first offset of transactions whose marker was not known to be committed."""

    @property
    def is_intent(self) -> bool:
        """Whether the image is an intent to change the log, not its content."""
        return self.truncate_to != NOTHING_TO_CUT or self.restart is not None


class PartitionState:
    """The state of an open partition, updated with each batch."""

    def __init__(self, image: StateImage) -> None:
        self.start_offset = image.start_offset
        self.end_offset = image.end_offset
        self.cleaned_offset = image.cleaned_offset
        self.watermark = image.watermark
        self.is_alone = True
        """Whether no other replica exists: durable records are then committed. Set by the owner, not saved."""
        self.epochs = EpochHistory(image.epochs)
        self.begun = image.begun
        self.producers = ProducerTable(image.producers)
        self.transactions = TransactionIndex(
            image.open_transactions, image.aborted_transactions, image.ended_transactions
        )

    def apply(self, header: BatchHeader, *, end: EndMarker | None, now_ms: int | None = None) -> None:
        """Apply a batch at the end of the log, with its marker if it is one; pass `now_ms` if it is written now."""
        if header.producer_id != NO_PRODUCER:
            self.producers.apply(header, now_ms, end)
            self.transactions.apply(header, commit=None if end is None else end.commit)
            self.transactions.settle(self.watermark)
        self.end_offset = header.next_offset

    def advance_start(self, start_offset: int) -> None:
        # Epochs stay until their segment is removed: scans still pass the batches below the start.
        self.start_offset = start_offset
        self.transactions.cut_start(start_offset)
        self.cleaned_offset = max(self.cleaned_offset, start_offset)
        self.watermark = max(self.watermark, start_offset)  # only committed records are deleted

    def image(
        self, *, truncate_to: int = NOTHING_TO_CUT, restart: Restart | None = None, clean_stop: bool = False
    ) -> StateImage:
        return StateImage(
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            cleaned_offset=self.cleaned_offset,
            truncate_to=truncate_to,
            restart=restart,
            watermark=self.watermark,
            begun=self.begun,
            clean_stop=clean_stop,
            epochs=self.epochs.entries(),
            producers=self.producers.image(),
            open_transactions=self.transactions.open_image(),
            aborted_transactions=self.transactions.aborted_image(),
            ended_transactions=self.transactions.ended_image(),
        )


def opened_watermark(kept: int, end_offset: int) -> int:
    """Return the high watermark at opening, never above the saved one: a leader decides what is committed beyond it."""
    return min(kept, end_offset)


class UnknownImage(StorageFault):
    """A checkpoint or snapshot with a valid checksum does not decode.

    Another version wrote it, or this one has a bug.
    """


def encode_image(image: StateImage) -> bytes:
    return msgspec.msgpack.encode(image)


def decode_image(payload: bytes) -> StateImage:
    """Decode an image; raise `UnknownImage` if it does not decode."""
    try:
        return msgspec.msgpack.decode(payload, type=StateImage)
    except msgspec.MsgspecError as error:
        raise UnknownImage(f"a checkpoint with a valid checksum does not decode: {error}") from error


STATE_MAGIC = b"BRAIDSTA"


class Checkpoints:
    def __init__(self, slots: TwoCopyFile, saved: StateImage, *, in_doubt: bool = False) -> None:
        self._slots = slots
        self._saved = saved
        self._lock = threading.Lock()  # acquired last: no other lock is acquired while it is held
        self.version = 0
        self.in_doubt = in_doubt

    @property
    def saved(self) -> StateImage:
        """The last image that was saved completely."""
        return self._saved

    def save(self, make: Callable[[StateImage], StateImage], copies: int = 1) -> None:
        """Save `make(last image)`. Requires the partition's lock to be held."""
        with self._lock:
            self.version += 1
            self._write(make(self._saved), copies)

    def save_unless_overtaken(self, image: StateImage, version: int, copies: int = 1) -> bool:
        """Save `image` unless another was saved since `version`; return whether it was saved.

        Needs no lock of the partition.
        """
        with self._lock:
            if version == self.version:
                self._write(image, copies)
            return version == self.version

    def _write(self, image: StateImage, copies: int) -> None:
        """Write an image.

        A failed save may be on the disk nevertheless, with an epoch or a truncation that did not happen, so the next
        save writes both copies.
        """
        in_doubt, self.in_doubt = self.in_doubt, True
        self._slots.save(encode_image(image), copies=2 if in_doubt else copies)
        self.in_doubt = False
        self._saved = image


def read_snapshot(disk: Disk, folder: str, base: int) -> StateImage | None:
    """Read the state beside the segment `base`; None if it does not exist, `ValueError` if it is invalid."""
    path = join(folder, state_name(base))
    if not disk.exists(path):
        return None
    image = decode_image(unpack_copy(STATE_MAGIC, state_name(base), read_whole(disk, path)).payload)
    if image.end_offset != base:
        raise ValueError(f"it is the state at offset {image.end_offset}, not at {base}")
    return image


def write_snapshot(disk: Disk, folder: str, image: StateImage) -> None:
    """Write the state beside the segment that begins at its end offset; the file must not exist."""
    write_whole(disk, join(folder, state_name(image.end_offset)), pack_copy(STATE_MAGIC, 0, encode_image(image)))
