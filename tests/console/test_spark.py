"""Spark queries report in, and are shown: what a pipeline's own reporter sends, and what is kept of it."""

import json
from pathlib import Path

import pytest
from tests.console.asking import ask
from tests.console.waiting import until

from braidlog.console.spark_queries import QUERIES_MAX, SparkQueries
from braidlog.model.queries import QueryProgress
from braidlog.spark.pipeline.reporting import AdminPort
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
    assert caplog.text.count("progress is not reported") == 1
