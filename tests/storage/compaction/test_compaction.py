"""The last value of each key stays; offsets, markers, and what has no key stay too."""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.storage.building import NOW, batch, make_partition, marker, open_partition, small

from braidlog.codec.batch.header import iter_batches
from braidlog.codec.batch.records import decode_batch
from braidlog.codec.compression import Compression
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.compaction.compaction import KEYS_MAX, Compacted, Compaction, is_compaction_due, seal_what_waits
from braidlog.storage.compaction.compaction_merge import KeyRewriting, Rewritten
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.segment import dirty_ratio
from braidlog.testing.disk import Operation, SimulatedDisk


class Setting:
    """A partition in which every `put` is a segment of its own."""

    def __init__(self, **settings: object) -> None:
        self.disk = SimulatedDisk()
        self.pool = FilePool(self.disk)
        self.partition = make_partition(self.disk, small(**settings), self.pool)

    def put(self, *records: tuple[bytes | None, bytes | None], at: int = NOW, **fields: Any) -> None:
        keys, values = [k for k, _ in records], [v for _, v in records]
        self.partition.append(batch(*values, keys=keys, at=at, **fields), now_ms=NOW)
        self.partition.roll(NOW)

    def end(self, producer: int, *, commit: bool) -> None:
        self.partition.append_marker(marker(producer, commit=commit), now_ms=NOW)
        self.partition.roll(NOW)

    def compact(self, *, now: int = NOW, keys_max: int = KEYS_MAX) -> Compacted:
        return Compaction(self.disk, self.pool, self.partition, now_ms=now, keys_max=keys_max).run()

    def left(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """(offset, key, value), the same after a reopening."""
        found = rows(self.partition)
        again = open_partition(self.disk.after_kill(), self.partition.settings)
        assert again.damages == []
        assert rows(again) == found
        return found


def rows(partition: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    found = []
    offset = partition.start_offset
    while data := partition.read(offset, 100):
        for position, header in iter_batches(data):
            assert header.base_offset <= offset < header.next_offset or header.base_offset == offset
            offset = header.next_offset
            found += [(r[0], r[2], r[3]) for r in decode_batch(data, position, decompressed_bytes_max=2**20)]
    assert offset == partition.end_offset
    return found


@pytest.mark.parametrize("compression", list(Compression))
def test_the_last_value_of_each_key_stays(compression: Compression) -> None:
    log = Setting()
    log.put((b"a", b"1"), (b"b", b"1"), (None, b"n"), compression=compression)
    log.put((b"a", b"2"), (b"c", b"1"), (b"c", b"2"), compression=compression)
    log.put((b"b", b"2"), compression=compression)
    before = log.partition.size_bytes
    done = log.compact()
    assert log.left() == [(2, None, b"n"), (3, b"a", b"2"), (5, b"c", b"2"), (6, b"b", b"2")]
    assert (done.upto, done.records_removed, done.bytes_before) == (7, 3, before)
    assert done.bytes_after == log.partition.size_bytes
    assert len(log.partition.segments) == 2  # small neighbours were joined
    assert log.compact() == Compacted(7)


def test_the_active_segment_is_left_alone() -> None:
    log = Setting()
    log.put((b"a", b"1"))
    log.partition.append(batch(b"2", key=b"a"), now_ms=NOW)
    log.compact()
    assert log.left() == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_a_batch_of_which_nothing_is_left_becomes_an_empty_one() -> None:
    log = Setting()
    for value in (b"1", b"2", b"3"):
        log.put((b"a", value), (b"b", value))
    log.compact()
    headers = [h for _, h in iter_batches(log.partition.read(0, 9999))]
    assert [(h.base_offset, h.next_offset, h.record_count) for h in headers] == [(0, 4, 0), (4, 6, 2)]


def test_tombstones_stay_for_their_time_and_one_compaction_at_least() -> None:
    log = Setting(delete_retention_ms=1000)
    log.put((b"a", b"1"))
    log.put((b"a", None))
    log.put((b"b", b"1"))
    log.compact(now=NOW + 5000)
    assert log.left() == [(1, b"a", None), (2, b"b", b"1")]
    log.put((b"c", b"1"))
    log.compact(now=NOW + 1000)
    assert (1, b"a", None) in log.left()
    log.put((b"d", b"1"))
    log.compact(now=NOW + 1001)
    assert log.left() == [(2, b"b", b"1"), (3, b"c", b"1"), (4, b"d", b"1")]


def test_aborted_records_go_and_do_not_hide_what_was_before_them() -> None:
    log = Setting()
    log.put((b"a", b"good"))
    log.put((b"a", b"bad"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.end(1, commit=False)
    log.put((b"b", b"fine"), producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)
    log.end(1, commit=True)
    log.compact()
    assert [(o, v) for o, k, v in log.left() if k in (b"a", b"b")] == [(0, b"good"), (3, b"fine")]
    headers = [h for _, h in iter_batches(log.partition.read(0, 9999))]
    assert [h.base_offset for h in headers if h.is_control] == [2, 4]


def test_what_is_not_decided_is_not_touched() -> None:
    log = Setting()
    log.put((b"a", b"1"))
    log.put((b"x", b"?"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.put((b"a", b"2"))
    assert log.compact().upto == 1
    assert [v for _, k, v in log.left() if k == b"a"] == [b"1", b"2"]
    log.end(1, commit=True)
    assert log.compact().upto == 4
    assert [v for _, k, v in log.left() if k == b"a"] == [b"2"]


def test_a_full_map_covers_a_part_and_the_next_run_goes_on() -> None:
    log = Setting()
    for value in (b"1", b"2"):
        for key in (b"a", b"b", b"c"):
            log.put((key, value))
    assert log.compact(keys_max=2).upto == 2
    assert len(log.left()) == 6
    assert log.compact(keys_max=2).upto == 4
    assert [(k, v) for _, k, v in log.left()] == [(b"b", b"1"), (b"c", b"1"), (b"a", b"2"), (b"b", b"2"), (b"c", b"2")]
    while log.compact(keys_max=2).upto < 6:
        pass
    assert [(k, v) for _, k, v in log.left()] == [(b"a", b"2"), (b"b", b"2"), (b"c", b"2")]


def test_a_producers_last_batch_keeps_its_header() -> None:
    log = Setting()
    for sequence in range(3):
        log.put((b"a", b"%d" % sequence), producer_id=1, producer_epoch=0, base_sequence=sequence)
    log.put((b"a", b"other"))
    log.compact()
    log.put((b"a", b"third"))
    log.compact()  # the pinned batch has no records any more, and stays
    headers = [h for _, h in iter_batches(log.partition.read(0, 9999))]
    assert [(h.base_offset, h.base_sequence, h.record_count) for h in headers if h.producer_id == 1] == [(2, 2, 0)]
    for name in ("state.a", "state.b"):
        log.disk.drop(f"/p/{name}")
    for path in [p for p in log.disk.files() if p.endswith(".state")]:
        log.disk.drop(path)
    again = open_partition(log.disk.after_kill())
    retry = batch(b"2", key=b"a", producer_id=1, producer_epoch=0, base_sequence=2)
    assert again.append(retry, now_ms=NOW) == (2, 2, True)


def test_times_and_epochs_survive() -> None:
    log = Setting()
    log.partition.append(batch(b"1", key=b"a", at=NOW + 5), leader_epoch=1, now_ms=NOW)
    log.partition.append(batch(b"1", key=b"b", at=NOW + 3), leader_epoch=2, now_ms=NOW)
    log.partition.append(batch(b"2", key=b"a", at=NOW + 1), leader_epoch=2, now_ms=NOW)
    log.partition.append(batch(b"2", key=b"b", at=NOW + 2), leader_epoch=2, now_ms=NOW)
    log.partition.roll(NOW)
    log.compact()
    headers = [h for _, h in iter_batches(log.partition.read(0, 9999))]
    assert [(h.base_offset, h.next_offset, h.leader_epoch) for h in headers] == [
        (0, 1, 1),
        (1, 2, 2),
        (2, 3, 2),
        (3, 4, 2),
    ]
    assert log.partition.segments[0].max_timestamp_ms == NOW + 5
    assert len(log.left()) == 2


def ratio(log: Setting) -> float:
    return dirty_ratio(log.partition.segments[:-1], log.partition.state.cleaned_offset)


def test_the_dirty_ratio_counts_what_is_new() -> None:
    log = Setting()
    assert ratio(log) == 0.0
    log.put((b"a", b"1"))
    assert ratio(log) == 1.0
    log.compact()
    assert ratio(log) == 0.0
    log.put((b"b", b"1"))
    assert ratio(log) == 0.5


@pytest.mark.parametrize(("share", "due"), [(0.5, False), (0.49, True), (0.0, True), (1.0, False)])
def test_it_is_due_above_the_topics_share_of_new_bytes(share: float, due: bool) -> None:
    log = Setting(compaction_dirty_ratio=share)
    assert not is_compaction_due(log.partition, NOW)
    log.put((b"a", b"1"))
    log.compact()
    assert not is_compaction_due(log.partition, NOW), "nothing is new"
    log.put((b"b", b"1"))
    assert is_compaction_due(log.partition, NOW) is due


def test_what_is_younger_than_its_lag_is_left_with_all_behind_it() -> None:
    log = Setting(compaction_lag_min_ms=1000)
    log.put((b"a", b"1"), at=NOW - 1000)
    log.put((b"a", b"2"), at=NOW - 1000)
    log.put((b"a", b"3"), at=NOW - 999)
    log.put((b"a", b"4"), at=NOW - 5000)
    assert is_compaction_due(log.partition, NOW)
    assert log.compact().upto == 2
    assert log.left() == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"a", b"4")]
    assert not is_compaction_due(log.partition, NOW), "what may not be compacted yet does not count"
    assert is_compaction_due(log.partition, NOW + 1)
    assert log.compact(now=NOW + 1).upto == 4
    assert log.left() == [(3, b"a", b"4")]


def test_what_has_waited_as_long_as_it_may_is_due_whatever_its_share() -> None:
    log = Setting(compaction_lag_max_ms=1000, compaction_dirty_ratio=1.0)
    log.put((b"a", b"1"), (b"a", b"2"))
    assert not is_compaction_due(log.partition, NOW + 1000)
    assert is_compaction_due(log.partition, NOW + 1001)
    log.compact(now=NOW + 1001)
    assert not is_compaction_due(log.partition, NOW + 9999), "it was compacted"


def test_a_record_in_the_segment_that_is_written_to_waits_no_longer() -> None:
    log = Setting(compaction_lag_max_ms=1000)
    partition = log.partition
    partition.append(batch(b"1", b"2", keys=[b"a", b"a"], at=NOW), now_ms=NOW)
    begun = partition.segments[-1].head.created_ms
    for now, segments in ((begun + 1000, 1), (begun + 1001, 2), (begun + 5000, 2)):
        seal_what_waits(partition, now)
        assert len(partition.segments) == segments, "an empty one is not sealed"
    assert is_compaction_due(partition, begun + 1001)
    never = Setting()
    never.partition.append(batch(b"1", keys=[b"a"], at=NOW), now_ms=NOW)
    seal_what_waits(never.partition, NOW + 10**12)
    assert len(never.partition.segments) == 1


def test_damage_stops_it_and_leaves_nothing_behind() -> None:
    log = Setting()
    log.put((b"a", bytes(300)))
    log.put((b"a", bytes(300)))
    log.partition.sync()
    log.disk.flip_bit("/p/00000000000000000001.log", (128 + 100) * 8)
    with pytest.raises(StorageFault, match="damaged"):
        log.compact()
    assert [p for p in log.disk.files() if p.endswith((".cleaned", ".swap"))] == []
    with pytest.raises(StorageFault, match="takes no writes"):
        log.compact()


def test_a_full_disk_stops_it_and_the_next_run_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.storage.compaction.segment_swap._WRITE_BYTES", 1)
    log = Setting()
    log.put((b"a", b"1"))
    log.put((b"a", b"2"))
    log.partition.sync()
    log.disk.fail_at = {len(log.disk.operations) + 3: errno.ENOSPC}  # create, head, batch
    with pytest.raises(StorageFault, match="No space left"):
        log.compact()
    assert [p for p in log.disk.files() if p.endswith((".cleaned", ".swap"))] == []
    assert len(log.left()) == 2
    log.compact()
    assert len(log.left()) == 1


@pytest.mark.parametrize("how", ["truncate", "advance_start", "close"])
def test_nothing_takes_segments_away_under_a_compaction(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    log = Setting()
    for value in (b"1", b"2", b"3"):
        log.put((b"a", value))
    arrived = threading.Event()
    changes: dict[str, Callable[[], object]] = {
        "truncate": lambda: log.partition.truncate(1),
        "advance_start": lambda: log.partition.advance_start(2),
        "close": log.partition.close,
    }
    real = KeyRewriting.write

    def change() -> None:
        arrived.set()
        changes[how]()

    def interrupted(rewriting: KeyRewriting, first: int) -> Rewritten:
        if not arrived.is_set():
            other.start()
            assert arrived.wait(20)
            other.join(0.1)  # it would be through by now, if nothing kept it out
        return real(rewriting, first)

    other = threading.Thread(target=change)
    monkeypatch.setattr(KeyRewriting, "write", interrupted)
    assert log.compact().upto == 3
    other.join(20)
    assert not other.is_alive()
    again = open_partition(log.disk.after_kill())
    assert again.damages == []
    assert (again.start_offset, again.end_offset) == {"truncate": (0, 0), "advance_start": (2, 3), "close": (0, 3)}[how]


def test_a_closed_partition_is_not_compacted() -> None:
    log = Setting()
    log.put((b"a", b"1"))
    log.partition.close()
    with pytest.raises(BrokerError) as caught:
        log.compact()
    assert caught.value.reason is Reason.LOG_CLOSED


def test_nothing_is_synced_while_those_who_append_are_kept_out() -> None:
    """The loop of a node appends under the partition's lock: whoever syncs while it has it holds up every client."""
    log = Setting()
    for value in (b"1", b"2", b"3"):
        log.put((b"a", value), (b"b", value))
    log.partition.sync()
    held: list[str] = []

    def is_free() -> bool:
        found = log.partition.lock.acquire(blocking=False)
        if found:
            log.partition.lock.release()
        return found

    def look(operation: Operation) -> None:
        with ThreadPoolExecutor(1) as another:
            if operation.kind in ("sync", "sync_folder") and not another.submit(is_free).result():
                held.append(f"{operation.kind} {operation.path}")

    log.disk.on_operation = look
    began = len(log.disk.operations)
    log.compact()
    log.disk.on_operation = None
    assert sum(operation.kind == "sync_folder" for operation in log.disk.operations[began:]) >= 2
    assert held == []
    assert log.left() == [(4, b"a", b"3"), (5, b"b", b"3")]
