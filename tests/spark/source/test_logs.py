"""A folder as a driver looks at it: while somebody writes to it, without a trace of the look."""

import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from braidlog import Log, NewRecord
from braidlog.codec.batch.records import encode_batch
from braidlog.model.errors import BrokerError
from braidlog.spark.options import OptionError
from braidlog.spark.source.bounds import ends, find_places, places_of, starts
from braidlog.spark.source.chunks import read_chunks
from braidlog.spark.source.columns import record_batches
from braidlog.spark.source.logs import FolderLog
from braidlog.spark.source.losses import Lost
from braidlog.spark.source.options import Bound, Query, Selection
from braidlog.spark.source.planning import Range
from braidlog.spark.source.positions import EARLIEST, LATEST, Offsets, Place

T0, T1 = ("t", 0), ("t", 1)
OFFSET_AND_VALUE = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])


def fill(log: Log, rows: int = 10) -> None:
    topic = log.create_topic("t", partitions=2)
    topic.append_many([NewRecord(b"v%d" % at, timestamp_ms=1000 + at) for at in range(rows)], partition=0)
    topic.append_many([NewRecord(b"w", timestamp_ms=5)], partition=1)


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            stat = (Path(place) / name).stat()
            found[str(Path(place) / name)] = stat.st_size, stat.st_mtime_ns
    return found


def test_a_folder_is_looked_at_while_it_is_written_to(tmp_path: Path) -> None:
    with Log(str(tmp_path / "d")) as log:
        fill(log)
        looked = FolderLog(str(tmp_path / "d"), committed_only=True)
        before = snapshot(tmp_path)
        assert looked.topics(None) == {"t": 2}
        assert looked.topics(["t", "u"]) == {"t": 2}
        assert looked.earliest([T0, T1]) == {T0: 0, T1: 0}
        assert looked.latest([T0, T1]) == {T0: 10, T1: 1}
        assert looked.at_times({T0: 1003, T1: 6}) == {T0: 3, T1: None}
        assert 10 < looked.bytes_each(T0, 0, 10) < 200
        assert snapshot(tmp_path) == before
        log.topic("t").append(b"more", partition=0)
        log.topic("t").delete_before(4, partition=0)
        assert looked.latest([T0]) == {T0: 11}
        assert looked.earliest([T0]) == {T0: 4}
        log.create_topic("u")
        assert set(looked.topics(None)) == {"t", "u"}
        looked.close()


def test_what_is_not_durable_is_not_read_where_an_ack_means_durable(tmp_path: Path) -> None:
    with Log(str(tmp_path / "d")) as log:
        fill(log)
        lazy = log.create_topic("lazy", flush="os")
        for topic in (log.topic("t"), lazy):
            topic.partition(0).append(encode_batch([b"unsynced"], base_timestamp=0), now_ms=0)
        looked = FolderLog(str(tmp_path / "d"), committed_only=True)
        assert looked.latest([T0, ("lazy", 0)]) == {T0: 10, ("lazy", 0): 1}
        log.topic("t").flush()
        assert looked.latest([T0]) == {T0: 11}


def test_no_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="is not a braidlog data folder"):
        FolderLog(str(tmp_path), committed_only=True)


def test_places(tmp_path: Path) -> None:
    with Log(str(tmp_path / "d")) as log:
        fill(log)
        log.create_topic("other")
        looked = FolderLog(str(tmp_path / "d"), committed_only=True)
        assert find_places(looked, Selection(topics=("t",))) == [T0, T1]
        assert find_places(looked, Selection(pattern="o.*")) == [("other", 0)]
        assert find_places(looked, Selection(pattern="none")) == []
        assert find_places(looked, Selection(places=(T1,))) == [T1]
        with pytest.raises(OptionError, match="option subscribe = 'u': there is no such topic"):
            find_places(looked, Selection(topics=("t", "u")))
        with pytest.raises(OptionError, match="option assign = 't/7': there is no such partition"):
            find_places(looked, Selection(places=(("t", 7),)))
        assert places_of(Selection(topics=("t", "u")), looked.topics(None)) == [T0, T1]


