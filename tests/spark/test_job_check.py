"""What is said of a job that was written for Spark's Kafka connector."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from braidlog.cli import main
from braidlog.spark.job_check import check

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
    assert "where to start is said by startingOffsets" in refused.says


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
    assert "cannot be read as Python" in done.output


@pytest.mark.parametrize("text", ["", "spark.read.options(**settings).load()", "x.option(name, 1)"])
def test_what_cannot_be_told_is_not_guessed(text: str) -> None:
    assert check(text) == []
