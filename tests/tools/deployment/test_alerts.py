"""The rules for Prometheus speak of metrics that a node tells, and the guide's table is theirs."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.debian import Missing, taken_out

from braidlog.model.reporting.metric_rows import HISTOGRAM
from braidlog.model.reporting.metrics import TABLE
from braidlog.tools.deployment.alerts import ALERTS, RECORDINGS, rules
from braidlog.tools.deployment.manifests import Deployment, prometheus

ROOT = Path(__file__).parents[3]
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


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return taken_out("promtool", "prometheus")
    except Missing as missing:
        pytest.skip(str(missing))


def judged(promtool: str, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_prometheus_own_tool_takes_the_files(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "braidlog-rules.yml").write_text(rules("braidlog", of_cluster=True), encoding="utf-8")
    token = tmp_path / "token"
    token.touch()
    text = prometheus(Deployment(admin=("n1:9644", "n2:9644"), token_file=str(token)))
    (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
    done = judged(promtool, tmp_path, "check", "config", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(ALERTS) + len(RECORDINGS)} rules found" in done.stdout


NODE = 'job="braidlog", instance="n1:9644"'
CASES = """
# A node that is away for less than a minute wakes nobody.
- name: a node goes away after a minute
  interval: 15s
  input_series:
    - {series: 'up{NODE}', values: '1x3 0x20'}
  alert_rule_test:
    - {alertname: BraidlogNodeDown, eval_time: 1m45s}
    - alertname: BraidlogNodeDown
      eval_time: 3m
      exp_alerts: [{exp_labels: {severity: critical, job: braidlog, instance: 'n1:9644'}}]
- name: a partition does not open
  interval: 15s
  input_series:
    - {series: 'braidlog_partitions_offline{NODE}', values: '0x3 2x4 0x4'}
  alert_rule_test:
    - {alertname: BraidlogPartitionOffline, eval_time: 45s}
    - alertname: BraidlogPartitionOffline
      eval_time: 1m
      exp_alerts: [{exp_labels: {severity: critical, job: braidlog, instance: 'n1:9644'}}]
    - {alertname: BraidlogPartitionOffline, eval_time: 2m30s}
# By way of the recording, over both partitions: each alone is below 10,000.
- name: a group falls behind, and another has only much to do
  interval: 1m
  input_series:
    - {series: 'braidlog_group_lag_records{NODE, group="slow", topic="orders", partition="0"}', values: '6000+100x60'}
    - {series: 'braidlog_group_lag_records{NODE, group="slow", topic="orders", partition="1"}', values: '6000+100x60'}
    - {series: 'braidlog_group_lag_records{NODE, group="busy", topic="orders", partition="0"}', values: '90000-100x60'}
  alert_rule_test:
    - {alertname: BraidlogGroupFallsBehind, eval_time: 10m}
    - alertname: BraidlogGroupFallsBehind
      eval_time: 40m
      exp_alerts: [{exp_labels: {severity: warning, job: braidlog, group: slow, topic: orders}}]
- name: syncs take half a second
  interval: 1m
  input_series:
    - {series: 'braidlog_sync_seconds_bucket{NODE, le="0.1"}', values: '0+1x30'}
    - {series: 'braidlog_sync_seconds_bucket{NODE, le="1"}', values: '0+100x30'}
    - {series: 'braidlog_sync_seconds_bucket{NODE, le="+Inf"}', values: '0+100x30'}
  alert_rule_test:
    - alertname: BraidlogSyncsSlow
      eval_time: 20m
      exp_alerts: [{exp_labels: {severity: warning, job: braidlog, instance: 'n1:9644'}}]
"""


def cases(text: str) -> str:
    """A file of promtool's own unit tests; what an alert says of itself is taken from the table."""
    told = {each.name: {"summary": each.what, "description": each.do} for each in ALERTS}
    found = yaml.safe_load(text.replace("{NODE", "{" + NODE))
    for expected in (each for case in found for each in case["alert_rule_test"]):
        for alert in expected.get("exp_alerts", ()):
            alert["exp_annotations"] = told[expected["alertname"]]
    return yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": found})


def test_alerts_come_when_they_should_and_not_before(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules("braidlog", of_cluster=True), encoding="utf-8")
    (tmp_path / "cases.yml").write_text(cases(CASES), encoding="utf-8")
    done = judged(promtool, tmp_path, "test", "rules", "cases.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "rules.yml").write_text(
        rules("braidlog", of_cluster=True).replace("for: 1m", "for: 1s"), encoding="utf-8"
    )
    assert judged(promtool, tmp_path, "test", "rules", "cases.yml").returncode != 0, "the comparison can fail"


def _table() -> str:
    """The table of docs/guides/operations.md."""
    lines = ["| alert | when | what to do |", "|---|---|---|"]
    for each in ALERTS:
        holds = f" for {each.holds}" if each.holds else ""
        when = f"`{each.expr.replace('JOB', 'braidlog')}`{holds}"
        lines.append(f"| {each.what}: `{each.name}`, {each.severity} | {when} | {each.do} |")
    return "\n".join(lines)


def test_the_guide_has_the_table() -> None:
    assert _table() + "\n" in (ROOT / "docs/guides/operations.md").read_text(encoding="utf-8")
