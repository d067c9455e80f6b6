"""A client's checks behind a process, asked one at a time: a crash or a hang costs one check, and the next gets a new process.

Knows: processes, lines, deadlines. Refuses to know: what is checked. Invariant: a process that was started is ended, by its id.
"""

import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
CHECK_SECONDS_MAX = 150


class Judge:
    """`command` reads names of checks on stdin and prints one line of JSON for each."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._said: list[str] = []
        self._threads: list[threading.Thread] = []

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(self._command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self._answers = queue.Queue()
        self._said = []
        self._threads = [
            threading.Thread(target=_forward, args=(process.stdout, self._answers.put, ""), daemon=True),
            threading.Thread(target=_forward, args=(process.stderr, self._said.append, None), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return process

    def ask(self, name: str) -> dict[str, Any]:
        """The verdict: `ok`, and `why` not."""
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=CHECK_SECONDS_MAX)
        except queue.Empty:
            line = ""
        if line:
            verdict: dict[str, Any] = json.loads(line)
            return verdict
        code = self.close()
        said = "".join(self._said[-40:])
        return {"check": name, "ok": False, "why": f"no verdict in time, or the client crashed (code {code}):\n{said}"}

    def close(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        code = process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        return code


def _forward(stream: Any, take: Any, last: str | None) -> None:
    for line in stream:
        take(line)
    if last is not None:
        take(last)
