"""A short campaign over three nodes: each fault but starvation once, 50,000 records, no finding; and a bug that is found.

A starved node serves slowly on purpose, and a busy machine starves it further: `make nemesis` draws that fault, too.

It is a process of its own, as `make nemesis` is: it moves to a network of its own. The faults are the same in every run, at
other moments; `make nemesis` draws others, and `NEMESIS_SEED` repeats those of a run that printed it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 1800
FAULTS = 15
RECORDS = 50_000
FOUND = 3
LONG_CUTS = "1746"
"""A seed whose first three cuts last more than five seconds each: time enough for another leader."""


def run(*words: str, seed: str = "") -> tuple[int, str]:
    seed = seed or os.environ.get("NEMESIS_SEED", "11")
    command = [sys.executable, "-m", "tests.nemesis.campaign", "--seed", seed, *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=False)
    print(done.stdout)
    return done.returncode, done.stdout


def figure(said: str, name: str) -> int:
    (found,) = re.findall(rf"^{name} +(\d+)$", said, re.MULTILINE)
    return int(found)


def test_three_nodes_under_faults_lose_nothing() -> None:
    code, said = run("--rounds", "3", "--without", "starvation", "--records", str(RECORDS // FAULTS))
    assert code == 0
    assert figure(said, "faults") + figure(said, "skipped") == FAULTS
    assert figure(said, "records acknowledged") >= RECORDS


def test_an_acknowledgement_before_the_set_has_the_record_is_found() -> None:
    faults = ["--faults", "cut off,cut off,cut off", "--records", "500"]
    code, said = run(*faults, "--bug", "acknowledge before the set", seed=LONG_CUTS)
    assert code == FOUND
    assert re.search(r"^FOUND .*(was given to|does not find it)", said, re.MULTILINE)
