"""Programs of the distribution that some tests need: installed where that may be done.

Knows: apt-get. What would start a service when it is installed is only taken out of its package.
One worker at a time, whatever is installed: apt's lists have a lock that nobody waits for.
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


@cache
def taken_out(program: str, package: str) -> str:
    """Where the program is: one that is installed, or the package's, which is not."""
    with (Path(tempfile.gettempdir()) / "braidlog-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = Path(tempfile.gettempdir()) / "braidlog-programs"
        found = shutil.which(program) or shutil.which(program, path=str(folder / "usr/bin"))
        if found is not None:
            return found
        _apt(program, package, ["update"])
        folder.mkdir(exist_ok=True)
        _apt(program, package, ["download", package], folder)
        (archive,) = folder.glob(f"{package}_*.deb")
        unpack = f"dpkg-deb --fsys-tarfile {archive} | tar --extract --directory {folder} ./usr/bin/{program}"
        subprocess.run(["bash", "-e", "-o", "pipefail", "-c", unpack], timeout=SECONDS_MAX, check=True)
        archive.unlink()
        return str(folder / "usr/bin" / program)


def _install(program: str, package: str) -> None:
    for words in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        _apt(program, package, words)


def _apt(program: str, package: str, words: list[str], folder: Path | None = None) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Missing(f"{program} is not here, and only root on a Debian can change that: apt-get install {package}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, env=quiet, cwd=folder, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
