"""What the node answers about schemas when a comparison takes more than it may."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from braidlog.broker.services import Services
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.reporting.node_report import Question
from braidlog.registry.compatibility import Comparison, Level, Whole
from braidlog.registry.schemas import Schema
from braidlog.server import schema_requests
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.unauthenticated_limits import AccessGate
from braidlog.server.schema_requests import COMPARISONS, SchemaQuestions

INT, LONG = (Whole(Schema(f'"{kind}"'), {}) for kind in ("int", "long"))
SECONDS_MAX = 60


class Nothing:
    """Stands for services that no comparison uses."""

    def __getattr__(self, name: str) -> None:
        return None


def wide(kind: str) -> Whole:
    objects = ",".join(f'{{"type":"object","properties":{{"p{each}":{{"type":"{kind}"}}}}}}' for each in range(1500))
    return Whole(Schema(f'{{"anyOf":[{objects}]}}', "JSON"), {})


def compared(*comparisons: Comparison) -> list[Any]:
    async def run() -> list[Any]:
        questions = SchemaQuestions(cast("Services", Nothing()), cast("AccessGate", Nothing()), Budget(1 << 30))
        running = asyncio.ensure_future(questions.comparisons.run())
        try:
            async with asyncio.timeout(SECONDS_MAX):
                asked = [Question(1, "compare_schemas", payload=msgspec.msgpack.encode(each)) for each in comparisons]
                return await asyncio.gather(*map(questions.answers["compare_schemas"], asked), return_exceptions=True)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return asyncio.run(run())


def test_a_comparison_says_what_does_not_fit() -> None:
    forward = Comparison(INT, [LONG], Level.FORWARD)
    assert compared(Comparison(LONG, [INT], Level.BACKWARD), forward) == [[], []]
    [found] = compared(Comparison(INT, [LONG], Level.BACKWARD))
    assert "TYPE_MISMATCH" in found[0]


@pytest.mark.parametrize(
    ("limits", "limit"),
    [({"job_seconds_max": 0.0001}, "0.0001 s"), ({"memory_bytes_max": 1}, "1 bytes of memory"), ({}, "pairs of types")],
)
def test_a_limit_of_a_comparison_is_named(limits: dict[str, Any], limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = msgspec.structs.replace(COMPARISONS, job_seconds_max=SECONDS_MAX)
    monkeypatch.setattr(schema_requests, "COMPARISONS", msgspec.structs.replace(settings, **limits))
    [error] = compared(Comparison(wide("integer"), [wide("string")], Level.BACKWARD))
    assert isinstance(error, BrokerError)
    assert error.reason is Reason.INVALID_SETTING
    assert f"takes more than {limit}" in str(error) or f"more than 100000 {limit}" in str(error)
    assert "use fewer branches" in str(error)
