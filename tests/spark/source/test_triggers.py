"""A stream trigger by trigger, without Spark: over a real folder, with a clock that is set by hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from braidlog import Log, NewRecord
from braidlog.spark.source.logs import FolderLog
from braidlog.spark.source.losses import ANEW, DELETED, GONE, DataLossError, Losses, Lost, plan
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.positions import Offsets
from braidlog.spark.source.triggers import Triggers
from braidlog.testing.clock import ManualClock

T0, T1 = ("t", 0), ("t", 1)


class Stream:
    """A log with one writer and one stream over it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.log = Log(folder)
        self.topic = self.log.create_topic("t", partitions=2)
        self.clock = ManualClock()

    def begin(self, **options: str) -> Triggers:
        query = Query({"path": self.folder, "subscribe": "t", **options}, streaming=True)
        looked = FolderLog(self.folder, committed_only=True)
        return Triggers(looked, query, Losses(query), self.clock)

    def write(self, rows: int, partition: int = 0, size: int = 10) -> None:
        self.topic.append_many([NewRecord(b"x" * size) for _ in range(rows)], partition=partition)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    found = Stream(str(tmp_path / "d"))
    yield found
    found.log.close()


def test_all_that_is_there_then_what_comes(stream: Stream) -> None:
    stream.write(5)
    triggers = stream.begin(startingOffsets="earliest")
    start = triggers.initial()
    assert start == {T0: 0, T1: 0}
    first = triggers.latest(start, unlimited=True)
    assert first == {T0: 5, T1: 0} == triggers.seen
    assert triggers.latest(first, unlimited=True) == first  # after a wait
    stream.write(2, partition=1)
    assert triggers.latest(first, unlimited=True) == {T0: 5, T1: 2}


def test_a_stream_begins_with_what_comes_unless_told(stream: Stream) -> None:
    stream.write(5)
    assert stream.begin().initial() == {T0: 5, T1: 0}


def test_caps_of_rows_and_bytes_hold_together(stream: Stream) -> None:
    stream.write(100, size=1000)
    stream.write(300, partition=1, size=1000)
    start: Offsets = {T0: 0, T1: 0}
    rows = stream.begin(maxOffsetsPerTrigger="40")
    assert rows.latest(start, unlimited=False) == {T0: 10, T1: 30}
    assert rows.latest(start, unlimited=True) == {T0: 100, T1: 300}  # Trigger.Once asks so
    both = stream.begin(maxOffsetsPerTrigger="40", maxBytesPerTrigger="20k")
    found = both.latest(start, unlimited=False)
    assert 10 <= found[T0] + found[T1] <= 20
    assert found[T1] > found[T0] > 0


