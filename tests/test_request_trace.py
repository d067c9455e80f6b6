"""How many files one Produce passes: a reader has to open them all to follow it."""

import asyncio
from pathlib import Path

import pytest
from tests.request_trace import BY_THE_FLUSHER, ON_THE_LOOP, produce_traced


@pytest.mark.parametrize(
    ("synced", "files_max"), [pytest.param(ON_THE_LOOP, 28, id="loop"), pytest.param(BY_THE_FLUSHER, 32, id="flusher")]
)
def test_a_produce_passes_few_files(tmp_path: Path, synced: dict[str, float], files_max: int) -> None:
    entered = asyncio.run(produce_traced(tmp_path / "data", synced))
    assert {
        "adapters/kafka/records/produce_requests.py",
        "partition/produce/append.py",
        "storage/log/durability.py",
    } <= set(entered)
    assert len(entered) <= files_max, sorted(entered)
