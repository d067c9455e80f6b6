"""The state of a partition, rebuilt from its batches, and compared with the snapshots and checkpoints of it.

Knows: how far the rebuilt state can be trusted, and which differences are legal (a producer that was idle for long is forgotten).
Refuses to know: files. Invariant: a contradiction is reported only where the log alone decides.
"""

from braidlog.codec.batch.header import BatchHeader
from braidlog.codec.batch.records import EndMarker
from braidlog.storage.state.partition_state import PartitionState, StateImage, decode_image, encode_image
from braidlog.storage.state.producer_table import Producer


class StateRebuild:
    """The state from the first segment on. `is_whole` while nothing that came before is missing or was rewritten."""

    def __init__(self, base_offset: int, snapshot: StateImage | None) -> None:
        self.is_created = snapshot is not None or base_offset == 0
        self.is_whole = self.is_created
        image = StateImage(start_offset=base_offset, end_offset=base_offset) if snapshot is None else _copy(snapshot)
        image.start_offset = base_offset
        self.state = PartitionState(image)

    def compare(self, snapshot: StateImage | None) -> str | None:
        """Compare with a snapshot taken here, or learn from it what the log alone cannot tell any more."""
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
        """What `image`, taken at the same offset, says otherwise than the log; None if nothing or if it cannot be told."""
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
            return f"it gives the epochs {claimed}, the batches carry {epochs}"
        if sorted(rebuilt.transactions.open_image()) != sorted(image.open_transactions):
            return f"its open transactions are {image.open_transactions}, the log's {rebuilt.transactions.open_image()}"
        if rebuilt.transactions.aborted_image() != stated.transactions.aborted_image():
            return "its aborted transactions are not those of the log"
        return _compare_producers({p.producer_id: p for p in rebuilt.producers.image()}, image.producers)


def _compare_producers(rebuilt: dict[int, Producer], stated: list[Producer]) -> str | None:
    for producer in stated:
        known = rebuilt.get(producer.producer_id)
        if known is None:
            return f"it knows producer {producer.producer_id}, which wrote nothing to the log"
        if known.epoch == producer.epoch and not _is_suffix(producer, known):
            return f"it gives producer {producer.producer_id} other batches than the log has"
    return None


def _is_suffix(stated: Producer, known: Producer) -> bool:
    """A producer that was forgotten and came back has a shorter past than the log."""
    count = len(stated.batches)
    return count <= len(known.batches) and stated.batches == known.batches[len(known.batches) - count :]


def _copy(image: StateImage) -> StateImage:
    return decode_image(encode_image(image))
