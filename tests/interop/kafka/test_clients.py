"""Foreign clients judge the Kafka port: every check of every client is a test of its own.

A plain run asks each check of one client, the next client for the next check; `make interop` (INTEROP=full) asks all of all.
`INTEROP_BROKER=apache` judges Apache Kafka instead: what fails there is a fault of the check.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.kafka.clients import CLIENTS, DEVIATIONS, is_built
from tests.interop.kafka.judging import Judge
from tests.interop.kafka.servers import IS_FULL, JUDGED

CHECKS = [(client.name, check) for client in CLIENTS.values() for check in client.checks]


def sample() -> list[tuple[str, str]]:
    """Every check once, and the clients in turn."""
    found = []
    for turn, check in enumerate(sorted({check for _, check in CHECKS})):
        able = [client.name for client in CLIENTS.values() if check in client.checks]
        found.append((able[turn % len(able)], check))
    return found


ASKED = CHECKS if IS_FULL else sorted(sample())


def case(client: str, check: str) -> object:
    reason = DEVIATIONS.get((client, check)) if JUDGED == "braid" else None
    marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
    return pytest.param(client, check, marks=marks, id=f"{client}-{check}")


@pytest.mark.parametrize(("client", "check"), [case(*each) for each in ASKED])
def test_check(client: str, check: str, judge_of: Callable[[str], Judge]) -> None:
    verdict = judge_of(client).ask(check)
    assert verdict["ok"], verdict["why"]


def test_every_client_checks_enough() -> None:
    assert {name: len(client.checks) for name, client in CLIENTS.items() if len(client.checks) < 20} == {}


def test_a_sample_leaves_out_no_check_and_no_client() -> None:
    assert {check for _, check in sample()} == {check for _, check in CHECKS}
    assert {client for client, _ in sample()} == set(CLIENTS)


def test_no_deviation_is_of_an_unknown_check() -> None:
    assert set(DEVIATIONS) <= set(CHECKS)


def test_a_stamp_without_jars_is_no_build(tmp_path: Path) -> None:
    (tmp_path / "classes").mkdir()
    (tmp_path / "classes/Checks.class").touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "built").touch()
    assert not is_built(tmp_path, 0)
    (tmp_path / "lib/kafka-clients.jar").touch()
    assert is_built(tmp_path, 0)
    assert not is_built(tmp_path, 2**40), "the sources are newer"
