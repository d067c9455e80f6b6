"""Programs of the distribution that some tests need: installed where that may be done.

Knows: apt-get. One worker at a time, whatever is installed: apt's lists have a lock that nobody waits for.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SECONDS_MAX = 600


class Missing(Exception):  # noqa: N818 - what it says
    """A program is not on this machine, and may not be put there."""


@cache
def have(program: str, package: str) -> None:
    """Root may install it; otherwise say what is missing. What the first worker has installed, the others find."""
    with (Path(tempfile.gettempdir()) / "braidlog-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shutil.which(program):
            _install(program, package)


def _install(program: str, package: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Missing(f"{program} is not here, and only root on a Debian can change that: apt-get install {package}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        command = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, env=quiet, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
