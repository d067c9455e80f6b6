"""Runs a real node in a separate process for tests: start, stop, kill, restart.

A started process is always stopped, whatever the test does. The node's ports stay reserved while it is down. Does not
handle: the protocols on the ports.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from braidlog.wire.dialect import dialects

READY_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
_MORE_PORTS = ("admin.port", "registry.port", "cluster.peers.gossip_port", "cluster.peers.replica_port")


class ServerProcess:
    """`braid serve` on free ports over a data folder; with `admin`, its console too, at `admin_url`.

    `open_files_max`: the limit of open files and sockets (`ulimit -n`). `prefix`: a command in front of the node's,
    which must exec it (`nsenter …`). `host`: the address of its listeners.
    """

    module = "braidlog.cli"
    """The command; a test may replace parts of it."""

    def __init__(
        self,
        data_dir: str | Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
        admin: bool = False,
        open_files_max: int | None = None,
        prefix: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.data_dir = str(data_dir)
        self._arguments = arguments if admin else ("--set", "admin.enabled=false", *arguments)
        self._environment = environment or {}
        self._open_files_max = open_files_max
        self._prefix = prefix
        self.host = host
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._held: dict[str, tuple[int, int]] = {}
        """Setting → (a bound socket that never listens, its port)."""
        self.ports: dict[str, int] = {}
        self.admin_port: int | None = None
        self.registry_port: int | None = None

    def start(self) -> Self:
        command = [sys.executable, "-m", self.module, "serve", "--data-dir", self.data_dir]
        if self._open_files_max is not None:
            command = ["sh", "-c", f'ulimit -n {self._open_files_max}; exec "$@"', "sh", *command]
        if not self._held:
            self._held = {
                name: hold_port() for name in (*(f"listeners.{each}.port" for each in dialects()), *_MORE_PORTS)
            }
        for name, (_, port) in self._held.items():
            command += ["--set", f"{name}={port}"]
        if self._errors is None:
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed at the end
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            [*self._prefix, *command, *self._arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **self._environment},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self.wait()
            said = self.errors()
            self._errors.close()
            self._errors = None
            raise RuntimeError(f"the node did not start, exit code {code}:\n{said}")
        ready: dict[str, Any] = json.loads(line)
        self.ports = ready["ports"]
        self.admin_port = ready["admin"]
        self.registry_port = ready["registry"]
        return self

    @property
    def admin_url(self) -> str:
        """The URL of the console, without a trailing slash."""
        assert self.admin_port is not None, "started without admin=True"
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def registry_url(self) -> str:
        """The URL of the schema registry, without a trailing slash."""
        assert self.registry_port is not None, "started without admin=True"
        return f"http://127.0.0.1:{self.registry_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def errors(self) -> str:
        """Return what the node has written to stderr, in all its runs."""
        assert self._errors is not None
        descriptor = self._errors.fileno()
        # Without seeking: the node writes through the same open file, with a shared position.
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")

    def address(self, dialect: str) -> tuple[str, int]:
        return self.host, self.ports[dialect]

    def bootstrap(self, dialect: str = "kafka") -> str:
        """Return an address for clients that discover other nodes themselves."""
        return "{}:{}".format(*self.address(dialect))

    def resident_bytes(self) -> int:
        """Return the node's resident memory, from /proc."""
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        """Stop the node gracefully; return its exit code."""
        assert self._process is not None
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kill the node with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        assert self._process is not None
        code = self._process.wait(STOP_SECONDS_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def restart(self) -> Self:
        """Restart it with the same folder and ports, so that clients find it again."""
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill() if kind is not None else self.stop()
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        for descriptor, _ in self._held.values():
            os.close(descriptor)
        self._held = {}


def hold_port() -> tuple[int, int]:
    """Reserve a free port while the socket is open; a process that binds this port number may still listen on it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # a unique port: with SO_REUSEADDR set before, two sockets may get the same
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port: int = holder.getsockname()[1]
        return holder.detach(), port
