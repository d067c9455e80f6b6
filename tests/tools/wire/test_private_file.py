"""Wire logs and captures are their owner's alone."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidlog.model.clock import SystemClock
from braidlog.tools.wire.capture.recorder import Recorder, RecorderSettings
from braidlog.tools.wire.private_file import create_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def lax_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_wire_log_and_its_capture_are_made_private(tmp_path: Path) -> None:
    text, capture = tmp_path / "wire.txt", tmp_path / "wire.pcapng"
    Recorder(RecorderSettings(str(text), "text", capture_path=str(capture)), SystemClock().now_ns).close()
    assert mode(text) == mode(capture) == 0o600


def test_a_file_that_others_could_read_becomes_private_and_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with create_private(str(path)) as file:
        file.write(b"n")
    assert (mode(path), path.read_bytes()) == (0o600, b"n")


def test_what_is_no_file_stays_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o644)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        create_private(str(pipe)).close()
        assert mode(pipe) == 0o644
    finally:
        os.close(reader)
