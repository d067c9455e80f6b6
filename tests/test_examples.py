"""An example that does not run is a lie: every file in examples/ is run as a person would run it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.debian import have

SECONDS_MAX = 600
EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, request: pytest.FixtureRequest) -> None:
    on_spark = example.name.startswith("spark_")
    if on_spark:
        have("java", "openjdk-17-jre-headless")
        request.getfixturevalue("spark_home")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows something"
    assert on_spark or done.stderr == ""  # Java talks while it starts


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_says_what_it_shows(example: Path) -> None:
    assert "promise" in example.read_text().split('"""')[1]


def test_first_log_run_twice_keeps_the_first_records(tmp_path: Path) -> None:
    [first] = [path for path in EXAMPLES if path.name == "first_log.py"]
    for expected in (2, 4):
        done = subprocess.run([sys.executable, first, tmp_path / "data"], capture_output=True, text=True, check=True)
        assert len([line for line in done.stdout.splitlines() if line[0].isdigit()]) == expected
