"""What is refused before anything is written, and in what words."""

from typing import Any

import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from braidlog.codec.compression import Compression
from braidlog.spark.columns import ColumnError
from braidlog.spark.options import OptionError
from braidlog.spark.sink.columns import check_record
from braidlog.spark.sink.options import Settings
from braidlog.spark.sink.writers import batch_writer, stream_writer

GIVEN = {"servers": "localhost:9092", "topic": "t"}


@pytest.mark.parametrize(
    ("streaming", "options", "said"),
    [
        (False, {"servers": ""}, "servers"),
        (False, {"servers": "rustlog://localhost"}, "Kafka listener"),
        (False, {"topic": "a b"}, "topic"),
        (False, {"delivery": "twice"}, "exactly_once or at_least_once"),
        (False, {"compression": "brotli"}, "lz4"),
        (False, {"batchBytes": "10"}, "1024"),
        (False, {"batchBytes": "1g"}, "16777216"),
        (False, {"stageTimeout": "16m"}, "15m"),
        (False, {"stageTimeout": "0"}, "15m"),
        (False, {"createTopic": "0"}, "createTopic"),
        (False, {"sinkId": "s"}, "together"),
        (False, {"batchId": "3"}, "together"),
        (True, {"batchId": "3", "sinkId": "s"}, "numbers its batches itself"),
        (True, {"sinkId": "x" * 200}, "sinkId"),
        (True, {"sinkId": "s", "delivery": "at_least_once"}, "has no effect"),
        (True, {"kafka.acks": "1"}, "no Java client"),
        (True, {"toppic": "x"}, "did you mean topic"),
    ],
)
def test_options_that_cannot_be_honoured(streaming: bool, options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Settings({**GIVEN, **options}, streaming=streaming)


def test_what_holds_without_options() -> None:
    stream = Settings({"kafka.bootstrap.servers": "localhost:9092"}, streaming=True)
    assert (stream.exactly_once, stream.sink_id, stream.batch_id, stream.topic) == (True, None, None, None)
    assert (stream.codec, stream.batch_bytes, stream.stage_timeout) == (Compression.NONE, 1 << 20, 900_000)
    first, second = (Settings(GIVEN, streaming=False) for _ in range(2))
    assert first.batch_id == 0
    assert first.sink_id != second.sink_id, "each write is a sink of its own"
    named = Settings({**GIVEN, "sinkId": "s", "batchId": "7", "compression": "ZSTD"}, streaming=False)
    assert (named.sink_id, named.batch_id, named.codec) == ("s", 7, Compression.ZSTD)


def test_a_repr_tells_no_token() -> None:
    shown = repr(Settings({**GIVEN, "servers": "kafka://me:secret@localhost:9092"}, streaming=True))
    assert "localhost:9092" in shown
    assert "secret" not in shown


def pairs(key: str, value: DataType) -> DataType:
    return ArrayType(StructType([StructField(key, StringType()), StructField("value", value)]))


TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "headers": pairs("key", BinaryType()),
    "texts": pairs("key", StringType()),
    "misnamed": pairs("k", BinaryType()),
    "map": MapType(StringType(), BinaryType()),
}


def schema(text: str) -> Any:
    """`name type, …` without a session to ask."""
    words = [each.split() for each in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in words])


@pytest.mark.parametrize(
    "text",
    [
        "value binary",
        "value string, key string",
        "key binary, value binary, headers headers, topic string, partition int, timestamp timestamp",
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int",
    ],
)
def test_columns_that_are_taken(text: str) -> None:
    check_record(schema(text), topic="t")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("key string", "needs a column `value` .binary or string"),
        ("value int", "`value` must be binary or string, not int"),
        ("value string, key bigint", "`key` must be binary or string, not bigint"),
        ("value string, partition bigint", "`partition` must be int, not bigint"),
        ("value string, topic int", "`topic` must be string"),
        ("value string, timestamp bigint", "`timestamp` must be timestamp"),
        ("value string, timestamp timestamp_ntz", "`timestamp` must be timestamp"),
        ("value string, headers map", "`headers` must be array<struct<key:string,value:binary>>"),
        ("value string, headers texts", "`headers` must be array"),
        ("value string, headers misnamed", "`headers` must be array"),
        ("value string, price double", "`price` is not part of a record"),
        ("value string, value string", "2 times"),
    ],
)
def test_columns_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(ColumnError, match=said):
        check_record(schema(text), topic="t")


def test_a_topic_is_said_somewhere() -> None:
    with pytest.raises(ColumnError, match="set the option topic"):
        check_record(schema("value string"), topic=None)
    check_record(schema("value string, topic string"), topic=None)


def test_a_log_is_appended_to() -> None:
    with pytest.raises(OptionError, match=r'mode\("append"\)'):
        batch_writer(schema("value string"), GIVEN, overwrite=True)
    with pytest.raises(OptionError, match=r"append only; for update and complete, .*upsert\.topic"):
        stream_writer(schema("value string"), GIVEN, overwrite=True)


def test_writers_travel() -> None:
    column = schema("value string")
    for made in (batch_writer(column, GIVEN, overwrite=False), stream_writer(column, GIVEN, overwrite=False)):
        serializer: Any = CPickleSerializer()
        there = serializer.loads(serializer.dumps(made))
        assert there.sink == made.sink
