"""Fetch batches or records from any offset, and wait for new ones at the end.

Invariants: a consumer sees nothing at or above the high watermark (read_committed: the last stable offset); an
external replica sees everything. The first batch is returned however large it is, so that no record blocks a
consumer. Every wait has a deadline.
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from braidlog.codec.batch.header import read_header
from braidlog.codec.batch.records import decode_batch, decode_section
from braidlog.codec.batch.records_section import Row
from braidlog.codec.batch.row_layout import RowForm
from braidlog.codec.batch.rows import Ended
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX, LONG_POLL_MS_MAX
from braidlog.model.runtime.cooperative import SLICE, YieldCounter, yield_to_loop
from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.partition.fetch.long_polls import PollPause, unwatch
from braidlog.partition.fetch.record_reader import (
    HERE_RECORDS_MAX,
    Decode,
    Fetched,
    LargeBatch,
    Limits,
    Records,
    Rows,
    Sections,
    decode,
    slice_of,
    visible_batches,
    write,
    write_slice,
)
from braidlog.partition.opening import require_open, wake
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.replication.messages import ExternalFetched
from braidlog.storage.log.log_reader import Counted
from braidlog.storage.log.partition_log import FileSlice
from braidlog.storage.segment.segment import CheckBudget
from braidlog.worker.jobs import Answer, ClipRecords, Worker

T = TypeVar("T")

CLIP_BYTES_MAX = 8 * 1024 * 1024
"""At most this much of a large batch is decompressed at a time."""

COUNTED_AT_ONCE = 1000
"""Batches whose headers are read in one turn of the event loop: about three milliseconds."""


class Wanted(msgspec.Struct, frozen=True):
    """One partition of a fetch."""

    topic: str
    partition: int
    offset: int
    bytes_max: int
    topic_id: str | None = None
    """If set, the topic must have this id: it may have been deleted and created again."""
    leader_epoch: int | None = None
    """If set, this must be the current leader epoch."""
    in_sync: bool = False
    """Whether an in-sync follower may serve the request too; it waits for offsets that it does not have yet."""
    nearer: tuple[int, ...] = ()
    """Nodes closer to the consumer: the leader refers it to one of them that can serve it."""


class OffsetOutOfRange(BrokerError):  # noqa: N818 - a reason with its offsets
    """The offset is outside the log. Carries the log's offsets: some dialects return them."""

    def __init__(self, hosted: Partition, requested: int) -> None:
        self.requested = requested
        self.start_offset = hosted.start_offset
        self.high_watermark = hosted.high_watermark
        super().__init__(
            Reason.OFFSET_OUT_OF_RANGE,
            f"offset {requested} is not in {hosted}, which has [{hosted.start_offset}, {hosted.high_watermark})",
        )


Outcome = Fetched | BrokerError | StorageFault
"""The outcome for one partition of a fetch of several."""


def _instead_of_records(hosted: Partition, want: Wanted) -> BrokerError | Fetched | None:
    """Return the error of a follower that lags, or a referral to another node; None if the records are read here."""
    late = hosted.lag(want.offset)
    if late is not None or not want.nearer:
        return late
    node = hosted.preferred_replica(want.nearer, want.offset)
    if node is None:
        return None
    return Fetched(None, hosted.start_offset, hosted.high_watermark, hosted.last_stable_offset, [], node)


class _View(msgspec.Struct, frozen=True):
    """What a consumer or replica may see."""

    committed_only: bool
    replica: str | None
    leader_only: bool

    def limit(self, hosted: Partition) -> int:
        if self.replica is not None:
            return hosted.end_offset
        return hosted.last_stable_offset if self.committed_only else hosted.high_watermark


