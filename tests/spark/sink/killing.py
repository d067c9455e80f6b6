"""Drivers that can be killed with everything they started, and what is committed in the end."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

END_SECONDS_MAX = 300


class Driver:
    """A process of a module such as `driver.py`, its Java and its Python workers: one session, so that none is forgotten."""

    def __init__(self, module: str, *arguments: str | Path) -> None:
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed at the end
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=Path(__file__).parents[3],
        )

    def said(self) -> str:
        descriptor = self._said.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")[-8000:]

    def wait_for(self, path: Path, seconds_max: float) -> None:
        """Until the driver has made this file."""
        deadline = time.monotonic() + seconds_max
        while not path.exists():
            assert self._process.poll() is None, f"the driver ended:\n{self.said()}"
            assert time.monotonic() < deadline, f"{path.name} does not come:\n{self.said()}"
            threading.Event().wait(0.05)

    def kill(self) -> None:
        """kill -9, all of them at once."""
        for pid in processes_of(self._process.pid):
            _kill(pid)
        self._process.wait(END_SECONDS_MAX)

    def kill_workers(self) -> int:
        """kill -9 the Python processes that run tasks; Spark and its driver live on. How many there were."""
        found = workers_of(self._process.pid)
        for pid in found:
            _kill(pid)
        return len(found)

    def kill_java(self) -> None:
        """kill -9 the JVM; its driver in Python finds out by itself, and ends."""
        (java,) = (pid for pid, words in _commands_of(self._process.pid) if "SparkSubmit" in words)
        _kill(java)
        assert self._process.wait(END_SECONDS_MAX) != 0, f"the driver went on without Java:\n{self.said()}"

    def finish(self) -> None:
        code = self._process.wait(END_SECONDS_MAX)
        assert code == 0, f"the driver ended with {code}:\n{self.said()}"
        assert "done" in self.said()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.said())
        self.kill()
        self._said.close()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def processes_of(session: int) -> list[int]:
    """The processes of a session, whichever groups they have made for themselves."""
    return [pid for pid, (_, _, found, _) in _all().items() if found == session]


def _commands_of(session: int) -> list[tuple[int, str]]:
    return [(pid, words) for pid, (_, _, found, words) in _all().items() if found == session]


def workers_of(session: int) -> list[int]:
    """The children of Spark's Python daemon."""
    seen = _all()
    daemons = {pid for pid, (_, _, found, words) in seen.items() if found == session and "pyspark.daemon" in words}
    return [pid for pid in daemons if seen[pid][0] in daemons]


def _all() -> dict[int, tuple[int, int, int, str]]:
    """pid → parent, group, session, command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except (OSError, IndexError):
                continue  # it ended while we looked
            found[int(entry.name)] = (int(fields[1]), int(fields[2]), int(fields[3]), words)
    return found
