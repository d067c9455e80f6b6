"""What is said of a job that was written for Spark's Kafka connector."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from braidlog.cli import main
from braidlog.spark.job_check import check
from braidlog.spark.kafka_options import TUNING
from braidlog.spark.options import OptionError
from braidlog.spark.source.options import Query

CONNECTOR = {
    "assign": '{"t":[0]}',
    "subscribe": "t",
    "subscribePattern": "t.*",
    "kafka.bootstrap.servers": "n:1",
    "kafka.group.id": "g",
    "kafka.isolation.level": "read_committed",
    "kafka.auto.offset.reset": "earliest",
    "kafka.key.deserializer": "x",
    "kafka.value.deserializer": "x",
    "kafka.enable.auto.commit": "true",
    "kafka.interceptor.classes": "x",
    "startingTimestamp": "1",
    "startingOffsetsByTimestamp": '{"t":{"0":1}}',
    "startingOffsets": "earliest",
    "startingOffsetsByTimestampStrategy": "error",
    "endingTimestamp": "1",
    "endingOffsetsByTimestamp": '{"t":{"0":1}}',
    "endingOffsets": "latest",
    "failOnDataLoss": "false",
    "maxOffsetsPerTrigger": "1",
    "minOffsetsPerTrigger": "1",
    "maxTriggerDelay": "1m",
    "minPartitions": "1",
    "maxRecordsPerPartition": "1",
    "includeHeaders": "true",
    "groupIdPrefix": "g",
    "kafkaConsumer.pollTimeoutMs": "1",
    "fetchOffset.numRetries": "1",
    "fetchOffset.retryIntervalMs": "1",
    "partition.metadata.cache.ttl.ms": "1",
}
"""As in Spark's guide to it (4.3), with a value that it takes."""
JOB = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.jars.packages", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0").getOrCreate()
rows = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", "n:9092")
    .option("subscribe", "t")
    .options(**{"kafka.sasl.mechanism": "PLAIN", "failOnDataLoss": "false"})
    .option("kafka.max.poll.records", 500)
    .option("kafka.auto.offset.reset", "earliest")
    .load()
)
(
    rows.writeStream.format("kafka").outputMode("update")
    .partitionBy("day")
    .option("kafka.compression.type", "lz4")
    .trigger(continuous="1 second")
    .start()
)
rows.write.partitionBy("day").parquet("x")
"""


def test_what_differs_is_named_by_its_line() -> None:
    found = [(each.line, each.what, each.verdict) for each in check(JOB)]
    assert found == [
        (3, "spark.jars.packages", "change"),
        (5, "format(kafka)", "change"),
        (8, "kafka.sasl.mechanism", "same"),
        (9, "kafka.max.poll.records", "same"),
        (10, "kafka.auto.offset.reset", "refused"),
        (14, "format(kafka)", "change"),
        (14, "outputMode(update)", "change"),
        (15, "partitionBy", "change"),
        (16, "kafka.compression.type", "same"),
        (17, "trigger(continuous)", "refused"),
    ]
    (refused,) = [each for each in check(JOB) if each.what == "kafka.auto.offset.reset"]
    assert "use startingOffsets" in refused.says


def verdicts(text: str) -> dict[str, str]:
    return {each.what: each.verdict for each in check(text) if not each.what.startswith("format")}


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("kafka.acks", "all", "same"),
        ("kafka.acks", "1", "refused"),
        ("kafka.ssl.truststore.type", "PEM", "same"),
        ("kafka.ssl.truststore.type", "JKS", "refused"),
        ("kafka.security.protocol", "SASL_SSL", "same"),
        ("kafka.security.protocol", "TLS", "refused"),
        ("kafka.ssl.endpoint.identification.algorithm", "", "refused"),
        ("kafka.delivery.timeout.ms", "1", "same"),
        ("partition.metadata.cache.ttl.ms", "1", "same"),
    ],
)
def test_a_value_may_decide(name: str, value: str, verdict: str) -> None:
    assert verdicts(f'df.write.format("kafka").option("{name}", "{value}")') == {name: verdict}
    assert verdicts(f'df.write.format("kafka").options(**{{"{name}": "{value}"}})') == {name: verdict}


def test_an_option_that_kafkas_connector_ignores_is_refused_here_and_named() -> None:
    """By the direction of its chain; options of other formats are theirs."""
    text = """
spark.readStream.option("subscribePatern", "a.*").format("kafka").load().writeStream.format("delta").option("mergeSchema", 1)
df.write.format("kafka").option("startingOffsets", "earliest").option("topic", "t").save()
df.write.format("csv").option("header", "true").option("topik", "t").save()
reader.option("kafka.group.id", "g").option("header", "true")
"""
    found = {each.what: (each.line, each.verdict) for each in check(text)}
    assert found == {
        "subscribePatern": (2, "refused"),
        "format(kafka)": (3, "change"),
        "startingOffsets": (3, "refused"),
    }
    (typo,) = [each for each in check(text) if each.what == "subscribePatern"]
    assert "did you mean subscribePattern?" in typo.says


def test_what_is_said_is_what_happens() -> None:
    """Every option of Spark's Kafka connector, and of its Java client as far as it is named here, by running it."""
    for name in sorted({*TUNING, *CONNECTOR}):
        value = CONNECTOR.get(name, "1")
        said = verdicts(f'spark.readStream.format("kafka").option("{name}", {value!r})').get(name)
        options = {"kafka.bootstrap.servers": "n:1", "subscribe": "t", name: value}
        if name in ("assign", "subscribePattern"):
            del options["subscribe"]
        if name == "maxTriggerDelay":
            options["minOffsetsPerTrigger"] = "1"
        try:
            Query(options, streaming=not name.startswith("ending"))
        except OptionError:
            assert said == "refused", name
        else:
            assert said != "refused", name


def test_the_command(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    done = CliRunner().invoke(main, ["spark", "check", str(job)])
    assert done.exit_code == 1
    assert "outputMode(update)" in done.output
    job.write_text('spark.read.format("braidlog").option("subscribe", "t")', encoding="utf-8")
    done = CliRunner().invoke(main, ["spark", "check", str(job), "-o", "json"])
    assert (done.exit_code, json.loads(done.output)) == (0, [])
    job.write_text("spark.read.(", encoding="utf-8")
    done = CliRunner().invoke(main, ["spark", "check", str(job)])
    assert "is not valid Python" in done.output


@pytest.mark.parametrize("text", ["", "spark.read.options(**settings).load()", "x.option(name, 1)"])
def test_what_cannot_be_told_is_not_guessed(text: str) -> None:
    assert check(text) == []