class Fetch:
    """The fetch service."""

    def __init__(self, hosting: PartitionRegistry, runtime: Runtime, worker: Worker) -> None:
        self._hosting = hosting
        self._runtime = runtime
        self._worker = worker
        self.records_read = 0
        """Offsets returned, markers included."""
        self.bytes_read = 0
        """Bytes of the slices found; a consumer may have used only a part of the last batch."""

    async def fetch_each(
        self,
        wanted: Sequence[Wanted],
        *,
        bytes_max: int,
        bytes_min: int = 1,
        wait_ms: int = 0,
        committed_only: bool = False,
        replica: str | None = None,
        leader_only: bool = False,
    ) -> list[Outcome]:
        """Fetch batches of several partitions, `bytes_max` in total; wait up to `wait_ms` for `bytes_min` bytes.

        A partition that cannot be served has an error as its outcome, which ends the wait. `leader_only` rejects
        partitions that this node follows, including one that it starts to follow during the wait.
        """
        deadline = self._runtime.monotonic() + min(wait_ms, LONG_POLL_MS_MAX) / 1000
        enough = min(bytes_min, max(bytes_max, 1))
        view = _View(committed_only=committed_only, replica=replica, leader_only=leader_only)
        rest = PollPause(self._runtime, deadline)
        while True:
            served: list[Partition] = []
            budget = CheckBudget()
            # A scan that spans several turns of the loop is woken by partitions that it has already passed.
            wakeup = self._runtime.wakeup(patient=True) if len(wanted) > SLICE else None
            try:
                outcomes, size, closed = await self._collect(wanted, served, bytes_max, view, budget, wakeup)
                if closed:
                    await wake(closed, self._hosting, self._runtime)
                    continue
                if size < enough and len(served) == len(wanted):
                    if budget.is_spent:
                        await yield_to_loop()  # there are more batches, and the next round finds this part verified
                        continue
                    if await self._more(served, deadline, wakeup):
                        if size:
                            await rest.take()
                        continue
            finally:
                if wakeup is not None:
                    unwatch(served, wakeup)
            self._count(wanted, outcomes)
            return outcomes

    def _count(self, wanted: Sequence[Wanted], outcomes: Sequence[Outcome]) -> None:
        for want, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Fetched) and outcome.slice is not None:
                self.records_read += outcome.slice.next_offset - want.offset
                self.bytes_read += outcome.slice.size

    async def _collect(
        self,
        wanted: Sequence[Wanted],
        served: list[Partition],
        bytes_max: int,
        view: "_View",
        budget: CheckBudget,
        wakeup: Wakeup | None,
    ) -> tuple[list[Outcome], int, list[Partition]]:
        """Collect the available batches; return outcomes, bytes, and the partitions whose logs must be opened first.

        `served` gets the partitions that can be served; they wake `wakeup` from then on. The first batch of the
        fetch is returned however large it is; later ones must fit.
        """
        left = bytes_max
        outcomes: list[Outcome] = []
        closed: list[Partition] = []
        nothing_yet = True
        pace = YieldCounter()
        for want in wanted:
            if wakeup is not None:
                await pace.step()
            try:
                hosted = self._find(want, view)
                instead = _instead_of_records(hosted, want) if want.in_sync else None
                room = min(want.bytes_max, left)
                upto = view.limit(hosted)
                found = None
                if instead is not None:
                    pass
                elif not hosted.is_open and want.offset != upto:
                    closed.append(hosted)
                elif (log := hosted.open_log) is not None:
                    found = slice_of(log, want.offset, room, upto, budget, is_first=nothing_yet)
            except (BrokerError, StorageFault) as error:
                # Kept as a value: its frames would hold it, and it them, until the next garbage collection.
                outcomes.append(error.with_traceback(None))
                continue
            if isinstance(instead, Fetched):
                outcomes.append(instead)
                continue
            served.append(hosted)
            if wakeup is not None:
                hosted.watch(wakeup)
            if found is not None:
                hosted.is_used = True  # a consumer that only waits at the end does not keep a log open
                nothing_yet = False
                left -= found.size
            outcomes.append(instead or self._outcome(hosted, want.offset, found, committed_only=view.committed_only))
        return outcomes, bytes_max - left, closed

    def _find(self, want: Wanted, view: "_View") -> Partition:
        """Find the partition in every round: the topic may have been deleted or created again."""
        hosted = self._hosting.partition(want.topic, want.partition)
        if want.in_sync:
            hosted.require_in_sync()
        elif view.leader_only:
            hosted.require_leader()
        if want.topic_id is not None and self._hosting.meta(want.topic).topic_id != want.topic_id:
            raise BrokerError(Reason.TOPIC_NOT_FOUND, f"topic {want.topic!r} is another one now")
        if want.leader_epoch is not None:
            hosted.require_epoch(want.leader_epoch)
        is_there = hosted.start_offset <= want.offset <= hosted.end_offset
        if not is_there and not (want.in_sync and hosted.lag(want.offset)):
            # The log end, not the high watermark: a consumer waits for a record that exists but is not committed yet.
            raise OffsetOutOfRange(hosted, want.offset)
        return hosted

    @staticmethod
    def _outcome(hosted: Partition, offset: int, found: FileSlice | None, *, committed_only: bool) -> Fetched:
        aborted = hosted.log.aborted_in(offset, found.next_offset) if committed_only and found is not None else []
        return Fetched(found, hosted.start_offset, hosted.high_watermark, hosted.last_stable_offset, aborted)

    async def _more(self, hosted: Sequence[Partition], deadline: float, watching: Wakeup | None) -> bool:
        """Wait until one of the partitions changes; return False at the deadline.

        `watching`: a wakeup that they wake already.
        """
        left = deadline - self._runtime.monotonic()
        if left <= 0:
            return False
        if watching is not None:
            return await watching.wait(left)
        wakeup = self._runtime.wakeup(patient=True)
        for partition in hosted:
            partition.watch(wakeup)
        try:
            return await wakeup.wait(left)
        finally:
            unwatch(hosted, wakeup)

    async def records(  # noqa: PLR0913 - the limits of a fetch
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        bytes_max: int,
        records_max: int = 2**31,
        wait_ms: int = 0,
        committed_only: bool = True,
        replica: str | None = None,
        leader_only: bool = False,
        beyond_end: bool = False,
    ) -> Records:
        """Fetch records of one partition from `offset` on: at least one, otherwise about `bytes_max` bytes.

        Offsets without a record (markers, aborted or compacted records) are skipped, so that a consumer that knows
        only record offsets makes progress. With `beyond_end`, an offset beyond the log end gives no records instead
        of an error.
        """
        limits = Limits(bytes_max, max(records_max, 1))
        wanted = Wanted(topic, partition, offset, bytes_max)
        view = _View(committed_only=committed_only, replica=replica, leader_only=leader_only)
        found, next_offset, high_watermark = await self._read(
            wanted, decode, limits, view, wait_ms=wait_ms, beyond_end=beyond_end
        )
        return Records(found or [], next_offset, high_watermark)

    def rows(  # noqa: PLR0913 - the limits of a fetch
        self,
        topic: str,
        partition: int,
        offset: int,
        form: RowForm,
        *,
        bytes_max: int,
        records_max: int = 2**31,
        wait_ms: int = 0,
        committed_only: bool = True,
        leader_only: bool = False,
        beyond_end: bool = False,
    ) -> Rows | Awaitable[Rows]:
        """Fetch records encoded as rows, for dialects that declare a row layout (codec/batch/row_layout.py).

        Creates no object per record. Returns the rows directly if it need not wait, otherwise an awaitable.
        """
        limits = Limits(bytes_max, max(records_max, 1))
        bytes_max += bytes_max >> 3  # batches are larger than their keys and values
        try:
            hosted = self._hosting.partition(topic, partition)
            if leader_only:
                hosted.require_leader()
            now = self._rows_now(hosted, offset, form, bytes_max, limits, committed_only=committed_only)
        except (BrokerError, StorageFault, ProtocolError, LargeBatch):
            now = None  # `_rows` raises it again
        if now is not None:
            return now
        view = _View(committed_only=committed_only, replica=None, leader_only=leader_only)
        wanted = Wanted(topic, partition, offset, bytes_max)
        return self._rows(wanted, form, limits, view, wait_ms=wait_ms, beyond_end=beyond_end)

    def _rows_now(
        self, hosted: Partition, offset: int, form: RowForm, room: int, limits: Limits, *, committed_only: bool
    ) -> Rows | None:
        """Return the rows, or None if the request must wait."""
        log, high_watermark = hosted.open_log, hosted.high_watermark
        if log is None or not hosted.is_open:
            return None
        upto = log.stable_below(high_watermark) if committed_only else high_watermark
        if offset >= upto:
            return None
        few = min(hosted.record_bytes * limits.records_max or room, room)
        got = write_slice(log, offset, upto, few, limits=limits, form=form, committed_only=committed_only)
        if few < room and (got is None or got.could_be_more(upto, limits)):
            got = write_slice(log, offset, upto, room, limits=limits, form=form, committed_only=committed_only)
        if got is None:
            return None
        hosted.is_used = True
        hosted.record_bytes = got.record_bytes
        self.records_read += got.next_offset - offset
        self.bytes_read += got.slice.size
        return Rows(got.data, got.number, got.next_offset, high_watermark, got.ended)

    async def _rows(
        self, wanted: Wanted, form: RowForm, limits: Limits, view: _View, *, wait_ms: int, beyond_end: bool
    ) -> Rows:
        found, next_offset, high_watermark = await self._read(
            wanted, partial(write, form=form), limits, view, wait_ms=wait_ms, beyond_end=beyond_end
        )
        data, count, ended = found or (b"", 0, Ended.ALL)
        return Rows(data, count, next_offset, high_watermark, ended)

    async def _read(
        self,
        wanted: Wanted,
        decode: Decode[T],
        limits: Limits,
        view: _View,
        *,
        wait_ms: int,
        beyond_end: bool,
    ) -> tuple[T | None, int, int]:
        """Return what `decode` finds in the first slice with records, the next offset, and the high watermark."""
        offset = wanted.offset
        hosted = self._hosting.partition(wanted.topic, wanted.partition)
        if view.leader_only:
            hosted.require_leader()
        if beyond_end and offset > hosted.end_offset:
            return None, offset, hosted.high_watermark
        deadline = self._runtime.monotonic() + min(wait_ms, LONG_POLL_MS_MAX) / 1000
        while True:
            left_ms = max(round((deadline - self._runtime.monotonic()) * 1000), 0)
            (fetched,) = await self.fetch_each(
                [Wanted(wanted.topic, wanted.partition, offset, wanted.bytes_max)],
                bytes_max=wanted.bytes_max,
                wait_ms=left_ms,
                committed_only=view.committed_only,
                replica=view.replica,
                leader_only=view.leader_only,
            )
            if not isinstance(fetched, Fetched):
                raise fetched
            if fetched.slice is None:
                return None, offset, fetched.high_watermark
            try:
                found, offset = decode(
                    visible_batches(fetched.slice, fetched.aborted), offset, fetched.slice.next_offset, limits=limits
                )
            except LargeBatch as large:
                with await self._clip(large.batch, offset, limits) as clip:
                    batches = [(clip.payload, 0, read_header(clip.payload))]
                    found, offset = decode(batches, offset, clip.number, limits=limits)
                    del batches
            except ProtocolError:
                hosted.log.check_again(offset)  # it was valid when it was last verified
                raise
            self.records_read -= fetched.slice.next_offset - offset  # found, but not used
            if found:
                return found, offset, fetched.high_watermark
            await yield_to_loop()

    def _clip(self, batch: bytes, offset: int, limits: Limits, *, timestamp_ms: int | None = None) -> Awaitable[Answer]:
        """Decompress a part of a large batch in a worker; the answer has the offset after it."""
        job = ClipRecords(
            start_offset=offset,
            records_max=min(limits.records_max, HERE_RECORDS_MAX),
            bytes_max=min(max(limits.bytes_max, 0), CLIP_BYTES_MAX),
            decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
            start_timestamp_ms=timestamp_ms,
        )
        return self._worker.do(job, batch)

    async def offset_at(
        self, topic: str, partition: int, timestamp_ms: int, *, committed_only: bool = False
    ) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first visible record at or after a time; None if there is none."""
        hosted = await require_open(self._hosting.partition(topic, partition), self._hosting, self._runtime)
        upto = hosted.last_stable_offset if committed_only else hosted.high_watermark
        for batch in hosted.log.find_batch_by_time(timestamp_ms):
            first = Limits(0, 1)
            for row in await self.rows_of(batch, hosted.start_offset, first, timestamp_ms=timestamp_ms):
                if row[0] >= upto:
                    return None
                if row[1] >= timestamp_ms and row[0] >= hosted.start_offset:
                    return row[0], row[1]
            await yield_to_loop()  # a request may have ten thousand partitions
        return None

    async def count(
        self, topic: str, partition: int, start: int, end: int, *, committed_only: bool, pieces_max: int
    ) -> Counted:
        """Count the records that a consumer sees in [start, end), from headers only.

        Return up to which offset they are counted.

        Uses at most `pieces_max` turns of the event loop. The count stops early where headers do not suffice.
        """
        records, at = 0, start
        for _ in range(pieces_max):
            hosted = await require_open(self._hosting.partition(topic, partition), self._hosting, self._runtime)
            hosted.require_leader()
            hosted.require_decided()
            upto = min(end, hosted.last_stable_offset if committed_only else hosted.high_watermark)
            found = hosted.log.count(at, upto, committed_only=committed_only, batches_max=COUNTED_AT_ONCE)
            records += found.records
            if found.next_offset in (at, upto):
                return Counted(records, found.next_offset)
            at = found.next_offset
            await yield_to_loop()
        return Counted(records, at)

    async def rows_of(self, batch: bytes, offset: int, limits: Limits, *, timestamp_ms: int | None = None) -> list[Row]:
        """Decode the records of a batch; of a large one those from an offset and a time on, within the limits."""
        sections = Sections([(batch, 0, read_header(batch))], offset, records_max=HERE_RECORDS_MAX)
        try:
            return [row for section, header in sections for row in decode_section(section, header)]
        except LargeBatch:
            with await self._clip(batch, offset, limits, timestamp_ms=timestamp_ms) as clip:
                return decode_batch(clip.payload, decompressed_bytes_max=0)

    def replica_fetched(self, topic: str, partition: int, replica: str, offset: int) -> Partition:
        """Record that an external follower has fetched from `offset`, so it has everything below."""
        hosted = self._hosting.partition(topic, partition)
        hosted.require_leader()
        if offset < 0:
            raise BrokerError(Reason.OFFSET_OUT_OF_RANGE, f"offset {offset} is negative")
        hosted.step(ExternalFetched(replica, offset))
        return hosted
