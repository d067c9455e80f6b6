"""What a stream asks of a server for each trigger: counted at a gate before the server, whatever the machine's speed."""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType
from tests.client.gate import WAIT_SECONDS_MAX, PartitionLocks

from braidlog import connect
from braidlog.client.blocking import Client
from braidlog.spark.connections import close_idle
from braidlog.spark.source import triggers
from braidlog.spark.source.losses import DataLossError
from braidlog.spark.source.options import Query
from braidlog.spark.source.readers import TopicStreamReader
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.apis import Key

COLUMNS = StructType([StructField("offset", LongType())])


class Asked:
    """A server behind a gate, and a client that writes."""

    def __init__(self, gate: PartitionLocks, client: Client) -> None:
        self.gate = gate
        self.client = client

    def write(self, topic: str, rows: int, partition: int = 0) -> None:
        producer = self.client.producer(acks="all")
        for sent in [producer.send(topic, b"x", partition=partition) for _ in range(rows)]:
            sent.result()

    def stream(self, topic: str, **options: str) -> TopicStreamReader:
        given = {"servers": f"127.0.0.1:{self.gate.port}", "subscribe": topic, "startingOffsets": "earliest", **options}
        return TopicStreamReader(Query(given, streaming=True), COLUMNS)

    def of(self, work: Any) -> tuple[Any, Counter[int]]:
        """What came of it, and the requests that it took."""
        before = Counter(self.gate.seen)
        return work(), Counter(self.gate.seen) - before


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with PartitionLocks() as gate, ServerProcess(tmp_path_factory.mktemp("asked") / "data", *gate.settings) as server:
        gate.server_port = server.ports["kafka"]
        with connect(f"kafka://127.0.0.1:{gate.port}") as client:
            yield Asked(gate, client)
        close_idle()


def trigger(stream: TopicStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """What Spark calls for each trigger; where it ended."""
    end = stream.latestOffset(start, ReadMaxRows(1))
    stream.reportLatestOffset()
    (task,) = stream.partitions(start, end)
    assert sum(batch.num_rows for batch in stream.rows(task.value)) == 1
    stream.commit(end)
    return end


@pytest.mark.parametrize("options", [{}, {"groupId": "counted"}], ids=["plain", "group"])
def test_a_trigger_of_one_row_asks_so_often_and_no_more(
    asked: Asked, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "_WEIGHED_SECONDS", math.inf)  # records are weighed once, however slow the machine is
    topic = f"rows-{len(options)}"
    asked.client.admin.create_topic(topic)
    asked.write(topic, 10)
    stream = asked.stream(topic, maxOffsetsPerTrigger="1", **options)
    at = trigger(stream, stream.initialOffset())
    for _ in range(5):
        at, requests = asked.of(lambda at=at: trigger(stream, at))
        expected = {Key.METADATA: 2, Key.LIST_OFFSETS: 2, Key.FETCH: 1} | ({Key.OFFSET_COMMIT: 1} if options else {})
        assert {key: count for key, count in requests.items() if key != Key.OFFSET_FETCH} == expected
        assert requests[Key.OFFSET_FETCH] <= 1, "the group is looked at now and then"
    stream.stop()


@pytest.mark.parametrize("call", ["latestOffset", "partitions"])
def test_topics_and_offsets_are_asked_for_at_once(asked: Asked, call: str) -> None:
    """The answer about topics is held back: the question about offsets comes all the same."""
    asked.client.admin.create_topic(call)
    asked.write(call, 3)
    stream = asked.stream(call, maxOffsetsPerTrigger="1")
    start = trigger(stream, stream.initialOffset())
    end = stream.latestOffset(start, ReadMaxRows(1))
    held = asked.gate.stop_at(Key.METADATA, 1, "answer")
    before = asked.gate.seen[Key.LIST_OFFSETS]
    found: list[Any] = []
    ask = (
        (lambda: stream.latestOffset(start, ReadMaxRows(1)))
        if call == "latestOffset"
        else lambda: stream.partitions(start, end)
    )
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    try:
        held.wait()
        deadline = time.monotonic() + WAIT_SECONDS_MAX / 2
        while (came := asked.gate.seen[Key.LIST_OFFSETS]) == before and time.monotonic() < deadline:
            thread.join(0.01)
        assert came == before + 1
        assert not found, "nothing is believed before the topics are known"
    finally:
        held.open()
        thread.join(WAIT_SECONDS_MAX)
    if call == "latestOffset":
        assert found == [end]
    else:
        assert [(each.value.start, each.value.end) for each in found[0]] == [(1, 2)]
    stream.stop()


def test_a_topic_that_was_made_again_is_noticed_by_who_expected_the_old_one(asked: Asked) -> None:
    """Longer than the old one, so that offsets alone show nothing; once at each of the two calls."""
    for call in ("latestOffset", "partitions"):
        topic = f"again-{call}"
        asked.client.admin.create_topic(topic)
        asked.write(topic, 3)
        failing, skipping = asked.stream(topic), asked.stream(topic, onDataLoss="skip")
        start = failing.initialOffset()
        reached = failing.latestOffset(start, ReadAllAvailable())
        for stream in (failing, skipping):
            stream.partitions(start, reached)
        asked.client.admin.delete_topic(topic)
        asked.client.admin.create_topic(topic)
        asked.write(topic, 10)
        if call == "latestOffset":
            with pytest.raises(DataLossError, match=f"{topic}/0 from 3 on: the topic was deleted and created again"):
                failing.latestOffset(reached, ReadAllAvailable())
            end = skipping.latestOffset(reached, ReadAllAvailable())
            assert [(each.value.start, each.value.end) for each in skipping.partitions(reached, end)] == [(0, 10)]
        else:
            with pytest.raises(DataLossError, match=r"/0 \[0, 3\): the topic or partition no longer exists"):
                failing.partitions(start, reached)
            assert skipping.partitions(start, reached) == []
        failing.stop()
        skipping.stop()


def test_partitions_that_came_and_a_topic_that_went_are_seen_at_the_next_look(asked: Asked) -> None:
    asked.client.admin.create_topic("grows")
    asked.write("grows", 2)
    stream = asked.stream("grows", onDataLoss="skip")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    asked.client.admin.alter_topic("grows", partitions=2)
    asked.write("grows", 4, partition=1)
    grown = stream.latestOffset(end, ReadAllAvailable())
    assert grown["grows"] == {"0": 2, "1": 4}
    assert [(each.value.partition, each.value.start, each.value.end) for each in stream.partitions(end, grown)] == [
        (1, 0, 4)
    ]
    asked.client.admin.delete_topic("grows")
    assert stream.latestOffset(grown, ReadAllAvailable()) == grown
    assert stream.partitions(end, grown) == []
    stream.stop()
