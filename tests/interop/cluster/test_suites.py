"""Clients' own tests against three nodes: Cursus's; franz-go's with three replicas, its pipelines also while nodes are killed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.debian import Missing
from tests.interop.kafka.clients import own_tests, source_of
from tests.interop.kafka.go_suites import SUITES, run

from braidlog.testing.cluster_process import NODES, ClusterProcess

FRANZ_GO = next(suite for suite in SUITES if suite.name == "franz-go")
PIPELINES = ("TestGroupETL", "TestTxnEtl")
RECORDS = "10000"
KILL_EVERY_SECONDS = 20.0
CURSUS = "cursus-client"
CURSUS_TESTS = 14


def judge(cluster: ClusterProcess, *only: str) -> dict[str, str]:
    """What failed, and what it said."""
    seeds = cluster.url("kafka").removeprefix("kafka://")
    settings = {"KGO_SEEDS": seeds, "KGO_TEST_RF": "3", "KGO_TEST_RECORDS": RECORDS, "KGO_LOG_LEVEL": "none"}
    try:
        outcomes = run(FRANZ_GO, settings, only=only)
    except Missing as reason:
        pytest.skip(str(reason))
    passed = ("", "skipped")
    return {test: why for test, why in outcomes.items() if why not in passed and test not in FRANZ_GO.exceptions}


@pytest.mark.parametrize("number", NODES)
def test_cursus_client(cluster: ClusterProcess, number: int, tmp_path: Path) -> None:
    """Its distribution, which asks one node; before its cluster is damaged."""
    folder = source_of(CURSUS, version(CURSUS))
    host, port = cluster[number].address("cursus")
    address = f'import pytest\n\n\n@pytest.fixture\ndef broker_addr():\n    return "{host}:{port}"\n'
    (folder / "tests/integration/conftest.py").write_text(address, encoding="utf-8")
    outcomes = own_tests(folder, ["tests/integration"], tmp_path / "report.xml")
    failed = {test: why for test, why in outcomes.items() if why}
    assert (len(outcomes), failed) == (CURSUS_TESTS, {})


def test_franz_go(cluster: ClusterProcess) -> None:
    failed = judge(cluster)
    assert not failed, "\n".join(f"--- {test}\n{why}" for test, why in failed.items())


def test_franz_gos_pipelines_while_nodes_are_killed(cluster: ClusterProcess) -> None:
    ended = threading.Event()

    def kill_nodes() -> int:
        kills = 0
        while not ended.wait(KILL_EVERY_SECONDS):
            node = cluster[NODES[kills % len(NODES)]]
            node.kill()
            node.restart()
            kills += 1
        return kills

    with ThreadPoolExecutor(1) as pool:
        kills = pool.submit(kill_nodes)
        try:
            failed = judge(cluster, *PIPELINES)
        finally:
            ended.set()
    assert kills.result(), "the tests ended before the first kill"
    assert not failed, "\n".join(f"--- {test}\n{why}" for test, why in failed.items())
