"""One partition: a log of batches with dense offsets, on the disk.

Knows: appending, reading, what is durable, where the log starts and ends. Refuses to know: topics, dialects, replicas, threads
other than its callers', when to flush or retain (its owner decides).
Invariants: offsets are dense and never reused (only `truncate` and `restart_at`, which replication asks for, take any back);
nothing below `durable_offset` can be lost by a crash; after a failed sync nothing is acknowledged again; a damaged partition
takes no append.

The life of an append: check the batch (codec/batch) and its producer (state), write it with its offset and epoch patched in
(segment), fold it into the state. `sync` makes it durable. `slice_at` finds it again.
"""

import threading
from collections.abc import Iterator, Sequence

from braidlog.codec.batch import (
    PLACED_BYTES,
    BatchHeader,
    check_crc,
    placed,
    read_header,
    read_headers,
    rebased,
)
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.settings import TopicSettings
from braidlog.storage.begun import Begun
from braidlog.storage.chain import SegmentChain
from braidlog.storage.checking import CheckBudget
from braidlog.storage.checkpoints import Checkpoints
from braidlog.storage.counting import Counted
from braidlog.storage.damage import Damage
from braidlog.storage.durability import Durability
from braidlog.storage.epochs import EpochHistory
from braidlog.storage.files import Buffer, Disk
from braidlog.storage.fitting import fit
from braidlog.storage.gate import Gate
from braidlog.storage.head import Identity
from braidlog.storage.pool import FilePool
from braidlog.storage.reading import FileSlice, Reader
from braidlog.storage.recovered import Recovered
from braidlog.storage.recovery import Recovery
from braidlog.storage.rest import Rest, rest_of
from braidlog.storage.segment import Segment
from braidlog.storage.state import PartitionState, Restart, StateImage
from braidlog.storage.transactions import Aborted
from braidlog.storage.walk import Found
from braidlog.storage.writing import Appended, Writer

__all__ = ["FIRST_EPOCH", "Appended", "FileSlice", "PartitionLog"]

FIRST_EPOCH = 0


