"""The source's options, without Spark: what a query is, and that nonsense is refused by name."""

import pytest

from braidlog.spark.options import OptionError
from braidlog.spark.source.options import Bound, Query
from braidlog.spark.source.positions import EARLIEST, LATEST, assigned, from_json, to_json

HERE = {"servers": "localhost:9092", "subscribe": "t"}


def query(streaming: bool | None = False, **options: str) -> Query:
    return Query({**HERE, **options}, streaming=streaming)


def refusal(streaming: bool = False, /, **options: str | None) -> str:
    given = {name: value for name, value in {**HERE, **options}.items() if value is not None}
    with pytest.raises(OptionError) as caught:
        Query(given, streaming=streaming)
    return str(caught.value)


def test_what_holds_without_options() -> None:
    batch, stream = query(), query(streaming=True)
    assert (batch.servers, batch.path) == ("kafka://localhost:9092", None)
    assert batch.start == Bound("startingOffsets", everywhere=EARLIEST)
    assert stream.start == Bound("startingOffsets", everywhere=LATEST)
    assert batch.end == Bound("endingOffsets", everywhere=LATEST)
    assert (batch.cuts.target_bytes, batch.on_loss, batch.committed_only) == (64 * 2**20, "fail", True)
    assert (batch.group_id, batch.include_headers, batch.value_format) == (None, False, "binary")


def test_the_kafka_connectors_names_are_taken() -> None:
    found = Query(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "Subscribe": "a, b", "failondataloss": "false", "kafka.group.id": "g"},
        streaming=True,
    )
    assert (found.servers, found.selection.topics, found.on_loss, found.group_id) == (
        "kafka://h:1",
        ("a", "b"),
        "skip",
        "g",
    )


def test_bounds() -> None:
    assert query(startingOffsets='{"t":{"0":23,"1":-2}}').start.offsets == {("t", 0): 23, ("t", 1): EARLIEST}
    assert query(startingTimestamp="5").start.time_ms == 5
    assert query(startingOffsetsByTimestamp='{"t":{"0":5}}').start.times_ms == {("t", 0): 5}
    assert query(endingOffsets='{"t":{"0":-1}}').end.offsets == {("t", 0): LATEST}
    assert query(endingTimestamp="5").end == Bound("endingTimestamp", time_ms=5)
    assert query(endingOffsetsByTimestamp='{"t":{"0":5}}').end.times_ms == {("t", 0): 5}


def test_selections() -> None:
    assigned_ = Query({"servers": "h:1", "assign": '{"a":[1,0],"b":[0]}'}, streaming=False).selection
    assert assigned_.places == (("a", 1), ("a", 0), ("b", 0))
    assert assigned_.has("a")
    assert not assigned_.has("c")
    pattern = Query({"servers": "h:1", "subscribePattern": "or.*s"}, streaming=False).selection
    assert pattern.has("orders")
    assert not pattern.has("orders2")  # the whole name, as Java's `matches` has it


