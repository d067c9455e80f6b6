"""What replication knows of a log: where it begins and ends, how far it is durable, which epoch wrote what.

Invariants: start ≤ end; durable ≤ end; epochs ascend in number and in first offset.
"""

import msgspec

NO_EPOCH = -1


class LogSummary(msgspec.Struct, frozen=True):
    """A log without its records. Whoever carries out effects on the real log keeps this in step with it."""

    start: int = 0
    end: int = 0
    durable: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, its first offset). The last may have begun at the end: it has written nothing yet."""
    cuts: int = 0
    """How often records were taken back. A sync that began before the last cut says nothing about what came after it."""

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else NO_EPOCH

    @property
    def last_record_epoch(self) -> int:
        """The epoch of the last record; none if there is no record."""
        return self.epoch_at(self.end - 1) if self.end > self.start else NO_EPOCH

    def epoch_at(self, offset: int) -> int:
        return max((epoch for epoch, first in self.epochs if first <= offset), default=NO_EPOCH)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch here that is not above `epoch`, and where it ended (KIP-279); (-1, start) if all are above."""
        known = NO_EPOCH
        for each, first in self.epochs:
            if each > epoch:
                return known, max(first, self.start) if known != NO_EPOCH else self.start
            known = each
        return known, self.end

    def begun(self, epoch: int) -> "LogSummary":
        assert epoch > self.latest_epoch, f"epoch {epoch} begins after {self.latest_epoch}"
        return msgspec.structs.replace(self, epochs=(*self._epochs_below(self.end), (epoch, self.end)))

    def appended(self, end: int, epoch: int) -> "LogSummary":
        assert epoch >= self.latest_epoch, f"a record of epoch {epoch} follows one of {self.latest_epoch}"
        epochs = self.epochs if epoch == self.latest_epoch else (*self.epochs, (epoch, self.end))
        return msgspec.structs.replace(self, end=end, epochs=epochs)

    def truncated(self, end: int) -> "LogSummary":
        """Also forgets the epochs that began at `end` or above, even if no record is cut."""
        assert self.start <= end <= self.end
        cuts = self.cuts + (end < self.end)
        return msgspec.structs.replace(
            self, end=end, durable=min(self.durable, end), epochs=self._epochs_below(end), cuts=cuts
        )

    def restarted(self, offset: int) -> "LogSummary":
        """Empty, beginning at `offset`."""
        return LogSummary(start=offset, end=offset, durable=offset, cuts=self.cuts + 1)

    def trimmed(self, start: int) -> "LogSummary":
        assert self.start <= start <= self.end
        epoch = self.epoch_at(start)
        later = tuple(each for each in self.epochs if each[1] > start)
        return msgspec.structs.replace(
            self, start=start, epochs=((epoch, start), *later) if epoch != NO_EPOCH else later
        )

    def synced(self, end: int) -> "LogSummary":
        return msgspec.structs.replace(self, durable=max(self.durable, min(end, self.end)))

    def _epochs_below(self, end: int) -> tuple[tuple[int, int], ...]:
        return tuple(each for each in self.epochs if each[1] < end)
