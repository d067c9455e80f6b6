"""Real members of etcd on loopback, each a process with a folder of its own. ETCD names another program than Debian's."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.debian import have

from braidlog.cluster.etcd.port import Put
from braidlog.model.clock import SystemClock
from braidlog.server.etcd.gateway import Gateway
from braidlog.testing.server import hold_port

START_SECONDS_MAX = 60.0


class Member:
    """One process. `stop` and `start` keep its folder."""

    def __init__(
        self, name: str, folder: Path, client: int, peer: int, cluster: str, scheme: str, program: str
    ) -> None:
        self.name = name
        self.url = f"{scheme}://127.0.0.1:{client}"
        self._folder = folder
        self._words = [
            program, "--name", name, "--data-dir", str(folder / name),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", cluster,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, sync_ms: int = 0) -> None:
        """`sync_ms`: how much longer its disk takes for each sync."""
        words = [*_slowly(sync_ms), *self._words, *options]
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def wait_until_healthy(self) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            assert self._process is not None
            assert self._process.poll() is None, f"{self.name} has ended"
            with contextlib.suppress(URLError, OSError), urlopen(f"{self.url}/health", timeout=5) as answer:
                if b'"true"' in answer.read():
                    return
            assert time.monotonic() < until, f"{self.name} is not healthy"

    def clock_ahead_seconds(self) -> float:
        """How far its wall clock is from ours, by the date of an answer."""
        with urlopen(f"{self.url}/health", timeout=5) as answer:
            date = parsedate_to_datetime(answer.headers["Date"])
        return date.timestamp() - SystemClock().now_ms() / 1000

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None


def _slowly(sync_ms: int) -> list[str]:
    """By strace, beside the process: etcd makes its system calls itself, and no library that is loaded before it is asked."""
    if not sync_ms:
        return []
    have("strace", "strace")
    delay = f"inject=fdatasync,fsync:delay_exit={sync_ms * 1000}"
    words = ["strace", "-D", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"]
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode:
        pytest.skip(f"no process may be traced here: {tried.stderr.strip()[-200:]}")
    return [*words, "-e", delay]


async def fill(etcd: Gateway) -> None:
    """Beyond a quota of 16 MiB."""
    for number in range(200):
        await etcd.write([Put(b"/s/%d" % number, bytes(1024 * 1024))])


@contextlib.contextmanager
def members(
    folder: Path, count: int, *options: str, scheme: str = "http", program: str | None = None
) -> Iterator[list[Member]]:
    if program is None:
        have("etcd", "etcd-server")
        program = os.environ.get("ETCD", "etcd")
    held = [hold_port() for _ in range(2 * count)]
    ports = [port for _, port in held]
    cluster = ",".join(f"m{number}=http://127.0.0.1:{ports[2 * number + 1]}" for number in range(count))
    all_of_them = [
        Member(f"m{number}", folder, ports[2 * number], ports[2 * number + 1], cluster, scheme, program)
        for number in range(count)
    ]
    try:
        for member in all_of_them:
            member.start(*options)
        for member in all_of_them:
            if scheme == "http":  # else whoever asks waits
                member.wait_until_healthy()
        yield all_of_them
    finally:
        for member in all_of_them:
            member.kill()
        for holder, _ in held:
            os.close(holder)
