"""The log against a list in memory: random histories of everything a partition can be asked to do.

`BRAIDLOG_MODEL_EXAMPLES=5000 pytest tests/storage/test_log_model.py` runs that many histories from random seeds; without
it a fixed set runs, the same everywhere.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from braidlog.codec.batch.header import BatchHeader, iter_batches
from braidlog.codec.batch.records import control_batch, decode_batch, encode_batch
from braidlog.codec.compression import Compression
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import UNLIMITED
from braidlog.storage.compaction.compaction import Compaction
from braidlog.storage.compaction.retention import retain
from braidlog.storage.embedded_log import Log, Topic
from braidlog.storage.log.partition_log import Appended, PartitionLog
from braidlog.storage.segment.segment import Segment
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk

CAMPAIGN = os.environ.get("BRAIDLOG_MODEL_EXAMPLES")
SEQUENCES = 2**31
ANY_SIZE = 2**20

Row = tuple[int, int, bytes | None, bytes | None]
"""offset, timestamp, key, value"""


@dataclass
class Batch:
    """One batch as the model remembers it. Compaction takes rows out; the offsets stay."""

    base: int
    next: int
    epoch: int
    newest: int
    rows: list[Row]
    producer: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    commit: bool | None = None

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.next - self.base - 1) % SEQUENCES


@dataclass
class Writer:
    """A producer as the partition should remember it: base sequence, last sequence, base offset, last offset."""

    epoch: int
    heard: int
    batches: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass
class Model:
    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    cleaned: int = 0
    thinned: bool = False
    forgot: bool = False
    epochs: list[tuple[int, int]] = field(default_factory=list)

    def add(self, batch: Batch) -> None:
        assert batch.base == self.end
        self.begin_epoch(batch.epoch, batch.base)
        self.batches.append(batch)
        self.end = batch.next

    def begin_epoch(self, epoch: int, offset: int) -> None:
        if not self.epochs or epoch > self.epochs[-1][0]:
            self.epochs = [entry for entry in self.epochs if entry[1] < offset]
            self.epochs.append((epoch, offset))

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        if not self.epochs or epoch > self.epoch:
            return -1, -1
        if epoch == self.epoch:
            return epoch, self.end
        known = [entry for entry, _ in self.epochs if entry <= epoch]
        after = min(start for entry, start in self.epochs if entry > epoch)
        return (max(known) if known else epoch), max(after, self.start)

    def transactions(self) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
        """First offset by producer of those that are open; (producer, first, last) of the aborted ones."""
        opened: dict[int, int] = {}
        aborted = []
        for batch in self.batches:
            if batch.commit is not None:
                first = opened.pop(batch.producer, None)
                if first is not None and not batch.commit:
                    aborted.append((batch.producer, first, batch.base))
            elif batch.transactional:
                opened.setdefault(batch.producer, batch.base)
        return opened, aborted

    def last_stable(self) -> int:
        return max(min(self.transactions()[0].values(), default=self.end), self.start)

    def writers(self) -> dict[int, Writer]:
        writers: dict[int, Writer] = {}
        for batch in self.batches:
            if batch.producer < 0:
                continue
            writer = writers.get(batch.producer)
            if writer is None or batch.producer_epoch > writer.epoch:
                writer = writers[batch.producer] = Writer(batch.producer_epoch, batch.newest)
            writer.heard = batch.newest
            if batch.commit is None and batch.sequence >= 0:
                writer.batches.append((batch.sequence, batch.last_sequence, batch.base, batch.next - 1))
                del writer.batches[:-5]
        return writers

    def is_aborted(self, batch: Batch, aborted: list[tuple[int, int, int]]) -> bool:
        return batch.transactional and any(
            producer == batch.producer and first <= batch.base <= last for producer, first, last in aborted
        )

    def visible(self, offset: int, end: int, *, committed: bool) -> list[Row]:
        aborted = self.transactions()[1] if committed else []
        return [
            row
            for batch in self.batches
            if batch.commit is None and not self.is_aborted(batch, aborted)
            for row in batch.rows
            if max(offset, self.start) <= row[0] < end
        ]

    def rows(self, start: int, end: int) -> list[Row]:
        return [row for batch in self.batches for row in batch.rows if start <= row[0] < end]

    def compact(self, upto: int, now: int, delete_retention: int, *, append_time: bool) -> int:
        """Return how many rows went."""
        aborted = self.transactions()[1]
        last: dict[bytes, int] = {}
        for batch in self.batches:
            if batch.next <= upto and batch.commit is None and not self.is_aborted(batch, aborted):
                last.update({key: offset for offset, _, key, _ in batch.rows if key is not None})
        removed = 0
        for batch in self.batches:
            if batch.next > upto or batch.commit is not None:
                continue
            kept = (
                [] if self.is_aborted(batch, aborted) else [r for r in batch.rows if r[2] is None or last[r[2]] == r[0]]
            )
            if batch.next <= self.cleaned and now - batch.newest > delete_retention:
                kept = [row for row in kept if row[2] is None or row[3] is not None]
            if kept and len(kept) < len(batch.rows) and not append_time:
                batch.newest = max(row[1] for row in kept)
            removed += len(batch.rows) - len(kept)
            batch.rows = kept
        self.cleaned = upto
        self.thinned = True
        return removed


keys = st.sampled_from([None, b"a", b"b", b"c", b"d"])
values = st.one_of(st.none(), st.binary(max_size=12), st.integers(50, 700).map(bytes))
records = st.lists(st.tuples(keys, values, st.integers(-4000, 0)), min_size=1, max_size=6)
producers = st.integers(0, 3)
part = st.floats(0, 1)
"""A place in the log, as a share of its length: stays meaningful when hypothesis shortens the history."""


class LogMachine(RuleBasedStateMachine):
    """One topic of one partition; every rule does the same to the log and to the model, and compares the answers."""

    disk: SimulatedDisk
    log: Log

    @initialize(
        os_flush=st.booleans(),
        append_time=st.booleans(),
        interval=st.sampled_from([256, 700, 64 * 1024]),
        eager=st.booleans(),
        delete_retention=st.sampled_from([0, 60_000]),
        wrap=st.booleans(),
    )
    def create(
        self, os_flush: bool, append_time: bool, interval: int, eager: bool, delete_retention: int, wrap: bool
    ) -> None:
        self.disk = SimulatedDisk()
        self.clock = ManualClock()
        self.log = Log("data", disk=self.disk, clock=self.clock)
        self.eager = eager
        self.os_flush = os_flush
        self.append_time = append_time
        self.first_sequence = SEQUENCES - 4 if wrap else 0
        self.delete_retention = delete_retention
        self.model = Model()
        self.writers: dict[int, Writer] = {}
        self.came: dict[int, int] = {}
        """When the last batch of each was written, by our clock."""
        self.log.create_topic(
            "t",
            flush="os" if os_flush else "ack",
            segment_bytes=4096,
            index_interval_bytes=interval,
            append_time=append_time,
            delete_retention_ms=delete_retention,
            flush_window_bytes=8192,
            compact=True,
        )

    @property
    def topic(self) -> Topic:
        return self.log.topic("t")

    @property
    def partition(self) -> PartitionLog:
        return self.topic.partition()

    def place(self, at: float, extra: int = 0) -> int:
        low, high = self.model.start - extra, self.model.end + extra
        return low + round(at * (high - low))

    # -- appending -------------------------------------------------------------------------------------------

    def encode(self, rows: list[tuple[bytes | None, bytes | None, int]], **fields: object) -> bytes:
        now = self.clock.now_ms()
        times = [now + ago for _, _, ago in rows]
        return encode_batch(
            [value for _, value, _ in rows],
            keys=[key for key, _, _ in rows],
            timestamps=times,
            base_timestamp=times[0],
            **fields,  # type: ignore[arg-type]
        )

    def append(self, data: bytes, epoch: int) -> Appended:
        appended = self.partition.append(data, leader_epoch=epoch, now_ms=self.clock.now_ms())
        if not self.os_flush:
            self.partition.sync()
        return appended

    def note(self, rows: list[tuple[bytes | None, bytes | None, int]], **fields: object) -> Batch:
        now = self.clock.now_ms()
        base = self.model.end
        times = [now if self.append_time else now + ago for _, _, ago in rows]
        kept = [(base + i, times[i], key, value) for i, (key, value, _) in enumerate(rows)]
        batch = Batch(base, base + len(rows), max(self.model.epoch, 0), max(times), kept, **fields)  # type: ignore[arg-type]
        self.model.add(batch)
        self.hear(batch)
        return batch

    def hear(self, batch: Batch) -> None:
        """Keep the expected producers up: a fold, like the real one, but over five fields."""
        if batch.producer < 0:
            return
        writer = self.writers.get(batch.producer)
        if writer is None or batch.producer_epoch > writer.epoch:
            writer = self.writers[batch.producer] = Writer(batch.producer_epoch, 0)
        writer.heard = batch.newest
        self.came[batch.producer] = self.clock.now_ms()
        if batch.commit is None and batch.sequence >= 0:
            writer.batches.append((batch.sequence, batch.last_sequence, batch.base, batch.next - 1))
            del writer.batches[:-5]

    @rule(batches=st.lists(records, min_size=1, max_size=3), compression=st.sampled_from(list(Compression)))
    def append_plain(
        self, batches: list[list[tuple[bytes | None, bytes | None, int]]], compression: Compression
    ) -> None:
        base = self.model.end
        epoch = max(self.model.epoch, 0)
        data = b"".join(self.encode(rows, compression=compression) for rows in batches)
        appended = self.append(data, epoch)
        for rows in batches:
            self.note(rows)
        assert appended == (base, self.model.end - 1, False)

    @rule(rows=records)
    def append_record_by_record(self, rows: list[tuple[bytes | None, bytes | None, int]]) -> None:
        if self.os_flush or self.model.epoch > 0:
            return  # the embedded log writes in the first epoch, and would start the flusher's thread
        for row in rows:
            base = self.model.end
            key, value, ago = row
            offset = self.topic.append(value, key=key, timestamp_ms=self.clock.now_ms() + ago)
            self.note([row])
            assert offset == base

    @rule(size=st.integers(3000, 9000))
    def append_large(self, size: int) -> None:
        self.append(self.encode([(b"big", bytes(size), 0)]), max(self.model.epoch, 0))
        self.note([(b"big", bytes(size), 0)])

    @rule(
        producer=producers,
        rows=records,
        transactional=st.booleans(),
        bump=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
        skip=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
    )
    def append_idempotent(
        self,
        producer: int,
        rows: list[tuple[bytes | None, bytes | None, int]],
        transactional: bool,
        bump: int,
        skip: int,
    ) -> None:
        known = self.writers.get(producer)
        epoch = max((known.epoch if known else 0) + bump, 0)
        if known is None:
            expected = self.first_sequence
        elif epoch > known.epoch:
            expected = 0
        else:
            expected = (known.batches[-1][1] + 1) % SEQUENCES if known.batches else self.first_sequence
        sequence = (expected + skip) % SEQUENCES
        fields = {"producer_epoch": epoch, "transactional": transactional}
        data = self.encode(rows, producer_id=producer, base_sequence=sequence, **fields)
        last = (sequence + len(rows) - 1) % SEQUENCES
        refusal: Reason | None = None
        repeats: tuple[int, int, int, int] | None = None
        if known is not None and epoch < known.epoch:
            refusal = Reason.STALE_PRODUCER_EPOCH
        elif known is not None and epoch == known.epoch:
            repeats = next((b for b in known.batches if b[:2] == (sequence, last)), None)
            if repeats is None and known.batches and skip:
                refusal = Reason.OUT_OF_ORDER_SEQUENCE
        elif known is not None and skip:
            refusal = Reason.OUT_OF_ORDER_SEQUENCE
        if refusal is not None:
            with pytest.raises(BrokerError) as caught:
                self.append(data, max(self.model.epoch, 0))
            assert caught.value.reason is refusal
            return
        appended = self.append(data, max(self.model.epoch, 0))
        if repeats is not None:
            assert appended == (repeats[2], repeats[3], True)
        else:
            batch = self.note(rows, producer=producer, sequence=sequence, **fields)
            assert appended == (batch.base, batch.next - 1, False)

    @rule(producer=producers, at=st.integers(0, 4))
    def retry(self, producer: int, at: int) -> None:
        """Send again one of the last five batches: same sequences, same answer."""
        known = self.writers.get(producer)
        if known is None or at >= len(known.batches):
            return
        sequence, _, base, last = known.batches[at]
        rows: list[tuple[bytes | None, bytes | None, int]] = [(b"a", b"again", 0)] * (last - base + 1)
        data = self.encode(rows, producer_id=producer, producer_epoch=known.epoch, base_sequence=sequence)
        assert self.append(data, max(self.model.epoch, 0)) == (base, last, True)

    @rule(producer=producers, commit=st.booleans(), bump=st.sampled_from([0, 0, 0, 1]))
    def end_transaction(self, producer: int, commit: bool, bump: int) -> None:
        known = self.writers.get(producer)
        if known is None:
            return
        now, base = self.clock.now_ms(), self.model.end
        epoch = max(self.model.epoch, 0)
        marker = control_batch(
            base_offset=0,
            leader_epoch=0,
            producer_id=producer,
            producer_epoch=known.epoch + bump,
            commit=commit,
            timestamp_ms=now,
        )
        appended = self.partition.append_marker(marker, leader_epoch=epoch, now_ms=now)
        if not self.os_flush:
            self.partition.sync()
        assert appended == (base, base, False)
        row = (base, now, bytes([0, 0, 0, commit]), bytes(6))
        batch = Batch(base, base + 1, epoch, now, [row], producer, known.epoch + bump, -1, True, commit)
        self.model.add(batch)
        self.hear(batch)

    @rule(rows=records, ahead=st.sampled_from([0, 0, 1, 3, -1]), astray=st.sampled_from([0, 0, 0, 1]))
    def append_replicated(self, rows: list[tuple[bytes | None, bytes | None, int]], ahead: int, astray: int) -> None:
        epoch = max(max(self.model.epoch, 0) + ahead, 0)
        now = self.clock.now_ms()
        data = self.encode(rows, base_offset=self.model.end + astray, leader_epoch=epoch)
        if astray or epoch < max(self.model.epoch, 0):
            with pytest.raises(BrokerError) as caught:
                self.partition.append_replicated(data, now_ms=now)
            assert caught.value.reason is (Reason.OFFSET_OUT_OF_RANGE if astray else Reason.STALE_LEADER_EPOCH)
            return
        self.partition.append_replicated(data, now_ms=now)
        if not self.os_flush:
            self.partition.sync()
        base = self.model.end
        kept = [(base + i, now + ago, key, value) for i, (key, value, ago) in enumerate(rows)]
        self.model.add(Batch(base, base + len(rows), epoch, max(row[1] for row in kept), kept))

    # -- durability and ends ---------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 1000, 70_000]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def sync(self) -> None:
        assert self.partition.sync() == self.model.end

    @rule()
    def checkpoint(self) -> None:
        self.partition.checkpoint()

    @rule()
    def roll(self) -> None:
        before = len(self.partition.segments)
        grows = self.partition.segments[-1].data_bytes > 0
        self.partition.roll(self.clock.now_ms())
        assert len(self.partition.segments) == before + grows

    @rule(epoch=st.integers(0, 3))
    def begin_epoch(self, epoch: int) -> None:
        epoch += max(self.model.epoch - 1, 0)
        if epoch < self.model.epoch:
            with pytest.raises(BrokerError) as caught:
                self.partition.begin_epoch(epoch)
            assert caught.value.reason is Reason.STALE_LEADER_EPOCH
            return
        self.partition.begin_epoch(epoch)
        self.model.begin_epoch(epoch, self.model.end)

    @rule(at=part)
    def truncate(self, at: float) -> None:
        offset = self.place(at)
        boundary = offset
        if offset < self.model.end:
            found = self.partition.slice_at(offset, 1)
            assert found is not None
            boundary = found.offset
            whole = next(b for b in self.model.batches if b.base <= offset < b.next)
            assert boundary == whole.base or (self.model.thinned and boundary < self.model.cleaned)
        assert self.partition.truncate(offset) == boundary
        if boundary < self.model.end:
            model = self.model
            model.batches = [replace(b, next=min(b.next, boundary)) for b in model.batches if b.base < boundary]
            model.end = boundary
            model.start = min(model.start, boundary)
            model.cleaned = min(model.cleaned, boundary)
            self.adopt_writers()
        self.model.epochs = [entry for entry in self.model.epochs if entry[1] < boundary]  # one that wrote nothing too

    def adopt_writers(self) -> None:
        """After a truncation: a fold over what is left, less what compaction and expiry had taken."""
        expected = self.model.writers()
        found = {
            p.producer_id: Writer(p.epoch, p.timestamp_ms, [(b[0], b[1], b[2], b[3]) for b in p.batches])
            for p in self.partition.state.producers.image()
        }
        if not self.model.thinned and not self.model.forgot:
            assert found == expected
        for producer, writer in found.items():
            assert writer.epoch == expected[producer].epoch
            full = expected[producer].batches
            assert writer.batches == full[len(full) - len(writer.batches) :]
        self.writers = found
        self.came = {}  # the table was made anew from the log

    @rule(at=part)
    def delete_before(self, at: float) -> None:
        offset = self.place(at, 2)
        if offset > self.model.end:
            with pytest.raises(BrokerError) as caught:
                self.topic.delete_before(offset)
            assert caught.value.reason is Reason.OFFSET_OUT_OF_RANGE
            return
        self.move_start(max(offset, self.model.start), self.partition.segments)
        assert self.topic.delete_before(offset) == self.model.start

    def move_start(self, start: int, bases: Sequence[Segment]) -> None:
        if start > self.model.start:
            self.model.start = start
            self.model.cleaned = max(self.model.cleaned, start)
            kept_from = max(s.base_offset for s in bases if s.base_offset <= start)
            ended = [entry for entry in self.model.epochs if entry[1] <= kept_from]
            self.model.epochs = [(epoch, kept_from) for epoch, _ in ended[-1:]] + self.model.epochs[len(ended) :]

    @rule(ms=st.sampled_from([UNLIMITED, 0, 5000, 100_000]), size=st.sampled_from([UNLIMITED, 0, 3000, 10_000]))
    def retain(self, ms: int, size: int) -> None:
        now = self.clock.now_ms()
        self.log.alter_topic("t", retention_ms=ms, retention_bytes=size)
        before = self.partition.segments
        start = retain(self.partition, now)
        self.log.alter_topic("t", retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
        active_is_old = ms != UNLIMITED and 0 <= before[-1].max_timestamp_ms < now - ms
        sealed = before if active_is_old else before[:-1]
        expected = self.model.start
        total = sum(segment.data_bytes for segment in before)
        for segment in sealed:
            is_old = ms != UNLIMITED and segment.max_timestamp_ms < now - ms
            is_over = size != UNLIMITED and total - segment.data_bytes >= size
            if not is_old and not is_over:
                break
            total -= segment.data_bytes
            expected = segment.next_offset
        self.move_start(expected, [*before, *self.partition.segments])
        assert start == self.model.start

    @rule(keys_max=st.sampled_from([1, 1000]))
    def compact(self, keys_max: int) -> None:
        partition, now = self.partition, self.clock.now_ms()
        limit = self.model.last_stable()
        sealed = [s for s in partition.segments[:-1] if s.next_offset <= limit]
        fresh = [s for s in sealed if s.next_offset > self.model.cleaned]
        done = Compaction(self.disk, self.log.folder.pool, partition, now_ms=now, keys_max=keys_max).run()
        if not fresh:
            assert (done.upto, done.records_removed) == (self.model.cleaned, 0)
            return
        assert self.model.cleaned < done.upto <= fresh[-1].next_offset
        if keys_max > 1:
            assert done.upto == fresh[-1].next_offset
        removed = self.model.compact(done.upto, now, self.delete_retention, append_time=self.append_time)
        if self.model.start == 0:  # else some of what the model removed lay in segments that are gone
            assert done.records_removed == removed

    @rule()
    def expire(self) -> None:
        now = self.clock.now_ms()
        self.log.alter_topic("t", producer_expiry_ms=60_000)
        self.partition.expire_producers(now)
        self.partition.checkpoint()
        busy = self.model.transactions()[0]
        for producer, writer in list(self.writers.items()):
            if self.came.get(producer, writer.heard) < now - 60_000 and producer not in busy:
                del self.writers[producer]
                self.came.pop(producer, None)
                self.model.forgot = True

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = Log("data", disk=self.disk, clock=self.clock)
        self.check_opened(clean=True)

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.after_kill()
        self.log = Log("data", disk=self.disk, clock=self.clock)
        self.check_opened(clean=False)

    def check_opened(self, *, clean: bool) -> None:
        self.came = {}
        report = self.partition.report
        assert report.clean_stop == clean
        assert report.damages == []
        assert report.torn_bytes == 0
        if clean:
            # A roll may have left the start behind the first segment; opening lets that one go.
            assert [note for note in report.notes if "below the log's start" not in note] == []
        assert self.partition.durable_offset == self.model.end

    # -- reading ---------------------------------------------------------------------------------------------

    @rule(at=part, size=st.sampled_from([0, 1, 100, 500, 5000, ANY_SIZE]), upto=st.none() | part)
    def read(self, at: float, size: int, upto: float | None) -> None:
        offset = self.place(at, 2)
        stop = None if upto is None else self.place(upto, 2)
        if not self.model.start <= offset <= self.model.end:
            with pytest.raises(BrokerError) as caught:
                self.partition.slice_at(offset, size, upto=stop)
            assert caught.value.reason is Reason.OFFSET_OUT_OF_RANGE
            return
        limit = self.model.end if stop is None else min(stop, self.model.end)
        found = self.partition.slice_at(offset, size, upto=stop)
        data = self.partition.read(offset, size, upto=stop)
        if found is None:
            assert data == b""
            whole = next((b for b in self.model.batches if b.base <= offset < b.next), None)
            # Nothing, only where the first batch is not below `upto`; compaction may have made that batch longer.
            assert offset >= limit or (whole is not None and whole.next > limit) or offset < self.model.cleaned
            return
        assert found.read() == data
        headers = self.check_batches(data)
        assert headers[0].base_offset == found.offset <= offset < headers[0].next_offset
        assert headers[-1].next_offset == found.next_offset <= limit
        assert len(data) == found.size
        assert len(headers) == 1 or len(data) <= size

    def check_batches(self, data: bytes) -> list[BatchHeader]:
        """Whole batches in a row, with the rows and the epochs of the model."""
        headers: list[BatchHeader] = []
        for position, header in iter_batches(data):
            if headers:
                assert header.base_offset == headers[-1].next_offset
            headers.append(header)
            rows = [row[:4] for row in decode_batch(data, position, decompressed_bytes_max=ANY_SIZE)]
            assert rows == self.model.rows(header.base_offset, header.next_offset)
            inside = [b for b in self.model.batches if b.base < header.next_offset and header.base_offset < b.next]
            assert {b.epoch for b in inside} == {header.leader_epoch}
            if len(inside) > 1:
                assert header.record_count == 0
                assert inside[-1].next <= self.model.cleaned
        return headers

    @rule(at=part, committed=st.booleans(), most=st.sampled_from([1, 5, 1000]))
    def read_records(self, at: float, committed: bool, most: int) -> None:
        offset = self.place(at)
        found = self.topic.read(offset, records_max=most, committed_only=committed)
        end = self.partition.end_offset if self.os_flush else self.partition.durable_offset
        end = min(end, self.model.last_stable()) if committed else end
        expected = self.model.visible(offset, end, committed=committed)
        assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in found] == expected[:most]

    @rule(ago=st.sampled_from([0, 500, 3000, 60_000, 200_000]))
    def find_time(self, ago: int) -> None:
        wanted = self.clock.now_ms() - ago
        expected = next((r[0] for r in self.model.rows(self.model.start, self.model.end) if r[1] >= wanted), None)
        assert self.topic.offset_at(wanted) == expected

    @rule(at=part, to=part)
    def find_aborted(self, at: float, to: float) -> None:
        start, end = sorted((self.place(at), self.place(to)))
        found = {txn[:3] for txn in self.partition.aborted_in(start, end)}
        aborted = self.model.transactions()[1]
        needed = {txn for txn in aborted if txn[1] < end and txn[2] >= start and txn[2] >= self.model.start}
        assert found == needed

    @rule(epoch=st.integers(-1, 12))
    def ask_epoch(self, epoch: int) -> None:
        assert self.partition.end_offset_for_epoch(epoch) == self.model.end_offset_for(epoch)

    # -- always ----------------------------------------------------------------------------------------------

    @invariant()
    def ends_agree(self) -> None:
        partition = self.partition
        assert (partition.start_offset, partition.end_offset) == (self.model.start, self.model.end)
        assert partition.start_offset <= partition.last_stable_offset <= partition.end_offset
        assert partition.last_stable_offset == self.model.last_stable()
        assert partition.durable_offset <= partition.end_offset
        assert partition.damages == []
        segments = partition.segments
        for segment, following in pairwise(segments):
            assert segment.next_offset == following.base_offset
        assert segments[0].base_offset <= self.model.start

    @invariant()
    def producers_agree(self) -> None:
        found = {
            p.producer_id: Writer(p.epoch, p.timestamp_ms, [(b[0], b[1], b[2], b[3]) for b in p.batches])
            for p in self.partition.state.producers.image()
        }
        assert found == self.writers

    @invariant()
    @precondition(lambda self: self.eager)
    def records_agree(self) -> None:
        self.compare_all()

    def compare_all(self) -> None:
        offset = self.model.start
        while offset < self.model.end:
            data = self.partition.read(offset, 2000)
            assert data
            offset = self.check_batches(data)[-1].next_offset
        if not self.model.thinned:
            for segment in self.partition.segments:
                inside = [b.newest for b in self.model.batches if segment.base_offset <= b.base < segment.next_offset]
                assert segment.max_timestamp_ms == max(inside, default=-1)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.compare_all()
            self.log.close()


LogMachine.TestCase.settings = settings(
    max_examples=int(CAMPAIGN) if CAMPAIGN else 200,  # `make crash` tries 1500 that no run has tried before
    stateful_step_count=40,
    derandomize=CAMPAIGN is None,
    print_blob=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLogModel = LogMachine.TestCase
