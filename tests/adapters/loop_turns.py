"""A node that tells how long the turns of its loop are: in processor time, so that a busy machine changes nothing.

Run as a program, it is `braid serve` on asyncio's own loop, whose longest turn stands in a file that others may look into.
"""

import asyncio
import contextlib
import ctypes
import mmap
import os
import re
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from braidlog.testing.server import ServerProcess

SECONDS_MAX = 120.0
_FILE = "LOOP_TURNS_FILE"
_SHARED = struct.Struct("dQ")
"""The longest turn in seconds, and how often freed memory was given back."""


class Cost(NamedTuple):
    """What one request took."""

    turn_seconds: float
    grown_bytes: int
    """Beyond the frame, which is there twice while it is put together."""
    answer_bytes: int


class MeasuredNode(ServerProcess):
    """A node in a process of its own."""

    module = "tests.adapters.loop_turns"

    def __enter__(self) -> Self:
        self._file = tempfile.NamedTemporaryFile()
        self._file.write(bytes(_SHARED.size))
        self._file.flush()
        self._shared = mmap.mmap(self._file.fileno(), _SHARED.size)
        self._environment = {**self._environment, _FILE: self._file.name}
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._shared.close()
        self._file.close()

    def cost_of(self, dialect: str, frame: bytes, *, answer_bytes_max: int = 2**62) -> Cost:
        """Send a frame, and nothing after it; take what is answered, to its end or so much of it."""
        before = self.begin()
        answered = self._exchange(dialect, frame, answer_bytes_max)
        return self.cost_since(before, 2 * len(frame), answered)

    def cost_since(self, before: int, frame_bytes: int = 0, answer_bytes: int = 0) -> Cost:
        """What was done since `begin`, which told the memory before it."""
        grown = self._memory("VmHWM") - before - frame_bytes
        return Cost(_SHARED.unpack_from(self._shared)[0], grown, answer_bytes)

    def begin(self) -> int:
        """Forget what was: freed memory is given back, the peak is what is held, no turn was long. What is held, in bytes."""
        trims = _SHARED.unpack_from(self._shared)[1]
        os.kill(self.pid, signal.SIGUSR2)
        deadline, pause = time.monotonic() + SECONDS_MAX, threading.Event()
        while _SHARED.unpack_from(self._shared)[1] == trims:
            assert time.monotonic() < deadline, "the node does not come to its signals"
            pause.wait(0.002)
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")
        return self._memory("VmRSS")

    def _memory(self, name: str) -> int:
        found = re.search(
            rf"^{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text(encoding="ascii"), re.MULTILINE
        )
        assert found is not None
        return int(found[1]) * 1024

    def _exchange(self, dialect: str, frame: bytes, answer_bytes_max: int) -> int:
        """Both ways at once: a node that answers before it has read all must not wait for us."""
        answered = 0
        left = memoryview(frame)
        with socket.create_connection(self.address(dialect)) as peer, selectors.DefaultSelector() as selector:
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)
            deadline = time.monotonic() + SECONDS_MAX
            while answered < answer_bytes_max:
                assert time.monotonic() < deadline, f"{answered} bytes answered, and no end"
                events = sum(ready for _, ready in selector.select(SECONDS_MAX))
                if events & selectors.EVENT_WRITE:
                    left = left[_sent(peer, left) :]
                    if not left:
                        with contextlib.suppress(OSError):
                            peer.shutdown(socket.SHUT_WR)  # then the node ends the connection when all is answered
                        selector.modify(peer, selectors.EVENT_READ)
                if events & selectors.EVENT_READ:
                    with contextlib.suppress(BlockingIOError):
                        data = _received(peer)
                        if not data:
                            break
                        answered += len(data)
        return answered


def _sent(peer: socket.socket, data: memoryview) -> int:
    try:
        return peer.send(data[: 1 << 20])
    except BlockingIOError:
        return 0
    except (BrokenPipeError, ConnectionResetError):
        return len(data)  # refused by its first bytes: what was said to it can still be read


def _received(peer: socket.socket) -> bytes:
    try:
        return peer.recv(1 << 20)
    except ConnectionResetError:
        return b""


def _measure(shared: mmap.mmap) -> None:
    """Every turn of asyncio's loop is timed; SIGUSR2 begins anew."""
    turn = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)

    def timed(loop: asyncio.BaseEventLoop) -> None:
        began = time.thread_time()
        turn(loop)
        took = time.thread_time() - began
        longest, trims = _SHARED.unpack_from(shared)
        if took > longest:
            _SHARED.pack_into(shared, 0, took, trims)

    def reset_log(*_: object) -> None:
        trim(0)
        _SHARED.pack_into(shared, 0, 0.0, _SHARED.unpack_from(shared)[1] + 1)

    asyncio.BaseEventLoop._run_once = timed  # type: ignore[attr-defined]
    signal.signal(signal.SIGUSR2, reset_log)


def main() -> None:
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # its turns cannot be timed
    with open(os.environ[_FILE], "r+b") as file:
        _measure(mmap.mmap(file.fileno(), _SHARED.size))
    from braidlog.cli import main as braid  # noqa: PLC0415 - after what it imports was prepared

    braid(prog_name="braid")


if __name__ == "__main__":
    main()
