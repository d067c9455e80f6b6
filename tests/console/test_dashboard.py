"""Every query of the dashboard asks for something that a node has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.console.asking import ask, samples
from tests.console.waiting import until

import braidlog
from braidlog import console
from braidlog.console.dashboard import text
from braidlog.testing.server import ServerProcess

FILE = Path(console.__file__).parent / "grafana.json"
ADDED_BY_PROMETHEUS = {"instance", "job"}
SELECTOR = re.compile(r"(braidlog_\w+)\{([^}]*)\}")


def queries() -> Iterator[str]:
    board = json.loads(FILE.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


@pytest.fixture(scope="module")
def known(node: ServerProcess) -> dict[str, set[str]]:
    """Names of samples that a node has which has served something, with their labels."""
    with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
        client.admin.create_topic("t")
        client.producer().send_and_wait("t", b"x")
        for _ in range(64):
            client.admin.list_topics()
        consumer = client.consumer()
        consumer.subscribe("t", group="g")

        def scraped() -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for name, labels in samples(ask(f"{node.admin_url}/metrics").text):
                found.setdefault(name, set()).update(dict(labels))
            return found

        return until(lambda: each if "braidlog_group_lag_records" in (each := scraped()) else None)


@pytest.mark.parametrize("query", list(queries()))
def test_each_name_and_label_of_a_query_is_scraped(known: dict[str, set[str]], query: str) -> None:
    selectors = SELECTOR.findall(query)
    assert len(selectors) == len(re.findall("braidlog_", query)), "a metric without a selector"
    for name, matchers in selectors:
        assert name in known
        labels = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', matchers))
        assert labels <= known[name] | ADDED_BY_PROMETHEUS
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        for label in grouped.split(", "):
            assert any(label in known[name] for name, _ in selectors) or label in ADDED_BY_PROMETHEUS, label


def test_legends_use_labels_that_the_query_leaves() -> None:
    board = json.loads(FILE.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            grouped = re.search(r"by \(([^)]*)\)", target["expr"])
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert grouped is None or label in grouped[1].split(", "), target


def test_the_file_is_what_the_table_makes() -> None:
    assert FILE.read_text(encoding="utf-8") == text()
