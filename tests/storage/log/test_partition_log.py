"""A partition's own rules, one at a time; test_log_model.py has them all together.

Records that come without a batch have a short way into the log: nobody can tell it from the way of all batches.
"""

import errno
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec
import pytest
from tests.broker.node import Node
from tests.storage.building import FOLDER, NOW, batch, make_partition, marker, open_partition, small

from braidlog.codec.batch.header import CONTROL, HEADER, iter_batches, read_header, seal
from braidlog.kv.replicated.slots import FEED_TOPIC
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.partition.hosted_log import Role
from braidlog.partition.produce.append import Acks, Appended
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.segment.segment_files import DATA_START
from braidlog.testing.disk import SimulatedDisk, SimulatedFile

SEEDS = 30
STEPS = 60
SETTINGS: tuple[dict[str, Any], ...] = (
    {"flush": "os"},
    {"flush": "interval"},
    {"flush": "ack"},
    {"flush": "os", "append_time": True},
    {"flush": "os", "compact": True},
)
SMALL = {"segment_bytes": 4096, "batch_bytes_max": 2000, "index_interval_bytes": 300}
KINDS = ("one",) * 8 + ("many", "keys", "late", "leader", "large", "fault", "none", "all", "sync", "absent", "wrong")


class Twins:
    """The same node twice: what comes to the second has to be sealed first, always."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
        self.nodes = [Node(), Node()]
        for node in self.nodes:
            node.create("a", 1, settings={**SMALL, **settings})
        sealed = self.nodes[1].services.hosting.partition("a", 0).log
        self.short = 0
        shortly = PartitionLog.append_section

        def append_section(log: PartitionLog, *records: Any, **how: Any) -> tuple[Appended, int] | None:
            found = None if log is sealed else shortly(log, *records, **how)
            self.short += found is not None
            return found

        monkeypatch.setattr(PartitionLog, "append_section", append_section)

    def step(self, chance: Random) -> list[Any]:
        kind = chance.choice(KINDS)
        count = chance.randrange(2, 5) if kind in ("many", "keys") else 1
        size = 2500 if kind == "large" else chance.randrange(120)
        values: list[Any] = [chance.randbytes(size) for _ in range(count)]
        keys = [chance.choice((None, b"k", b"")) for _ in values] if kind == "keys" else None
        values = ["no bytes"] if kind == "wrong" else values
        acks = {"none": Acks.NONE, "all": Acks.ALL}.get(kind, Acks.LEADER)
        return [self._play(node, kind, "b" if kind == "absent" else "a", values, keys, acks) for node in self.nodes]

    def _play(self, node: Node, kind: str, topic: str, values: list[Any], keys: Any, acks: Acks) -> Any:
        hosted = node.services.hosting.partition("a", 0)
        if kind == "late":
            node.clock.advance(1000 * 3600 * 24)
        elif kind == "leader":
            for role in (Role.FOLLOWER, Role.LEADER):
                node.run(node.services.placement.set_role("a", 0, role))
        elif kind == "sync":
            hosted.log.sync()
            hosted.advance()
        elif kind == "fault":
            node.disk.fail_at = {len(node.disk.operations) + 1: errno.ENOSPC}
        try:
            found = node.services.append.append_records(topic, 0, values, keys, acks=acks)
            return ("waited", node.run(found)) if isinstance(found, Coroutine) else found
        except (BrokerError, ProtocolError, StorageFault, TypeError) as error:
            return type(error), str(error), getattr(error, "place", None), getattr(error, "left_remains", None)

    def seen(self) -> list[Any]:
        return [_seen(node) for node in self.nodes]


def _seen(node: Node) -> Any:
    hosted, append = node.services.hosting.partition("a", 0), node.services.append
    log = hosted.log
    segments = [
        (
            each.path,
            each.size,
            each.next_offset,
            each.max_timestamp_ms,
            each.is_settled,
            each.file.read_at(8192, DATA_START),
        )
        for each in log.segments
    ]
    indexes = [[each.index.entry(number) for number in range(len(each.index))] for each in log.segments]
    told = append.records_written, append.batches_written, append.bytes_written
    kept = hosted.high_watermark, log.durable_offset, log.unsynced_bytes, log.watermark, log.image()
    return segments, indexes, told, kept, node.runtime.syncs, len(node.disk.operations)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_both_ways_write_alike(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    short = 0
    for seed in range(SEEDS):
        with monkeypatch.context() as patched:
            chance, twins = Random(seed), Twins(patched, settings)
            for number in range(STEPS):
                first, second = twins.step(chance)
                assert first == second, f"seed {seed}, step {number}"
                one, other = twins.seen()
                assert one == other, f"seed {seed}, step {number}"
            short += twins.short
    assert bool(short) is not bool(settings.get("append_time")), "the log's own time is stamped on a sealed batch"


def _node(**settings: Any) -> Node:
    node = Node()
    node.create("a", 1, settings={"flush": "os", **settings})
    node.append("a", b"first")  # which begins an epoch, and is not plain
    return node


def _refused(node: Node, topic: str = "a") -> Reason:
    with pytest.raises(BrokerError) as caught:
        node.services.append.append_records(topic, 0, [b"x"], acks=Acks.LEADER)
    return caught.value.reason


def test_whoever_waits_for_records_is_woken() -> None:
    node = _node()
    job = node.spawn(node.services.fetch.records("a", 0, 1, bytes_max=100, wait_ms=10_000))
    assert not job.is_done
    assert node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER) == Appended(1, 1)
    node.runtime.advance(0)
    assert [record.value for record in job.result().records] == [b"x"]


def test_an_acknowledgement_waits_for_the_disk_where_that_is_promised() -> None:
    node = _node(flush="ack")
    with node.runtime.holding_syncs():
        appended = node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER)
        assert isinstance(appended, Coroutine)
        job = node.spawn(appended)
        node.runtime.advance(10_000)
        assert not job.is_done
        assert node.services.hosting.partition("a", 0).high_watermark == 1
    assert job.result() == Appended(1, 1)
    assert node.services.hosting.partition("a", 0).high_watermark == 2


def test_who_does_not_lead_takes_none() -> None:
    node = _node()
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    assert _refused(node) is Reason.NOT_LEADER


def test_a_topic_that_goes_takes_none() -> None:
    node = _node()
    node.services.hosting.partition("a", 0).retire()
    assert _refused(node) is Reason.TOPIC_NOT_FOUND


@pytest.mark.parametrize("name", ["__hidden", FEED_TOPIC])
def test_the_brokers_own_topics_take_none(name: str) -> None:
    node = _node()
    hosting = node.services.hosting
    hosting.put(msgspec.structs.replace(hosting.meta("a"), name=name))
    hosting._hosted[name, 0] = hosting.partition("a", 0)
    expected = Reason.INVALID_TOPIC_NAME if name == FEED_TOPIC else Reason.TOPIC_NOT_FOUND
    assert _refused(node, name) is expected


def test_a_disk_without_room_takes_none() -> None:
    node = _node()
    node.services.append.no_room = StorageFault("too little room")
    with pytest.raises(StorageFault, match="too little room"):
        node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER)


def test_other_replicas_are_waited_for() -> None:
    node = Node()
    node.create("a", 1, followers=["1"], min_in_sync=1, settings={"flush": "os"})
    node.append("a", b"first")
    hosted = node.services.hosting.partition("a", 0)
    assert node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER) == Appended(1, 1)
    assert not hosted.replicated.counts_alone
    assert hosted.log.watermark == hosted.high_watermark


def test_a_damaged_log_takes_none() -> None:
    node = _node()
    log = node.services.hosting.partition("a", 0).log
    log.report.damages.append("somewhere")  # type: ignore[arg-type]  # that there is any is what is looked at
    with pytest.raises(StorageFault, match="repaired"):
        node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER)


def test_a_closed_log_is_opened_first() -> None:
    node = _node()
    hosted = node.services.hosting.partition("a", 0)
    hosted.begin_close()
    assert hosted.finish_close()
    appended = node.services.append.append_records("a", 0, [b"y"], acks=Acks.LEADER)
    assert isinstance(appended, Coroutine)
    assert node.run(appended) == Appended(1, 1)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def add(partition: PartitionLog, *values: bytes, now: int = NOW, **fields: Any) -> int:
    return partition.append(batch(*values, **fields), now_ms=now).base_offset


def refused(partition: PartitionLog, data: bytes) -> BrokerError:
    end = partition.end_offset
    with pytest.raises(BrokerError) as caught:
        partition.append(data, now_ms=NOW)
    assert partition.end_offset == end
    return caught.value


# -- appending -----------------------------------------------------------------------------------------------


def test_offsets_and_epochs_are_the_logs_the_rest_stays(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a", b"b")
    data = batch(b"c", base_offset=77, leader_epoch=5)
    assert partition.append(data, leader_epoch=3, now_ms=NOW) == (2, 2, False)
    kept = partition.read(2, 1)
    header = read_header(kept)
    assert (header.base_offset, header.leader_epoch) == (2, 3)
    assert kept[16:] == data[16:]


def test_several_batches_go_in_together_or_not_at_all(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    damaged = bytearray(batch(b"b"))
    damaged[-1] ^= 1
    with pytest.raises(ProtocolError, match="CRC"):
        partition.append(batch(b"a") + bytes(damaged), now_ms=NOW)
    assert partition.end_offset == 0
    appended = partition.append(batch(b"a", b"b") + batch(b"c"), now_ms=NOW)
    assert (appended.base_offset, appended.last_offset, appended.next_offset) == (0, 2, 3)


def test_what_a_producer_may_not_write(disk: SimulatedDisk) -> None:
    partition = make_partition(disk, small(batch_bytes_max=1024))
    too_large = refused(partition, batch(bytes(2000)))
    assert too_large.reason is Reason.RECORD_TOO_LARGE
    assert "larger than the topic's 1024" in str(too_large)
    assert refused(partition, b"").reason is Reason.INVALID_RECORD
    assert "control batches are written by the log" in str(refused(partition, marker(1, commit=True)))
    assert "a transaction needs a producer" in str(refused(partition, batch(b"v", transactional=True)))
    header = read_header(batch(b"v"))
    thinned = seal(bytearray(HEADER.pack(*header._replace(last_offset_delta=4)) + batch(b"v")[61:]))
    with pytest.raises(ProtocolError, match="1 records do not fill 5 offsets"):
        partition.append(thinned, now_ms=NOW)


def test_an_idempotent_producer_appends_one_batch_at_a_time(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    one = batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0)
    for data in (one + one, one + batch(b"b"), batch(b"b") + one):
        assert "one batch at a time" in str(refused(partition, data))
    assert partition.append(one, now_ms=NOW) == (0, 0, False)
    assert partition.append(one, now_ms=NOW) == (0, 0, True)
    assert partition.end_offset == 1


def test_append_time_stamps_every_batch(disk: SimulatedDisk) -> None:
    partition = make_partition(disk, small(append_time=True))
    partition.append(batch(b"a", at=5) + batch(b"b", at=6), now_ms=NOW + 9)
    for _, header in iter_batches(partition.read(0, 9999)):
        assert header.has_append_time
        assert header.max_timestamp == NOW + 9


def test_a_marker_must_be_one_and_be_readable(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a")
    with pytest.raises(BrokerError, match="a transaction marker is a control batch"):
        partition.append_marker(batch(b"v"), now_ms=NOW)
    header = read_header(batch(b"v", producer_id=1))
    unreadable = bytearray(batch(b"v", producer_id=1))
    HEADER.pack_into(unreadable, 0, *header._replace(attributes=CONTROL))
    size = partition.size_bytes
    with pytest.raises(ProtocolError, match="a version and a kind"):
        partition.append_marker(seal(unreadable), now_ms=NOW)
    # Refused before anything was written: the next batch follows the last one.
    assert partition.size_bytes == size
    assert add(partition, b"b") == 1
    assert len(list(iter_batches(partition.read(0, 9999)))) == 2


def test_replicated_batches_keep_their_epochs_and_these_never_go_back(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    two = batch(b"a", base_offset=0, leader_epoch=2) + batch(b"b", base_offset=1, leader_epoch=4)
    assert partition.append_replicated(two, now_ms=NOW) == (0, 1, False)
    assert partition.image().epochs == [(2, 0), (4, 1)]
    for epochs in ((5, 4), (3, 4), (4, 3)):
        pair = b"".join(batch(b"x", base_offset=2 + n, leader_epoch=e) for n, e in enumerate(epochs))
        with pytest.raises(BrokerError) as caught:
            partition.append_replicated(pair, now_ms=NOW)
        assert caught.value.reason is Reason.STALE_LEADER_EPOCH
        assert partition.image().epochs == [(2, 0), (4, 1)]
    with pytest.raises(BrokerError, match="a replicated batch has offset 9, 2 is next"):
        partition.append_replicated(batch(b"x", base_offset=9, leader_epoch=4), now_ms=NOW)
    with pytest.raises(BrokerError, match="at least one batch"):
        partition.append_replicated(b"", now_ms=NOW)


def test_an_epoch_that_could_not_be_saved_has_not_begun(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a")
    partition.sync()
    before = len(disk.operations)
    disk.fail_at = {before + 1: errno.ENOSPC}
    with pytest.raises(StorageFault):
        partition.append(batch(b"b"), leader_epoch=1, now_ms=NOW)
    disk.fail_at = {}
    partition.append(batch(b"b"), leader_epoch=1, now_ms=NOW)
    partition.sync()
    for _, crashed in disk.crash_states(limit=20):
        again = open_partition(crashed)
        assert again.damages == []
        assert again.end_offset == 2


# -- durability ----------------------------------------------------------------------------------------------


def test_one_sync_serves_all_before_it_and_the_next_has_nothing_to_do(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    for value in (b"a", b"b", b"c"):
        add(partition, value)
    assert partition.durable_offset == 0
    assert partition.unsynced_bytes == partition.size_bytes > 0
    assert partition.sync() == partition.durable_offset == 3
    assert partition.unsynced_bytes == 0
    before = len(disk.operations)
    assert partition.sync() == 3
    assert len(disk.operations) == before


def test_a_sync_for_an_offset_that_is_durable_leaves_newer_ones_alone(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a")
    partition.sync()
    add(partition, b"b")
    before = len(disk.operations)
    assert partition.sync(1) == 1
    assert len(disk.operations) == before
    assert partition.sync(2) == 2


def test_a_failed_sync_is_final(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a")
    disk.fail_at = {len(disk.operations) + 1: errno.EIO}
    with pytest.raises(StorageFault, match="Input/output error"):
        partition.sync()
    disk.fail_at = {}
    attempts: list[Callable[[], object]] = [
        partition.sync,
        lambda: add(partition, b"b"),
        lambda: partition.wait_beyond(5, 0, durable=True),
    ]
    for attempt in attempts:
        with pytest.raises(StorageFault, match="must be reopened"):
            attempt()
    with pytest.raises(StorageFault, match="must be reopened"):
        partition.close()  # nobody may have heard of it yet
    assert partition.is_closed


class Interrupted(SimulatedDisk):
    """Lets something happen between the end of a folder's sync and the return to who asked for it."""

    then: Callable[[], None] | None = None

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        then, self.then = self.then, None
        if then is not None:
            then()


