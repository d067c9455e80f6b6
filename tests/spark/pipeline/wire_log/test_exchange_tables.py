"""The log of a real node's wires, summed up by Spark and, independently, by hand."""

import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from tests.console.browsing import chromium, opened
from tests.spark.pipeline.tables import rows_of

import braidlog
from braidlog import BrokerError, kv
from braidlog.cli import main
from braidlog.spark.pipeline import operations
from braidlog.spark.pipeline.layers import tables
from braidlog.spark.pipeline.project import open_project
from braidlog.spark.pipeline.wire_log import exchange_tables
from braidlog.testing.server import ServerProcess

IDS = {"flux": "Id", "kafka": "CorrID", "mayfly": "ReqID"}


def talk(node: ServerProcess) -> None:
    """A little on every door, and something that each refuses."""
    for dialect in ("mlog", "flux", "cursus", "rustlog", "kafka"):
        with braidlog.connect(f"{dialect}://127.0.0.1:{node.ports[dialect]}") as client:
            client.admin.ensure_topic("shared")
            client.producer().send_and_wait("shared", b'a value with "error_code":1 in it')
            consumer = client.consumer()
            consumer.assign("shared", start="earliest")
            assert consumer.poll(timeout=30)
            with pytest.raises(braidlog.ClientError):
                client.admin.describe_topic("nowhere")
    with kv.connect(f"mayfly://127.0.0.1:{node.ports['mayfly']}") as store:
        store.rpush("list", "one")
        assert store.get("nothing") is None
        with pytest.raises(braidlog.ClientError):
            store.get("list")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wires")
    with ServerProcess(folder / "data", "--wire-log", str(folder / "wire.jsonl"), "--wire-format", "json") as node:
        talk(node)
    return folder / "wire.jsonl"


def by_hand(log: Path) -> list[tuple[str, str, int, int | None, float | None]]:
    """Every request: dialect, command, bytes, bytes of the answer, milliseconds."""
    waiting: dict[tuple[str, object], list[dict[str, object]]] = defaultdict(list)
    pairs: list[tuple[dict[str, object], dict[str, object] | None]] = []
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if entry["event"] != "message":
            continue
        key = entry["connection"], entry["head"].get(IDS.get(entry["dialect"], ""))
        if entry["side"] == "client":
            waiting[key].append(entry)
        elif waiting[key]:
            pairs.append((waiting[key].pop(0), entry))
    pairs += [(entry, None) for left in waiting.values() for entry in left]
    found = []
    for request, answer in pairs:
        took = None
        if answer is not None:
            moments = [datetime.fromisoformat(str(each["time"])) for each in (request, answer)]
            took = round((moments[1] - moments[0]).total_seconds() * 1000, 3)
        sizes = request["bytes"], answer and answer["bytes"]
        found.append((request["dialect"], request["name"], *sizes, took))
    return found  # type: ignore[return-value]


def test_every_request_with_its_answer(spark: SparkSession, log: Path) -> None:
    rows = exchange_tables.exchanges(exchange_tables.read(spark, str(log))).cache()
    seen = rows.collect()
    mine = [(row.dialect, row.command, row.request_bytes, row.answer_bytes, row.latency_ms) for row in seen]
    assert sorted(map(str, mine)) == sorted(map(str, by_hand(log)))

    errors = {(row.dialect, row.command): row.error for row in seen if row.error}
    assert errors[("cursus", "METADATA")] == "topic_not_found"
    assert errors[("kafka", "Metadata")] == "3"
    assert errors[("mayfly", "GET")] == "WRONG_TYPE"
    assert errors[("rustlog", "DescribeTopic")] == "404"
    assert errors[("flux", "ADMIN_CREATE_TOPIC")] == "BAD_REQUEST"
    assert ("kafka", "Produce") not in errors
    assert ("kafka", "Fetch") not in errors  # a value that looks like an error is none

    covered = exchange_tables.span(rows)
    assert covered is not None
    commands = {(row.dialect, row.command): row for row in exchange_tables.commands(rows, covered.seconds).collect()}
    assert sum(row.requests for row in commands.values()) == len(mine)
    for (dialect, command), row in commands.items():
        took = sorted(each[4] for each in by_hand(log) if each[:2] == (dialect, command) and each[4] is not None)
        assert row.per_second == pytest.approx(row.requests / covered.seconds)
        assert row.bytes_in == sum(each[2] for each in by_hand(log) if each[:2] == (dialect, command))
        if took:
            middle = (took[(len(took) - 1) // 2] + took[len(took) // 2]) / 2
            assert row.p50_ms == pytest.approx(middle)
            assert row.max_ms == pytest.approx(took[-1])
            assert took[0] <= row.p99_ms <= took[-1]
    bins = exchange_tables.bins(rows, covered, 7).collect()
    assert sum(row.requests for row in bins) == len(mine)
    assert {row.bin for row in bins} <= set(range(7))
    assert {row.dialect for row in bins} == {"mlog", "flux", "cursus", "rustlog", "kafka", "mayfly"}
    rows.unpersist()


def test_the_project_makes_tables_and_a_page(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "wires"
    done = CliRunner().invoke(main, ["pipeline", "init", str(folder), "--template", "wire-log"])
    assert done.exit_code == 0, done.output
    (folder / "wire.jsonl").write_bytes(log.read_bytes())
    project = open_project(folder)
    tables.replace(spark.range(3), project, "commands")  # as if by a run before: another takes its place
    analysed = operations.analyse(spark, project)
    exchanges = rows_of(project, "exchanges")
    assert len(exchanges) == analysed.requests == len(by_hand(log))
    assert sum(row.requests for row in rows_of(project, "commands")) == len(exchanges)
    assert sum(row.requests for row in rows_of(project, "bins")) == len(exchanges)

    with chromium() as browser, opened(browser, analysed.page.as_uri(), width=380) as page:
        headings = page.locator("h2").all_inner_texts()
        assert headings == ["cursus", "flux", "kafka", "mayfly", "mlog", "rustlog"]
        assert page.locator("svg polyline").count() >= 6
        rows = page.locator("section", has_text="mayfly").locator("tbody tr td:first-child").all_inner_texts()
        assert {"GET", "RPUSH"} <= set(rows)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light

    (folder / "wire.jsonl").write_text("no log\n")
    with pytest.raises(BrokerError, match="has no messages"):
        operations.analyse(spark, project)
    (folder / "wire.jsonl").unlink()
    with pytest.raises(BrokerError, match=r"wire\.jsonl: no such log"):
        operations.analyse(spark, project)