def test_where_a_query_begins_and_ends(tmp_path: Path) -> None:
    with Log(str(tmp_path / "d")) as log:
        fill(log)
        log.topic("t").delete_before(2, partition=0)
        looked = FolderLog(str(tmp_path / "d"), committed_only=True)
        both = [T0, T1]

        def start(bound: Bound, timeless: str = "error") -> dict[tuple[str, int], int]:
            return starts(looked, bound, both, timeless)

        assert start(Bound("o", everywhere=EARLIEST)) == {T0: 2, T1: 0}
        assert start(Bound("o", everywhere=LATEST)) == {T0: 10, T1: 1}
        assert start(Bound("o", offsets={T0: 5, T1: EARLIEST})) == {T0: 5, T1: 0}
        assert start(Bound("o", time_ms=5)) == {T0: 2, T1: 0}
        assert start(Bound("o", times_ms={T0: 1007, T1: 5})) == {T0: 7, T1: 0}
        assert start(Bound("o", time_ms=1005), "latest") == {T0: 5, T1: 1}
        for bound, said in (
            (Bound("o", time_ms=1005), "t/1 has none at or after that time"),
            (Bound("o", offsets={T0: 5}), "lacks t/1"),
            (Bound("o", offsets={T0: 5, T1: 0, ("x", 3): 0}), "it names x/3, which the query does not read"),
            (Bound("o", offsets={T0: 11, T1: 0}), "it begins beyond the end of t/0"),
        ):
            with pytest.raises(OptionError, match=said):
                start(bound)
        assert ends(looked, Bound("o", everywhere=LATEST), both) == {T0: 10, T1: 1}
        assert ends(looked, Bound("o", offsets={T0: 5, T1: LATEST}), both) == {T0: 5, T1: 1}
        assert ends(looked, Bound("o", time_ms=1005), both) == {T0: 5, T1: 1}
        with pytest.raises(OptionError, match="it ends beyond the end of t/0"):
            ends(looked, Bound("o", offsets={T0: 11, T1: 1}), both)


def test_a_log_that_grows_at_every_look_has_an_end_all_the_same(tmp_path: Path) -> None:
    with Log(str(tmp_path / "d")) as log:
        fill(log)

        class Growing(FolderLog):
            def latest(self, places: Iterable[Place]) -> Offsets:
                found = super().latest(places)
                log.topic("t").append(b"meanwhile", partition=0)
                return found

        looked = Growing(str(tmp_path / "d"), committed_only=True)
        assert ends(looked, Bound("o", everywhere=LATEST), [T0])[T0] >= 10
        assert ends(looked, Bound("o", offsets={T0: LATEST}), [T0])[T0] >= 11
        assert starts(looked, Bound("o", everywhere=LATEST), [T0], "error")[T0] >= 12


def test_a_folder_is_read_while_it_is_compacted_and_trimmed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is exchanged or removed under the reader: each offset has its own value, or is told as lost, or was compacted."""
    folder = str(tmp_path / "d")
    stop = threading.Event()
    with Log(folder) as log:
        compacted = log.create_topic("compacted", compact=True, segment_bytes=16384, flush="os")
        trimmed = log.create_topic("trimmed", segment_bytes=16384, flush="os")

        def write() -> None:
            at = 0
            while not stop.is_set():
                for _ in range(10):
                    records = [NewRecord(b"v%d" % (at + step), b"k%d" % ((at + step) % 37)) for step in range(20)]
                    compacted.append_many(records)
                    trimmed.append_many(records)
                    at += 20
                compacted.compact()
                trimmed.delete_before(max(at - 1000, 0))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for turn in range(200):
                topic = ("compacted", "trimmed")[turn % 2]
                options = {
                    "path": folder,
                    "subscribe": topic,
                    "onDataLoss": "skip",
                    "fetchBytes": ("1", "2k", "1m")[turn % 3],
                }
                query = Query(options, streaming=False)
                looked = FolderLog(folder, committed_only=True)
                place = (topic, 0)
                wanted = Range(*place, looked.earliest([place])[place], looked.latest([place])[place])
                found: dict[int, bytes] = {}
                for batch in record_batches(query, OFFSET_AND_VALUE, wanted, read_chunks(query, wanted)):
                    found |= dict(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
                assert all(value == b"v%d" % offset for offset, value in found.items())
                if topic == "trimmed":
                    lost = [each for record in caplog.records for each in record.args or () if isinstance(each, Lost)]
                    gone = {offset for each in lost for offset in range(each.start, each.end or 0)}
                    assert sorted({*found, *gone}) == list(range(wanted.start, wanted.end))
                caplog.clear()
        finally:
            stop.set()
            writer.join()
