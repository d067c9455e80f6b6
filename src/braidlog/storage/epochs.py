"""Which leader wrote which offsets.

Knows: the history (epoch, first offset), ascending in both. Refuses to know: who the leaders were.
Invariant: an epoch is in the history, durably, before the first batch that carries it. A batch's epoch lies outside its
checksum; this history is what protects it.
"""

from bisect import bisect_right
from collections.abc import Iterable

from braidlog.codec.batch import BatchHeader
from braidlog.model.errors import BrokerError, Reason

NO_EPOCH = -1
_CERTAIN = 2**62


class EpochHistory:
    """Answers "which epoch is this offset of" and "where did that epoch end"."""

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = [epoch for epoch, _ in entries or []]
        self._starts = [start for _, start in entries or []]

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def begin(self, epoch: int, start_offset: int) -> None:
        """Note that offsets from `start_offset` on belong to `epoch`; epochs never go back."""
        if epoch < self.latest:
            raise BrokerError(Reason.STALE_LEADER_EPOCH, f"leader epoch {epoch} is over, the log is in {self.latest}")
        if epoch == self.latest:
            return
        while self._starts and self._starts[-1] >= start_offset:
            # The previous epoch wrote nothing: its leader came and went between two records.
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end: int, log_start: int = 0) -> tuple[int, int]:
        """The largest known epoch not above `epoch`, and the offset where it ended; (-1, -1) for an epoch of the future.

        Kafka's rule after KIP-279: a follower repeats the question until it gets an epoch that it has itself.
        """
        if not self._epochs or epoch > self.latest:
            return NO_EPOCH, -1
        if epoch == self.latest:
            return epoch, log_end
        above = bisect_right(self._epochs, epoch)
        # The history reaches back to the first batch on the disk, which may lie below the start.
        return (self._epochs[above - 1] if above else epoch), max(self._starts[above], log_start)

    def cut_end(self, end_offset: int) -> None:
        """Forget epochs that began at or after `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()

    def draw_back(self, end_offset: int) -> None:
        """The log lost a tail that was never durable: the latest epoch, announced beyond it, now begins at its end.

        It is not forgotten, or a leader that it had replaced could write again.
        """
        latest = self.latest
        self.cut_end(end_offset + 1)
        self.begin(latest, end_offset)

    def cut_start(self, start_offset: int) -> None:
        """Forget epochs that ended before `start_offset`; the one in force there now begins there."""
        keep = max(bisect_right(self._starts, start_offset) - 1, 0)
        del self._epochs[:keep], self._starts[:keep]
        if self._starts and self._starts[0] < start_offset:
            self._starts[0] = start_offset


def learn_epochs(known: list[tuple[int, int]], headers: Iterable[BatchHeader]) -> EpochHistory:
    """What is known, and then the likeliest history behind the batches that follow: the one that contradicts the fewest.

    Epochs never go back, so of runs of batches that do not ascend some are wrong; the heaviest ascending choice is taken.
    """
    runs = [(epoch, start, _CERTAIN) for epoch, start in known]
    for header in headers:
        if runs and runs[-1][0] == header.leader_epoch:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
        else:
            runs.append((header.leader_epoch, header.base_offset, 1))
    best: dict[
        int, tuple[int, list[int]]
    ] = {}  # epoch -> (batches, the numbers of the runs) of the best choice it ends
    for number, (epoch, _, batches) in enumerate(runs):
        weight, chosen = max((best[earlier] for earlier in best if earlier <= epoch), default=(0, []))
        if weight + batches > best.get(epoch, (0,))[0]:
            best[epoch] = (weight + batches, [*chosen, number])
    history = EpochHistory()
    for number in max(best.values(), default=(0, []))[1]:
        if runs[number][0] > NO_EPOCH:
            history.begin(runs[number][0], runs[number][1])
    return history
