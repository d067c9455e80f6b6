"""franz-go's and kafka-go's own tests against nodes in processes of their own: `make interop`.

What must pass is what passes against Apache Kafka with the same command (`INTEROP_BROKER=apache`); go_suites.py names what
braidlog answers otherwise, with the reason.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tests.debian import Missing
from tests.interop.kafka.go_suites import SUITES, Suite, build, run, verdicts
from tests.interop.kafka.judging import ROOT
from tests.interop.kafka.kafka_go_network import ALONE
from tests.interop.kafka.servers import IS_FULL, JUDGED, Servers

RECORDS = "20000"
"""Of franz-go's pipelines, instead of half a million: minutes, not an hour."""
DOCS = ROOT / "docs" / "dialects" / "kafka.md"
Run = Callable[[Iterable[str]], dict[str, str]]


def franz_go(suite: Suite, servers: Servers, _folder: Path) -> Run:
    told = {"KGO_SEEDS": servers.plain, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": RECORDS, "KGO_LOG_LEVEL": "none"}
    told |= {"KGO_TEST_SCRAM": f"{servers.user}:{servers.password}:512", "KGO_TEST_SCRAM_SEEDS": servers.sasl}
    return lambda only: run(suite, told, only=only)


def kafka_go(suite: Suite, _servers: Servers, folder: Path) -> Run:
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        raise Missing("a network of its own is needed for ports 9092 and 9093: unshare --net is not allowed here")
    told = {"KAFKA_VERSION": "4.0.0", "KAFKA_SKIP_NETTEST": "1", "PYTHONPATH": str(ROOT)}
    before = [*ALONE, sys.executable, "-m", "tests.interop.kafka.kafka_go_network"]

    def run_it(only: Iterable[str]) -> dict[str, str]:
        place = folder / ("again" if only else "first")
        place.mkdir()
        return run(suite, told, [*before, str(place)], only)

    return run_it


@pytest.mark.skipif(not IS_FULL, reason="minutes: make interop")
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_suite(suite: Suite, servers: Servers, tmp_path: Path) -> None:
    try:
        build(suite)
        ask = (franz_go if suite.name == "franz-go" else kafka_go)(suite, servers, tmp_path)
    except Missing as reason:
        pytest.skip(str(reason))
    outcomes = ask(())
    excused = set(suite.exceptions if JUDGED == "braid" else suite.peer)
    if suspects := {test.partition("/")[0] for test in failed(outcomes) - excused}:
        # Their limits are seconds of the wall clock, and this machine may be busy. What fails twice is ours.
        outcomes |= ask(sorted(suspects))
    shown = "\n".join(f"--- {test}\n{outcomes[test]}" for test in sorted(failed(outcomes) - excused))
    assert failed(outcomes) <= excused, shown
    if JUDGED == "braid":
        assert excused <= failed(outcomes), "these pass, and lose their rows"
    print(f"{suite.name}: {list(outcomes.values()).count('')} of {len(outcomes)} passed")


def failed(outcomes: dict[str, str]) -> set[str]:
    return {test for test, why in outcomes.items() if why not in ("", "skipped")}


def test_a_whole_is_judged_by_its_parts() -> None:
    said = """
--- FAIL: TestA (1.00s)
    --- PASS: TestA/one (0.50s)
    --- FAIL: TestA/two (0.50s)
--- PASS: TestB (0.00s)
    --- SKIP: TestB/one (0.00s)
--- FAIL: TestC (0.00s)
    --- PASS: TestC/one (0.00s)
"""
    found = verdicts(said)
    assert failed(found) == {"TestA/two", "TestC"}
    assert sorted(found) == ["TestA/one", "TestA/two", "TestB/one", "TestC", "TestC/one"]


def test_the_page_names_every_suite() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert {suite.package for suite in SUITES if f"`{suite.package}`" not in page} == set()
