"""Every example runs as its first lines say, or is run by a test of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SAID = {
    "first_log.py": "1: b'log'",
    "embedded_tour.py": "after reopening, the next offset is 3",
    "one_client_many_wires.py": "rustlog  sees 3: written through rustlog",
}
"""Those that run alone, and something that they print."""


@pytest.mark.parametrize("name", SAID)
def test_it_runs_and_says_what_it_promises(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert SAID[name] in done.stdout


def test_every_example_is_run_by_some_test() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    for example in EXAMPLES.glob("*.py"):
        assert any(example.name in source for source in sources), f"{example.name} is run by nobody"
