"""The embedded log as a script uses it."""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.storage.building import NOW, batch, marker

from braidlog.codec.compression import Compression
from braidlog.codec.murmur import partition_for_key
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.record import NewRecord, Record
from braidlog.model.settings import TopicSettings
from braidlog.storage.embedded_log import Log, Topic
from braidlog.storage.folder.data_folder import TopicMeta
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk

DEADLINE = 20.0


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def log_on(disk: SimulatedDisk) -> Log:
    return Log("data", disk=disk, clock=ManualClock(NOW))


def values(topic: Topic, **options: object) -> list[bytes | None]:
    return [record.value for record in topic.read(**options)]  # type: ignore[arg-type]


def refusal(attempt: Callable[[], object], reason: Reason) -> str:
    with pytest.raises(BrokerError) as caught:
        attempt()
    assert caught.value.reason is reason
    return str(caught.value)


# -- appending and reading -----------------------------------------------------------------------------------


def test_every_field_of_a_record_comes_back(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t")
    headers = [("h", b"1"), ("h", None), ("é", b"")]
    assert topic.append(b"v", key=b"k", headers=headers, timestamp_ms=5) == 0
    assert topic.append(None, key=b"k") == 1
    assert topic.append(b"") == 2
    assert topic.read() == [
        Record(0, 5, b"k", b"v", tuple(headers)),
        Record(1, NOW, b"k", None),
        Record(2, NOW, None, b""),
    ]


@pytest.mark.parametrize("compression", list(Compression))
def test_many_records_are_one_batch(disk: SimulatedDisk, compression: Compression) -> None:
    topic = log_on(disk).create_topic("t")
    records = [NewRecord(b"%d" % n, timestamp_ms=NOW - n) for n in range(100)]
    assert topic.append_many(records, compression=compression) == (0, 99, False)
    assert [r.value for r in topic.read(40, records_max=3)] == [b"40", b"41", b"42"]
    assert topic.read(99)[0].timestamp_ms == NOW - 99
    assert topic.read(100) == []


def test_keys_go_where_kafka_puts_them_and_others_take_turns(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t", partitions=3)
    for number in range(30):
        topic.append(b"", key=b"key %d" % number)
    for partition in range(3):
        keys = [record.key for record in topic.read(partition=partition, records_max=99)]
        assert keys == [b"key %d" % n for n in range(30) if partition_for_key(b"key %d" % n, 3) == partition]
    ends = [topic.end_offset(partition) for partition in range(3)]
    for _ in range(6):
        topic.append(b"no key")
    assert [topic.end_offset(partition) for partition in range(3)] == [end + 2 for end in ends]
    assert topic.append(b"x", partition=2) == ends[2] + 2
    assert len(list(topic)) == 37


def test_what_is_refused_says_why(disk: SimulatedDisk) -> None:
    log = log_on(disk)
    topic = log.create_topic("t", batch_bytes_max=1024)
    assert "larger than the topic's 1024" in refusal(lambda: topic.append(bytes(2000)), Reason.RECORD_TOO_LARGE)
    assert "at least one record" in refusal(lambda: topic.append_many([]), Reason.INVALID_RECORD)
    assert "at least one batch" in refusal(lambda: topic.append_batch(b""), Reason.INVALID_RECORD)
    assert "there are: t" in refusal(lambda: log.topic("u"), Reason.TOPIC_NOT_FOUND)
    assert "partitions 0 to 0, not 1" in refusal(lambda: topic.read(partition=1), Reason.PARTITION_NOT_FOUND)
    assert "which has [0, 0)" in refusal(lambda: topic.read(5), Reason.OFFSET_OUT_OF_RANGE)
    refusal(lambda: log.create_topic("t"), Reason.TOPIC_EXISTS)
    refusal(lambda: log.create_topic("u", segment_bytes=1), Reason.INVALID_SETTING)
    refusal(lambda: log.create_topic("../u"), Reason.INVALID_TOPIC_NAME)
    assert topic.end_offset() == 0


def test_with_ack_nothing_is_read_before_it_is_durable(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t")
    topic.append(b"a")
    topic.partition().append(batch(b"b"), now_ms=NOW)
    assert values(topic) == [b"a"]
    assert topic.end_offset() == 1
    topic.flush()
    assert values(topic) == [b"a", b"b"]


def test_without_ack_it_is_read_at_once(disk: SimulatedDisk) -> None:
    with log_on(disk) as log:
        topic = log.create_topic("t", flush="os")
        topic.append(b"a")
        assert topic.partition().durable_offset == 0
        assert values(topic) == [b"a"]


def test_readers_of_committed_records_see_no_others(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t")
    partition = topic.partition()

    def put(value: bytes, producer: int, sequence: int) -> None:
        fields: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        topic.append_batch(batch(value, transactional=True, **fields))

    def end(producer: int, *, commit: bool) -> None:
        partition.append_marker(marker(producer, commit=commit), now_ms=NOW)
        partition.sync()

    put(b"bad", 1, 0)
    topic.append(b"plain")
    put(b"good", 2, 0)
    assert values(topic) == []
    assert values(topic, committed_only=False) == [b"bad", b"plain", b"good"]
    end(1, commit=False)
    assert values(topic) == [b"plain"]
    end(2, commit=True)
    put(b"good again", 1, 1)
    assert values(topic) == [b"plain", b"good"]
    end(1, commit=True)
    assert values(topic) == [b"plain", b"good", b"good again"]
    assert values(topic, offset=2) == [b"good", b"good again"]


def test_times_are_found(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t", segment_bytes=4096, index_interval_bytes=256)
    for number in range(60):
        topic.append(bytes(200), timestamp_ms=NOW + 10 * number)
    topic.delete_before(5)
    assert len(topic.partition().segments) > 2
    found = [topic.offset_at(NOW + ago) for ago in (0, 50, 51, 333, 590, 591)]
    assert found == [5, 5, 6, 34, 59, None]


# -- following -----------------------------------------------------------------------------------------------


def collect(topic: Topic, count: int, **options: object) -> list[bytes | None]:
    found: list[bytes | None] = []
    for record in topic.follow(**options):  # type: ignore[arg-type]
        found.append(record.value)
        if len(found) == count:
            break
    return found


def waiting(topic: Topic) -> Callable[[], bool]:
    """Whether somebody waits for the partition to move."""
    return lambda: bool(topic.partition()._gate.moved._waiters)  # type: ignore[attr-defined]


def wait_until(condition: Callable[[], bool], future: "Future[object] | None" = None) -> None:
    tick = threading.Event()
    for _ in range(int(DEADLINE / 0.002)):
        if condition() or (future is not None and future.done()):
            return
        tick.wait(0.002)
    raise AssertionError("it did not happen before the deadline")


@pytest.mark.parametrize("flush", ["ack", "os"])
def test_a_follower_wakes_when_another_thread_appends(tmp_path: Path, flush: str) -> None:
    with Log(str(tmp_path / "data")) as log, ThreadPoolExecutor(1) as threads:
        topic = log.create_topic("t", flush=flush)
        topic.append(b"0")
        followed = threads.submit(collect, topic, 4)
        for number in range(1, 4):
            wait_until(waiting(topic))
            topic.append(b"%d" % number)
        assert followed.result(DEADLINE) == [b"0", b"1", b"2", b"3"]


def test_what_comes_between_reading_and_waiting_is_not_slept_over(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log_on(disk).create_topic("t")
    topic.append(b"a")
    partition = topic.partition()
    real = partition.slice_at
    calls: list[int] = []

    def append_after_the_end(offset: int, bytes_max: int, *, upto: int | None = None) -> object:
        found = real(offset, bytes_max, upto=upto)
        if found is None and not calls:
            calls.append(offset)
            topic.append(b"b")
        return found

    monkeypatch.setattr(partition, "slice_at", append_after_the_end)
    assert collect(topic, 2, timeout=0.05) == [b"a", b"b"]


def test_a_follower_ends_when_its_time_is_over(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t")
    topic.append(b"a")
    assert collect(topic, 9, timeout=0.01) == [b"a"]
    assert collect(topic, 9, offset=1, timeout=0) == []


@pytest.mark.parametrize("how", ["close", "delete"])
def test_a_follower_ends_when_the_log_is_closed_or_the_topic_deleted(tmp_path: Path, how: str) -> None:
    log = Log(str(tmp_path / "data"))
    topic = log.create_topic("t")
    topic.append(b"a")
    with ThreadPoolExecutor(1) as threads:
        followed = threads.submit(collect, topic, 9)
        wait_until(waiting(topic))
        if how == "close":
            log.close()
        else:
            log.delete_topic("t")
        assert followed.result(DEADLINE) == [b"a"]
    log.close()


def test_a_follower_is_told_of_a_fault(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t")
    topic.append(b"a")
    disk.fail_at = {len(disk.operations) + 2: errno.EIO}
    with pytest.raises(StorageFault):
        topic.append(b"b")
    with pytest.raises(StorageFault, match="must be reopened"):
        collect(topic, 9)


def test_a_follower_that_missed_nothing_survives_retention(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t")
    partition = topic.partition()
    fields: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    topic.append_batch(batch(b"a", **fields))
    partition.append_marker(marker(1, commit=True), now_ms=NOW)
    partition.sync()
    follower = topic.follow(timeout=5)
    assert next(follower).value == b"a"
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(next, follower)
        wait_until(waiting(topic))
        topic.delete_before(2)  # the marker too, which no record shows
        topic.append(b"b")
        assert following.result(DEADLINE).value == b"b"


# -- topics and life -----------------------------------------------------------------------------------------


def test_two_topics_do_not_mix(disk: SimulatedDisk) -> None:
    with log_on(disk) as log:
        log.create_topic("a").append(b"1")
        log.create_topic("b").append(b"2")
        log.topic("a").append(b"3")
    with log_on(disk) as log:
        assert log.topics() == ["a", "b"]
        assert values(log.topic("a")) == [b"1", b"3"]
        assert values(log.ensure_topic("b")) == [b"2"]
        assert log.ensure_topic("c", partitions=2).partitions == 2


def test_topics_are_altered_grown_and_described(disk: SimulatedDisk) -> None:
    log = log_on(disk)
    topic = log.create_topic("t")
    topic.append(b"a")
    log.alter_topic("t", partitions=3, segment_bytes=4096)
    assert (topic.partitions, topic.settings.segment_bytes) == (3, 4096)
    assert topic.partition().settings.segment_bytes == 4096
    topic.append(b"b", partition=2)
    log.alter_topic("t", partitions=3)
    refusal(lambda: log.alter_topic("t", partitions=2), Reason.INVALID_PARTITION_COUNT)
    refusal(lambda: log.alter_topic("t", colour="red"), Reason.INVALID_SETTING)
    described = log.describe("t")
    assert [p["end"] for p in described["partitions"]] == [1, 0, 1]
    assert described["partitions"][0]["durable"] == 1
    assert described["settings"]["segment_bytes"] == 4096
    log.close()
    again = log_on(disk)
    assert [r.value for r in again.topic("t")] == [b"a", b"b"]


def test_retention_and_compaction_by_topic(disk: SimulatedDisk) -> None:
    topic = log_on(disk).create_topic("t", partitions=2, retention_bytes=0, compact=True)
    for value in (b"1", b"2"):
        for partition in (0, 1):
            topic.append(value, key=b"k", partition=partition)
            topic.partition(partition).roll(NOW)
    assert [done.records_removed for done in topic.compact()] == [1, 1]
    assert values(topic) == [b"2"]
    topic.retain()
    assert [topic.start_offset(partition) for partition in (0, 1)] == [2, 2]


def test_a_closed_log_says_so(disk: SimulatedDisk) -> None:
    log = log_on(disk)
    topic = log.create_topic("t")
    topic.append(b"a")
    log.close()
    log.close()
    for attempt in (
        lambda: topic.append(b"b"),
        topic.read,
        lambda: list(topic.follow(timeout=0)),
        lambda: log.create_topic("u"),
        lambda: log.alter_topic("t", segment_bytes=4096),
        lambda: log.delete_topic("t"),
        lambda: log.topic("t").append(b"c"),
    ):
        assert "is closed" in refusal(attempt, Reason.LOG_CLOSED)
    again = log_on(disk)  # whose folder it is now
    assert values(again.topic("t")) == [b"a"]


def test_a_deleted_topic_does_not_come_back_under_its_old_handle(disk: SimulatedDisk) -> None:
    log = log_on(disk)
    old = log.create_topic("t")
    old.append(b"old")
    log.delete_topic("t")
    new = log.create_topic("t")
    new.append(b"new")
    assert "is closed" in refusal(lambda: old.append(b"x"), Reason.LOG_CLOSED)
    assert values(new) == [b"new"]


def test_threads_that_ask_for_a_topic_get_the_same_one(tmp_path: Path) -> None:
    with Log(str(tmp_path / "data")) as log:
        log.create_topic("t")
        log.topic("t").append(b"0")
        log.close()
    with Log(str(tmp_path / "data")) as log, ThreadPoolExecutor(8) as threads:
        together = threading.Barrier(8)

        def ask(_: int) -> Topic:
            together.wait(DEADLINE)
            topic = log.topic("t")
            topic.append(b"x")
            return topic

        assert len({id(topic) for topic in threads.map(ask, range(8))}) == 1
        assert log.topic("t").end_offset() == 9


def test_a_topic_is_made_once_however_many_ask(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_on(disk)
    log.folder.create_topic("t", 1, TopicSettings())
    real, never = log.folder.topic, threading.Event()

    def slow(name: str) -> TopicMeta:
        never.wait(0.2)  # time for the other to come in too, if nothing keeps it out
        return real(name)

    monkeypatch.setattr(log.folder, "topic", slow)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(log.topic, "t") for _ in range(2)]
        assert asked[0].result(DEADLINE) is asked[1].result(DEADLINE)


def test_one_bad_partition_does_not_cost_the_others_their_clean_stop(disk: SimulatedDisk) -> None:
    log = log_on(disk)
    for name in ("a", "b", "c"):
        log.create_topic(name).append(b"x")
    partition = log.topic("a").partition()
    partition.append(batch(b"y"), now_ms=NOW)
    disk.fail_at = {len(disk.operations) + 1: errno.EIO}
    with pytest.raises(StorageFault, match="Input/output error"):
        log.close()
    disk.fail_at = {}
    again = log_on(disk)
    assert sorted(again.topic(name).partition().report.clean_stop for name in "abc") == [False, True, True]


def test_a_folder_must_be_there_unless_it_may_be_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    refusal(lambda: Log(str(path), create=False), Reason.FOLDER_NOT_FOUND)
    assert not path.exists()
    with Log(str(path)) as log:
        assert log.path == str(path)
        refusal(lambda: Log(str(path)), Reason.FOLDER_IN_USE)


def test_interval_topics_start_the_flusher_and_close_ends_it(disk: SimulatedDisk) -> None:
    log = log_on(disk)
    topic = log.create_topic("t", flush="interval")
    topic.append(b"a")
    assert "braidlog-flusher" in [thread.name for thread in threading.enumerate()]
    log.close()
    assert log.flusher._stopping
    assert log_on(disk).topic("t").partition().report.clean_stop
