"""The rules for Prometheus speak of metrics that a node tells, and the guide's table is theirs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from braidlog.model.metric_rows import HISTOGRAM
from braidlog.model.metrics import TABLE
from braidlog.tools.alerts import ALERTS, RECORDINGS, markdown, rules

ROOT = Path(__file__).parents[2]
EXPRESSIONS = [each.expr for each in (*ALERTS, *RECORDINGS)]
METRICS = {row.name: row for row in TABLE}
TOLD_BY_PROMETHEUS = {"job", "instance", "le"}


def series(expr: str) -> list[tuple[str, str]]:
    """Each metric of braidlog in an expression, and what stands in braces behind it."""
    return re.findall(r"(?<![:\w])(braidlog_\w+)(?:\{([^}]*)\})?", expr)


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_an_expression_is_of_metrics_that_a_node_tells(expr: str) -> None:
    labels = set[str]()
    for name, chosen in series(expr):
        metric = METRICS[name.removesuffix("_bucket")]
        assert (metric.kind == HISTOGRAM) == name.endswith("_bucket"), name
        labels |= set(metric.labels)
        assert set(re.findall(r"(\w+)=", chosen)) <= set(metric.labels)
    recorded = set(re.findall(r"\w+:braidlog_\w+:\w+", expr))
    assert recorded <= {each.name for each in RECORDINGS}
    assert series(expr) or recorded or "node_filesystem_" in expr
    for by in re.findall(r"by \(([^)]*)\)", expr):
        assert set(by.split(", ")) <= labels | TOLD_BY_PROMETHEUS
    assert [expr.count(each) for each in "({["] == [expr.count(each) for each in ")}]"]


@pytest.mark.parametrize("of_cluster", [False, True])
def test_the_file_has_the_form_that_prometheus_reads(of_cluster: bool) -> None:
    found = yaml.safe_load(rules("mine", of_cluster=of_cluster))
    assert set(found) == {"groups"}
    named = [rule for group in found["groups"] for rule in group["rules"]]
    alerts = {rule["alert"]: rule for rule in named if "alert" in rule}
    assert list(alerts) == [each.name for each in ALERTS if of_cluster or not each.of_cluster]
    assert len(named) == len(alerts) + len(RECORDINGS)
    for each in ALERTS:
        if (rule := alerts.get(each.name)) is None:
            continue
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"(\d+[smh])?", rule.get("for", ""))
        assert rule["annotations"] == {"summary": each.what, "description": each.do}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["expr"] == each.expr.replace("JOB", "mine")


def test_prometheus_own_tool_takes_the_file(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not here: apt-get install prometheus")
    file = tmp_path / "rules.yml"
    file.write_text(rules("braidlog", of_cluster=True), encoding="utf-8")
    done = subprocess.run([program, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_guide_has_the_table() -> None:
    assert markdown() + "\n" in (ROOT / "docs/guides/operations.md").read_text(encoding="utf-8")
