"""A pipeline's tables of every format: written in pieces, read again, compacted by the command, made anew."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from braidlog.cli import main
from braidlog.spark.pipeline.config import FILE_NAME
from braidlog.spark.pipeline.layers import tables
from braidlog.spark.pipeline.project import open_project

TOML = """
name = "numbers"
[source]
topics = ["numbers"]
[silver]
schema = "id long"
[tables]
format = "{}"
"""


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_table_in_pieces_becomes_one_file(spark: SparkSession, tmp_path: Path, table_format: str) -> None:
    (tmp_path / FILE_NAME).write_text(TOML.format(table_format))
    project = open_project(tmp_path)
    schema = spark.range(1).schema
    assert tables.read(spark, project, "silver", schema).count() == 0
    for number in range(3):
        tables.append(spark.range(number * 10, number * 10 + 10, numPartitions=1), project, "silver")
    numbers = sorted(row.id for row in tables.read(spark, project, "silver", schema).collect())
    assert numbers == list(range(30))

    done = CliRunner().invoke(main, ["pipeline", "compact", str(tmp_path), "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)["silver"]
    assert (report["files_removed"], report["files_added"]) == (3, 1)
    assert sorted(row.id for row in tables.read(spark, project, "silver", schema).collect()) == numbers
    shown = CliRunner().invoke(main, ["pipeline", "compact", str(tmp_path), "--table", "silver"])
    assert shown.stdout.split()[:6] == ["TABLE", "FILES", "BECAME", "BYTES", "BECAME", "REMOVED"]
    assert CliRunner().invoke(main, ["pipeline", "compact", str(tmp_path), "--table", "gold"]).exit_code == 3

    tables.replace(spark.range(5), project, "silver")
    assert tables.read(spark, project, "silver", schema).count() == 5
    assert not (project.storage / "replaced").exists()


def test_tables_are_partitioned_and_get_columns_where_the_file_says_so(spark: SparkSession, tmp_path: Path) -> None:
    said = TOML.format("delta") + 'evolution = "add"\npartition_by = { silver = ["kind"] }\n'
    (tmp_path / FILE_NAME).write_text(said)
    project = open_project(tmp_path)
    first = spark.range(4, numPartitions=1).selectExpr("id", "id % 2 AS kind")
    later = first.selectExpr("id + 4 AS id", "kind", "'new' AS city")
    tables.append(first, project, "silver")
    tables.append(later, project, "silver")
    found = tables.read(spark, project, "silver", later.schema).orderBy("id").collect()
    assert [(row.id, row.kind, row.city) for row in found] == [(n, n % 2, None if n < 4 else "new") for n in range(8)]
    assert {each.name for each in project.table("silver").iterdir()} == {"_delta_log", "kind=0", "kind=1"}
    assert "partitionBy" not in tables.options(project, "bronze")
    (tmp_path / FILE_NAME).write_text(TOML.format("delta"))
    assert tables.options(open_project(tmp_path), "silver")["mergeSchema"] == "false"
