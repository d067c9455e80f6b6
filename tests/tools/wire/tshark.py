"""Debian's tshark: installed where it may be, run over a capture, its trees read as (name, value) pairs."""

import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests.debian import Missing, have

SECONDS_MAX = 120
Tree = list[tuple[str, str]]


def have_tshark() -> None:
    """Where it may not be installed the reason is printed."""
    try:
        have("tshark", "tshark")
    except Missing as missing:
        pytest.skip(str(missing))


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
