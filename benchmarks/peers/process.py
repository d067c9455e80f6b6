"""A peer's process: started in a folder of its own, ready when its port answers, ended by its id.

Knows: processes and ports. Refuses to know: which peer it is.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

READY_SECONDS_MAX = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PeerProcess:
    """Subclasses say how it is started; `folder` is gone afterwards."""

    name = "peer"

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"braid-peer-{self.name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self.command(), cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                socket.create_connection(self.address, 1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not start: {' '.join(self.command())}") from None
                self._wait(0.05)
            else:
                return self

    def _wait(self, seconds: float) -> None:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
