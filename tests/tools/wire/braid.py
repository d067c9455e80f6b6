"""The command, run as a person runs it."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SECONDS_MAX = 60


def braid(*words: str, given: bytes = b"") -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "braidlog.cli", *words],
        input=given,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class TapProcess:
    """`braid wire tap` on a free port, until the block ends; then what it wrote is whole."""

    def __init__(self, dialect: str, port: int, log: Path, *words: str) -> None:
        self._words = [
            "wire",
            "tap",
            "--listen",
            ":0",
            "--to",
            f"{dialect}://127.0.0.1:{port}",
            "--log",
            str(log),
            *words,
        ]
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "braidlog.cli", *self._words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        assert " -> " in line, line + self._process.stderr.read()
        self.port = int(line.split(" -> ")[0].rpartition(":")[2])
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        assert self._process is not None
        self._process.terminate()
        _, errors = self._process.communicate(timeout=SECONDS_MAX)
        assert kind is not None or (self._process.returncode == 0 and "Traceback" not in errors), errors
