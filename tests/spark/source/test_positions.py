"""A topic that was deleted and made again is not the topic that a checkpoint is about, however long it is by now."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType
from tests.spark.source.topics import Runtime

from braidlog import Log, NewRecord
from braidlog.spark.source.losses import DataLossError
from braidlog.spark.source.options import Query
from braidlog.spark.source.planning import Range
from braidlog.spark.source.positions import from_json, identities_of, to_json
from braidlog.spark.source.readers import TopicStreamReader

COLUMNS = StructType([StructField("offset", LongType())])


class Written:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.log = Log(folder)
        self.make(3)

    def make(self, rows: int) -> None:
        self.log.create_topic("t").append_many([NewRecord(b"x")] * rows)

    def make_again(self, rows: int) -> None:
        self.log.delete_topic("t")
        self.make(rows)

    def stream(self, **options: str) -> TopicStreamReader:
        """As a driver that has just started, from whatever checkpoint it is given."""
        given = {"path": self.folder, "subscribe": "t", "startingOffsets": "earliest", **options}
        return TopicStreamReader(Query(given, streaming=True), COLUMNS)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    found = Written(str(tmp_path / "d"))
    yield found
    found.log.close()


def planned(reader: TopicStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
    return [task.value for task in reader.partitions(start, end)]


def test_a_longer_topic_of_the_same_name_is_a_loss(written: Written) -> None:
    reached = written.stream().latestOffset(written.stream().initialOffset(), ReadAllAvailable())
    written.make_again(10)
    with pytest.raises(DataLossError, match="t/0 from 3 on: the topic was deleted and created again"):
        written.stream().latestOffset(reached, ReadAllAvailable())


def test_who_skips_losses_reads_the_new_topic_from_its_first_record(written: Written) -> None:
    reached = written.stream().latestOffset(written.stream().initialOffset(), ReadAllAvailable())
    written.make_again(10)
    stream = written.stream(onDataLoss="skip")
    end = stream.latestOffset(reached, ReadAllAvailable())
    assert [(each.start, each.end) for each in planned(stream, reached, end)] == [(0, 10)]
    assert stream.latestOffset(end, ReadAllAvailable()) == end, "nothing is new any more"


def test_a_batch_that_was_planned_is_not_read_from_another_topic(written: Written) -> None:
    begin = written.stream().initialOffset()
    reached = written.stream().latestOffset(begin, ReadAllAvailable())
    written.make_again(10)
    with pytest.raises(DataLossError, match=r"t/0 \[0, 3\): the topic or partition no longer exists"):
        planned(written.stream(), begin, reached)


def test_a_checkpoint_of_an_older_version_goes_on_and_learns_the_identity(written: Written) -> None:
    end = written.stream().latestOffset({"t": {"0": 2}}, ReadAllAvailable())
    assert end["t"] == {"0": 3}
    assert identities_of(end)["t"] > 0
    assert [(each.start, each.end) for each in planned(written.stream(), {"t": {"0": 2}}, end)] == [(2, 3)]


def test_an_identity_is_a_number_that_readers_of_offsets_take_for_one() -> None:
    text = json.dumps(to_json({("t", 0): 5}, {"t": 77}))
    assert text == '{"t": {"0": 5}, "t@id": {"0": 77}}'
    assert from_json(json.loads(text)) == {("t", 0): 5}


def test_a_server_tells_it_too(runtime: Runtime) -> None:
    given = {"subscribe": "plain", "startingOffsets": "earliest"}
    server, folder = (
        TopicStreamReader(Query({**given, **where}, streaming=True), COLUMNS)
        for where in ({"servers": runtime.url}, {"path": runtime.folder})
    )
    begin = server.initialOffset()
    server.stop()
    assert begin == folder.initialOffset()
    assert identities_of(begin)["plain"] > 0
