"""How many files one Produce passes: a reader has to open them all to follow it."""

import asyncio
from pathlib import Path

from tests.request_trace import produce_traced

FILES_MAX = 52
"""49 when it was written; a few more where the disk is slow, and the sync is not done on the loop."""


def test_a_produce_passes_few_files(tmp_path: Path) -> None:
    entered = asyncio.run(produce_traced(tmp_path / "data"))
    assert {"adapters/kafka/producing.py", "partition/append.py", "storage/durability.py"} <= set(entered)
    assert len(entered) <= FILES_MAX, sorted(entered)
