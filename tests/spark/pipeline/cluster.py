"""A standalone cluster of Spark's on this machine, out of the pyspark wheel: a master and workers, each a process of its own.

Knows: Spark's scripts, and the lines by which its daemons say that they are ready. Ports are chosen by the system.
Invariant: every process that was started is ended, with the executors it has started.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

READY_SECONDS_MAX = 180
LOOK_SECONDS = 0.1
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = re.compile(r"Successfully registered with master")


class Daemon:
    """One JVM, in a process group of its own, its output in a file."""

    def __init__(self, folder: Path, name: str, *arguments: str, memory: str = "256m") -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        home = Path(os.environ["SPARK_HOME"])
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": memory,
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "PYSPARK_PYTHON": sys.executable,
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    def said(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait for a line."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            text = self._log.read_text(errors="replace")
            if found := pattern.search(text):
                return found
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._process.returncode}:\n{text[-4000:]}")
            try:
                self._process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        raise RuntimeError(f"{self.name} is not ready:\n{self._log.read_text(errors='replace')[-4000:]}")

    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class StandaloneCluster:
    """`with StandaloneCluster(folder, workers=2) as cluster: … cluster.url`."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._workers = workers
        self.daemons: list[Daemon] = []
        self.url = ""

    def __enter__(self) -> Self:
        free = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        try:
            self.daemons.append(Daemon(self._folder, "master", "org.apache.spark.deploy.master.Master", *free))
            self.url = self.daemons[0].said(_MASTER)[1]
            for number in range(self._workers):
                room = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}")]
                kind = "org.apache.spark.deploy.worker.Worker"
                self.daemons.append(Daemon(self._folder, f"worker-{number}", kind, *free, *room, self.url))
            for worker in self.daemons[1:]:
                worker.said(_WORKER)
        except BaseException:
            self._end()
            raise
        return self

    def executors(self) -> list[Path]:
        """A folder of each executor that ran: `work-<worker>/<application>/<number>`."""
        return sorted(path.parent for path in self._folder.glob("work-*/app-*/*/stderr"))

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.end()
