"""Spark queries report in, and are shown: what a pipeline's own reporter sends, and what is kept of it."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.console.asking import ask
from tests.console.waiting import until

from braidlog.console.monitoring.spark_pipelines import PIPELINES_MAX, STAGES_MAX, SparkPipelines, graph
from braidlog.console.monitoring.spark_queries import QUERIES_MAX, SparkQueries
from braidlog.model.reporting.node_report import QueryProgress
from braidlog.spark.pipeline.progress_reporting import AdminPort
from braidlog.testing.server import ServerProcess

PROGRESS = {
    "id": "b8d0c9f2-0b60-4b49-9b4c-0d8f5a3f3a11",
    "runId": "2c1a0d5e-7b5c-4a64-8f43-f0f5a2b0c0de",
    "name": "silver",
    "timestamp": "2026-11-15T10:00:00.000Z",
    "batchId": 17,
    "numInputRows": 1200,
    "inputRowsPerSecond": 120.5,
    "processedRowsPerSecond": 640.25,
    "durationMs": {"addBatch": 1500, "triggerExecution": 1874},
    "sources": [{"description": "braidlog[clicks]", "numInputRows": 1200}],
    "sink": {"description": "ParquetSink[<b>/lake</b>]", "numOutputRows": 1200},
}


def report(state: str = "running", **more: object) -> QueryProgress:
    fields = {"query": PROGRESS["id"], "run": PROGRESS["runId"], "name": "silver", "pipeline": "clicks", "state": state}
    return QueryProgress(**{**fields, **more})  # type: ignore[arg-type]


def silver(node: ServerProcess) -> list[dict[str, object]]:
    found = ask(f"{node.admin_url}/api/spark/queries").json()["queries"]
    return [query for query in found if query["query"] == PROGRESS["id"]]


def test_a_report_of_a_pipeline_is_kept_and_shown(node: ServerProcess) -> None:
    port = AdminPort(node.admin_url)
    try:
        port(report(progress=PROGRESS))
        (found,) = until(lambda: silver(node))
        assert found["progress"] == PROGRESS
        page = ask(f"{node.admin_url}/spark").text
        for shown in ("silver", "clicks", "running", ">17<", ">1200<", "120.5", "640.2", "1874 ms", "braidlog[clicks]"):
            assert shown in page, shown
        assert "&lt;b&gt;/lake&lt;/b&gt;" in page
        port(report("failed", error="java.lang.OutOfMemoryError: <script>"))
        until(lambda: "OutOfMemoryError: &lt;script&gt;" in ask(f"{node.admin_url}/spark").text)
        (found,) = silver(node)
        assert found["progress"] == PROGRESS, "the last word need not repeat the figures"
        assert found["reports"] == 2
    finally:
        port.close()


@pytest.mark.parametrize(
    "progress", [{}, {"durationMs": 3, "sink": [], "sources": ["x"]}, {"sources": None, "sink": None}]
)
def test_whatever_spark_may_say_later_the_page_stands(node: ServerProcess, progress: dict[str, object]) -> None:
    body = json.dumps({"query": "odd", "run": "r", "progress": progress}).encode()
    assert ask(f"{node.admin_url}/api/spark/progress", "POST", body=body, Content_Type="application/json").status == 204
    assert ask(f"{node.admin_url}/spark").status == 200


TABLES = {"bronze": "/srv/<shop>/tables/bronze", "silver": "s3://lake/shop/tables/silver"}


def stage_report(
    stage: str, batch: int, *, end: int, latest: int, reads: str = "orders", **more: object
) -> QueryProgress:
    offsets = {
        kind: {reads: {"0": at}, f"{reads}@id": {"0": 6148914691236517205}}
        for kind, at in (("endOffset", end), ("latestOffset", latest))
    }
    progress = {
        "batchId": batch,
        "numInputRows": 10,
        "processedRowsPerSecond": 20.0,
        "sources": [{"description": "PythonMicroBatchStream", **offsets}],
        "sink": {"description": "braidlog", "numOutputRows": 8},
        "stateOperators": [{"numRowsDroppedByWatermark": 2}],
        **more,
    }
    return QueryProgress(f"id of {stage}", "run", f"shop.{stage}", "shop", progress=progress, tables=TABLES)


def test_a_pipeline_is_the_sum_of_its_reports() -> None:
    pipelines = SparkPipelines()
    pipelines.take(stage_report("silver", 0, end=10, latest=10), 1_000)
    pipelines.take(stage_report("silver", 1, end=20, latest=50), 4_000)
    pipelines.take(stage_report("dead-letters", 0, end=50, latest=50, stateOperators=[]), 4_100)
    pipelines.take(stage_report("table", 0, end=5, latest=9, reads="shop.silver", sink={"description": "lake"}), 4_200)
    shop = pipelines.get("shop")
    assert shop is not None
    silver, dead, table = shop.stages.values()
    assert (silver.rows, silver.written, silver.dead, silver.late) == (20, 16, 0, 4)
    assert (silver.lag, silver.behind_seconds, silver.reads) == (30, 3.0, ("orders",))
    assert (dead.rows, dead.written, dead.dead, dead.lag, dead.behind_seconds) == (10, 8, 8, 0, 0.0)
    assert (table.written, table.lag) == (None, 4)
    assert shop.points() == [
        {"t": 1.0, "rows": 20.0, "lag": 0},
        {"t": 4.0, "rows": 20.0, "lag": 30},
    ], "a second apart at least"
    drawn = graph(shop)
    columns = {(box.kind, box.name): box.x for box in drawn.boxes}
    way = [("topic", "orders"), ("stage", "silver"), ("topic", "shop.silver"), ("stage", "table"), ("sink", "lake")]
    assert [columns[node] for node in way] == sorted({columns[node] for node in way}), "from left to right"
    assert len(drawn.lines) == 6
    pipelines.take(QueryProgress("id of silver", "run", "shop.silver", "shop", "failed", "no room"), 5_000)
    assert (silver.state, silver.error, silver.rows) == ("failed", "no room", 20)
    assert shop.tables == TABLES, "also after a report that names none"


def test_a_flow_of_sparks_own_pipelines_is_a_stage() -> None:
    """Its query is named after it alone."""
    pipelines = SparkPipelines()
    told = stage_report("", 0, end=5, latest=5, stateOperators=[])
    pipelines.take(msgspec.structs.replace(told, name="dead_letters"), 1_000)
    shop = pipelines.get("shop")
    assert shop is not None
    (letters,) = shop.stages.values()
    assert (letters.name, letters.dead) == ("dead_letters", 8)


def test_only_so_many_pipelines_and_stages_are_kept() -> None:
    pipelines = SparkPipelines()
    for number in range(PIPELINES_MAX + 1):
        pipelines.take(QueryProgress("q", "r", None, f"p{number}"), number)
    assert pipelines.get("p0") is None
    for number in range(STAGES_MAX + 1):
        pipelines.take(QueryProgress("q", "r", f"p1.{number}", "p1"), number)
    kept = pipelines.get("p1")
    assert kept is not None
    assert len(kept.stages) == STAGES_MAX
    many = {str(number): "" for number in range(STAGES_MAX + 1)}
    pipelines.take(QueryProgress("q", "r", "p1.0", "p1", tables=many), 0)
    assert len(kept.tables) == STAGES_MAX
    assert graph(kept).lines == []


def test_only_so_many_are_kept_those_that_reported_last() -> None:
    queries = SparkQueries()
    for number in range(QUERIES_MAX + 10):
        queries.report(json.dumps({"query": f"q{number}", "run": "r"}).encode(), number)
    queries.report(json.dumps({"query": "q20", "run": "r"}).encode(), 999)
    kept = [each.query for each in queries.queries()]
    assert len(kept) == QUERIES_MAX
    assert kept[:2] == ["q20", f"q{QUERIES_MAX + 9}"]
    assert "q5" not in kept


def test_it_says_so_once_and_goes_on_if_nobody_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ServerProcess(tmp_path / "data", admin=True) as node:
        url = node.admin_url
    port = AdminPort(url)
    port(report())
    port(report())
    port.close()
    assert caplog.text.count("cannot report progress") == 1