class PartitionLog:
    """Open one with `PartitionLog(...)`, make one with `create_partition`. Safe to share between threads."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        identity: Identity,
        settings: TopicSettings,
        pool: FilePool,
        *,
        read_only: bool = False,
        begun: Begun | None = None,
    ) -> None:
        self._disk = disk
        self.folder = folder
        self.identity = identity
        self.settings = settings
        self.common_end = 0
        """Every replica has all below. Not kept: after an opening it is not known until the owner tells."""
        self.turned_offset = 0
        """All below are rows of the topic's table. Not kept either."""
        self._pool = pool
        recovered = Recovery(disk, folder, identity, settings, pool, read_only=read_only, begun=begun).run()
        self.report = recovered.report
        self._gate = Gate(folder, closed=read_only)
        self._lock = self._gate.lock
        self.upkeep = self._gate.upkeep
        self._adopt(recovered)
        self._reader = Reader(self._gate, self._chain, self._state, self.report)

    def _adopt(self, recovered: Recovered) -> None:
        """Take over what recovery found. All of it is durable."""
        self._state = recovered.state
        self._chain = SegmentChain(self._disk, self.folder, self._pool, recovered.segments, self)
        self._checkpoints = Checkpoints(recovered.slots, self._state.image(), in_doubt=recovered.report.is_unsaved)
        self._durability = Durability(self._gate, self._chain, self._state, self._checkpoints)
        self._writer = Writer(self._gate, self._chain, self._state, self._checkpoints, self._durability)
        if not self._gate.closed:
            self._pool.enlist(self)

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
        return self._gate.closed

    @property
    def durable_offset(self) -> int:
        """Everything below survives power loss."""
        return self._durability.durable_offset

    @property
    def watermark(self) -> int:
        """Everything below is committed, as far as this log was told; alone, everything that is durable."""
        with self._lock:
            if self._state.is_alone:
                return self.durable_offset
            return max(self._state.watermark, self._state.start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Committed readers may go so far: no transaction is open below, except one that began before the start."""
        return self.stable_below(self.end_offset)

    def stable_below(self, committed: int) -> int:
        """The same below `committed`: the end of a transaction that is not below it may be taken back, and does not count."""
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
        """Append the batches of a producer. Each is checked; base offsets and epochs are ours, the rest stays as it came.

        All or nothing: either every batch of `data` is in the log or none is. A retry of an idempotent producer's batch
        returns the offsets it has. A batch that a client made itself comes with `records_checked` False: then every record in
        it is checked too, or one client could leave something that no other can read. Who has read the headers of `data`
        already hands them along; who has sealed it (`own`) has the checksum from the same bytes.
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
        """Append packed records of one time, of no producer, as one batch; return its size, too. None: nothing was done, seal and
        `append` them."""
        with self._lock:
            gate = self._gate
            if gate.fault is not None or gate.closed or self.report.damages:
                return None
            return self._writer.append_section(section, count, base_timestamp, self.settings, leader_epoch, now_ms)

    def append_replicated(self, data: Buffer, *, now_ms: int) -> Appended:
        """Append batches as another replica has them: offsets and epochs are theirs.

        They follow our end. The first may begin before it, if it is empty (it is cut to our end), or if we have no record yet:
        the log then begins with that whole batch and starts inside it. That one append is durable when it returns.
        """
        with self._lock:
            self.check_writable()
            fitted = fit(data, self._state.start_offset, self._state.end_offset)
            if fitted.base_offset == self._state.end_offset:
                return self._writer.write([fitted.data], fitted.headers, fitted.data, self.settings, now_ms)
        return self._begin_inside(data, now_ms)

    def _begin_inside(self, data: Buffer, now_ms: int) -> Appended:
        """A crash before the last line leaves a log that begins below its leader's: it is told so when it asks, as before."""
        with self.upkeep, self._gate.sync_lock, self._lock:
            start = self._state.start_offset
            fitted = fit(data, start, self._state.end_offset)
            self._carry_out(self._state.image(restart=Restart(fitted.base_offset, now_ms)))
            appended = self._writer.write([fitted.data], fitted.headers, fitted.data, self.settings, now_ms)
            self.advance_start(start)
            return appended

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
            return self._writer.write(parts, [kept], batch, self.settings, now_ms)

    def check_writable(self) -> None:
        """Raise unless the partition takes changes: a failed, closed or damaged one does not."""
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
        """A new leader takes over: its epoch starts at the end of the log. (For many logs: `DataFolder.begin_epochs`.)"""
        with self._gate.sync_lock, self._lock:
            self.check_writable()
            if leader_epoch != self._state.epochs.latest:
                self._state.epochs.begin(leader_epoch, self._state.end_offset)
                self.checkpoint(copies=2)

    def doubt_epochs(self, begun: int) -> None:
        """The save `begun` of epochs failed and may be on the disk: before the next append what is true is saved over it."""
        with self._lock:
            self._state.begun, self._checkpoints.in_doubt = begun, True

    # -- durability ------------------------------------------------------------------------------------------

    def sync(self, upto: int | None = None) -> int:
        """Return when everything appended before the call (or below `upto`) is durable, and the offset up to which that is.

        One call serves every append that came before it; a caller that waited here while its own append (below `upto`)
        was served by another's sync does not sync again. A failure is final: the kernel may have dropped the pages it
        could not write, so a second sync would succeed without having written them; no room for a checkpoint is not.
        """
        with self._gate.sync_lock:
            return self._durability.sync(upto, self.settings)

    def checkpoint(self, *, copies: int = 1, clean_stop: bool = False) -> None:
        """Make everything durable and save the state, so that the next opening has nothing to walk."""
        with self._gate.sync_lock, self._lock:
            self.sync()
            self._durability.checkpoint(copies, clean_stop=clean_stop)

    def save_state(self, *, copies: int) -> None:
        """The same while appends go on: what was there when it began is durable and saved when it returns."""
        with self._gate.sync_lock:
            self._durability.sync(None, self.settings, copies=copies)

    def replicate(self) -> int:
        """There are other replicas: `keep_watermark` tells what is committed. Returns the watermark to begin with.

        That is the one that was kept. To be called at every opening of such a log, before anything is read or appended.
        """
        with self._lock:
            self._state.is_alone = False
            return self.watermark

    def stand_alone(self) -> None:
        """There is no other replica (any more): all that is durable is committed."""
        with self._lock:
            self._state.is_alone, self._state.watermark = True, self.durable_offset

    def keep_watermark(self, offset: int, *, common_end: int = 0) -> None:
        """Everything below `offset` is committed, and every replica, also one that is away, has all below `common_end`.

        Neither is synced: the watermark is saved with the next checkpoint (every window of bytes, every close), and an opening
        begins with what was saved. Compaction and retention stay below it, tombstones stay above the common end.
        """
        with self._lock:
            assert not self._state.is_alone, "a log that is alone knows by itself what is committed"
            self._state.watermark = min(max(offset, self._state.watermark), self._state.end_offset)
            self.common_end = common_end

    @property
    def tombstone_limit(self) -> int:
        """Below it no replica can miss a tombstone that is dropped."""
        return self.durable_offset if self._state.is_alone else self.common_end

    def wait_beyond(self, offset: int, timeout: float | None, *, durable: bool) -> bool:
        """Wait until the log (or its durable part) has grown beyond `offset`; False if the time ran out first.

        Also returns when the partition is closed, and raises its fault if it has stopped: nothing will come then.
        """
        if durable:
            return self._gate.wait(lambda: self._durability.durable_offset > offset, timeout)
        return self._gate.wait(lambda: self._state.end_offset > offset, timeout)

    def expire_producers(self, now_ms: int, *, silent_ms_max: int | None = None) -> None:
        """Forget producers that were silent for as long as the topic's settings say, or for `silent_ms_max` if that is less."""
        with self._lock:
            expiry_ms = self.settings.producer_expiry_ms
            before = now_ms - (expiry_ms if silent_ms_max is None else min(expiry_ms, silent_ms_max))
            self._state.producers.expire(before, self._state.transactions.open_producers())

    # -- reading ---------------------------------------------------------------------------------------------

    def slice_at(
        self, offset: int, bytes_max: int, *, upto: int | None = None, budget: CheckBudget | None = None
    ) -> FileSlice | None:
        """See `Reader.slice_at`."""
        return self._reader.slice_at(offset, bytes_max, upto=upto, budget=budget)

    def read(self, offset: int, bytes_max: int, *, upto: int | None = None) -> bytes:
        """The bytes of `slice_at`; none where there is nothing yet."""
        return b"" if (found := self.slice_at(offset, bytes_max, upto=upto)) is None else found.read()

    def count(self, offset: int, upto: int, *, committed_only: bool, batches_max: int) -> Counted:
        """See `Reader.count`."""
        return self._reader.count(offset, upto, committed_only=committed_only, batches_max=batches_max)

    def forget_checks(self) -> None:
        """What was checked before now is checked again before it is read."""
        self._reader.forget_checks()

    def check_again(self, offset: int) -> None:
        """See `Reader.check_again`."""
        self._reader.check_again(offset)

    def batches_of(self, segment: Segment, number: int = 0) -> Iterator[Found]:
        """See `Reader.batches_of`."""
        return self._reader.batches_of(segment, number)

    def find_batch_by_time(self, timestamp_ms: int) -> Iterator[bytes]:
        """Batches, in order, from the first whose latest timestamp reaches `timestamp_ms`."""
        return self._reader.find_batch_by_time(timestamp_ms)

    def batch_start(self, offset: int) -> int:
        return self._reader.batch_start(offset)

    def aborted_in(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions with records in [start, end): what a reader of committed records leaves out."""
        with self._lock:
            return self._state.transactions.aborted_in(start, end)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Where `epoch` (or the largest below it) ended: what a follower asks before it truncates."""
        with self._lock:
            return self._state.epochs.end_offset_for(epoch, self._state.end_offset, self._state.start_offset)

    # -- changing the ends -----------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Start a new segment, if the active one holds anything."""
        with self._lock:
            self.check_writable()
            self._writer.roll_unless_empty(self.settings, now_ms)

    def truncate(self, offset: int) -> int:
        """Drop everything from `offset` on and return the new end: the start of the batch that held it, if it cut one.

        For replication only: a follower drops what its leader does not have, and epochs that began there even if no record goes.
        The watermark goes down with the end. The intent is durable first: a crash half-way is finished by recovery.
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
        """Of an epoch that wrote nothing here the leader may know nothing: asked about it, it would answer the same for ever."""
        history = EpochHistory(self._state.epochs.entries())
        history.cut_end(self._state.end_offset)
        if history.latest != self._state.epochs.latest:
            self._state.epochs = history
            self.checkpoint(copies=2)

    def restart_at(self, offset: int, *, now_ms: int, sets_aside: bool = False) -> None:
        """Give up the whole log and begin at `offset`; everything below counts as committed. For replication only: a follower
        copies anew what its leader has. With `sets_aside` also a damaged one, whose segments are kept. Durable, as `truncate` is.
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
            self._gate.fail(fault)  # the intent may be durable: only an opening can tell
            raise

    def _reload(self) -> None:
        """Open the folder again: what recovery does with an intent is the deed itself, written once."""
        self._chain.let_go()
        is_alone = self._state.is_alone
        recovered = Recovery(self._disk, self.folder, self.identity, self.settings, self._pool).run()
        self._adopt(recovered)
        self._state.is_alone = is_alone
        self._reader.renew(self._chain, self._state)
        self.report.damages.extend(recovered.report.damages)

    def advance_start(self, offset: int) -> int:
        """Delete the records below `offset`; return the new start. The start is durable before any file goes."""
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
        """Put a rewritten segment (already durable and renamed into place) where `old` stood."""
        self._chain.replace(old, new)

    def rest(self) -> Rest | None:
        """Of a closed partition: what can be told without opening it; None if it was not closed cleanly."""
        cleanly = self._gate.closed and self._gate.fault is None and not self.report.damages
        return rest_of(self._checkpoints.saved) if cleanly else None

    def maybe_let_go(self, *, settled_only: bool) -> bool:
        """See `Holder`."""
        return self._durability.maybe_let_go(self.settings, settled_only=settled_only)

    def drop_reserve(self) -> None:
        """See `Holder`."""
        with self._lock:
            self._chain.active.drop_reserve()

    def stop(self, fault: StorageFault) -> None:
        """A change of files failed half-way: what is in memory may not be what is on the disk. Opening again sorts it out."""
        self._gate.fail(fault)

    @property
    def lock(self) -> threading.RLock:
        """Held by retention and compaction while they exchange segments."""
        return self._lock

    def close(self) -> None:
        """Make everything durable and note that the stop was clean, or raise. A damaged partition is just let go."""
        with self.upkeep, self._gate.sync_lock, self._lock:
            try:
                if self._gate.closed or self.report.damages or (self.report.is_unsaved and self._checkpoints.in_doubt):
                    return  # in the last case nothing was written since a clean stop
                if self._gate.fault is None:
                    self.checkpoint(copies=2, clean_stop=True)
                elif self.durable_offset < self._state.end_offset:
                    raise self._gate.fault.again()  # with a lazy `flush` nobody may have heard of it yet
            finally:
                self._gate.closed = True
                self._chain.let_go()
                self._gate.moved.notify_all()