def test_a_minimum_is_waited_for_and_not_for_ever(stream: Stream) -> None:
    triggers = stream.begin(minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    stream.write(3)
    start: Offsets = {T0: 0, T1: 0}
    first = triggers.latest(start, unlimited=False)
    assert first == {T0: 3, T1: 0}  # the first trigger of a run does not wait
    stream.write(9)
    assert triggers.latest(first, unlimited=False) == first
    stream.write(1, partition=1)
    second = triggers.latest(first, unlimited=False)
    assert second == {T0: 12, T1: 1}
    stream.write(1)
    assert triggers.latest(second, unlimited=False) == second
    stream.clock.advance(59_000)
    assert triggers.latest(second, unlimited=False) == second
    stream.clock.advance(1_000)
    assert triggers.latest(second, unlimited=False) == {T0: 13, T1: 1}


def test_a_run_of_what_is_available_ends(stream: Stream) -> None:
    stream.write(30)
    triggers = stream.begin(maxOffsetsPerTrigger="20", minOffsetsPerTrigger="15")
    triggers.freeze()
    stream.write(50)
    stream.log.alter_topic("t", partitions=3)
    at: Offsets = {T0: 0, T1: 0}
    seen = []
    while (after := triggers.latest(at, unlimited=False)) != at:
        seen.append(after)
        at = after
    assert seen == [{T0: 20, T1: 0}, {T0: 30, T1: 0}]  # the last ten though fifteen are wanted: none will come


def test_a_run_over_a_log_that_was_made_anew_reads_it_from_its_beginning(stream: Stream) -> None:
    """Where it stood means nothing any more: to go on there would lose what lies below, and say nothing."""
    stream.write(5)
    triggers = stream.begin(onDataLoss="skip", maxOffsetsPerTrigger="3")
    triggers.freeze()
    start: Offsets = {T0: 7, T1: 0}
    first = triggers.latest(start, unlimited=False)
    assert first == {T0: 3, T1: 0}
    looked = FolderLog(stream.folder, committed_only=True)
    assert plan(looked, start, first) == ([Range("t", 0, 0, 3)], [Lost("t", 0, 7, None, ANEW)])
    second = triggers.latest(first, unlimited=False)
    assert second == {T0: 5, T1: 0}
    assert triggers.latest(second, unlimited=False) == second


def test_a_run_whose_topic_is_gone_says_so_or_ends(stream: Stream) -> None:
    stream.log.delete_topic("t")
    start: Offsets = {T0: 7, T1: 0}
    skipping, failing = stream.begin(onDataLoss="skip"), stream.begin()
    skipping.freeze()
    assert skipping.latest(start, unlimited=False) == start
    failing.freeze()
    with pytest.raises(DataLossError, match="t/0 from 7 on"):
        failing.latest(start, unlimited=False)


def test_partitions_and_topics_that_appear_begin_at_their_first_offset(stream: Stream) -> None:
    triggers = stream.begin(maxOffsetsPerTrigger="4")
    start = triggers.initial()
    stream.log.alter_topic("t", partitions=3)
    stream.write(6, partition=2)
    assert triggers.latest(start, unlimited=False) == {T0: 0, T1: 0, ("t", 2): 4}
    looked = FolderLog(stream.folder, committed_only=True)
    assert plan(looked, start, {T0: 0, T1: 0, ("t", 2): 4}) == ([Range("t", 2, 0, 4)], [])


def test_what_was_deleted_is_a_loss_with_its_exact_range(stream: Stream) -> None:
    stream.write(20)
    stream.topic.delete_before(7, partition=0)
    looked = FolderLog(stream.folder, committed_only=True)
    assert plan(looked, {T0: 3, T1: 0}, {T0: 15, T1: 0}) == ([Range("t", 0, 7, 15)], [Lost("t", 0, 3, 7, DELETED)])
    assert plan(looked, {T0: 3}, {T0: 5}) == ([], [Lost("t", 0, 3, 5, DELETED)])
    assert plan(looked, {T0: 7}, {T0: 15}) == ([Range("t", 0, 7, 15)], [])
    assert plan(looked, {T0: 18}, {T0: 12}) == ([Range("t", 0, 7, 12)], [Lost("t", 0, 18, None, ANEW)])
    assert plan(looked, {("u", 0): 1, T0: 9}, {("u", 0): 4, T0: 9}) == ([], [Lost("u", 0, 1, 4, GONE)])


def test_a_topic_that_goes_is_said_and_waited_for(stream: Stream) -> None:
    stream.write(5)
    start: Offsets = {T0: 5, T1: 0}
    stream.log.delete_topic("t")
    with pytest.raises(DataLossError, match=r"t/0 from 5 on: the topic or partition no longer exists; t/1 from 0 on"):
        stream.begin().latest(start, unlimited=True)
    patient = stream.begin(onDataLoss="skip")
    assert patient.latest(start, unlimited=True) == start
    stream.topic = stream.log.create_topic("t", partitions=2)
    stream.write(3)
    anew = patient.latest(start, unlimited=False)
    assert anew == {T0: 3, T1: 0}
    looked = FolderLog(stream.folder, committed_only=True)
    assert plan(looked, start, anew) == ([Range("t", 0, 0, 3)], [Lost("t", 0, 5, None, ANEW)])


def test_a_topic_that_is_no_longer_wanted_is_no_loss(stream: Stream) -> None:
    triggers = stream.begin()
    assert triggers.latest({T0: 0, T1: 0, ("other", 0): 9}, unlimited=True) == {T0: 0, T1: 0}


def test_an_error_names_twenty_ranges_and_how_many_more() -> None:
    error = DataLossError([Lost("t", at, 0, 9, DELETED) for at in range(25)])
    assert "t/19 [0, 9)" in str(error)
    assert "t/20" not in str(error)
    assert "and 5 more" in str(error)
