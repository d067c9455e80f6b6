"""Write checked batches at the end of the log.

Knows: when a segment is full, that epochs come before their batches. Refuses to know: where the batches come from.
Invariant: a write that the disk refuses leaves nothing behind, or the partition stops.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from braidlog.codec.batch import CONTROL, BatchHeader
from braidlog.codec.records import EndMarker
from braidlog.model.errors import StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.storage.chain import SegmentChain
from braidlog.storage.checkpoints import Checkpoints
from braidlog.storage.durability import Durability
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.files import Buffer, is_full
from braidlog.storage.gate import Gate
from braidlog.storage.segment import Segment
from braidlog.storage.state import PartitionState
from braidlog.storage.transactions import read_end


class Appended(NamedTuple):
    """Where an append went. `duplicate` means it was there already: a retry, answered as the first time."""

    base_offset: int
    last_offset: int
    duplicate: bool = False

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1


_NO_ENDS: dict[int, EndMarker | None] = {}


def _read_ends(data: Buffer, headers: Sequence[BatchHeader]) -> dict[int, EndMarker | None]:
    """What the markers among these batches say, by their offsets."""
    position = 0
    ends: dict[int, EndMarker | None] = {}
    for header in headers:
        if header.attributes & CONTROL:
            ends[header.base_offset] = read_end(data, position, header)
        position += header.size_bytes
    return ends


class Writer:
    """Every method is called with `gate.lock` held."""

    def __init__(
        self,
        gate: Gate,
        chain: SegmentChain,
        state: PartitionState,
        checkpoints: Checkpoints,
        durability: Durability,
    ) -> None:
        self._gate = gate
        self._chain = chain
        self._state = state
        self._checkpoints = checkpoints
        self._durability = durability

    def write(
        self,
        parts: Sequence[Buffer],
        headers: Sequence[BatchHeader],
        data: Buffer,
        settings: TopicSettings,
        now_ms: int,
    ) -> Appended:
        """Write `parts`, which hold the batches of `headers`; `data` are the same batches as they came.

        All of them are in the log or none is.
        """
        state = self._state
        latest = state.epochs.latest
        unsure, marks = self._checkpoints.in_doubt, 0
        for header in headers:
            if header.leader_epoch != latest:
                unsure = True
            marks |= header.attributes
        # A marker may be refused, so before anything is written.
        ends = _read_ends(data, headers) if marks & CONTROL else _NO_ENDS
        if unsure:
            self._begin_epochs(headers)
        size = len(data)
        active = self._chain.active
        if active.size + size > settings.segment_bytes or now_ms - active.head.created_ms >= settings.segment_ms:
            self.roll_unless_empty(settings, now_ms)
            active = self._chain.active
        self._write_active(active, parts, headers)
        for header in headers:
            state.apply(header, end=ends.get(header.base_offset) if ends else None, now_ms=now_ms)
        self._durability.unsynced_bytes += size
        self._durability.since_checkpoint_bytes += size
        if self._gate.followers:
            self._gate.moved.notify_all()
        return Appended(headers[0].base_offset, headers[-1].last_offset)

    def _write_active(self, active: Segment, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """A refused write (a full disk) fails this append alone, if its remains can be cleared away; else the partition."""
        active.activate()  # outside: a file that cannot be opened leaves nothing to clear away
        try:
            active.append(parts, headers)
        except BaseException as error:
            try:
                active.clear_tail()
            except StorageFault as fault:
                self._gate.fail(fault)
                if isinstance(error, StorageFault):
                    error.left_remains = True
            raise

    def _begin_epochs(self, headers: Sequence[BatchHeader]) -> None:
        """Epochs are durable before the first batch that carries them, in both slots: they protect the batches' own."""
        history = EpochHistory(self._state.epochs.entries())
        for header in headers:
            history.begin(header.leader_epoch, header.base_offset)
        # The last image with these epochs, not a new one: what was appended since may not be durable yet.
        try:
            epochs, begun = history.entries(), self._state.begun
            self._checkpoints.save(lambda saved: msgspec.structs.replace(saved, epochs=epochs, begun=begun), copies=2)
        except StorageFault as fault:
            if not is_full(fault):
                self._gate.fail(fault)
            raise
        self._state.epochs = history  # last: an epoch that was refused or could not be saved has not begun

    def roll_unless_empty(self, settings: TopicSettings, now_ms: int) -> None:
        """Start a new segment, if the active one holds anything."""
        if not self._chain.active.data_bytes:
            return
        if self._checkpoints.in_doubt:
            self._begin_epochs(())
        try:
            self._chain.roll(self._state.image(), settings.index_interval_bytes, now_ms)
        except StorageFault:
            try:
                self._chain.undo_roll(self._state.end_offset)
            except StorageFault as fault:
                self._gate.fail(fault)
            raise
