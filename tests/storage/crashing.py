"""A log on a simulated disk, a list in memory beside it, and the comparison of the two after a crash.

Knows: what was asked of the log, what it promised in return, and so what must, may and must not be found when it is opened
again. Refuses to know: how the log keeps its promises.
Invariant: `must` only ever holds what a call that returned has promised; what is in flight is `may`, never `must`.
"""

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from braidlog.codec.batch.header import BatchHeader, empty_batch, iter_batches
from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.batch.records import control_batch, decode_batch, encode_batch
from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush, settings_from
from braidlog.storage.embedded_log import Log, Topic
from braidlog.storage.group_commit import GroupCommit
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.open_files import OPEN_FILES_MAX
from braidlog.storage.recovery.clean_shutdown import ClosedPartition
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Operation, SimulatedDisk

FOLDER = "/data"
SMALL = {"segment_bytes": 4096, "index_interval_bytes": 256, "flush_window_bytes": 4096}
READ_BYTES = 1 << 20
NO_PRODUCER = -1

Row = tuple[int, bytes | None, bytes | None]


class Batch(NamedTuple):
    """A batch as the workload gave it."""

    base: int
    next: int
    epoch: int
    rows: tuple[Row, ...]
    pid: int = NO_PRODUCER
    pepoch: int = -1
    seq: int = -1
    transactional: bool = False
    commit: bool | None = None


@dataclass
class PartitionModel:
    """What one partition was told. `batches` includes what is in flight, in the order of offsets."""

    batches: list[Batch] = field(default_factory=list)
    durable: int = 0
    returned: int = 0
    start: int = 0
    start_max: int = 0
    cut_to: int | None = None
    removable: set[int] = field(default_factory=set)
    compacted: bool = False
    refolded: bool = False
    epoch: int = 0
    base: int = 0
    anew_at: int | None = None
    """Where it is being begun anew, with nothing in it."""
    watermark: int | None = None
    """The highest that it was told; None for a log without other replicas."""
    kept_watermark: int = 0
    sequences: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.batches[-1].next if self.batches else self.base

    def ends(self, *, killed: bool) -> set[int]:
        """Where the log may end: at a promised offset, or at the end of a batch beyond it."""
        promised = self.returned if killed else self.durable
        found = {batch.next for batch in self.batches if batch.next >= promised}
        found |= {promised} if promised in {self.base, self.start, *(b.next for b in self.batches)} else set()
        return found if self.cut_to is None else found | {self.cut_to}

    def below(self, end: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.next <= end]


@dataclass
class TopicModel:
    partitions: list[PartitionModel]
    partitions_max: int
    settings: list[dict[str, Any]]
    must_exist: bool = False
    must_be_gone: bool = False


class Seen(NamedTuple):
    """Everything one partition shows to its users."""

    start: int
    end: int
    stable: int
    watermark: int
    raw: bytes
    epochs: tuple[tuple[int, int], ...]
    producers: tuple[Any, ...]
    aborted: tuple[Any, ...]
    committed: tuple[tuple[int, bytes | None, bytes | None], ...]


def read_raw(partition: PartitionLog, start: int, end: int) -> bytes:
    """The bytes of all batches from the one that holds `start` to `end`."""
    parts = []
    while start < end:
        found = partition.slice_at(start, READ_BYTES)
        assert found is not None, f"nothing at {start}, the log ends at {end}"
        assert found.next_offset > start, "a slice that goes nowhere"
        parts.append(found.read())
        start = found.next_offset
    return b"".join(parts)


def see(topic: Topic, number: int) -> Seen:
    p = topic.partition(number)
    assert p.damages == [], [str(damage) for damage in p.damages]
    assert p.durable_offset == p.end_offset, "recovery must make durable what it shows"
    return Seen(
        p.start_offset,
        p.end_offset,
        p.last_stable_offset,
        p.state.watermark,
        read_raw(p, p.start_offset, p.end_offset),
        tuple(p.state.epochs.entries()),
        tuple(sorted((q.producer_id, q.epoch, tuple(tuple(b) for b in q.batches)) for q in p.state.producers.image())),
        tuple(p.aborted_in(p.start_offset, p.end_offset)),
        tuple((r.offset, r.key, r.value) for r in topic.iterate(partition=number)),
    )


def open_log(disk: SimulatedDisk, now_ms: int | None = None) -> Log:
    return Log(FOLDER, disk=disk, clock=ManualClock() if now_ms is None else ManualClock(now_ms))


