"""Foreign clients judge the Kafka port: every check of every client is a test of its own.

`INTEROP_BROKER=apache` judges Apache Kafka instead: what fails there is a fault of the check.
"""

from collections.abc import Callable

import pytest
from tests.interop.kafka.clients import CLIENTS, DEVIATIONS
from tests.interop.kafka.judging import Judge
from tests.interop.kafka.servers import JUDGED

CHECKS = [(client.name, check) for client in CLIENTS.values() for check in client.checks]


def case(client: str, check: str) -> object:
    reason = DEVIATIONS.get((client, check)) if JUDGED == "braid" else None
    marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
    return pytest.param(client, check, marks=marks, id=f"{client}-{check}")


@pytest.mark.parametrize(("client", "check"), [case(*each) for each in CHECKS])
def test_check(client: str, check: str, judge_of: Callable[[str], Judge]) -> None:
    verdict = judge_of(client).ask(check)
    assert verdict["ok"], verdict["why"]


def test_every_client_checks_enough() -> None:
    assert {name: len(client.checks) for name, client in CLIENTS.items() if len(client.checks) < 20} == {}


def test_no_deviation_is_of_an_unknown_check() -> None:
    assert set(DEVIATIONS) <= set(CHECKS)
