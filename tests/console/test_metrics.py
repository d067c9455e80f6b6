"""The metrics of a node that has done something are the figures of what it did."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.console.asking import ask, samples
from tests.console.waiting import until
from tests.reference.pages import metric_table

import braidlog
from braidlog import console, kv
from braidlog.model.reporting.metric_rows import COUNTER, GAUGE, HISTOGRAM
from braidlog.model.reporting.metrics import TABLE
from braidlog.testing.server import ServerProcess

ROOT = Path(__file__).parents[2]
RECORDS = 500


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(node: ServerProcess) -> Samples:
    answer = ask(f"{node.admin_url}/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(answer.text)


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


@pytest.fixture(scope="module")
def figures(node: ServerProcess) -> Samples:
    """What a node says that has taken records, handed them out, and kept keys."""
    with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
        client.admin.create_topic("orders", 2)
        producer = client.producer()
        for number in range(RECORDS):
            producer.send("orders", b"x" * 100, partition=number % 2)
        producer.flush()
        consumer = client.consumer()
        consumer.assign("orders")
        seen = 0
        while seen < RECORDS:
            seen += len(consumer.poll())
    with kv.connect(f"mayfly://127.0.0.1:{node.ports['mayfly']}") as store:
        for number in range(5):
            store.set(f"key-{number}", "value")
        assert store.get("key-1") == b"value"
    return until(lambda: found if value(found := scrape(node), "braidlog_kv_operations_total") == 6 else None)


@pytest.fixture(scope="module")
def busy(node: ServerProcess, figures: Samples) -> ServerProcess:
    """The same node, with a group and enough requests for their times to be taken."""
    with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
        client.admin.create_topic("table", settings={"braidlog.table": "raw"})
        for _ in range(64):  # of one request in 16 the time is taken
            client.admin.list_topics()
        consumer = client.consumer()
        consumer.assign("orders", group="first")
        until(consumer.poll)
        consumer.commit()
    until(lambda: "braidlog_group_lag_records{" in ask(f"{node.admin_url}/metrics").text)
    return node


def test_figures_are_those_of_what_was_done(figures: Samples) -> None:
    found = figures
    assert value(found, "braidlog_up") == 1
    assert value(found, "braidlog_appended_records_total") == RECORDS
    assert value(found, "braidlog_fetched_records_total") == RECORDS
    assert value(found, "braidlog_partition_high_watermark", topic="orders", partition="0") == RECORDS / 2
    assert value(found, "braidlog_partition_start_offset", topic="orders", partition="1") == 0
    size = sum(value(found, "braidlog_partition_size_bytes", topic="orders", partition=p) or 0 for p in "01")
    assert size == value(found, "braidlog_appended_bytes_total")
    assert RECORDS * 100 < size < RECORDS * 200
    assert value(found, "braidlog_kv_operations_total") == 6
    assert value(found, "braidlog_kv_mutations_total") == 5
    received = value(found, "braidlog_received_bytes_total", listener="kafka")
    sent = value(found, "braidlog_sent_bytes_total", listener="kafka")
    assert received is not None
    assert sent is not None
    assert received > RECORDS * 100
    assert sent > RECORDS * 100
    assert value(found, "braidlog_received_bytes_total", listener="flux") == 0
    assert (value(found, "braidlog_requests_total", listener="kafka", operation="Produce") or 0) >= 2
    assert (value(found, "braidlog_sync_seconds_count") or 0) > 0
    assert (value(found, "braidlog_process_resident_bytes") or 0) > 10_000_000
    assert value(found, "braidlog_state_entries", kind="partitions") == 3, "orders has two, and the keys' feed"
    assert value(found, "braidlog_state_entries_limit", kind="groups") == 10_000


def test_histograms_are_cumulative_and_end_with_all(busy: ServerProcess) -> None:
    def timed() -> list[tuple[str, str]]:
        text = ask(f"{busy.admin_url}/metrics").text
        return re.findall(
            r'braidlog_request_seconds_bucket\{le="([^"]+)",listener="kafka",operation="Metadata"\} (\S+)', text
        )

    rows = until(timed)
    bounds, counts = [float(bound) for bound, _ in rows], [float(count) for _, count in rows]
    assert bounds == sorted(bounds)
    assert bounds[-1] == float("inf")
    assert counts == sorted(counts)
    found = scrape(busy)
    labels = {"listener": "kafka", "operation": "Metadata"}
    assert (value(found, "braidlog_request_seconds_count", **labels) or 0) >= counts[-1]
    assert (value(found, "braidlog_request_seconds_sum", **labels) or 0) > 0


def test_a_group_has_its_lag_before_it_has_committed_anything(busy: ServerProcess) -> None:
    def lags() -> list[float | None]:
        found = scrape(busy)
        return [value(found, "braidlog_group_lag_records", group="watched", topic="orders", partition=p) for p in "01"]

    groups = value(scrape(busy), "braidlog_state_entries", kind="groups") or 0
    with braidlog.connect(f"kafka://127.0.0.1:{busy.ports['kafka']}") as client:
        consumer = client.consumer()
        consumer.subscribe("orders", group="watched")
        until(lambda: None not in lags())
        assert lags() == [RECORDS / 2, RECORDS / 2]
        assert value(scrape(busy), "braidlog_group_members", group="watched") == 1
        assert value(scrape(busy), "braidlog_state_entries", kind="groups") == groups + 1
        assert (value(scrape(busy), "braidlog_state_bytes") or 0) > 1000
        seen = 0
        while seen < RECORDS:
            seen += len(consumer.poll())
        consumer.commit()
        until(lambda: lags() == [0, 0])


def test_every_row_of_the_table_is_scraped_with_its_kind_and_its_labels(busy: ServerProcess) -> None:
    until(lambda: value(scrape(busy), "braidlog_table_bytes", topic="table") == 0)
    text = ask(f"{busy.admin_url}/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = scrape(busy)
    for row in TABLE:
        assert kinds[row.name] == row.kind
        ending = "_bucket" if row.kind == HISTOGRAM else ""
        labels = [set(dict(pairs)) - {"le"} for name, pairs in found if name == row.name + ending]
        assert labels, f"{row.name} has no sample"
        assert all(each == set(row.labels) for each in labels)
    assert set(kinds) == {row.name for row in TABLE}


def test_names_say_their_unit_and_kind() -> None:
    units = ("_seconds", "_bytes", "_records", "_offset", "_watermark", "_total")
    counts = {
        "braidlog_up", "braidlog_listener_up", "braidlog_kv_up", "braidlog_topics", "braidlog_connections",
        "braidlog_connections_limit", "braidlog_kv_keys", "braidlog_group_members", "braidlog_partitions_offline",
        "braidlog_partitions_read_only", "braidlog_process_open_files", "braidlog_process_open_files_limit",
        "braidlog_worker_up", "braidlog_worker_jobs_waiting", "braidlog_state_entries", "braidlog_state_entries_limit",
        "braidlog_partitions", "braidlog_scrub_partitions_left", "braidlog_cluster_nodes", "braidlog_cluster_leaders",
        "braidlog_cluster_under_replicated_partitions", "braidlog_cluster_below_min_isr_partitions",
        "braidlog_cluster_below_replication_factor_partitions",
        "braidlog_cluster_leaderless_partitions", "braidlog_cluster_etcd_up", "braidlog_quarantined",
        "braidlog_kv_leader_slots", "braidlog_kv_slots_under_replicated", "braidlog_table_failing",
    }  # fmt: skip
    for row in TABLE:
        assert row.kind in (COUNTER, GAUGE, HISTOGRAM)
        assert (row.kind == COUNTER) == row.name.endswith("_total"), row.name
        assert row.name.endswith(units) or row.name in counts, row.name


def test_the_guide_has_this_table() -> None:
    assert metric_table() in (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")


# -- the Grafana dashboard -----------------------------------------------------------------------------------------

DASHBOARD = Path(console.__file__).parent / "grafana.json"
ADDED_BY_PROMETHEUS = {"instance", "job"}
SELECTOR = re.compile(r"(braidlog_\w+)\{([^}]*)\}")


def queries() -> Iterator[str]:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


@pytest.fixture(scope="module")
def known(busy: ServerProcess) -> dict[str, set[str]]:
    """Names of samples that a node has which has served something, with their labels."""
    node = busy
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
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            grouped = re.search(r"by \(([^)]*)\)", target["expr"])
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert grouped is None or label in grouped[1].split(", "), target