@pytest.mark.parametrize(
    ("isolation", "url", "committed"),
    [
        (None, "kafka://h:1", True),
        (None, "kafka://h:1?isolation=read_uncommitted", False),
        ("read_committed", "kafka://h:1?isolation=read_uncommitted", True),
        ("READ_UNCOMMITTED", "kafka://h:1", False),
    ],
)
def test_isolation_is_the_options_then_the_urls(isolation: str | None, url: str, committed: bool) -> None:
    options = {**HERE, "servers": url} | ({} if isolation is None else {"isolation": isolation})
    assert Query(options, streaming=False).committed_only is committed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": None}, "exactly one of subscribe, subscribePattern, assign must be set, not 0"),
        ({"subscribePattern": "x"}, "must be set, not 2"),
        ({"servers": None}, "exactly one of servers, path must be set, not 0"),
        ({"path": "/x"}, "exactly one of servers, path must be set, not 2"),
        ({"servers": "flux://h:1"}, "whole batches need the Kafka listener"),
        ({"servers": "mayfly://h:1"}, "whole batches need the Kafka listener"),
        ({"subscribePattern": "(", "subscribe": None}, "a regular expression"),
        ({"assign": "[]", "subscribe": None}, "option assign = '[]'"),
        ({"assign": '{"t":[]}', "subscribe": None}, "instead of a list of partitions"),
        ({"assign": '{"t":["0"]}', "subscribe": None}, "'0' is not a partition"),
        ({"assign": "{}", "subscribe": None}, "no partition is named"),
        ({"startingOffsets": "middle"}, "it must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "-3 is not a valid offset of t/0"),
        ({"startingOffsets": '{"t":{"x":1}}'}, "'x' is not a partition of 't'"),
        ({"startingOffsets": '{"t":[1]}'}, "instead of partitions and numbers"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "True is not a valid offset"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "1.5 is not a valid offset"),
        ({"startingOffsets": "latest"}, "a batch that begins at the end reads nothing"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "a batch that begins at the end reads nothing"),
        ({"endingOffsets": "earliest"}, "a batch that ends at the beginning reads nothing"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "a batch that ends at the beginning reads nothing"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "it cannot be set together with startingTimestamp"),
        ({"endingTimestamp": "1", "endingOffsetsByTimestamp": "{}"}, "it cannot be set together with endingTimestamp"),
        ({"startingTimestamp": "yesterday"}, "a whole number of at least 0"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "-1 is not a valid offset of t/0"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "it must be error or latest"),
        ({"maxOffsetsPerTrigger": "5"}, "it is for streams only"),
        ({"maxBytesPerTrigger": "5"}, "it is for streams only"),
        ({"minPartitions": "0"}, "a whole number, 1 to 1000000"),
        ({"targetPartitionBytes": "some"}, "a number of bytes"),
        ({"onDataLoss": "shrug"}, "it must be fail, skip or report"),
        ({"onDataLoss": "skip", "failOnDataLoss": "true"}, "onDataLoss is skip"),
        ({"onDataLoss": "report"}, "it must be set if, and only if, onDataLoss = report"),
        ({"lossTopic": "l"}, "it must be set if, and only if, onDataLoss = report"),
        ({"valueFormat": "xml"}, "it must be binary, string, json, avro or protobuf"),
        ({"valueFormat": "json"}, "schemaRegistry or valueSchemaFile must be set"),
        ({"valueFormat": "avro", "valueSchema": "a INT"}, "it requires JSON values"),
        ({"valueFormat": "json", "valueSchema": "a INT", "schemaRegistry": "http://x"}, "excludes other schemas"),
        ({"valueSchema": "a INT"}, "it requires valueFormat = json, avro, protobuf"),
        ({"valueSubject": "s"}, "it requires valueFormat = json, avro, protobuf"),
        ({"valueFormat": "avro", "valueSchemaFile": "x", "valueVersion": "2"}, "it requires schemaRegistry"),
        ({"valueFormat": "avro", "schemaRegistry": "http://x", "valueVersion": "0"}, "a version number, or latest"),
        ({"valueFormat": "avro", "schemaRegistry": "http://x", "valueMessage": "M"}, "valueFormat = protobuf"),
        ({"badRecords": "drop"}, "it must be field, null or fail"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"isolation": "serializable"}, "it must be read_committed or read_uncommitted"),
        ({"path": "/x", "servers": None, "groupId": "g"}, "a folder has no groups"),
        ({"path": "/x", "servers": None, "onDataLoss": "report", "lossTopic": "l"}, "a folder is read-only"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"kafka.partition.assignment.strategy": "5"}, "there is no Java client here"),
    ],
)
def test_nonsense_is_refused(options: dict[str, str | None], said: str) -> None:
    assert said in refusal(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "it is for batches only"),
        ({"endingTimestamp": "1"}, "it is for batches only"),
        ({"maxTriggerDelay": "1s"}, "limits the wait for minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"}, "it must not exceed maxOffsetsPerTrigger = 5"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "a time such as"),
    ],
)
def test_nonsense_of_streams_is_refused(options: dict[str, str | None], said: str) -> None:
    assert said in refusal(True, **options)


def test_before_it_is_known_which_it_is_both_kinds_of_options_pass() -> None:
    query(None, endingOffsets="latest")
    query(None, maxOffsetsPerTrigger="5", startingOffsets="latest")


def test_offsets_are_the_kafka_connectors_json() -> None:
    assert to_json({("b", 10): 1, ("b", 9): 2, ("a", 0): 3}) == {"a": {"0": 3}, "b": {"9": 2, "10": 1}}
    assert from_json({"b": {"10": 1}}) == {("b", 10): 1}
    assert assigned({"b": [1, 1]}) == (("b", 1),)
