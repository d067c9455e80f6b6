"""A short campaign over three nodes, which has to end without a finding.

It is a process of its own, as `make nemesis` is: it moves to a network of its own. `NEMESIS_SEED` repeats the faults of
a run that printed it.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 900
CLEAN = ("kill -9", "SIGSTOP", "rolling restart")


def run(*faults: str, records: int) -> tuple[int, str]:
    seed = int(os.environ.get("NEMESIS_SEED", random.randrange(2**32)))
    chosen = ",".join(random.Random(seed).sample(faults, len(faults)))
    command = [sys.executable, "-m", "tests.nemesis.campaign", "--faults", chosen, "--seed", str(seed)]
    command += ["--records", str(records)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=False)
    print(done.stdout)
    return done.returncode, done.stdout


def test_three_nodes_under_faults_lose_nothing() -> None:
    code, said = run(*CLEAN, records=2000)
    assert code == 0
    for fault in CLEAN:
        assert f"\n{fault} " in said or f"\n{fault}: skipped" in said
