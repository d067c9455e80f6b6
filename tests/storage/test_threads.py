"""Everything at once on the real disk: what was acknowledged is read once, in order, by all."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from braidlog.model.record import NewRecord
from braidlog.storage.embedded_log import Log, Topic

WRITERS = 4
APPENDS = 150
DEADLINE = 60.0


def write(topic: Topic, writer: int) -> list[tuple[int, bytes]]:
    """Append, and return what was acknowledged."""
    acknowledged = []
    for number in range(APPENDS):
        values = [b"%d:%d:%d" % (writer, number, part) for part in range(1 + number % 3)]
        padding = bytes(number % 7 * 60)
        found = topic.append_many([NewRecord(value, key=value[:1], headers=(("p", padding),)) for value in values])
        acknowledged += [(found.base_offset + n, value) for n, value in enumerate(values)]
    return acknowledged


def follow(topic: Topic, total: int) -> list[tuple[int, bytes]]:
    found = []
    for record in topic.follow(timeout=DEADLINE):
        assert record.value is not None
        found.append((record.offset, record.value))
        if len(found) == total:
            break
    return found


def repeat(action: Callable[[], object], stop: threading.Event) -> int:
    count = 0
    while not stop.is_set():
        action()
        count += 1
        stop.wait(0.001)
    return count


@pytest.mark.parametrize("flush", ["ack", "interval", "os"])
def test_acknowledged_records_are_read_once_in_order(tmp_path: Path, flush: str) -> None:
    total = WRITERS * sum(1 + number % 3 for number in range(APPENDS))
    stop = threading.Event()
    with Log(str(tmp_path / "data")) as log, ThreadPoolExecutor(WRITERS + 7) as threads:
        topic = log.create_topic(
            "t",
            flush=flush,
            flush_interval_ms=1,
            flush_window_bytes=8192,
            segment_bytes=16 * 1024,
            index_interval_bytes=512,
        )
        partition = topic.partition()

        def read_all() -> None:
            offsets = [record.offset for record in topic.iterate()]
            assert offsets == list(range(len(offsets)))

        def look() -> None:
            assert topic.offset_at(0) in (0, None)
            assert partition.start_offset <= partition.durable_offset <= partition.end_offset
            assert log.describe("t")["partitions"][0]["end"] <= total

        followers = [threads.submit(follow, topic, total) for _ in range(2)]
        upkeep = [
            threads.submit(repeat, action, stop)
            for action in (
                read_all,
                look,
                partition.sync,
                partition.checkpoint,
                lambda: partition.roll(log.clock.now_ms()),
            )
        ]
        writers = [threads.submit(write, topic, writer) for writer in range(WRITERS)]
        try:
            acknowledged = sorted(pair for writer in writers for pair in writer.result(DEADLINE))
            followed = [one.result(DEADLINE) for one in followers]
        finally:
            stop.set()
        assert all(one.result(DEADLINE) > 0 for one in upkeep)
        assert [offset for offset, _ in acknowledged] == list(range(total))
        for found in followed:
            assert found == acknowledged
        assert partition.damages == []
    with Log(str(tmp_path / "data")) as log:
        again = [(record.offset, record.value) for record in log.topic("t")]
        assert again == acknowledged
        assert log.topic("t").partition().report.clean_stop


def test_compaction_and_retention_go_on_under_writers_and_readers(tmp_path: Path) -> None:
    stop = threading.Event()
    with Log(str(tmp_path / "data")) as log, ThreadPoolExecutor(8) as threads:
        topic = log.create_topic("t", flush="os", segment_bytes=8192, index_interval_bytes=256, compact=True)
        partition = topic.partition()

        def write_keys(writer: int) -> None:
            for number in range(600):
                topic.append(b"%d" % number, key=b"%d-%d" % (writer, number % 5))

        def read_all() -> None:
            offsets = [
                record.offset for record in topic.iterate(partition.end_offset // 2 + partition.start_offset // 2)
            ]
            assert offsets == sorted(set(offsets))

        def advance() -> None:
            topic.delete_before(partition.start_offset + (partition.end_offset - partition.start_offset) // 50)

        upkeep = [
            threads.submit(repeat, action, stop)
            for action in (topic.compact, read_all, advance, lambda: topic.offset_at(1))
        ]
        writers = [threads.submit(write_keys, writer) for writer in range(3)]
        try:
            for one in writers:
                one.result(DEADLINE)
        finally:
            stop.set()
        assert all(one.result(DEADLINE) > 0 for one in upkeep)
        assert partition.damages == []
        partition.roll(log.clock.now_ms())
        topic.compact()
        last = {record.key: record.value for record in topic.iterate()}
        assert last == {b"%d-%d" % (w, k): b"%d" % (595 + k) for w in range(3) for k in range(5)}
    with Log(str(tmp_path / "data")) as log:
        assert {record.key: record.value for record in log.topic("t")} == last
