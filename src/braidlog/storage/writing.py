"""Check batches, and write them at the end of the log.

Knows: what a producer may send, where a batch will stand, when a segment is full, that epochs come before their batches. Refuses
to know: where the batches come from.
Invariant: a write that the disk refuses leaves nothing behind, or the partition stops.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from braidlog.codec.batch import (
    CONTROL,
    HEADER_BYTES,
    NO_PRODUCER,
    PLACED_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    check_crc,
    placed,
    rebased,
    with_append_time,
)
from braidlog.codec.records import EndMarker, check_section, placed_header, read_section
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
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


def check_produced(
    header: BatchHeader,
    data: memoryview,
    position: int,
    settings: TopicSettings,
    *,
    records_checked: bool,
    own: bool = False,
) -> None:
    """Raise unless the batch at `position` is whole and one that a producer may append to a topic of these settings. `own`: it
    was sealed here just now."""
    size = header.size_bytes
    if size > settings.batch_bytes_max:
        raise BrokerError(
            Reason.RECORD_TOO_LARGE,
            f"a batch of {size} bytes is larger than the topic's {settings.batch_bytes_max}",
        )
    if not own:
        check_crc(data, position, header)
    if header.record_count != header.last_offset_delta + 1:
        raise ProtocolError(f"{header.record_count} records do not fill {header.last_offset_delta + 1} offsets")
    attributes = header.attributes
    if attributes & CONTROL:
        raise BrokerError(Reason.INVALID_RECORD, "control batches are written by the log, not by producers")
    if attributes & TRANSACTIONAL and header.producer_id < 0:
        raise BrokerError(Reason.INVALID_RECORD, "a transaction needs a producer: nobody else could end it")
    if header.base_sequence >= 0 and size != len(data):
        # Kafka too takes one batch per idempotent append: half a retry has no honest answer.
        raise BrokerError(Reason.INVALID_RECORD, "an idempotent producer appends one batch at a time")
    if not records_checked:
        try:
            section = read_section(data, position, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            check_section(section, header, keyed=settings.compact)
        except ProtocolError as error:
            raise BrokerError(Reason.INVALID_RECORD, str(error)) from error


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
        self._has_grown(size)
        return Appended(headers[0].base_offset, headers[-1].last_offset)

    def append(
        self,
        data: Buffer,
        headers: Sequence[BatchHeader],
        settings: TopicSettings,
        leader_epoch: int,
        now_ms: int,
        *,
        records_checked: bool,
        own: bool,
    ) -> Appended:
        """See `PartitionLog.append`."""
        state = self._state
        parts: list[Buffer] = []
        kept: list[BatchHeader] = []
        view = memoryview(data)
        position, offset = 0, state.end_offset
        for header in headers:
            check_produced(header, view, position, settings, records_checked=records_checked, own=own)
            if header.producer_id != NO_PRODUCER and (duplicate := state.producers.check(header)) is not None:
                return Appended(duplicate.base_offset, duplicate.last_offset, duplicate=True)
            end = position + header.size_bytes
            body = view[position + PLACED_BYTES : end]
            placed_header = rebased(header, offset, leader_epoch)
            if settings.append_time:
                body = memoryview(with_append_time(view, position, header, now_ms))[PLACED_BYTES:]
                placed_header = placed_header._replace(max_timestamp=now_ms)
            parts += (placed(header, offset, leader_epoch), body)
            kept.append(placed_header)
            position = end
            offset += header.last_offset_delta + 1
        if not kept:
            raise BrokerError(Reason.INVALID_RECORD, "an append needs at least one batch")
        return self.write(parts, kept, data, settings, now_ms)

    def append_section(
        self, section: Buffer, count: int, base_timestamp: int, settings: TopicSettings, leader_epoch: int, now_ms: int
    ) -> tuple[Appended, int] | None:
        """See `PartitionLog.append_section`. What `append` and `write` do, where nothing has to be asked about the batch: it is
        sealed where it will stand, and its header is never read."""
        state, active = self._state, self._chain.active
        if state.epochs.latest != leader_epoch or self._checkpoints.in_doubt or settings.append_time or not count:
            return None
        base_offset = state.end_offset
        size = HEADER_BYTES + len(section)
        is_full = active.size + size > settings.segment_bytes or now_ms - active.head.created_ms >= settings.segment_ms
        if is_full or size > settings.batch_bytes_max:
            return None
        next_offset = base_offset + count
        header = placed_header(section, count, base_timestamp, base_offset, leader_epoch)
        active.activate()  # outside: a file that cannot be opened leaves nothing to clear away
        try:
            active.append_one((header, section), base_offset, next_offset, base_timestamp)
        except BaseException as error:
            self._clear_tail(active, error)
            raise
        state.end_offset = next_offset
        self._has_grown(size)
        return tuple.__new__(Appended, (base_offset, next_offset - 1, False)), size

    def _has_grown(self, size: int) -> None:
        durability, gate = self._durability, self._gate
        durability.unsynced_bytes += size
        durability.since_checkpoint_bytes += size
        if gate.followers:
            gate.moved.notify_all()

    def _write_active(self, active: Segment, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        active.activate()  # outside: a file that cannot be opened leaves nothing to clear away
        try:
            active.append(parts, headers)
        except BaseException as error:
            self._clear_tail(active, error)
            raise

    def _clear_tail(self, active: Segment, error: BaseException) -> None:
        """A refused write (a full disk) fails this append alone, if its remains can be cleared away; else the partition."""
        try:
            active.clear_tail()
        except StorageFault as fault:
            self._gate.fail(fault)
            if isinstance(error, StorageFault):
                error.left_remains = True

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