def see_all(log: Log) -> dict[tuple[str, int], Seen]:
    assert not log.folder.broken_topics, log.folder.broken_topics
    found = {}
    for name in log.topics():
        topic = log.topic(name)
        for number in range(topic.partitions):
            rest = log.folder.closed_partition_of(name, number)
            found[name, number] = see(topic, number)
            if rest is not None:
                compare_rest(rest, topic.partition(number))
    return found


def compare_rest(rest: ClosedPartition, opened: PartitionLog) -> None:
    """What a partition said before it was opened is what it says now that it is."""
    assert (rest.start_offset, rest.end_offset) == (opened.start_offset, opened.end_offset)
    assert opened.last_stable_offset == opened.durable_offset == rest.end_offset
    assert list(rest.epochs) == opened.state.epochs.entries()
    sizes = [segment.data_bytes for segment in opened.segments]
    assert (rest.shape.segments, rest.shape.size_bytes) == (len(sizes), sum(sizes))
    assert rest.shape.first_base == opened.segments[0].base_offset
    assert rest.shape.newest_ms == max(segment.max_timestamp_ms for segment in opened.segments)


# -- the comparison ----------------------------------------------------------------------------------------------


def compare(log: Log, topics: dict[str, TopicModel], *, killed: bool = False) -> dict[tuple[str, int], Seen]:
    """Raise unless the log holds all that was promised and nothing that was not asked for. Return what it shows."""
    names = set(log.topics())
    assert names <= set(topics), f"topics nobody made: {names - set(topics)}"
    for name, model in topics.items():
        assert name in names or not model.must_exist, f"topic {name} is lost"
        assert name not in names or not model.must_be_gone, f"topic {name} came back"
        if name in names:
            meta = log.folder.topic(name)
            assert len(model.partitions) <= meta.partitions <= model.partitions_max, f"{meta.partitions} partitions"
            assert meta.settings in [settings_from(values) for values in model.settings], "settings nobody gave"
    shown = see_all(log)
    for (name, number), seen in shown.items():
        partitions = topics[name].partitions
        model_of = partitions[number] if number < len(partitions) else PartitionModel()
        compare_partition(seen, model_of, killed=killed)
    return shown


def compare_partition(seen: Seen, model: PartitionModel, *, killed: bool) -> None:
    if model.anew_at is not None and seen.start == seen.end == model.anew_at:
        assert (seen.raw, seen.producers, seen.aborted) == (b"", (), ()), "begun anew with something in it"
        assert all(start == seen.end for _, start in seen.epochs), f"begun anew with epochs {seen.epochs}"
        assert seen.watermark == seen.end, f"the watermark of a log begun anew at {seen.end} is {seen.watermark}"
        return
    compare_watermark(seen, model)
    start_min = model.start if model.cut_to is None else min(model.start, model.cut_to)
    assert start_min <= seen.start <= model.start_max, f"start {seen.start}, not {model.start} to {model.start_max}"
    ends = model.ends(killed=killed)
    assert seen.end in ends, f"end {seen.end} is none of {sorted(ends)}; durable {model.durable}"
    batches = model.below(seen.end)
    compare_batches(seen, batches, model)
    stable, aborted = fold_transactions(batches)
    stable = max(stable, seen.start)  # as Kafka has it: a transaction that began below the start holds nobody there
    assert seen.stable == stable, f"last stable offset {seen.stable}, not {stable}"
    shown = {(a.producer_id, a.first_offset, a.last_offset) for a in seen.aborted}
    wanted = {a for a in aborted if a[2] >= seen.start}
    if model.compacted or seen.start > 0:
        # An aborted range whose records are gone may be forgotten; what readers see is compared below.
        assert shown <= wanted, f"aborted {shown - wanted} were not"
    else:
        assert shown == wanted, f"aborted {shown}, not {wanted}"
    compare_committed(seen, batches, stable, aborted, model)
    compare_producers(seen, batches, model)


def compare_watermark(seen: Seen, model: PartitionModel) -> None:
    if model.watermark is None:
        assert seen.watermark <= seen.end, f"the watermark is {seen.watermark}, the log ends at {seen.end}"
        return
    least, most = min(model.kept_watermark, seen.end), max(min(model.watermark, seen.end), seen.start)
    assert least <= seen.watermark <= most, f"the watermark is {seen.watermark}, not {least} to {most}"


