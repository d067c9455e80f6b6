"""Rebuild the state of a partition from its batches, and compare it with snapshots and checkpoints.

Some differences are legal, such as an expired producer. A contradiction is reported only if the log alone decides.
"""

from braidlog.codec.batch.header import BatchHeader
from braidlog.codec.batch.records import EndMarker
from braidlog.storage.state.partition_state import PartitionState, StateImage, decode_image, encode_image
from braidlog.storage.state.producer_table import Producer


class StateRebuild:
    """State from the first segment on. `is_whole` until a segment is missing or was rewritten."""

    def __init__(self, base_offset: int, snapshot: StateImage | None) -> None:
        self.is_created = snapshot is not None or base_offset == 0
        self.is_whole = self.is_created
        image = StateImage(start_offset=base_offset, end_offset=base_offset) if snapshot is None else _copy(snapshot)
        image.start_offset = base_offset
        self.state = PartitionState(image)

    def compare(self, snapshot: StateImage | None) -> str | None:
        """Compare with a snapshot at this offset, or take from it what the log no longer contains."""
        if snapshot is None:
            return None
        if self.is_whole:
            return self.contradiction(snapshot)
        if not self.is_created:
            self.state = PartitionState(_copy(snapshot))
            self.is_created = True
        return None

    def apply(self, header: BatchHeader, *, end: EndMarker | None) -> None:
        if header.leader_epoch > self.state.epochs.latest:
            self.state.epochs.start_epoch(header.leader_epoch, header.base_offset)
        self.state.apply(header, end=end)

    def image(self) -> StateImage:
        return _copy(self.state.image())

    def contradiction(self, image: StateImage) -> str | None:
        """Return how `image`, taken at the same offset, contradicts the log; None if it does not, or if that is unknown."""
        if not self.is_whole or image.cleaned_offset > image.start_offset or image.end_offset != self.state.end_offset:
            return None
        rebuilt, stated = PartitionState(self.image()), PartitionState(_copy(image))
        start, end = max(image.start_offset, rebuilt.start_offset), image.end_offset
        for state in (rebuilt, stated):
            state.advance_start(start)
            state.epochs.cut_start(start)
        epochs = [entry for entry in rebuilt.epochs.entries() if entry[1] < end]
        claimed = [entry for entry in stated.epochs.entries() if entry[1] < end]
        if epochs != claimed:
            return f"epochs {claimed} differ from those of the batches, {epochs}"
        if sorted(rebuilt.transactions.open_image()) != sorted(image.open_transactions):
            return f"open transactions {image.open_transactions}, but the log has {rebuilt.transactions.open_image()}"
        if rebuilt.transactions.aborted_image() != stated.transactions.aborted_image():
            return "aborted transactions differ from those of the log"
        return _compare_producers({p.producer_id: p for p in rebuilt.producers.image()}, image.producers)


def _compare_producers(rebuilt: dict[int, Producer], stated: list[Producer]) -> str | None:
    for producer in stated:
        known = rebuilt.get(producer.producer_id)
        if known is None:
            return f"producer {producer.producer_id} wrote nothing to the log"
        if known.epoch == producer.epoch and not _is_suffix(producer, known):
            return f"batches of producer {producer.producer_id} differ from those of the log"
    return None


def _is_suffix(stated: Producer, known: Producer) -> bool:
    """Return whether `stated` matches the end of `known`: a producer that expired and returned has a shorter history."""
    count = len(stated.batches)
    return count <= len(known.batches) and stated.batches == known.batches[len(known.batches) - count :]


def _copy(image: StateImage) -> StateImage:
    return decode_image(encode_image(image))
