"""Tables in a catalog that speaks Iceberg's REST protocol: Iceberg's own server. Spark reads them with Iceberg's runtime."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks.peers import maven
from tests.tables.filled import fill
from tests.tables.rest_catalog import rest_catalog
from tests.tables.turned import NOW, expected_of, plan_of, rows_of, table_of, turn

from braidlog.model.errors import BrokerError
from braidlog.model.settings import TableForm
from braidlog.storage.embedded_log import Log, Topic
from braidlog.tables import catalog
from braidlog.tables.plan import Plan, TablePlace

SPARK = Path(__file__).parent / "spark"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TablePlace]:
    folder = tmp_path_factory.mktemp("rest")
    warehouse = f"file://{folder}/warehouse"
    with rest_catalog(folder, warehouse) as url:
        yield TablePlace(warehouse, {"type": "rest", "uri": url}, "topics")


@pytest.fixture
def topic(tmp_path: Path, request: pytest.FixtureRequest) -> Topic:
    topic = Log(str(tmp_path / "data")).create_topic(request.node.name, partitions=2, segment_bytes=4096)
    fill(topic, 10)
    return topic


def planned(topic: Topic, place: TablePlace, *, form: TableForm = TableForm.RAW, retention_ms: int = -1) -> Plan:
    plan = plan_of(topic, Path(), form=form, retention_ms=retention_ms, now_ms=NOW + 10_000)
    return msgspec.structs.replace(plan, place=place)


def test_rows_are_the_committed_records(topic: Topic, place: TablePlace) -> None:
    """Added twice, with new columns the second time; then those let go that are too old."""
    turn(planned(topic, place))
    topic.append(b'{"late": 1}', partition=1, timestamp_ms=NOW + 9_000)
    plan = planned(topic, place, form=TableForm.JSON)
    done = turn(plan)
    assert (rows_of(table_of(plan)), done.rows) == (expected_of(topic), len(expected_of(topic)))
    assert table_of(plan).scan("late = 1").to_arrow()["partition"].to_pylist() == [1]
    assert turn(plan) == done, "what is turned is not turned again"
    turn(planned(topic, place, retention_ms=2_000))
    rows = [row for row in expected_of(topic) if row[0] == 0 or b"late" in (row[3] or b"")]
    assert rows_of(table_of(plan)) == rows, "partition 0 ends with a record of today"


def test_of_two_who_turn_the_same_one_commit_wins(
    topic: Topic, place: TablePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server applies what it is sent to whatever is newest, unless it is told what must not have changed."""
    plan = planned(topic, place)
    only = msgspec.structs.replace(plan, parts=plan.parts[:1])
    commit = catalog.commit

    def late(*given: object) -> None:
        monkeypatch.setattr(catalog, "commit", commit)
        turn(only)
        commit(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(catalog, "commit", late)
    assert turn(plan).files == 2
    assert rows_of(table_of(plan)) == expected_of(topic)


def test_a_topic_made_again_has_a_table_of_its_own(topic: Topic, place: TablePlace, tmp_path: Path) -> None:
    first = planned(topic, place)
    turn(first)
    rows = rows_of(table_of(first))
    again = Log(str(tmp_path / "other")).create_topic(topic.name)
    again.append(b"new")
    second = planned(again, place)
    turn(second)
    assert rows_of(table_of(second)) == [(0, 0, None, b"new")]
    assert rows_of(table_of(msgspec.structs.replace(first, topic=f"{topic.name}_{first.topic_id[:8]}"))) == rows


def test_a_catalog_that_is_not_there_is_told(topic: Topic, place: TablePlace) -> None:
    nowhere = msgspec.structs.replace(place, catalog={"type": "rest", "uri": "http://127.0.0.1:9"})
    with pytest.raises(BrokerError, match=r"cannot write the table of topic .*: ConnectionError"):
        turn(planned(topic, nowhere))


@pytest.mark.skipif(
    os.environ.get("ICEBERG_SPARK") != "all", reason="installs another Spark beside ours: make iceberg-spark"
)
def test_spark_reads_the_committed_records_with_icebergs_runtime(topic: Topic, place: TablePlace) -> None:
    """All of them, with the columns that came later, also after files were let go."""
    turn(planned(topic, place))
    for n in range(20):
        topic.append(
            b'{"n": %d, "text": "\xc3\xa9", "deep": {"x": [1]}}' % n, partition=n % 2, timestamp_ms=NOW + 9_000
        )
    topic.append(b'{"n": 1.5, "more": true}', partition=1, timestamp_ms=NOW + 9_500)
    turn(planned(topic, place, form=TableForm.JSON))
    expected = [(at, record) for at in range(topic.partitions) for record in topic.iterate(partition=at)]
    rows, few = spark_rows(place, topic.name)
    assert [(row["partition"], row["offset"], of(row["key"]), of(row["value"])) for row in rows] == expected_of(topic)
    for row, (_, record) in zip(rows, expected, strict=True):
        assert row["timestamp"] == record.timestamp_ms
        assert [(each["key"], of(each["value"])) for each in row["headers"] or ()] == list(record.headers)
        fields = json.loads(record.value) if record.value and record.value.startswith(b"{") else {}
        whole = None if fields.get("n") == 1.5 else fields.get("n")  # the column has whole numbers since partition 0
        assert (row["n"], row["text"], row["more"]) == (whole, fields.get("text"), fields.get("more"))
        assert row["deep"] == ('{"x":[1]}' if "deep" in fields else None)
    assert few == [record.offset for at, record in expected if at == 1 and record.offset >= 3]
    turn(planned(topic, place, retention_ms=2_000))
    rows, _ = spark_rows(place, topic.name)
    assert {row["partition"] for row in rows if row["timestamp"] < NOW + 8_000} == {0}, (
        "partition 0 has a record of today"
    )


def of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def spark_rows(place: TablePlace, name: str) -> tuple[list[dict[str, Any]], list[int]]:
    """All, and the offsets of those that a filter leaves."""
    (jar,) = maven.jars(SPARK / "pom.xml", "iceberg-spark").glob("iceberg-spark-runtime*.jar")
    python = maven.CACHE / "spark-4.1" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pyspark>=4.1,<4.2"], check=True)  # unless it is there
    words = [str(python), str(SPARK / "read_table.py"), str(jar), place.catalog["uri"], name]
    clean = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=900, env=clean)
    assert not done.returncode, done.stderr[-4000:]
    *rows, few = map(json.loads, done.stdout.splitlines())
    return rows, few
