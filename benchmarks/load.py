"""A load generator that costs next to nothing: prepared bytes out, answers counted, no client library in between.

Knows: sockets and windows. Refuses to know: dialects and brokers; whoever prepares the bytes says how its answers are counted.
What is measured this way is the server: the same loader drives braidlog and every peer.
"""

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

RECEIVE_BYTES = 1 << 20
STALL_SECONDS_MAX = 60.0


class Counter(Protocol):
    """Counts whole answers in a stream that is cut anywhere."""

    def feed(self, data: memoryview) -> int: ...


class Frames:
    """Answers that begin with their length: `at` bytes into the header of `size` bytes, big-endian, 32 bits."""

    def __init__(self, *, size: int = 4, at: int = 0) -> None:
        self._size = size
        self._at = at
        self._header = b""
        self._left = 0

    def feed(self, data: memoryview) -> int:
        count, position, end = 0, 0, len(data)
        while position < end or (self._left == 0 and len(self._header) == self._size):
            if self._left:
                step = min(self._left, end - position)
                position += step
                self._left -= step
            else:
                want = self._size - len(self._header)
                self._header += bytes(data[position : position + want])
                position += min(want, end - position)
                if len(self._header) < self._size:
                    break
                (self._left,) = struct.unpack_from(">I", self._header, self._at)
                self._header = b""
            if self._left == 0 and not self._header:
                count += 1
        return count


class Marks:
    """Answers that each hold `mark` exactly once."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._tail = b""

    def feed(self, data: memoryview) -> int:
        whole = self._tail + bytes(data)
        count = whole.count(self._mark)
        keep = len(self._mark) - 1
        self._tail = whole[-keep:] if keep else b""
        return count


class Answers(Marks):
    """Marks that are in every answer; `well` counts those in which the mark goes on as in one that is no refusal."""

    def __init__(self, mark: bytes, well: bytes) -> None:
        super().__init__(mark)
        self._well = Marks(well)
        self.well = 0

    def feed(self, data: memoryview) -> int:
        self.well += self._well.feed(data)
        return super().feed(data)


class Line:
    """One connection to a server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.received_bytes = 0

    def close(self) -> None:
        self.socket.close()

    def drive(self, chunks: Sequence[bytes], answers_per_chunk: int, counter: Counter, *, window: int) -> float:
        """Send every chunk, at most `window` of them unanswered; seconds until the last answer."""
        sock = self.socket
        sock.settimeout(0)
        poller = select.poll()
        total = len(chunks) * answers_per_chunk
        sent = answered = 0
        rest = memoryview(b"")
        start = time.perf_counter()
        while answered < total:
            may_send = bool(rest) or (
                sent < len(chunks) and sent * answers_per_chunk - answered < window * answers_per_chunk
            )
            poller.register(sock, select.POLLIN | (select.POLLOUT if may_send else 0))
            ready = poller.poll(STALL_SECONDS_MAX * 1000)
            if not ready:
                raise TimeoutError(f"{answered} of {total} answers came, then none for {STALL_SECONDS_MAX:g} s")
            mask = ready[0][1]
            if mask & (select.POLLIN | select.POLLHUP | select.POLLERR):
                size = sock.recv_into(self._buffer)
                if not size:
                    raise ConnectionError(f"closed after {answered} of {total} answers")
                self.received_bytes += size
                answered += counter.feed(self._buffer[:size])
            if mask & select.POLLOUT:
                if not rest:
                    rest = memoryview(chunks[sent])
                    sent += 1
                rest = rest[sock.send(rest) :]
        taken = time.perf_counter() - start
        sock.settimeout(None)
        return taken

    def ask(self, request: bytes, counter: Counter, answers: int = 1) -> bytes:
        """One request, its answer: blocking, as a client that waits for each."""
        self.socket.sendall(request)
        gathered = b""
        while answers > 0:
            size = self.socket.recv_into(self._buffer)
            if not size:
                raise ConnectionError("closed before the answer")
            gathered += bytes(self._buffer[:size])
            answers -= counter.feed(self._buffer[:size])
        return gathered

    def latencies(self, request: bytes, counter: Counter, count: int) -> list[float]:
        """Seconds of each of `count` requests, one after another."""
        taken = []
        buffer, sock = self._buffer, self.socket
        for _ in range(count):
            start = time.perf_counter()
            sock.sendall(request)
            while not counter.feed(buffer[: sock.recv_into(buffer)]):
                pass
            taken.append(time.perf_counter() - start)
        return taken


class Cores(Enum):
    """Where a loader and the server that it asks run, if that is not left to the scheduler: it keeps some pairs on one core and
    others on two, and a lone answer from a core that slept takes several times as long, whoever answers."""

    APART = "a core each"
    TOGETHER = "one core"


@contextlib.contextmanager
def placed(cores: Cores, pid: int) -> Iterator[None]:
    """This process and the server are put there, and let go again."""
    everywhere = os.sched_getaffinity(0)
    first, last = min(everywhere), max(everywhere)
    _pin(pid, {first})
    os.sched_setaffinity(0, {last if cores is Cores.APART else first})
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
        _pin(pid, everywhere)


def _pin(pid: int, cores: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(task.name), cores)


def cpu_seconds(pid: int) -> float:
    """What the threads of a process that are alive have used of its cores; to the nanosecond, not to the tick."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            used += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return used / 1e9


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
