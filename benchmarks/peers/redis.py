"""Redis: Streams (XADD and XRANGE) and keys (SET, GET, INCR), pipelined.

Knows: RESP as far as these commands need it. `fsync`: appendfsync always, else the append-only file is left to the kernel, or
synced every second.
"""

from benchmarks.load import Line, Marks
from benchmarks.peers.process import PeerProcess

CHUNK = 1000


class Redis(PeerProcess):
    name = "redis"

    def __init__(self, *, fsync: bool, lazily: str = "no") -> None:
        super().__init__()
        self._appendfsync = "always" if fsync else lazily

    def command(self) -> list[str]:
        kept = ["--appendonly", "yes", "--appendfsync", self._appendfsync]
        # No rewriting of the append-only file in the middle of a run: that would be measured too.
        quiet = ["--save", "", "--auto-aof-rewrite-percentage", "0"]
        return [
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--dir",
            str(self.folder),
            *kept,
            *quiet,
        ]


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Produce:
    """Pipelined XADDs: the answer to each is an id, `time-number`."""

    def __init__(self, key: bytes, value: bytes) -> None:
        self.single = command(b"XADD", key, b"*", b"v", value)
        self.chunk = self.single * CHUNK
        self.per_chunk = CHUNK

    @staticmethod
    def counter() -> Marks:
        return Marks(b"-")

    def chunks(self, count: int) -> list[bytes]:
        return [self.chunk] * count


class Fetch:
    """XRANGEs of a thousand entries each, asked several at a time: the ids where each begins were learned in a first pass."""

    def __init__(self, line: Line, key: bytes, mark: bytes, records: int) -> None:
        self.mark = mark
        self.chunks: list[bytes] = []
        start = b"-"
        for _ in range(records // CHUNK):
            request = command(b"XRANGE", key, start, b"+", b"COUNT", b"%d" % CHUNK)
            answer = line.ask(request, Marks(mark), CHUNK)
            while not answer.endswith(b"\r\n"):
                answer += line.socket.recv(1 << 20)
            self.chunks.append(request)
            last = answer[answer.rindex(b"*2\r\n$1\r\nv\r\n") - 40 :]
            start = b"(" + last[: last.index(b"\r\n*2\r\n$1\r\nv")].rpartition(b"\n")[2]

    def counter(self) -> Marks:
        return Marks(self.mark)
