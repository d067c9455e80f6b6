"""An etcd member that a node runs as a child process.

Invariants: a member ends with its node: by a kernel signal after a kill, and as the last step of a clean stop. A
member that ends alone is restarted while the node serves. At most one process runs on a folder: a start ends what an
earlier one left. A program version that is known to lose data is not started.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from braidlog.cluster.etcd.port import EtcdRefusedError
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.etcd.http_connection import Connection, parse_endpoint

log = logging.getLogger("braidlog.metadata")

PACKAGE: Final = "braidlog_etcd"
START_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.05
WATCH_SECONDS: Final = 0.25
AGAIN_SECONDS_MIN: Final = 1.0
AGAIN_SECONDS_MAX: Final = 30.0
"""Delay before a member that ended is restarted; doubled each time, until one has run for `CALM_SECONDS`."""
CALM_SECONDS: Final = 300.0
"""How long health reports a restarted member."""
LAST_WORDS_BYTES: Final = 4096
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
_END_WITH_PARENT: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: survives execv, tied to the thread that forked: the loop's
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Run before the program, in its process. On SIGTERM etcd hands over its leadership, as in a clean stop."""


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one of the members in `initial_cluster` (`name=peer-url,…`)."""

    name: str
    client_url: str
    peer_url: str
    listen_client_url: str = ""
    """Listen address, if it differs from the advertised one."""
    listen_peer_url: str = ""
    initial_cluster: str
    heartbeat_ms: int = 50
    election_ms: int = 500
    ca: str = ""
    """PEM files for members and clients that authenticate by certificates of this authority; empty: no TLS."""
    cert: str = ""
    key: str = ""

    def flags(self) -> dict[str, str]:
        words = {
            "name": self.name,
            "listen-client-urls": self.listen_client_url or self.client_url,
            "advertise-client-urls": self.client_url,
            "listen-peer-urls": self.listen_peer_url or self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": self.initial_cluster,
            "heartbeat-interval": str(self.heartbeat_ms),
            "election-timeout": str(self.election_ms),
        }
        if self.ca:
            for whose in ("", "peer-"):
                words |= {
                    f"{whose}trusted-ca-file": self.ca,
                    f"{whose}cert-file": self.cert,
                    f"{whose}key-file": self.key,
                    f"{whose}client-cert-auth": "true",
                }
        return words


class _Running(msgspec.Struct, frozen=True):
    """The process on a folder. Process ids are reused, but not together with the start time."""

    pid: int
    started: int


def find_program() -> str:
    """The etcd program that was installed with braidlog, or the one on the PATH."""
    with contextlib.suppress(ImportError):
        return str(importlib.import_module(PACKAGE).PROGRAM)
    found = shutil.which("etcd")
    if found is None:
        raise BrokerError(
            Reason.UNAVAILABLE,
            "no etcd found; install one: apt-get install etcd-server, or make etcd in a checkout of braidlog (Go "
            "1.26), "
            "or name running members in [cluster] etcd",
        )
    return found


def check_program(program: str) -> None:
    """Raise for versions that are known to lose data, before one of them writes anything."""
    said = subprocess.run(  # noqa: S603 - the program that the operator installed
        [program, "--version"], capture_output=True, text=True, timeout=START_SECONDS_MAX, check=False
    )
    first = said.stdout.partition("\n")[0]
    try:
        check_version(first.removeprefix("etcd Version: "), program)
    except EtcdRefusedError as error:
        raise BrokerError(Reason.UNAVAILABLE, str(error)) from error


class Member:
    """Call `start`, and `stop` as the node's last step."""

    def __init__(self, settings: MemberSettings, folder: Path, program: str, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._tls = tls
        self._folder = folder
        self._program = program
        self._file = folder / "process.json"
        self._child: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self.trouble = ""
        """Text about a recent unexpected end, for operators."""

    async def start(self) -> None:
        """Start the member; returns when it answers, with or without the other members."""
        await stop_member(self._folder)  # of a killed node: it may still be ending
        await asyncio.to_thread(
            check_program, self._program
        )  # in a thread, so that clients are served during the check
        self._folder.mkdir(parents=True, exist_ok=True)
        self._launch()
        await self._wait_until_asked()

    def _launch(self) -> None:
        path = self._folder / "etcd.log"
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(self._folder / "etcd.log.1")
        words = self._settings.flags() | {"data-dir": str(self._folder / "data")}
        with path.open("ab") as output:
            # A separate session: Ctrl-C in the terminal stops the node, which ends its member last.
            bound = [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(os.getpid())]
            self._child = subprocess.Popen(  # noqa: S603 - the program that the operator installed
                [*bound, self._program, *(f"--{name}={value}" for name, value in words.items())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            self._write_file(_Running(self._child.pid, _started(self._child.pid) or 0))
        except OSError:  # otherwise a later start could not find it
            self._child.kill()
            self._reap()
            raise

    def _write_file(self, running: _Running) -> None:
        part = self._file.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(running))
        part.replace(self._file)

    async def _wait_until_asked(self) -> None:
        """Wait until it reports its version, which needs no majority."""
        endpoint = parse_endpoint(self._settings.client_url)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS_MAX):
                while self._is_alive():
                    with contextlib.suppress(OSError):
                        connection = await Connection.open(endpoint, self._tls)
                        try:
                            await connection.send("/version", b"", "")
                            await connection.receive()
                        finally:
                            connection.close()
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        if not self._is_alive():
            self._reap()
        raise BrokerError(
            Reason.UNAVAILABLE,
            f"etcd does not answer on {endpoint}: {self._last_words()} (see {self._folder.name}/etcd.log)",
        )

    def _last_words(self) -> str:
        lines: list[bytes] = []
        with contextlib.suppress(FileNotFoundError), (self._folder / "etcd.log").open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = output.read().splitlines()
        return (lines or [b"none"])[-1].decode(errors="replace")[:300]

    async def keep_running(self) -> None:
        """Restart the member whenever it ends. Cancelled before the node stops, so nothing starts afterwards."""
        pause = AGAIN_SECONDS_MIN
        while True:
            if not await self._ends_within(CALM_SECONDS):
                self.trouble, pause = "", AGAIN_SECONDS_MIN
                await self._ends_within(None)
            ended = f"etcd member {self._how_it_ended()}"
            self._warn(f"{ended}; restarting in {pause:g} s; last log line: {self._last_words()}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS_MAX)
            try:
                await self.start()
            except (BrokerError, OSError, subprocess.TimeoutExpired) as error:
                self._warn(f"{ended}; restart failed: {error}")
            else:
                self._warn(f"{ended}; restarted")

    def _warn(self, words: str) -> None:
        self.trouble = words
        log.warning("%s", words)

    async def _ends_within(self, seconds: float | None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._is_alive():  # noqa: ASYNC110 - a child watcher would need the main thread
                    await asyncio.sleep(WATCH_SECONDS)
                return True
        return False

    def _is_alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _how_it_ended(self) -> str:
        self._reap()
        if self._exit_code is None:
            return "ended"
        return f"was killed by signal {-self._exit_code}" if self._exit_code < 0 else f"ended with {self._exit_code}"

    async def stop(self) -> None:
        """Stop the member: it syncs and hands over its leadership. A member that does not end is killed, which loses
        nothing.
        """
        await stop_member(self._folder)
        self._reap()

    def _reap(self) -> None:
        """Collect the exit code of a child that ended, which removes the zombie process."""
        if self._child is not None:
            self._exit_code = self._child.wait()
            self._child = None


def _find_running(file: Path) -> _Running | None:
    try:
        running = msgspec.json.decode(file.read_bytes(), type=_Running)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return running if _started(running.pid) == running.started else None


async def stop_member(folder: Path) -> None:
    """Stop the member on a folder, whichever process started it; does nothing if none runs."""
    file = folder / "process.json"
    running = _find_running(file)
    if running is not None:
        os.kill(running.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                while _find_running(file) is not None:  # noqa: ASYNC110 - no notification exists for processes that are not children
                    await asyncio.sleep(LOOK_SECONDS)
        if _find_running(file) is not None:
            os.kill(running.pid, signal.SIGKILL)
    file.unlink(missing_ok=True)


def _started(pid: int) -> int | None:
    """Start time of a process in kernel ticks; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


FLOOR: Final = (3, 4, 22)
_TORN_FROM: Final = (3, 5, 0)
_TORN_TO: Final = (3, 5, 5)


def check_version(text: str, whose: str) -> None:
    """Raise for versions whose members could silently diverge after a crash, and for versions that are too old."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise EtcdRefusedError(f"{whose} reports etcd version {text!r}; 3.4.22 or later is required")
    version = tuple(int(part) for part in found.groups())
    if version < FLOOR:
        raise EtcdRefusedError(f"{whose} is etcd {text}; 3.4.22 or later is required (not 3.5.0 to 3.5.5)")
    if _TORN_FROM <= version <= _TORN_TO:
        raise EtcdRefusedError(
            f"{whose} is etcd {text}, whose members can diverge permanently after a kill; use 3.4.22 or later, or "
            "3.5.6 or later"
        )
