"""One partition: a log of batches with dense offsets, on the disk.

Knows: appending, reading, what is durable, where the log starts and ends. Refuses to know: topics, dialects, replicas, threads
other than its callers', when to flush or retain (its owner decides).
Invariants: offsets are dense and never reused (only `truncate`, which replication asks for, takes any back); nothing below
`durable_offset` can be lost by a crash; after a failed sync nothing is acknowledged again; a damaged partition takes no append.

The life of an append: check the batch (codec/batch), check its producer (state), write it with its offset and epoch patched
in (segment), fold it into the state. `sync` makes it durable. `slice_at` finds it again.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from braidlog.codec.batch import (
    CONTROL,
    PLACED_BYTES,
    BatchHeader,
    check_crc,
    placed,
    read_header,
    rebased,
    with_append_time,
)
from braidlog.codec.records import check_batch_records
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.model.settings import TopicSettings
from braidlog.storage.damage import Damage
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.files import Buffer, Disk, File, is_full, join
from braidlog.storage.pool import FilePool
from braidlog.storage.recovery import STATE_MAGIC, Recovery, is_commit, seal_segment
from braidlog.storage.segment import Identity, Mark, Segment, SegmentHead, log_name, state_name
from braidlog.storage.slots import SlotPair, pack_slot
from braidlog.storage.state import PartitionState, StateImage, encode_image
from braidlog.storage.transactions import Aborted
from braidlog.storage.walk import BadBatch, Found, find_batch

FIRST_EPOCH = 0


class Appended(NamedTuple):
    """Where an append went. `duplicate` means it was there already: a retry, answered as the first time."""

    base_offset: int
    last_offset: int
    duplicate: bool = False

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1


class FileSlice(NamedTuple):
    """Bytes of a segment file: whole batches that hold offsets [offset, next_offset), fit for `sendfile`."""

    file: File
    position: int
    size: int
    offset: int
    next_offset: int

    def read(self) -> bytes:
        return self.file.read_at(self.size, self.position)


class PartitionLog:
    """Open one with `PartitionLog.open`, make one with `PartitionLog.create`. Safe to share between threads."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        identity: Identity,
        settings: TopicSettings,
        pool: FilePool,
        *,
        read_only: bool = False,
    ) -> None:
        recovered = Recovery(disk, folder, identity, settings, pool, read_only=read_only).run()
        self._disk = disk
        self.folder = folder
        self.identity = identity
        self.settings = settings
        self.report = recovered.report
        self._pool = pool
        self._segments = recovered.segments
        self._state = recovered.state
        self._slots = recovered.slots
        self._saved = self._state.image()
        self._bases = [segment.base_offset for segment in self._segments]
        self._pending: list[Segment] = []
        # Taken in this order where more than one is. Held by whoever exchanges or removes segments, from the first look to
        # the last: a compaction must not put back what a truncation took away, nor outlive a close.
        self.upkeep = threading.RLock()
        self._sync_lock = threading.RLock()  # one sync at a time
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        self._followers = 0
        self._fault: StorageFault | None = None
        self._closed = read_only
        self._read_only = read_only
        self._durable_offset = self._state.end_offset
        self._unsynced_bytes = 0
        self._since_checkpoint_bytes = 0
        self._names_changed = False
        self._slots_in_doubt = False
        self._image_lock = threading.Lock()  # taken last: whoever holds it asks for no other
        self._image_version = 0
        self._forgotten: tuple[int, int] = (self._active.base_offset, 0)

    @classmethod
    def create(
        cls,
        disk: Disk,
        folder: str,
        identity: Identity,
        settings: TopicSettings,
        pool: FilePool,
        *,
        now_ms: int,
    ) -> None:
        """Make the folder of a new, empty partition. The caller syncs the folder above it."""
        disk.make_folder(folder)
        head = SegmentHead(identity, 0, now_ms, 0)
        segment = Segment.create(disk, folder, head, pool, settings.index_interval_bytes)
        segment.sync_file()
        segment.retire()
        slots = SlotPair(disk, folder, "state", STATE_MAGIC)
        slots.save(encode_image(StateImage(start_offset=0, end_offset=0)), copies=2)
        disk.sync_folder(folder)

    # -- what is there ---------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self._state.start_offset

    @property
    def end_offset(self) -> int:
        """The offset the next record gets."""
        return self._state.end_offset

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def durable_offset(self) -> int:
        """Everything below survives power loss."""
        return self._durable_offset

    @property
    def last_stable_offset(self) -> int:
        """Committed readers may go so far: no transaction is open below, except one that began before the start."""
        with self._lock:
            stable = self._state.transactions.last_stable_offset(self._state.end_offset)
            return max(stable, self._state.start_offset)

    @property
    def unsynced_bytes(self) -> int:
        return self._unsynced_bytes

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(segment.data_bytes for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        with self._lock:
            return tuple(self._segments)

    @property
    def state(self) -> PartitionState:
        return self._state

    @property
    def damages(self) -> list[Damage]:
        return self.report.damages

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    def image(self) -> StateImage:
        with self._lock:
            return self._state.image()

    # -- appending -------------------------------------------------------------------------------------------

    def append(
        self, data: Buffer, *, leader_epoch: int = FIRST_EPOCH, now_ms: int, records_checked: bool = True
    ) -> Appended:
        """Append the batches of a producer. Each is checked; base offsets and epochs are ours, the rest stays as it came.

        All or nothing: either every batch of `data` is in the log or none is. A retry of an idempotent producer's batch
        returns the offsets it has. A batch that a client made itself comes with `records_checked` False: then every record in
        it is checked too, or one client could leave something that no other can read.
        """
        with self._lock:
            self.check_writable()
            parts: list[Buffer] = []
            headers: list[BatchHeader] = []
            view = memoryview(data)
            position, offset = 0, self._state.end_offset
            while position < len(view):
                header = self._check_produced(view, position, records_checked=records_checked)
                if header.base_sequence >= 0 and header.size_bytes != len(view):
                    # Kafka too takes one batch per idempotent append: half a retry has no honest answer.
                    raise BrokerError(Reason.INVALID_RECORD, "an idempotent producer appends one batch at a time")
                duplicate = self._state.producers.check(header)
                if duplicate is not None:
                    return Appended(duplicate.base_offset, duplicate.last_offset, duplicate=True)
                end = position + header.size_bytes
                body = view[position + PLACED_BYTES : end]
                if self.settings.append_time:
                    body = memoryview(with_append_time(view, position, header, now_ms))[PLACED_BYTES:]
                    header = header._replace(max_timestamp=now_ms)
                parts += (placed(header, offset, leader_epoch), body)
                headers.append(rebased(header, offset, leader_epoch))
                position = end
                offset += header.last_offset_delta + 1
            if not headers:
                raise BrokerError(Reason.INVALID_RECORD, "an append needs at least one batch")
            return self._write(parts, headers, data, now_ms)

    def append_replicated(self, data: Buffer, *, now_ms: int) -> Appended:
        """Append batches as another replica has them: offsets and epochs are theirs and must follow ours."""
        with self._lock:
            self.check_writable()
            headers = []
            view = memoryview(data)
            position, offset = 0, self._state.end_offset
            while position < len(view):
                header = read_header(view, position)
                check_crc(view, position, header)
                if header.base_offset != offset:
                    raise BrokerError(
                        Reason.OFFSET_OUT_OF_RANGE,
                        f"a replicated batch has offset {header.base_offset}, {offset} is next",
                    )
                headers.append(header)
                position += header.size_bytes
                offset = header.next_offset
            if not headers:
                raise BrokerError(Reason.INVALID_RECORD, "an append needs at least one batch")
            return self._write([view], headers, data, now_ms)

    def append_marker(self, batch: bytes, *, leader_epoch: int = FIRST_EPOCH, now_ms: int) -> Appended:
        """Append a control batch (codec.records.control_batch): the end of a transaction."""
        with self._lock:
            self.check_writable()
            header = read_header(batch)
            check_crc(batch, 0, header)
            if not header.is_control:
                raise BrokerError(Reason.INVALID_RECORD, "a transaction marker is a control batch")
            kept = rebased(header, self._state.end_offset, leader_epoch)
            parts: list[Buffer] = [placed(header, kept.base_offset, leader_epoch), memoryview(batch)[PLACED_BYTES:]]
            return self._write(parts, [kept], batch, now_ms)

    def check_writable(self) -> None:
        """Raise unless the partition takes changes: a failed, closed or damaged one does not."""
        if self._fault is not None:
            raise self._fault
        if self._closed:
            raise BrokerError(Reason.LOG_CLOSED, f"the partition in {self.folder} is closed or read-only")
        if self.report.damages:
            raise StorageFault(
                f"the partition takes no writes until its damage is repaired (braid log repair): {self.report.damages[0]}",
                self.folder,
            )

    def _check_produced(self, data: memoryview, position: int, *, records_checked: bool) -> BatchHeader:
        header = read_header(data, position)
        if header.size_bytes > self.settings.batch_bytes_max:
            raise BrokerError(
                Reason.RECORD_TOO_LARGE,
                f"a batch of {header.size_bytes} bytes is larger than the topic's {self.settings.batch_bytes_max}",
            )
        check_crc(data, position, header)
        if header.record_count != header.last_offset_delta + 1:
            raise ProtocolError(f"{header.record_count} records do not fill {header.last_offset_delta + 1} offsets")
        if header.attributes & CONTROL:
            raise BrokerError(Reason.INVALID_RECORD, "control batches are written by the log, not by producers")
        if header.is_transactional and header.producer_id < 0:
            raise BrokerError(Reason.INVALID_RECORD, "a transaction needs a producer: nobody else could end it")
        if not records_checked:
            try:
                check_batch_records(data, position, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            except ProtocolError as error:
                raise BrokerError(Reason.INVALID_RECORD, str(error)) from error
        return header

    def _write(
        self,
        parts: Sequence[Buffer],
        headers: Sequence[BatchHeader],
        data: Buffer,
        now_ms: int,
    ) -> Appended:
        state = self._state
        latest = state.epochs.latest
        unsure = self._slots_in_doubt
        position = 0
        commits: dict[int, bool | None] = {}
        for header in headers:
            if header.leader_epoch != latest:
                unsure = True
            if header.attributes & CONTROL:
                # A marker may be refused, so before anything is written.
                commits[header.base_offset] = is_commit(data, position, header)
            position += header.size_bytes
        if unsure:
            self._begin_epochs(headers)
        size = len(data)
        active = self._active
        settings = self.settings
        if active.size + size > settings.segment_bytes or now_ms - active.head.created_ms >= settings.segment_ms:
            self._roll_unless_empty(now_ms)
        self._write_active(parts, headers)
        for header in headers:
            state.apply(header, commit=commits.get(header.base_offset))
        self._unsynced_bytes += size
        self._since_checkpoint_bytes += size
        if self._followers:
            self._moved.notify_all()
        return Appended(headers[0].base_offset, headers[-1].last_offset)

    def _write_active(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """A refused write (a full disk) fails this append alone, if its remains can be cleared away; else the partition."""
        try:
            self._active.append(parts, headers)
        except BaseException:
            try:
                self._active.clear_tail()
            except StorageFault as fault:
                self._fail(fault)
            raise

    def _begin_epochs(self, headers: Sequence[BatchHeader]) -> None:
        """Epochs are durable before the first batch that carries them, in both slots: they protect the batches' own."""
        history = EpochHistory(self._state.epochs.entries())
        for header in headers:
            history.begin(header.leader_epoch, header.base_offset)
        # The last image with these epochs, not a new one: what was appended since may not be durable yet.
        self._save_image(lambda saved: msgspec.structs.replace(saved, epochs=history.entries()), copies=2)
        self._state.epochs = history  # last: an epoch that was refused or could not be saved has not begun

    def begin_epoch(self, leader_epoch: int) -> None:
        """A new leader takes over: its epoch starts at the end of the log."""
        with self._sync_lock, self._lock:
            self.check_writable()
            if leader_epoch != self._state.epochs.latest:
                self._state.epochs.begin(leader_epoch, self._state.end_offset)
                self.checkpoint(copies=2)

    # -- durability ------------------------------------------------------------------------------------------

    def sync(self, upto: int | None = None) -> int:
        """Return when everything appended before the call (or below `upto`) is durable, and the offset up to which that is.

        One call serves every append that came before it; a caller that waited here while its own append (below `upto`)
        was served by another's sync does not sync again. A failure is final: the kernel may have dropped the pages it
        could not write, so a second sync would succeed without having written them.
        """
        with self._sync_lock:
            with self._lock:
                if self._fault is not None:
                    raise self._fault
                if upto is not None and self._durable_offset >= upto:
                    return self._durable_offset  # somebody else's sync, while this call waited for its turn
                if self._durable_offset == self._state.end_offset and not self._pending:
                    return self._durable_offset
                pending, active = list(self._pending), self._active
                reached = active.reach()
                size = self._unsynced_bytes
                due = (
                    self._since_checkpoint_bytes >= self.settings.flush_window_bytes
                    or bool(pending)
                    or self._is_young(active)
                )
                image = self._state.image() if due else None
            try:
                self._sync_files(pending, active, reached)
                if image is not None:
                    self._save_synced(active, image)
            except StorageFault as fault:
                self._fail(fault)
                raise
            with self._lock:
                del self._pending[: len(pending)]
                self._durable_offset = reached.next_offset
                self._unsynced_bytes -= size
                self._moved.notify_all()
            self._let_cache_go(active, reached)
            return reached.next_offset

    def _is_young(self, active: Segment) -> bool:
        """Nothing of the active segment is durable yet: its first sync is followed by a checkpoint.

        From then on a cut that takes its head cannot be mistaken for a creation that was never finished.
        """
        return active.mark.next_offset == active.base_offset

    def _sync_files(self, pending: Sequence[Segment], active: Segment, reached: Mark) -> None:
        """Older segments first: that a segment was synced proves that all before it were."""
        for segment in pending:
            seal_segment(segment, segment.reach())
        if self._names_changed:
            self._names_changed = False  # first: a roll during the sync is for the next one
            self._disk.sync_folder(self.folder)
        active.sync(reached)

    def _fail(self, fault: StorageFault) -> None:
        with self._lock:
            self._fault = StorageFault(
                f"the partition stopped after a fault and must be reopened: {fault}", self.folder
            )
            self._moved.notify_all()

    def _let_cache_go(self, active: Segment, reached: Mark) -> None:
        """Drop what was synced one window ago from the page cache, so that ingest does not push everything else out."""
        window = self.settings.flush_window_bytes
        base, position = self._forgotten
        if base != active.base_offset:
            position = 0
        if reached.position - position >= 2 * window:
            active.forget(position, reached.position - window - position)
            position = reached.position - window
        self._forgotten = (active.base_offset, position)

    def _save_synced(self, active: Segment, image: StateImage) -> None:
        """Save the state as it was when the sync began, with what was decided since: epochs and start never go back."""
        with self._lock:
            count = len(active.index)
        active.save_index(sealed=False, count=count)
        saved = False
        while not saved:
            # Appends go on while this is written. If one of them saved an image meanwhile (a new epoch), look again.
            with self._lock:
                version = self._image_version
                image.epochs = self._state.epochs.entries()
                image.start_offset = self._state.start_offset
            with self._image_lock:
                saved = version == self._image_version
                if saved:
                    self._write_image(image, 1)
        with self._lock:
            self._since_checkpoint_bytes = 0

    def _save_image(self, make: Callable[[StateImage], StateImage], copies: int = 1) -> None:
        """Save what `make` makes of the last image. Called with the lock held: two images must not overtake each other."""
        try:
            with self._image_lock:
                self._image_version += 1
                self._write_image(make(self._saved), copies)
        except StorageFault as fault:
            if not is_full(fault):
                self._fail(fault)
            raise

    def _write_image(self, image: StateImage, copies: int) -> None:
        """A save that failed may have reached the disk all the same. It may tell of what has not happened (an epoch, a
        truncation), so nothing is written until both slots are known again.
        """
        in_doubt, self._slots_in_doubt = self._slots_in_doubt, True
        self._slots.save(encode_image(image), copies=2 if in_doubt else copies)
        self._slots_in_doubt = False
        self._saved = image

    def checkpoint(self, *, copies: int = 1, clean_stop: bool = False) -> None:
        """Make everything durable and save the state, so that the next opening has nothing to walk."""
        with self._sync_lock, self._lock:
            self.sync()
            try:
                self._active.save_index(sealed=False)
                self._active.sync_file()
                self._save_image(lambda _: self._state.image(clean_stop=clean_stop), copies)
            except StorageFault as fault:
                self._fail(fault)
                raise
            self._since_checkpoint_bytes = 0

    def wait_beyond(self, offset: int, timeout: float | None, *, durable: bool) -> bool:
        """Wait until the log (or its durable part) has grown beyond `offset`; False if the time ran out first.

        Also returns when the partition is closed, and raises its fault if it has stopped: nothing will come then.
        """
        with self._lock:
            self._followers += 1
            try:
                moved = self._moved.wait_for(lambda: self._is_beyond(offset, durable=durable), timeout)
            finally:
                self._followers -= 1
            if self._fault is not None:
                raise self._fault
            return moved

    def _is_beyond(self, offset: int, *, durable: bool) -> bool:
        if self._closed or self._fault is not None:
            return True
        return (self._durable_offset if durable else self._state.end_offset) > offset

    def expire_producers(self, now_ms: int) -> None:
        with self._lock:
            before = now_ms - self.settings.producer_expiry_ms
            self._state.producers.expire(before, self._state.transactions.open_producers())

    # -- reading ---------------------------------------------------------------------------------------------

    def slice_at(self, offset: int, bytes_max: int, *, upto: int | None = None) -> FileSlice | None:
        """The batches from the one that holds `offset`, below `upto` (default: the end): a slice of one segment file.

        At least one batch, however large, else about `bytes_max` bytes. None where there is nothing to read yet.
        """
        with self._lock:
            limit = self._state.end_offset if upto is None else min(upto, self._state.end_offset)
            if offset > self._state.end_offset and self.report.damages:
                # The end itself may be among what was lost: a consumer must not take this for a log that was cut short.
                raise StorageFault(str(self.report.damages[-1]))
            if not self._state.start_offset <= offset <= self._state.end_offset:
                raise BrokerError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} is not in the log, which has [{self._state.start_offset}, {self._state.end_offset})",
                )
            if offset >= limit:
                return None
            segment = self._segment_of(offset)
            epochs = self._state.epochs
            if not segment.base_offset <= offset < segment.next_offset:
                raise self._missing(offset)
            try:
                extent = segment.extent(offset, max(bytes_max, 1), limit, epochs)
            except BadBatch as bad:
                raise self._note_damage(segment, bad) from bad
            if extent.end == extent.position:
                return None
            return FileSlice(
                segment.file, extent.position, extent.end - extent.position, extent.offset, extent.next_offset
            )

    def read(self, offset: int, bytes_max: int, *, upto: int | None = None) -> bytes:
        """The bytes of `slice_at`; empty where there is nothing to read yet."""
        found = self.slice_at(offset, bytes_max, upto=upto)
        return b"" if found is None else found.read()

    def _missing(self, offset: int) -> StorageFault:
        """No segment holds an offset of the log: that was reported when the log was opened."""
        for damage in self.report.damages:
            if damage.first_offset <= offset < damage.next_offset:
                return StorageFault(str(damage))
        raise AssertionError(f"offset {offset} is in no segment and was not reported as damage")

    def _segment_of(self, offset: int) -> Segment:
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def _note_damage(self, segment: Segment, bad: BadBatch) -> StorageFault:
        """Damage found by a reader: say exactly where, make what follows reachable, take no more writes."""
        with self._lock:
            after = find_batch(segment.file, bad.position + 1, segment.size, bad.offset + 1)
            end, next_offset = after or (segment.size, max(segment.next_offset, bad.offset))
            damage = Damage(
                join(self.folder, log_name(segment.base_offset)),
                bad.position,
                end,
                bad.offset,
                next_offset,
                bad.why,
            )
            # Once per place: how it shows itself depends on where a reader came from.
            if not any((d.file, d.position) == (damage.file, damage.position) for d in self.report.damages):
                self.report.damages.append(damage)
            segment.index.split(bad.offset, bad.position, segment.max_timestamp_ms)
            if after is not None:
                segment.index.split(next_offset, end, segment.max_timestamp_ms)
            return StorageFault(str(damage))

    def aborted_in(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions with records in [start, end): what a reader of committed records leaves out."""
        with self._lock:
            return self._state.transactions.aborted_in(start, end)

    def batches_of(self, segment: Segment, number: int = 0) -> Iterator[Found]:
        """Every batch of a segment from index entry `number` on, checked; damage is noted and raised.

        The file is taken now and kept: the segment may be exchanged or removed while its batches are still asked for.
        """
        return self._noting_damage(segment, segment.walk_from(number, check=True, epochs=self._state.epochs))

    def _noting_damage(self, segment: Segment, batches: Iterator[Found]) -> Iterator[Found]:
        try:
            yield from batches
        except BadBatch as bad:
            raise self._note_damage(segment, bad) from bad

    def find_batch_by_time(self, timestamp_ms: int) -> Iterator[bytes]:
        """Batches, in order, from the first whose latest timestamp reaches `timestamp_ms`."""
        offset = self.start_offset
        while True:
            with self._lock:
                # One segment at a time: compaction and retention may exchange them between two steps.
                later = [s for s in self._segments if s.next_offset > offset and s.max_timestamp_ms >= timestamp_ms]
                if not later:
                    return
                segment = later[0]
                batches = self.batches_of(segment, segment.index.first_with_time(timestamp_ms))
            for found in batches:
                if found.header.max_timestamp >= timestamp_ms and found.header.next_offset > offset:
                    yield found.window[found.at : found.at + found.header.size_bytes]
            offset = segment.next_offset

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Where `epoch` (or the largest below it) ended: what a follower asks before it truncates."""
        with self._lock:
            known, end = self._state.epochs.end_offset_for(epoch, self._state.end_offset)
            # The history reaches back to the first batch on the disk, which may lie below the start.
            return known, end if end < 0 else max(end, self._state.start_offset)

    # -- changing the ends -----------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Start a new segment, if the active one holds anything."""
        with self._lock:
            self.check_writable()
            self._roll_unless_empty(now_ms)

    def _roll_unless_empty(self, now_ms: int) -> None:
        if self._active.data_bytes:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> None:
        end = self._state.end_offset
        head = SegmentHead(self.identity, end, now_ms, 0)
        try:
            # The snapshot lets a later truncation or a lost checkpoint fold from here instead of from the start.
            snapshot = self._disk.create(join(self.folder, state_name(end)))
            snapshot.write_at(pack_slot(STATE_MAGIC, 0, encode_image(self._state.image())), 0)
            snapshot.sync()
            snapshot.close()
            segment = Segment.create(self._disk, self.folder, head, self._pool, self.settings.index_interval_bytes)
        except StorageFault:
            self._undo_roll(end)
            raise
        self._pending.append(self._active)
        self._segments.append(segment)
        self._bases.append(end)
        self._names_changed = True

    def _undo_roll(self, base_offset: int) -> None:
        """Take away what a refused roll left: the active segment may yet grow past it, and the next roll needs the names."""
        try:
            for name in (log_name(base_offset), state_name(base_offset)):
                path = join(self.folder, name)
                if self._disk.exists(path):
                    self._disk.remove(path)
                    self._names_changed = True
        except StorageFault as fault:
            self._fail(fault)

    def truncate(self, offset: int) -> int:
        """Drop everything from `offset` on and return the new end: the start of the batch that held it, if it cut one.

        For replication only: a follower drops what its leader does not have. The intent is durable first, so that a crash
        half-way is finished by recovery and not taken for damage.
        """
        with self.upkeep, self._sync_lock, self._lock:
            self.check_writable()
            if offset >= self._state.end_offset:
                return self._state.end_offset
            if offset < self._state.start_offset:
                raise BrokerError(Reason.OFFSET_OUT_OF_RANGE, f"cannot truncate to {offset}, below the log's start")
            segment = self._segment_of(offset)
            try:
                _, boundary = segment.locate(offset, self._state.epochs)
            except BadBatch as bad:
                raise self._note_damage(segment, bad) from bad
            self.sync()
            try:
                self._save_image(lambda _: self._state.image(truncate_to=boundary), copies=2)
                self._reload()
            except StorageFault as fault:
                self._fail(fault)  # the intent may be durable: only an opening can tell
                raise
            return self._state.end_offset

    def _reload(self) -> None:
        """Open the folder again: what recovery does with an intent is the truncation itself, written once."""
        for segment in self._segments:
            segment.retire()
            self._pool.drop(segment.path)
        recovered = Recovery(self._disk, self.folder, self.identity, self.settings, self._pool).run()
        self._segments, self._state, self._slots = recovered.segments, recovered.state, recovered.slots
        self._saved = self._state.image()
        self._bases = [segment.base_offset for segment in self._segments]
        self._pending.clear()
        self._durable_offset = self._state.end_offset
        self._unsynced_bytes = 0
        self._forgotten = (self._active.base_offset, 0)
        self.report.damages.extend(recovered.report.damages)

    def advance_start(self, offset: int) -> int:
        """Delete the records below `offset`; return the new start. The start is durable before any file goes."""
        with self.upkeep, self._sync_lock, self._lock:
            self.check_writable()
            if offset > self._state.end_offset:
                raise BrokerError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"cannot delete up to {offset}, the log ends at {self._state.end_offset}",
                )
            if offset > self._state.start_offset:
                self._state.advance_start(offset)
                self.checkpoint(copies=2)
                self._remove_below_start()
            return self._state.start_offset

    def _remove_below_start(self) -> None:
        while len(self._segments) > 1 and self._segments[1].base_offset <= self._state.start_offset:
            self._bases.pop(0)
            self._segments.pop(0).remove()  # if the disk refuses, the next opening finishes it
        self._disk.sync_folder(self.folder)
        self._state.epochs.cut_start(self._bases[0])

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Put a rewritten segment (already durable and renamed into place) where `old` stood."""
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old), "segments changed under a rewrite"
        self._segments[first : first + len(old)] = [new]
        self._bases = [segment.base_offset for segment in self._segments]

    def stop(self, fault: StorageFault) -> None:
        """A change of files failed half-way: what is in memory may not be what is on the disk. Opening again sorts it out."""
        self._fail(fault)

    @property
    def lock(self) -> threading.RLock:
        """Held by retention and compaction while they exchange segments."""
        return self._lock

    def close(self) -> None:
        """Make everything durable and note that the stop was clean, or raise. A damaged partition is just let go."""
        with self.upkeep, self._sync_lock, self._lock:
            try:
                if self._closed or self.report.damages:
                    return
                if self._fault is None:
                    self.checkpoint(copies=2, clean_stop=True)
                elif self._durable_offset < self._state.end_offset:
                    raise self._fault  # with a lazy `flush` nobody may have heard of it yet
            finally:
                self._closed = True
                for segment in self._segments:
                    segment.retire()
                    self._pool.drop(segment.path)
                self._moved.notify_all()
