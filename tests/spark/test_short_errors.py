"""What a person at a prompt is told: a few lines, the cause last, and what to do about it. The same behind Spark Connect."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as RemoteSession
from tests.debian import have
from tests.spark.test_deployments import place

import braidlog
from braidlog.testing.server import ServerProcess

LINES_MAX = 8
TOPIC = "short-errors"


@pytest.fixture(scope="module")
def url(braid_server_shared: ServerProcess) -> str:
    found = f"kafka://127.0.0.1:{braid_server_shared.ports['kafka']}"
    with braidlog.connect(found) as client:
        client.admin.create_topic(TOPIC)
        producer = client.producer()
        for value in (b"a", b"b"):
            producer.send_and_wait(TOPIC, value)
    return found


@pytest.fixture(scope="module", params=["here", "connect"])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests, and a client of a server of its own."""
    if request.param == "here":
        yield request.getfixturevalue("spark")  # the folder's own
        return
    have("java", "openjdk-17-jre-headless")
    with place("connect", tmp_path_factory.mktemp("connect")) as environment:
        remote = RemoteSession.builder.remote(environment["SPARK_REMOTE"]).create()
        try:
            yield cast("SparkSession", remote)
        finally:
            remote.stop()


def told(act: Callable[[], object]) -> list[str]:
    """The lines of the error, without Spark's plan of the query and its code."""
    with pytest.raises(PySparkException) as caught:
        act()
    lines = str(caught.value).split("\n\nJVM stacktrace")[0].split("\n=== Streaming Query")[0].splitlines()
    return [line for line in lines if line.strip() and not line.strip().startswith("SQLSTATE")]


def test_reading_and_writing_a_topic_that_is_not_there(spark: SparkSession, url: str) -> None:
    reader = spark.read.format("braidlog").options(servers=url, subscribe="nope")
    lines = told(lambda: reader.load().count())
    assert lines[-1].endswith("option subscribe = 'nope': there is no such topic")
    assert len(lines) <= LINES_MAX, lines
    writer = spark.sql("SELECT 'a' AS value").write.format("braidlog").options(servers=url, topic="nope")
    lines = told(lambda: writer.mode("append").save())
    (said,) = [line for line in lines if "no topic 'nope'" in line]
    assert (
        "RefusedError: no topic 'nope': create it with `braid topic create nope`, or set the option createTopic" in said
    )
    assert lines.index(said) < LINES_MAX, lines


def test_a_table_of_the_catalog_is_refused_with_what_works(spark: SparkSession, url: str) -> None:
    options = f"USING braidlog OPTIONS (servers '{url}', subscribe '{TOPIC}')"
    lines = told(lambda: spark.sql(f"CREATE TABLE made {options}"))
    assert "CREATE TEMPORARY VIEW … USING braidlog OPTIONS" in lines[-1]
    # With columns Spark does not ask the source; then it is said when the table is read, and one way reads it.
    spark.sql(f"CREATE TABLE declared (offset BIGINT) {options}")
    try:
        assert "SELECT … FROM table WITH" in told(lambda: spark.table("declared").collect())[-1]
        given = f"servers = '{url}', subscribe = '{TOPIC}'"
        assert [row.offset for row in spark.sql(f"SELECT * FROM declared WITH ({given})").collect()] == [0, 1]
    finally:
        spark.sql("DROP TABLE declared")
    spark.sql(f"CREATE TEMPORARY VIEW viewed {options}")
    assert spark.sql("SELECT count(*) AS rows FROM viewed").first()["rows"] == 2  # type: ignore[index]
    spark.catalog.dropTempView("viewed")


def test_a_table_that_was_saved_says_how_it_is_read(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """Spark writes the rows and keeps a table whose options it does not hand out again."""
    topic = f"{TOPIC}-{tmp_path.name}"  # both sessions write to one node
    given = f"servers = '{url}', subscribe = '{topic}'"
    rows = spark.sql("SELECT X'6b' AS key, X'76' AS value")
    writer = rows.write.format("braidlog").options(servers=url, topic=topic, createTopic="1")
    writer.mode("append").saveAsTable("saved")
    try:
        assert "SELECT … FROM table WITH" in told(lambda: spark.table("saved").collect())[-1]
        assert [tuple(row) for row in spark.sql(f"SELECT * FROM saved WITH ({given})").collect()] == [(b"k", b"v")]
    finally:
        spark.sql("DROP TABLE saved")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("parse_json('{}')", "variant"),
        ("INTERVAL '1' DAY", "interval"),
        ("array(named_struct('interval', INTERVAL '1' MONTH))", "interval"),
    ],
)
def test_types_that_a_table_cannot_hold_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, column: str, kind: str
) -> None:
    rows = spark.sql(f"SELECT 1 AS id, {column} AS odd")
    writer = rows.write.format("braidlog-lake").options(path=str(tmp_path / "t"), table="delta").mode("append")
    lines = told(writer.save)
    assert f"tables written here do not support {kind}; cast it, as in to_json(odd)" in lines[-1]
    assert "column `odd` is " in lines[-1]
    assert len(lines) <= LINES_MAX, lines
    assert not (tmp_path / "t").exists()
