"""Debian's tshark: installed where it may be, run over a capture, its trees read as (name, value) pairs."""

import fcntl
import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path

import pytest

SECONDS_MAX = 120
Tree = list[tuple[str, str]]


@cache
def have_tshark() -> None:
    """Root may install it, one worker at a time; otherwise the reason is printed."""
    with (Path(tempfile.gettempdir()) / "braidlog-tshark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shutil.which("tshark"):
            _install()


def _install() -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("tshark is not installed, and only root on a Debian can change that: apt-get install tshark")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "tshark"]):
        command = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=quiet, check=False)
        if done.returncode:
            pytest.skip(f"tshark cannot be installed: {done.stderr[-500:]}")


def trees(capture: Path, protocol: str, port: int, script: Path | None = None) -> list[Tree]:
    """Every tree of `protocol` in a capture, in order."""
    have_tshark()
    command = ["tshark", "-r", str(capture), "-d", f"tcp.port=={port},{protocol}", "-T", "pdml"]
    if script is not None:
        command[1:1] = ["-X", f"lua_script:{script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    assert "Lua Error" not in done.stdout + done.stderr, done.stdout[:2000] + done.stderr
    return [
        [(field.get("name", ""), field.get("show", "")) for field in proto.iter("field")]
        for proto in ET.fromstring(done.stdout).iter("proto")
        if proto.get("name") == protocol
    ]
