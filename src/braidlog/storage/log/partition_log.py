"""Append to, read, sync, truncate and delete from one partition: a log of batches with dense offsets on the disk.

The owner of the log decides when to flush, retain and compact. Invariants:

- Offsets are dense and never reused. Only `truncate` and `restart_at`, which replication calls, remove offsets
  from the end.
- A crash cannot lose anything below `durable_offset`.
- After a failed sync the log acknowledges nothing. A damaged partition accepts no append.
- A failed write leaves no bytes behind, or the partition stops.

An append checks the batch (codec/batch) and its producer (state), writes it with its offset and epoch patched in
(segment), and applies it to the state. `sync` makes it durable. `slice_at` reads it.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from braidlog.codec.batch.header import (
    CONTROL,
    HEADER_BYTES,
    NO_PRODUCER,
    PLACED_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    check_crc,
    placed,
    read_header,
    read_headers,
    rebased,
    with_append_time,
)
from braidlog.codec.batch.records import EndMarker, check_section, placed_header, read_section
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.settings import TopicSettings
from braidlog.storage.files import Buffer, Disk, is_full
from braidlog.storage.log.durability import Durability, PartitionLocks
from braidlog.storage.log.follower_append import fit
from braidlog.storage.log.log_reader import Counted, FileSlice, Reader
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.clean_shutdown import ClosedPartition, closed_partition_of
from braidlog.storage.recovery.damage import Damage
from braidlog.storage.recovery.recovery import Recovered, Recovery
from braidlog.storage.segment.batch_scan import ScannedBatch
from braidlog.storage.segment.segment import CheckBudget, Segment, SegmentList
from braidlog.storage.segment.segment_files import Identity, SegmentHeader
from braidlog.storage.state.leader_epoch_file import EpochStart
from braidlog.storage.state.partition_state import (
    STATE_MAGIC,
    Checkpoints,
    EpochHistory,
    PartitionState,
    Restart,
    StateImage,
    encode_image,
)
from braidlog.storage.state.transaction_index import Aborted, read_end
from braidlog.storage.two_copy_file import TwoCopyFile


def create_partition(
    disk: Disk,
    folder: str,
    identity: Identity,
    settings: TopicSettings,
    pool: FilePool,
    *,
    now_ms: int,
    begun: int = 0,
) -> None:
    """Create a partition; the caller syncs its parent folder.

    `begun` is the number of the latest save in the leader epoch file; no save up to it contains this partition.
    """
    disk.make_folder(folder)
    segment = Segment.create(disk, folder, SegmentHeader(identity, 0, now_ms, 0), pool, settings.index_interval_bytes)
    segment.sync_file()
    segment.retire()
    slots = TwoCopyFile(disk, folder, "state", STATE_MAGIC)
    slots.save(encode_image(StateImage(start_offset=0, end_offset=0, begun=begun)), copies=2)
    disk.sync_folder(folder)


class Appended(NamedTuple):
    """The offsets of an append.

    `duplicate`: the batch is a producer's retry, and these are the offsets of the first attempt.
    """

    base_offset: int
    last_offset: int
    duplicate: bool = False

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1


_NO_ENDS: dict[int, EndMarker | None] = {}


def _read_ends(data: Buffer, headers: Sequence[BatchHeader]) -> dict[int, EndMarker | None]:
    """Return the content of the transaction markers among these batches, by offset."""
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
    """Raise unless the batch at `position` is complete and a producer may append it to a topic with these settings.

    `own`: this process sealed the batch, so its checksum is not verified.
    """
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
        raise BrokerError(Reason.INVALID_RECORD, "a transaction needs a producer: no one else can end it")
    if header.base_sequence >= 0 and size != len(data):
        # Kafka too accepts one batch per idempotent append: a retry of half the batches would have no correct answer.
        raise BrokerError(Reason.INVALID_RECORD, "an idempotent producer appends one batch at a time")
    if not records_checked:
        try:
            section = read_section(data, position, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            check_section(section, header, keyed=settings.compact)
        except ProtocolError as error:
            raise BrokerError(Reason.INVALID_RECORD, str(error)) from error


class Writer:
    """Write batches to the log and apply them to the state. Every method requires `gate.lock` to be held."""

    def __init__(
        self,
        gate: PartitionLocks,
        chain: SegmentList,
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
        """Write `parts`, which hold the batches of `headers`; `data` holds the same batches as received.

        Either all of them are written or none.
        """
        state = self._state
        latest = state.epochs.latest
        unsure, marks = self._checkpoints.in_doubt, 0
        for header in headers:
            if header.leader_epoch != latest:
                unsure = True
            marks |= header.attributes
        # Read markers before the write: an invalid marker is rejected here.
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
        """Implement `PartitionLog.append`."""
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
        """Implement `PartitionLog.append_section`: the fast path for a batch that needs no checks.

        The batch is sealed with its final offset and epoch, and its header is never parsed.
        """
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
        active.activate()  # outside the try: a file that cannot be opened leaves nothing to clear
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
        active.activate()  # outside the try: a file that cannot be opened leaves nothing to clear
        try:
            active.append(parts, headers)
        except BaseException as error:
            self._clear_tail(active, error)
            raise

    def _clear_tail(self, active: Segment, error: BaseException) -> None:
        """Clear the remains of a failed write (a full disk), so that only this append fails.

        If that fails, stop the partition.
        """
        try:
            active.clear_tail()
        except StorageFault as fault:
            self._gate.fail(fault)
            if isinstance(error, StorageFault):
                error.left_remains = True

    def _begin_epochs(self, headers: Sequence[BatchHeader]) -> None:
        """Make the epochs durable in both copies before the first batch that carries them.

        The history verifies the batches' own epochs.
        """
        history = EpochHistory(self._state.epochs.entries())
        for header in headers:
            history.start_epoch(header.leader_epoch, header.base_offset)
        # Save the last image with these epochs, not a new image: later appends may not be durable yet.
        try:
            epochs, begun = history.entries(), self._state.begun
            self._checkpoints.save(lambda saved: msgspec.structs.replace(saved, epochs=epochs, begun=begun), copies=2)
        except StorageFault as fault:
            if not is_full(fault):
                self._gate.fail(fault)
            raise
        self._state.epochs = history  # last: an epoch that was rejected or not saved has not begun

    def roll_unless_empty(self, settings: TopicSettings, now_ms: int) -> None:
        """Start a new segment unless the active one is empty."""
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


__all__ = ["FIRST_EPOCH", "Appended", "FileSlice", "PartitionLog"]

FIRST_EPOCH = 0


class PartitionLog:
    """The log of one partition. Create one with `create_partition`, open it with `PartitionLog(...)`. Thread-safe."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        identity: Identity,
        settings: TopicSettings,
        pool: FilePool,
        *,
        read_only: bool = False,
        begun: EpochStart | None = None,
    ) -> None:
        self._disk = disk
        self.folder = folder
        self.identity = identity
        self.settings = settings
        self.common_end = 0
        """Every replica has all records below this offset. Not persisted: 0 after an opening, until the owner sets
        it.
        """
        self.turned_offset = 0
        """All records below this offset were exported to the topic's table. Not persisted."""
        self._pool = pool
        recovered = Recovery(disk, folder, identity, settings, pool, read_only=read_only, begun=begun).run()
        self.report = recovered.report
        self._gate = PartitionLocks(folder, closed=read_only)
        self._lock = self._gate.lock
        self.upkeep = self._gate.upkeep
        self._adopt(recovered)
        self._reader = Reader(self._gate, self._chain, self._state, self.report)

    def _adopt(self, recovered: Recovered) -> None:
        """Use the state and segments that recovery returned. All of them are durable."""
        self._state = recovered.state
        self._chain = SegmentList(self._disk, self.folder, self._pool, recovered.segments, self)
        self._checkpoints = Checkpoints(recovered.slots, self._state.image(), in_doubt=recovered.report.is_unsaved)
        self._durability = Durability(self._gate, self._chain, self._state, self._checkpoints)
        self._writer = Writer(self._gate, self._chain, self._state, self._checkpoints, self._durability)
        if not self._gate.closed:
            self._pool.enlist(self)

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._state.start_offset

    @property
    def end_offset(self) -> int:
        """The log end offset: the next record gets it."""
        return self._state.end_offset

    @property
    def is_closed(self) -> bool:
        return self._gate.closed

    @property
    def durable_offset(self) -> int:
        """All records below this offset survive power loss."""
        return self._durability.durable_offset

    @property
    def watermark(self) -> int:
        """The high watermark: all records below it are committed. Without other replicas, it is the durable offset."""
        with self._lock:
            if self._state.is_alone:
                return self.durable_offset
            return max(self._state.watermark, self._state.start_offset)

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset: no transaction is open below it, except one that began before the log start."""
        return self.stable_below(self.end_offset)

    def stable_below(self, committed: int) -> int:
        """Return the last stable offset below `committed`.

        A marker at or above `committed` does not count: a new leader may truncate it.
        """
        with self._lock:
            stable = self._state.transactions.last_stable_offset(min(self._state.end_offset, committed))
            return max(stable, self._state.start_offset)

    @property
    def unsynced_bytes(self) -> int:
        return self._durability.unsynced_bytes

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(segment.data_bytes for segment in self._chain.segments)

    @property
    def segments(self) -> Sequence[Segment]:
        with self._lock:
            return tuple(self._chain.segments)

    @property
    def state(self) -> PartitionState:
        return self._state

    @property
    def damages(self) -> list[Damage]:
        return self.report.damages

    def image(self) -> StateImage:
        with self._lock:
            return self._state.image()

    # -- appending -------------------------------------------------------------------------------------------

    def append(
        self,
        data: Buffer,
        *,
        leader_epoch: int = FIRST_EPOCH,
        now_ms: int,
        records_checked: bool = True,
        headers: Sequence[BatchHeader] | None = None,
        own: bool = False,
    ) -> Appended:
        """Append a producer's batches, all or none.

        Each batch is checked. The log assigns base offsets and leader epochs; the other fields stay as sent. A retry
        of an idempotent producer's batch returns the offsets of the first attempt. Pass `records_checked=False` for
        a batch that a client encoded: every record in it is then checked too, because an invalid record could make
        the log unreadable for other clients. A caller that has parsed the headers of `data` passes `headers`; one
        that sealed the batch passes `own`, and its checksum is not verified.
        """
        with self._lock:
            self.check_writable()
            found = read_headers(data) if headers is None else headers
            settings = self.settings
            return self._writer.append(
                data, found, settings, leader_epoch, now_ms, records_checked=records_checked, own=own
            )

    def append_section(
        self, section: Buffer, count: int, base_timestamp: int, *, leader_epoch: int, now_ms: int
    ) -> tuple[Appended, int] | None:
        """Append packed records with one timestamp and no producer as one batch.

        Return the offsets and the batch's size.

        None: nothing was written; seal the batch and call `append`.
        """
        with self._lock:
            gate = self._gate
            if gate.fault is not None or gate.closed or self.report.damages:
                return None
            return self._writer.append_section(section, count, base_timestamp, self.settings, leader_epoch, now_ms)

    def append_replicated(self, data: Buffer, *, now_ms: int) -> Appended:
        """Append batches from the leader, with the leader's offsets and epochs.

        They must continue at the log end. The first batch may begin earlier in two cases. An empty batch is shortened to
        begin at the log end. A log without records begins with that whole batch and starts inside it; this append is
        durable when it returns.
        """
        with self._lock:
            self.check_writable()
            fitted = fit(data, self._state.start_offset, self._state.end_offset)
            if fitted.base_offset == self._state.end_offset:
                return self._writer.write([fitted.data], fitted.headers, fitted.data, self.settings, now_ms)
        return self._begin_inside(data, now_ms)

    def _begin_inside(self, data: Buffer, now_ms: int) -> Appended:
        """Begin the log with a batch that starts below the log start.

        A crash before the last line leaves a log that begins below its leader's; the leader then reports the offset
        as out of range again.
        """
        with self.upkeep, self._gate.sync_lock, self._lock:
            start = self._state.start_offset
            fitted = fit(data, start, self._state.end_offset)
            self._carry_out(self._state.image(restart=Restart(fitted.base_offset, now_ms)))
            appended = self._writer.write([fitted.data], fitted.headers, fitted.data, self.settings, now_ms)
            self.advance_start(start)
            return appended

    def append_marker(self, batch: bytes, *, leader_epoch: int = FIRST_EPOCH, now_ms: int) -> Appended:
        """Append a control batch that ends a transaction (see codec.records.control_batch)."""
        with self._lock:
            self.check_writable()
            header = read_header(batch)
            check_crc(batch, 0, header)
            if not header.is_control:
                raise BrokerError(Reason.INVALID_RECORD, "a transaction marker is a control batch")
            kept = rebased(header, self._state.end_offset, leader_epoch)
            parts: list[Buffer] = [placed(header, kept.base_offset, leader_epoch), memoryview(batch)[PLACED_BYTES:]]
            return self._writer.write(parts, [kept], batch, self.settings, now_ms)

    def check_writable(self) -> None:
        """Raise unless the partition accepts writes: a failed, closed or damaged partition does not."""
        gate = self._gate
        if gate.fault is not None:
            raise gate.fault.again()
        if gate.closed:
            raise BrokerError(Reason.LOG_CLOSED, f"partition {self.identity.partition} is closed or read-only")
        if self.report.damages:
            raise StorageFault(
                f"the partition takes no writes until its damage is repaired (braid log repair): {self.report.damages[0]}",
                self.folder,
            )

    def begin_epoch(self, leader_epoch: int) -> None:
        """Start a new leader's epoch at the log end. For many logs, see `DataFolder.begin_epochs`."""
        with self._gate.sync_lock, self._lock:
            self.check_writable()
            if leader_epoch != self._state.epochs.latest:
                self._state.epochs.start_epoch(leader_epoch, self._state.end_offset)
                self.checkpoint(copies=2)

    def doubt_epochs(self, begun: int) -> None:
        """Note that save `begun` of the leader epoch file failed but may be on the disk.

        The next append first overwrites it with the log's actual epochs.
        """
        with self._lock:
            self._state.begun, self._checkpoints.in_doubt = begun, True

    # -- durability ------------------------------------------------------------------------------------------

    def sync(self, upto: int | None = None) -> int:
        """Block until everything appended before the call (or below `upto`) is durable; return the durable offset.

        One sync covers every append before it. A caller whose `upto` another thread's sync has covered does not sync
        again. A failed sync is final: the kernel may have dropped the pages that it could not write, and a second
        sync would succeed without writing them. A checkpoint that finds no disk space is not final.
        """
        with self._gate.sync_lock:
            return self._durability.sync(upto, self.settings)

    def checkpoint(self, *, copies: int = 1, clean_stop: bool = False) -> None:
        """Make everything durable and save the state, so that the next opening scans no batches."""
        with self._gate.sync_lock, self._lock:
            self.sync()
            self._durability.checkpoint(copies, clean_stop=clean_stop)

    def save_state(self, *, copies: int) -> None:
        """Sync and save the state without blocking appends: covers everything appended before the call."""
        with self._gate.sync_lock:
            self._durability.sync(None, self.settings, copies=copies)

    def replicate(self) -> int:
        """Declare that other replicas exist: `keep_watermark` then sets the high watermark.

        Return the watermark that was saved last.

        Call it at every opening of a replicated log, before the first read or append.
        """
        with self._lock:
            self._state.is_alone = False
            return self.watermark

    def become_sole_replica(self) -> None:
        """Declare that no other replica exists: all durable records are committed."""
        with self._lock:
            self._state.is_alone, self._state.watermark = True, self.durable_offset

    def keep_watermark(self, offset: int, *, common_end: int = 0) -> None:
        """Set the high watermark to `offset`.

        Every replica, including offline ones, has all records below `common_end`.

        Neither is synced: the next checkpoint saves the watermark (every flush window, every close), and an opening
        starts with the saved one. Compaction and retention stay below the watermark; tombstones above `common_end`
        are kept.
        """
        with self._lock:
            assert not self._state.is_alone, "a log that is alone knows by itself what is committed"
            self._state.watermark = min(max(offset, self._state.watermark), self._state.end_offset)
            self.common_end = common_end

    @property
    def tombstone_limit(self) -> int:
        """No replica can miss a tombstone that is dropped below this offset."""
        return self.durable_offset if self._state.is_alone else self.common_end

    def wait_beyond(self, offset: int, timeout: float | None, *, durable: bool) -> bool:
        """Block until the log (or its durable part) grows beyond `offset`; return False on timeout.

        Returns too when the partition closes; raises its fault if it has failed.
        """
        if durable:
            return self._gate.wait(lambda: self._durability.durable_offset > offset, timeout)
        return self._gate.wait(lambda: self._state.end_offset > offset, timeout)

    def expire_producers(self, now_ms: int, *, silent_ms_max: int | None = None) -> None:
        """Remove producers idle for longer than the topic's setting, or than `silent_ms_max` if that is shorter."""
        with self._lock:
            expiry_ms = self.settings.producer_expiry_ms
            before = now_ms - (expiry_ms if silent_ms_max is None else min(expiry_ms, silent_ms_max))
            self._state.producers.expire(before, self._state.transactions.open_producers())

    # -- reading ---------------------------------------------------------------------------------------------

    def slice_at(
        self, offset: int, bytes_max: int, *, upto: int | None = None, budget: CheckBudget | None = None
    ) -> FileSlice | None:
        """Implement `Reader.slice_at`."""
        return self._reader.slice_at(offset, bytes_max, upto=upto, budget=budget)

    def read(self, offset: int, bytes_max: int, *, upto: int | None = None) -> bytes:
        """Return the bytes of `slice_at`; empty at the end of the log."""
        return b"" if (found := self.slice_at(offset, bytes_max, upto=upto)) is None else found.read()

    def count(self, offset: int, upto: int, *, committed_only: bool, batches_max: int) -> Counted:
        """See `Reader.count`."""
        return self._reader.count(offset, upto, committed_only=committed_only, batches_max=batches_max)

    def forget_checks(self) -> None:
        """Verify all batches again before they are next read."""
        self._reader.forget_checks()

    def check_again(self, offset: int) -> None:
        """See `Reader.check_again`."""
        self._reader.check_again(offset)

    def batches_of(self, segment: Segment, number: int = 0) -> Iterator[ScannedBatch]:
        """See `Reader.batches_of`."""
        return self._reader.batches_of(segment, number)

    def find_batch_by_time(self, timestamp_ms: int) -> Iterator[bytes]:
        """Yield batches in order, from the first whose latest timestamp is at least `timestamp_ms`."""
        return self._reader.find_batch_by_time(timestamp_ms)

    def batch_start(self, offset: int) -> int:
        return self._reader.batch_start(offset)

    def aborted_in(self, start: int, end: int) -> list[Aborted]:
        """Return the aborted transactions in [start, end): a read_committed consumer skips their records."""
        with self._lock:
            return self._state.transactions.aborted_in(start, end)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the end offset of `epoch`, or of the largest epoch below it.

        A follower requests it before it truncates.
        """
        with self._lock:
            return self._state.epochs.end_offset_for(epoch, self._state.end_offset, self._state.start_offset)

    # -- truncating, resetting and deleting --------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Start a new segment unless the active one is empty."""
        with self._lock:
            self.check_writable()
            self._writer.roll_unless_empty(self.settings, now_ms)

    def truncate(self, offset: int) -> int:
        """Drop everything from `offset` on.

        Return the new end: the start of the batch that holds `offset`, if one does.

        For replication only: a follower drops what its leader does not have, and also epochs that began there
        without a record. The high watermark falls with the end. The intent is durable first: recovery completes a
        truncation that a crash interrupted.
        """
        with self.upkeep, self._gate.sync_lock, self._lock:
            self.check_writable()
            if offset >= self._state.end_offset:
                self._forget_idle_epochs()
                return self._state.end_offset
            if offset < self._state.start_offset:
                raise BrokerError(Reason.OFFSET_OUT_OF_RANGE, f"cannot truncate to {offset}, below the log's start")
            boundary = self._reader.batch_start(offset)
            self.sync()
            self._carry_out(self._state.image(truncate_to=boundary))
            return self._state.end_offset

    def _forget_idle_epochs(self) -> None:
        """Drop epochs without a record here.

        The leader may not know them, and would answer every request about them in the same way.
        """
        history = EpochHistory(self._state.epochs.entries())
        history.cut_end(self._state.end_offset)
        if history.latest != self._state.epochs.latest:
            self._state.epochs = history
            self.checkpoint(copies=2)

    def restart_at(self, offset: int, *, now_ms: int, sets_aside: bool = False) -> None:
        """Discard the whole log and begin at `offset`; everything below counts as committed.

        For replication only: a follower resyncs from its leader. `sets_aside` also resets a damaged log and
        quarantines its segments. The intent is durable first, as in `truncate`.
        """
        with self.upkeep, self._gate.sync_lock, self._lock:
            if sets_aside:
                self.report.damages.clear()
            self.check_writable()
            self._carry_out(self._state.image(restart=Restart(offset, now_ms, sets_aside)))

    def _carry_out(self, intent: StateImage) -> None:
        try:
            self._checkpoints.save(lambda _: intent, copies=2)
            self._reload()
        except StorageFault as fault:
            self._gate.fail(fault)  # the intent may be durable: only an opening finds out
            raise

    def _reload(self) -> None:
        """Run recovery on the folder: only recovery carries out an intent."""
        self._chain.close_files()
        is_alone = self._state.is_alone
        recovered = Recovery(self._disk, self.folder, self.identity, self.settings, self._pool).run()
        self._adopt(recovered)
        self._state.is_alone = is_alone
        self._reader.renew(self._chain, self._state)
        self.report.damages.extend(recovered.report.damages)

    def advance_start(self, offset: int) -> int:
        """Delete the records below `offset`; return the new start, which is durable before any file is removed."""
        with self.upkeep, self._gate.sync_lock, self._lock:
            self.check_writable()
            if offset > self._state.end_offset:
                raise BrokerError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"cannot delete up to {offset}, the log ends at {self._state.end_offset}",
                )
            if offset > self._state.start_offset:
                self._state.advance_start(offset)
                self.checkpoint(copies=2)
                self._chain.remove_below(offset)
                self._state.epochs.cut_start(self._chain.first_base)
            return self._state.start_offset

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the segments `old` with a rewritten one that is durable and renamed already."""
        self._chain.replace(old, new)

    def closed_summary(self) -> ClosedPartition | None:
        """Return the summary of a closed partition; None if it was not closed cleanly."""
        cleanly = self._gate.closed and self._gate.fault is None and not self.report.damages
        return closed_partition_of(self._checkpoints.saved) if cleanly else None

    def maybe_close(self, *, settled_only: bool) -> bool:
        """Implement `Holder.maybe_close`."""
        return self._durability.maybe_close(self.settings, settled_only=settled_only)

    def drop_reserve(self) -> None:
        """Implement `Holder.drop_reserve`."""
        with self._lock:
            self._chain.active.drop_reserve()

    def stop(self, fault: StorageFault) -> None:
        """Stop the partition after a failed change of files: memory and disk may differ until it is opened again."""
        self._gate.fail(fault)

    @property
    def lock(self) -> threading.RLock:
        """Retention and compaction hold this lock while they replace segments."""
        return self._lock

    def close(self) -> None:
        """Make everything durable and save a clean stop, or raise. A damaged partition only releases its files."""
        with self.upkeep, self._gate.sync_lock, self._lock:
            try:
                if self._gate.closed or self.report.damages or (self.report.is_unsaved and self._checkpoints.in_doubt):
                    return  # in the last case nothing was written since a clean stop
                if self._gate.fault is None:
                    self.checkpoint(copies=2, clean_stop=True)
                elif self.durable_offset < self._state.end_offset:
                    raise self._gate.fault.again()  # with a lazy `flush` no caller may have seen this fault yet
            finally:
                self._gate.closed = True
                self._chain.close_files()
                self._gate.moved.notify_all()
