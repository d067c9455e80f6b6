"""A short campaign over a node as it is, which has to end without a finding; and over nodes with a bug, each of which is found.

Each is a process of its own, as `make attack` is, which goes on for as long as it is told to: clients of others bring their own
threads and warnings. `ATTACK_SEED` repeats the choices of a run that printed it.
"""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND = 3
SECONDS_MAX = 900
CLEAN = (
    "cut connections",
    "kill -9",
    "clock jump",
    "power cut",
    "pause",
    "unsynced lost",
    "hostile clients",
    "closed long polls",
    "full disk",
    "EIO",
    "damaged copy",
)
FINDS = {
    "acknowledge before sync": (
        ("unsynced lost",),
        "does not find it|was given to|was committed, and|was counted|two increments were answered",
    ),
    "skip the folder sync": (
        ("unsynced lost",),
        "does not find it|was given to|was committed, and|was counted|cannot read|did not start",
    ),
    "reuse an offset": ((), "was given to"),
    "forget an aborted transaction": ((), "which was aborted"),
}
"""Bug → the attacks that bring it to light, and what is said then."""


def run(*attacks: str, bug: str = "") -> tuple[int, str]:
    seed = int(os.environ.get("ATTACK_SEED", random.randrange(2**32)))
    chosen = ",".join(random.Random(seed).sample(attacks, len(attacks)))
    command = [sys.executable, "-m", "tests.attack.campaign", "--attacks", chosen, "--seed", str(seed), "--bug", bug]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=False)
    print(done.stdout)
    return done.returncode, done.stdout


def test_a_node_under_attack_loses_nothing() -> None:
    code, said = run(*CLEAN)
    assert code == 0
    for attack in CLEAN:
        assert f"\n{attack} " in said or f"\n{attack}: skipped" in said


@pytest.mark.parametrize("bug", FINDS)
def test_a_planted_bug_is_found(bug: str) -> None:
    attacks, finding = FINDS[bug]
    code, said = run(*attacks, bug=bug)
    assert code == FOUND
    assert re.search(f"^FOUND .*({finding})", said, re.MULTILINE)