def compare_batches(seen: Seen, batches: Sequence[Batch], model: PartitionModel) -> None:
    by_offset = {row[0]: (row, batch) for batch in batches for row in batch.rows}
    by_base = {batch.base: batch for batch in batches}
    at: int | None = None
    found = set()
    for position, header in iter_batches(seen.raw):
        assert at is None or header.base_offset == at, f"offset {header.base_offset} follows {at}"
        if at is None:
            assert header.base_offset <= seen.start < header.next_offset, "the first batch does not hold the start"
        at = header.next_offset
        rows = decode_batch(seen.raw, position, decompressed_bytes_max=1 << 20)
        if header.is_control:
            assert by_base[header.base_offset].commit is not None, f"a marker nobody wrote at {header.base_offset}"
            continue
        batch = by_base.get(header.base_offset)
        if header.record_count or not model.compacted:
            assert batch is not None, f"a batch nobody wrote at {header.base_offset}"
            compare_header(header, batch)
        for offset, _, key, value, _ in rows:
            assert offset in by_offset, f"a record nobody wrote at {offset}"
            assert by_offset[offset][0] == (offset, key, value), f"record {offset} is {key!r} {value!r}"
            found.add(offset)
    assert at == seen.end or (at is None and seen.start == seen.end), f"the log reads up to {at}, not {seen.end}"
    for batch in batches:
        if batch.commit is None:
            missing = {row[0] for row in batch.rows if row[0] >= seen.start} - found - model.removable
            assert not missing, f"records {sorted(missing)} are lost"


def compare_header(header: BatchHeader, batch: Batch) -> None:
    shown = (
        header.next_offset,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
    )
    wanted = (batch.next, batch.epoch, batch.pid, batch.pepoch, batch.seq, batch.transactional)
    assert shown == wanted, f"batch {header.base_offset} is {shown}, not {wanted}"


def fold_transactions(batches: Sequence[Batch]) -> tuple[int, set[tuple[int, int, int]]]:
    """The last stable offset and the aborted (producer, first offset, marker's offset), by the book."""
    opened: dict[int, int] = {}
    aborted = set()
    for batch in batches:
        if batch.commit is None and batch.transactional:
            opened.setdefault(batch.pid, batch.base)
        elif batch.commit is not None:
            first = opened.pop(batch.pid, None)
            if first is not None and not batch.commit:
                aborted.add((batch.pid, first, batch.base))
    end = batches[-1].next if batches else 0
    return min([end, *opened.values()]), aborted


def open_transactions(batches: Sequence[Batch]) -> set[int]:
    """The producers with a transaction that no marker has ended."""
    found: set[int] = set()
    for batch in batches:
        if batch.commit is not None:
            found.discard(batch.pid)
        elif batch.transactional:
            found.add(batch.pid)
    return found


def compare_committed(
    seen: Seen, batches: Sequence[Batch], stable: int, aborted: set[tuple[int, int, int]], model: PartitionModel
) -> None:
    wanted = []
    for batch in batches:
        if batch.commit is not None or batch.next > max(stable, seen.start):
            continue
        if batch.transactional and any(pid == batch.pid and a <= batch.base <= b for pid, a, b in aborted):
            continue
        wanted += [row for row in batch.rows if row[0] >= seen.start]
    if not model.compacted:
        assert list(seen.committed) == wanted, "committed records differ"
        return
    assert set(seen.committed) <= set(wanted), "a committed reader is shown what it must not see"
    missing = {row[0] for row in wanted} - {row[0] for row in seen.committed} - model.removable
    assert not missing, f"committed records {sorted(missing)} are lost"


def compare_producers(seen: Seen, batches: Sequence[Batch], model: PartitionModel) -> None:
    wanted: dict[int, tuple[int, list[tuple[int, int, int, int]]]] = {}
    for batch in batches:
        if batch.pid == NO_PRODUCER:
            continue
        pepoch, written = wanted.get(batch.pid, (batch.pepoch, []))
        if batch.pepoch > pepoch:
            pepoch, written = batch.pepoch, []
        if batch.commit is None and batch.seq >= 0:
            count = batch.next - batch.base
            written = [*written, (batch.seq, batch.seq + count - 1, batch.base, batch.next - 1)][-5:]
        wanted[batch.pid] = (pepoch, written)
    shown = {pid: (pepoch, [b[:4] for b in written]) for pid, pepoch, written in seen.producers}
    if model.refolded:
        # A fold over compacted or shortened segments remembers each producer's last batch, not all five.
        for pid, (pepoch, written) in shown.items():
            assert pid in wanted
            assert wanted[pid][0] == pepoch
            assert written[-1:] == wanted[pid][1][-1:], f"producer {pid}: {written}, not {wanted[pid][1]}"
        gone = {pid for pid, (_, written) in wanted.items() if written and written[-1][2] >= seen.start} - set(shown)
        assert not gone, f"producers {gone} are forgotten"
        return
    assert shown == wanted, f"producers {shown}, not {wanted}"


