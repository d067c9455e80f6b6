"""Summary of a partition's log: its start, end and durable offsets, and which epoch wrote which records.

Invariants: start ≤ end; durable ≤ end; epochs ascend in number and in first offset.
"""

import msgspec

NO_EPOCH = -1


class LogSummary(msgspec.Struct, frozen=True):
    """A log without its records. The caller that applies effects to the real log keeps both in step."""

    start: int = 0
    end: int = 0
    durable: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    """Pairs of epoch and first offset. The last epoch may have begun at the log end and written nothing yet."""
    cuts: int = 0
    """Number of truncations. A sync that began before the last truncation proves nothing about records written after
    it.
    """

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else NO_EPOCH

    @property
    def last_record_epoch(self) -> int:
        """The epoch of the last record; `NO_EPOCH` if the log is empty."""
        return self.epoch_at(self.end - 1) if self.end > self.start else NO_EPOCH

    def epoch_at(self, offset: int) -> int:
        return max((epoch for epoch, first in self.epochs if first <= offset), default=NO_EPOCH)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is not above `epoch`, and its end (KIP-279); (-1, start) if all are above."""
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
        """Truncate to `end`. Also drops epochs that began at `end` or above, even if no record is removed."""
        assert self.start <= end <= self.end
        cuts = self.cuts + (end < self.end)
        return msgspec.structs.replace(
            self, end=end, durable=min(self.durable, end), epochs=self._epochs_below(end), cuts=cuts
        )

    def reset_to(self, offset: int) -> "LogSummary":
        """An empty log that starts at `offset`."""
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