def test_a_name_made_while_the_folder_is_synced_is_synced_the_next_time() -> None:
    disk = Interrupted()
    partition = make_partition(disk)
    add(partition, bytes(100))
    partition.roll(NOW)
    add(partition, bytes(100))

    def roll_meanwhile() -> None:
        partition.roll(NOW)
        add(partition, b"new")

    disk.then = roll_meanwhile
    partition.sync()
    partition.sync()
    assert partition.durable_offset == partition.end_offset == 3
    for _, crashed in disk.crash_states():
        again = open_partition(crashed)
        assert again.damages == []
        assert again.end_offset == 3


def test_a_full_disk_fails_one_append_and_leaves_no_remains(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a")
    disk.fail_at = {len(disk.operations) + 1: errno.ENOSPC}
    disk.short = 70
    with pytest.raises(StorageFault, match="No space left"):
        add(partition, b"b" * 500)
    assert add(partition, b"c") == 1
    partition.close()
    again = open_partition(disk)
    assert again.report.torn_bytes == 0
    assert again.end_offset == 2


def test_a_checkpoint_leaves_nothing_to_walk(disk: SimulatedDisk) -> None:
    settings = small(index_interval_bytes=64 * 1024)
    partition = make_partition(disk, settings)
    for _ in range(50):
        add(partition, bytes(300))
    partition.checkpoint()
    report = open_partition(disk.after_kill(), settings).report
    assert report.walked_bytes <= 4096
    assert (report.notes, report.clean_stop) == ([], False)


def test_stale_index_entries_are_not_believed_after_a_truncation(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    for _ in range(12):
        add(partition, bytes(100))
    partition.checkpoint()
    partition.truncate(5)
    partition.append(batch(*[b""] * 30), now_ms=NOW)  # many offsets, few bytes: beyond the stale entries' offsets
    for _ in range(12):
        add(partition, bytes(33))  # and now beyond their positions, never on their boundaries
    for _ in range(3):
        disk = disk.after_kill()
        partition = open_partition(disk)
        assert partition.damages == []
        assert partition.report.torn_bytes == 0
        assert partition.end_offset == 5 + 30 + 12


# -- the ends ------------------------------------------------------------------------------------------------


def test_full_segments_roll_by_size_and_age(disk: SimulatedDisk) -> None:
    partition = make_partition(disk, small(segment_ms=1000))
    partition.roll(NOW)
    assert len(partition.segments) == 1  # an empty one does not roll
    add(partition, bytes(3000))
    add(partition, bytes(3000))
    assert [s.base_offset for s in partition.segments] == [0, 1]
    add(partition, b"a", now=NOW + 1000)
    assert [s.base_offset for s in partition.segments] == [0, 1, 2]
    add(partition, bytes(9000), now=NOW + 1000)  # larger than a segment: alone in one
    assert partition.segments[-1].data_bytes > 9000


@pytest.mark.parametrize("start", range(10))
def test_the_start_may_stand_anywhere(disk: SimulatedDisk, start: int) -> None:
    partition = make_partition(disk)
    partition.append(batch(b"a", b"b", b"c"), leader_epoch=0, now_ms=NOW)
    partition.append(batch(b"d", b"e", b"f"), leader_epoch=1, now_ms=NOW)
    partition.roll(NOW)
    partition.append(batch(b"g", b"h", b"i"), leader_epoch=2, now_ms=NOW)
    assert partition.advance_start(start) == start
    assert partition.advance_start(0) == start
    for opened in (partition, open_partition(disk.after_kill())):
        assert opened.start_offset == start
        assert opened.damages == []
        found = opened.slice_at(start, 1)
        assert (found is None) == (start == 9)
        assert found is None or found.offset == start - start % 3
        assert opened.end_offset_for_epoch(0) == (0, max(3, start))
        if start:
            with pytest.raises(BrokerError, match=r"offset \d is not in the log, which has \[\d, 9\)"):
                opened.slice_at(start - 1, 1)
    with pytest.raises(BrokerError, match="cannot delete up to 10, the log ends at 9"):
        partition.advance_start(10)


def test_a_transaction_that_began_below_the_start_does_not_hold_readers_there(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    add(partition, b"b")
    partition.advance_start(1)
    assert partition.last_stable_offset == 1
    partition.append_marker(marker(1, commit=True), now_ms=NOW)
    assert partition.last_stable_offset == 3


def test_truncation_takes_whole_batches_epochs_and_producers_back(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    for sequence in range(6):
        fields: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 2 * sequence}
        partition.append(batch(b"a", b"b", **fields), leader_epoch=sequence // 2, now_ms=NOW)
    assert partition.truncate(99) == 12
    assert partition.truncate(7) == 6  # the batch [6, 8) goes as a whole
    assert partition.image().epochs == [(0, 0), (1, 4)]
    assert partition.durable_offset == partition.end_offset == 6
    retry = batch(b"a", b"b", producer_id=1, producer_epoch=0, base_sequence=6)
    assert partition.append(retry, leader_epoch=1, now_ms=NOW) == (6, 7, False)
    partition.advance_start(5)
    with pytest.raises(BrokerError, match="below the log's start"):
        partition.truncate(4)


def test_truncating_the_batch_that_holds_the_start_leaves_an_empty_log(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a", b"b", b"c", b"d")
    partition.advance_start(2)
    assert partition.truncate(3) == 0
    assert (partition.start_offset, partition.end_offset) == (0, 0)
    assert add(partition, b"x") == 0
    assert open_partition(disk.after_kill()).end_offset == 1


def test_epochs_of_what_was_deleted_are_forgotten_by_a_killed_partition_too(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    for _ in range(2):
        partition.append(batch(bytes(3000)), leader_epoch=1, now_ms=NOW)
    partition.sync()
    partition.advance_start(1)
    assert partition.image().epochs == [(1, 1)]
    again = open_partition(disk.after_kill())
    assert again.image().epochs == [(1, 1)]
    for each in (partition, again):
        assert each.truncate(1) == 1
        assert each.image().epochs == []


def test_a_closed_partition_says_so_and_was_stopped_cleanly(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a")
    partition.close()
    partition.close()
    with pytest.raises(BrokerError) as caught:
        add(partition, b"b")
    assert caught.value.reason is Reason.LOG_CLOSED
    assert partition.wait_beyond(99, None, durable=True)
    again = open_partition(disk)
    assert again.report.clean_stop
    assert again.report.notes == []


def test_read_only_changes_nothing(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    for _ in range(20):
        add(partition, bytes(500))
    killed = disk.after_kill()
    before = killed.fingerprint()
    looked = open_partition(killed, read_only=True)
    assert looked.end_offset == 20
    assert len(looked.read(3, 600)) > 500
    with pytest.raises(BrokerError, match="closed or read-only"):
        add(looked, b"x")
    assert killed.fingerprint() == before


SIZE = len(batch(bytes(300)))


def sealed_and_damaged(disk: SimulatedDisk, number: int, byte: int, **settings: object) -> PartitionLog:
    """Nine batches in a sealed segment, one of them damaged after it was trusted: only a reader can find it."""
    partition = make_partition(disk, small(segment_bytes=65536, **settings))
    for _ in range(9):
        add(partition, bytes(300))
    partition.roll(NOW)
    partition.close()
    disk.flip_bit(f"{FOLDER}/00000000000000000000.log", (128 + number * SIZE + byte) * 8)
    partition = open_partition(disk, small(segment_bytes=65536, **settings))
    assert partition.damages == []
    return partition


@pytest.mark.parametrize("byte", [0, 8, 15, 16, 100])
@pytest.mark.parametrize("interval", [256, 65536])
def test_a_reader_finds_damage_names_it_and_stops_the_writers(disk: SimulatedDisk, interval: int, byte: int) -> None:
    partition = sealed_and_damaged(disk, 3, byte, index_interval_bytes=interval)
    with pytest.raises(StorageFault, match="1 offsets from 3 cannot be read"):
        partition.read(3, 400)
    assert [(d.first_offset, d.next_offset, d.position) for d in partition.damages] == [(3, 4, 128 + 3 * SIZE)]
    for offset in (0, 1, 2, 4, 8):
        assert read_header(partition.read(offset, 400)).base_offset == offset
    with pytest.raises(StorageFault, match="takes no writes until its damage is repaired"):
        add(partition, b"x")
    with pytest.raises(StorageFault, match="1 offsets from 3 cannot be read"):
        partition.read(3, 400)
    assert len(partition.damages) == 1


def test_a_search_by_time_finds_damage_too(disk: SimulatedDisk) -> None:
    partition = sealed_and_damaged(disk, 3, 100)
    with pytest.raises(StorageFault, match="from 3 cannot be read"):
        list(partition.find_batch_by_time(0))


@pytest.mark.parametrize("byte", [8, 26], ids=["its length", "its last offset"])
def test_a_truncation_finds_damage_before_it_cuts(disk: SimulatedDisk, byte: int) -> None:
    """A batch that says that it goes further than it does would have others cut away with it."""
    partition = sealed_and_damaged(disk, 3, byte, index_interval_bytes=65536)
    with pytest.raises(StorageFault, match="from 3 cannot be read"):
        partition.truncate(5)
    assert partition.end_offset == 9


def test_an_append_whose_remains_stay_stops_the_partition(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a")
    now = len(disk.operations)
    disk.fail_at = {now + 1: errno.ENOSPC, now + 2: errno.EIO}
    disk.short = 70
    with pytest.raises(StorageFault, match="No space left") as caught:
        add(partition, b"b" * 500)
    assert caught.value.left_remains  # nobody can say that it is not stored
    with pytest.raises(StorageFault, match="must be reopened") as caught:
        add(partition, b"c")
    assert not caught.value.left_remains


def test_a_checkpoint_that_fails_stops_the_partition(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"a")
    partition.sync()
    disk.fail_at = {len(disk.operations) + 1: errno.EIO}
    with pytest.raises(StorageFault, match="Input/output"):
        partition.checkpoint()
    with pytest.raises(StorageFault, match="must be reopened"):
        add(partition, b"c")


def test_what_was_synced_long_ago_leaves_the_page_cache(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[tuple[int, int]] = []
    monkeypatch.setattr(SimulatedFile, "forget", lambda _, position, size: forgotten.append((position, size)))
    partition = make_partition(disk, small(segment_bytes=2**20, flush_window_bytes=4096))
    for _ in range(20):
        add(partition, bytes(1000))
        partition.sync()
    assert [position for position, _ in forgotten] == [0, *(position + size for position, size in forgotten[:-1])]
    kept = partition.segments[-1].size - sum(size for _, size in forgotten)
    assert 4096 <= kept < 2 * 4096 + 1100


def test_damage_below_a_checkpoint_is_damage_also_where_the_mark_is_older(disk: SimulatedDisk) -> None:
    """Power lost right after a checkpoint: the segment's mark in the file is one sync behind it."""
    partition = make_partition(disk, small(flush_window_bytes=4096))
    path = partition.segments[0].path
    add(partition, b"first")
    partition.sync()
    stale = disk.content(path)[64:84]
    for value in (b"second", b"third"):
        add(partition, value)
    partition.checkpoint()
    held = partition.end_offset
    with_old_mark = disk.after_kill()
    file = with_old_mark.open(path, writable=True)
    file.write_at(stale, 64)
    middle = disk.content(path).index(b"second")
    file.write_at(b"S", middle)
    file.sync()
    file.close()
    again = open_partition(with_old_mark, small(flush_window_bytes=4096))
    assert again.end_offset == held
    assert [(d.first_offset, d.next_offset) for d in again.damages] == [(1, 2)]
    assert len(with_old_mark.content(path)) == len(disk.content(path))


def test_a_strangers_file_is_left_alone(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    add(partition, b"v")
    partition.close()
    for name in ("readme.log", "123.swap", "x.log"):
        disk.create(f"{FOLDER}/{name}").close()
    again = open_partition(disk)
    assert again.end_offset == 1
    assert disk.exists(f"{FOLDER}/readme.log")


def test_read_only_makes_a_bad_index_anew_in_memory_alone(disk: SimulatedDisk) -> None:
    partition = make_partition(disk)
    for number in range(100):
        add(partition, b"v" * 100, now=NOW + number)
    partition.close()
    index = next(path for path in disk.files() if path.endswith(".idx"))
    disk.flip_bit(index, 300)
    before = {path: disk.content(path) for path in disk.files()}
    looked_at = open_partition(disk, read_only=True)
    assert len(list(iter_batches(looked_at.read(0, 10**6)))) > 0
    assert {path: disk.content(path) for path in disk.files()} == before