# -- the workload's hands ----------------------------------------------------------------------------------------


class Runtime:
    """A log and its model. Every method tells the model what may happen, does it, then what has been promised."""

    def __init__(self, disk: SimulatedDisk | None = None, seed: int = 1) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = ManualClock()
        self.topics: dict[str, TopicModel] = {}
        self.random = Random(seed)
        self.number = 0
        self._log: Log | None = None

    @property
    def log(self) -> Log:
        assert self._log is not None, "the workload opens the log, under the hook"
        return self._log

    @property
    def is_open(self) -> bool:
        return self._log is not None and not self._log.is_closed

    def open(self, *, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._log = Log(FOLDER, disk=self.disk, clock=self.clock, open_files_max=open_files_max)

    def close(self) -> None:
        # One that has stopped after a fault saves nothing more.
        saving = [
            (p, model)
            for name, topic in self.topics.items()
            for number, model in enumerate(topic.partitions)
            if model.watermark is not None and (p := self.at(name, number)[0])._gate.fault is None
        ]
        self.log.close()
        for topic in self.topics.values():
            for model in topic.partitions:
                model.durable = model.returned
        for p, model in saving:
            model.kept_watermark = p.state.watermark

    def rest(self, name: str, number: int = 0) -> None:
        """Close one partition; the next use opens it again."""
        _, model = self.at(name, number)
        self.log.topic(name).close_partition(number)
        model.durable = model.returned

    def reopen(self) -> None:
        self.close()
        self.open()

    # topics

    def create(self, name: str, partitions: int = 1, **settings: Any) -> None:
        wanted = {**SMALL, **settings}
        self.topics[name] = TopicModel([PartitionModel() for _ in range(partitions)], partitions, [wanted])
        self.log.create_topic(name, partitions=partitions, **wanted)
        self.topics[name].must_exist = True

    def grow(self, name: str, partitions: int) -> None:
        model = self.topics[name]
        model.partitions_max = partitions
        self.log.alter_topic(name, partitions=partitions)
        model.partitions += [PartitionModel() for _ in range(partitions - len(model.partitions))]

    def alter(self, name: str, **settings: Any) -> None:
        model = self.topics[name]
        model.settings.append({**model.settings[-1], **settings})
        self.log.alter_topic(name, **settings)
        del model.settings[:-1]

    def delete(self, name: str) -> None:
        self.topics[name].must_exist = False
        self.log.delete_topic(name)
        self.topics[name].must_be_gone = True

    # records

    def at(self, name: str, number: int = 0) -> tuple[PartitionLog, PartitionModel]:
        p, model = self.log.topic(name).partition(number), self.topics[name].partitions[number]
        if model.watermark is not None:
            p.replicate()
        return p, model

    def value(self, size: int) -> bytes:
        self.number += 1
        return b"%06d" % self.number + self.random.randbytes(max(0, size - 6))

    def append(
        self,
        name: str,
        number: int = 0,
        *,
        count: int = 1,
        batches: int = 1,
        size: int = 40,
        keys: Sequence[bytes] | None = None,
        tombstone: bool = False,
        pid: int = NO_PRODUCER,
        pepoch: int = 0,
        transactional: bool = False,
        replicated: bool = False,
        sync: bool | None = None,
    ) -> None:
        p, model = self.at(name, number)
        data = b""
        made = []
        base = model.end
        values: list[bytes | None] = []
        names: list[bytes | None] = []
        for _ in range(batches):
            values = [None if tombstone else self.value(size) for _ in range(count)]
            names = [keys[i % len(keys)] for i in range(count)] if keys else [None] * count
            seq = model.sequences.get(pid, 0) if pid != NO_PRODUCER else -1
            data += encode_batch(
                values,
                keys=names,
                base_timestamp=self.clock.now_ms(),
                producer_id=pid,
                producer_epoch=pepoch if pid != NO_PRODUCER else -1,
                base_sequence=seq,
                transactional=transactional,
                base_offset=base,
                leader_epoch=model.epoch,
            )
            rows = tuple((base + i, key, value) for i, (key, value) in enumerate(zip(names, values, strict=True)))
            shown_epoch = pepoch if pid != NO_PRODUCER else -1
            made.append(Batch(base, base + count, model.epoch, rows, pid, shown_epoch, seq, transactional))
            if pid != NO_PRODUCER:
                model.sequences[pid] = seq + count
            base += count
        model.batches += made
        # Every other one that may comes as records and not as a batch.
        is_plain, now_ms = batches == 1 and pid == NO_PRODUCER and model.end % 2 == 0, self.clock.now_ms()
        try:
            if replicated:
                p.append_replicated(data, now_ms=self.clock.now_ms())
            elif not (
                is_plain
                and p.append_section(
                    encode_records(values, names, None, None, now_ms),
                    len(values),
                    now_ms,
                    leader_epoch=model.epoch,
                    now_ms=now_ms,
                )
            ):
                p.append(data, leader_epoch=model.epoch, now_ms=self.clock.now_ms())
        except BaseException:
            self.undo_sequences(model, made)
            raise
        self._returned(name, p, model, sync=sync)

    def undo_sequences(self, model: PartitionModel, made: Sequence[Batch]) -> None:
        for batch in reversed(made):
            if batch.pid != NO_PRODUCER:
                model.sequences[batch.pid] = batch.seq

    def _returned(self, name: str, p: PartitionLog, model: PartitionModel, *, sync: bool | None) -> None:
        model.returned = model.end
        if sync is None:
            sync = self.log.topic(name).settings.flush is Flush.ACK
        if sync:
            GroupCommit(p).wait(model.end)
            model.durable = model.end

    def retry(self, name: str, pid: int, number: int = 0) -> None:
        """Send a producer's last batch once more: it must be answered with the offsets it has."""
        p, model = self.at(name, number)
        last = [b for b in model.batches if b.pid == pid and b.commit is None][-1]
        data = encode_batch(
            [row[2] for row in last.rows],
            keys=[row[1] for row in last.rows],
            base_timestamp=self.clock.now_ms(),
            producer_id=pid,
            producer_epoch=last.pepoch,
            base_sequence=last.seq,
            transactional=last.transactional,
        )
        answer = p.append(data, leader_epoch=model.epoch, now_ms=self.clock.now_ms())
        assert answer == (last.base, last.next - 1, True), f"a retry was answered {answer}"

    def mark(self, name: str, pid: int, *, commit: bool, number: int = 0, pepoch: int = 0) -> None:
        p, model = self.at(name, number)
        now_ms = self.clock.now_ms()
        data = control_batch(
            base_offset=0, leader_epoch=0, producer_id=pid, producer_epoch=pepoch, commit=commit, timestamp_ms=now_ms
        )
        base = model.end
        model.batches.append(Batch(base, base + 1, model.epoch, (), pid, pepoch, -1, True, commit))
        p.append_marker(data, leader_epoch=model.epoch, now_ms=now_ms)
        self._returned(name, p, model, sync=None)

    def sync(self, name: str, number: int = 0) -> None:
        p, model = self.at(name, number)
        model.durable = max(model.durable, p.sync())

    def epoch(self, name: str, epoch: int, number: int = 0) -> None:
        p, model = self.at(name, number)
        p.begin_epoch(epoch)
        model.epoch = epoch
        model.durable = model.returned

    def take_over(self, name: str, epoch: int) -> None:
        """Let an epoch begin in all partitions at once."""
        models = self.topics[name].partitions
        self.log.folder.begin_epochs([(self.at(name, number)[0], epoch) for number in range(len(models))])
        for model in models:
            model.epoch = epoch

    # what a replica does

    def commit(self, name: str, watermark: int, *, common_end: int = 0) -> None:
        model = self.topics[name].partitions[0]
        model.watermark = max(watermark, model.watermark or 0)
        p, _ = self.at(name)
        p.keep_watermark(watermark, common_end=common_end)

    def gap(self, name: str, before: int, after: int) -> None:
        """What the leader's compaction left: one empty batch across our end."""
        p, model = self.at(name)
        end = model.end
        model.batches.append(Batch(end, end + after, model.epoch, ()))
        p.append_replicated(empty_batch(end - before, end + after, model.epoch, 0), now_ms=self.clock.now_ms())
        self._returned(name, p, model, sync=None)

    def restart_at(self, name: str, offset: int) -> None:
        p, model = self.at(name)
        model.anew_at = offset
        p.restart_at(offset, now_ms=self.clock.now_ms())
        self._begun_anew(model, offset)

    def _begun_anew(self, model: PartitionModel, offset: int) -> None:
        model.base = model.durable = model.returned = model.start = model.start_max = offset
        model.batches, model.sequences, model.removable, model.anew_at = [], {}, set(), None
        model.compacted = model.refolded = False
        model.watermark = model.kept_watermark = offset

    def begin_inside(self, name: str, before: int, count: int) -> None:
        """The first batch after `restart_at`: the log starts inside it."""
        p, model = self.at(name)
        start, base = model.start, model.start - before
        values = [self.value(30) for _ in range(count)]
        data = encode_batch(values, base_timestamp=0, base_offset=base, leader_epoch=model.epoch)
        model.anew_at = model.start = model.kept_watermark = base
        rows = tuple((base + number, None, value) for number, value in enumerate(values))
        model.batches = [Batch(base, base + count, model.epoch, rows)]
        try:
            p.append_replicated(data, now_ms=self.clock.now_ms())
        except StorageFault:
            if p.end_offset == base:  # refused by the disk after the log was begun anew there
                self._begun_anew(model, base)
            raise
        model.anew_at = None
        model.start = model.kept_watermark = start
        model.durable = model.returned = model.end

    # upkeep

    def roll(self, name: str, number: int = 0) -> None:
        self.at(name, number)[0].roll(self.clock.now_ms())

    def delete_before(self, name: str, offset: int, number: int = 0) -> None:
        p, model = self.at(name, number)
        moves = offset > model.start
        model.start_max = max(offset, model.start)
        model.start = p.advance_start(offset)
        if moves:
            model.durable = model.returned

    def retain(self, name: str) -> None:
        topic = self.log.topic(name)
        for model in self.topics[name].partitions:
            model.start_max = model.end
        topic.retain()
        for number, model in enumerate(self.topics[name].partitions):
            model.start = model.start_max = topic.start_offset(number)
            model.durable = model.returned

    def truncate(self, name: str, offset: int, number: int = 0) -> None:
        p, model = self.at(name, number)
        boundary = max([b.base for b in model.batches if b.base <= offset], default=0)
        if offset == model.end:
            boundary = offset
        model.cut_to = boundary
        model.durable = min(model.durable, boundary)
        model.kept_watermark = min(model.kept_watermark, boundary)
        model.refolded = True
        assert p.truncate(offset) == boundary
        model.batches = model.below(boundary)
        model.durable = model.returned = boundary
        model.start = model.start_max = min(model.start, boundary)
        model.cut_to = None
        model.epoch = max((b.epoch for b in model.batches), default=0)
        model.sequences = {b.pid: b.seq + b.next - b.base for b in model.batches if b.pid != NO_PRODUCER and b.seq >= 0}

    def compact(self, name: str) -> None:
        topic = self.log.topic(name)
        for model in self.topics[name].partitions:
            model.compacted = model.refolded = True
            model.removable |= removable(model, self.clock.now_ms(), topic.settings.delete_retention_ms)
        topic.compact()
        for model in self.topics[name].partitions:
            model.durable = model.returned


def removable(model: PartitionModel, now_ms: int, delete_retention_ms: int) -> set[int]:
    """What compaction may take: records with a later one of their key, aborted records, tombstones."""
    stable, aborted = fold_transactions(model.batches)
    stable = stable if model.watermark is None else min(stable, model.watermark)
    latest: dict[bytes, int] = {}
    found = set()
    for batch in model.batches:
        if any(pid == batch.pid and a <= batch.base <= b and batch.transactional for pid, a, b in aborted):
            found |= {row[0] for row in batch.rows}
        elif batch.next <= stable:
            latest.update((row[1], row[0]) for row in batch.rows if row[1] is not None)
    for batch in model.batches:
        for offset, key, value in batch.rows:
            if key is not None and (latest.get(key, -1) > offset or value is None):
                found.add(offset)
    return found


# -- the campaign ------------------------------------------------------------------------------------------------


def fixed_ids(monkeypatch: Any) -> None:
    """Topic ids by number, so that a run is the same every time."""
    numbers = itertools.count(1)
    monkeypatch.setattr("braidlog.storage.folder.data_folder.uuid.uuid4", lambda: uuid.UUID(int=next(numbers)))


@dataclass
class Campaign:
    """Runs a workload and, before each of its operations, everything a crash there may leave behind."""

    twice_every: int = 1
    inside_every: int = 40
    onward_every: int = 5
    prefixes_max: int = 24
    states: int = 0
    inside: int = 0
    seen: set[int] = field(default_factory=set)
    inner_seen: set[int] = field(default_factory=set)
    random: Random = field(default_factory=lambda: Random(7))

    def run(self, workload: Callable[[Runtime], None]) -> None:
        runtime = Runtime()

        def before(operation: Operation) -> None:
            self.try_all(runtime, f"operation {operation.number} {operation.kind} {operation.path}")

        runtime.disk.on_operation = before
        workload(runtime)
        runtime.disk.on_operation = None
        self.try_all(runtime, "the end")

    def try_all(self, runtime: Runtime, where: str) -> None:
        for label, state in runtime.disk.crash_states(seen=self.seen, prefixes_max=self.prefixes_max):
            self.states += 1
            try:
                self.try_one(runtime, state)
            except Exception as error:
                raise AssertionError(f"{where}, state {label!r}: {type(error).__name__}: {error}") from error

    def try_one(self, runtime: Runtime, state: SimulatedDisk) -> None:
        if self.states % self.inside_every == 0:
            self.try_inside(runtime, state)
        now_ms = runtime.clock.now_ms()
        log = open_log(state, now_ms)
        shown = compare(log, runtime.topics)
        if self.states % self.twice_every == 0:
            again = lost(state)
            assert see_all(open_log(again, now_ms)) == shown, "a second recovery shows something else"
        if self.states % self.onward_every == 0:
            go_on(log, state, shown)

    def try_inside(self, runtime: Runtime, state: SimulatedDisk) -> None:
        """Crash the recovery itself, at each of its operations."""
        victim = state.copy()

        def before(operation: Operation) -> None:
            for label, inner in victim.crash_states(3, self.random, seen=self.inner_seen):
                self.inside += 1
                try:
                    compare(open_log(inner, runtime.clock.now_ms()), runtime.topics)
                except Exception as error:
                    where = f"inside recovery: {operation.number} {operation.kind} {operation.path}, {label!r}"
                    raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error

        victim.on_operation = before
        see_all(open_log(victim, runtime.clock.now_ms()))
        victim.on_operation = None


def lost(disk: SimulatedDisk) -> SimulatedDisk:
    """The disk after a power cut that takes all that may be taken."""
    states = dict(itertools.islice(disk.crash_states(), 2))
    return states.get("lost") or states["kept"]


def go_on(log: Log, disk: SimulatedDisk, shown: dict[tuple[str, int], Seen]) -> None:
    """A recovered log must be as good as any: write enough for a roll, lose the power, find it all."""
    wanted = {}
    for (name, number), seen in shown.items():
        p = log.topic(name).partition(number)
        epoch = max(p.state.epochs.latest, 0)
        data = b""
        for _ in range(5):
            batch = encode_batch([b"onward" * 200], base_timestamp=log.clock.now_ms())
            end = p.end_offset
            p.append(batch, leader_epoch=epoch, now_ms=log.clock.now_ms())
            data += batch[16:]
            assert p.end_offset == end + 1
        p.sync()
        wanted[name, number] = (seen.raw, p.end_offset, data)
    log = open_log(lost(disk), log.clock.now_ms())
    for (name, number), (raw, end, data) in wanted.items():
        seen = see(log.topic(name), number)
        assert seen.end == end, "appends after a recovery are lost"
        assert seen.raw.startswith(raw), "appends after a recovery changed what was there"
        rest = seen.raw[len(raw) :]
        assert b"".join(rest[at + 16 : at + h.size_bytes] for at, h in iter_batches(rest)) == data


def operations_of(workload: Callable[[Runtime], None]) -> list[Operation]:
    """A dry run: the operations the workload makes when nothing goes wrong."""
    runtime = Runtime()
    workload(runtime)
    return runtime.disk.operations
