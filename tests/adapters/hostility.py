"""What hostile clients do to a port, whatever it speaks; and a well-behaved client that goes on meanwhile."""

import contextlib
import os
import re
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Self

from tests.adapters.rustlog.client import Client, framed
from tests.waiting import until

from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.rows import Message
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.mlog.connection import frame
from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.messages import Form

SECONDS_MAX = 60.0
MEMORY_BYTES_MAX = 256 * 1024 * 1024
CHUNK_BYTES = 64 * 1024

CHEAP: dict[str, bytes] = {
    "rustlog": framed(b'{"type":"Ping"}'),
    "mlog": struct.pack(">HI", 25, 2) + b"{}",
    "flux": b"V1|1|PING|\n",
    "cursus": framed(b"LIST"),
    "kafka": framed(struct.pack(">hhih", 18, 0, 1, -1)),
    "mayfly": bytes.fromhex("CAFE0104 00000001 00000000"),
}
"""A request that any client may make, and that is answered at once. A dialect that is not here fails its tests until it is."""

LARGE: dict[str, tuple[bytes, int]] = {
    "rustlog": (struct.pack(">I", 10_485_760), 10_485_760),
    "mlog": (struct.pack(">HI", 2, 4 * 1024 * 1024), 4 * 1024 * 1024),
    "flux": (b"V1|1|PRODUCE|t k:", 1_000_000),
    "cursus": (struct.pack(">I", 64 * 1024 * 1024), 64 * 1024 * 1024),
    "kafka": (struct.pack(">I", 64 * 1024 * 1024), 64 * 1024 * 1024),
    "mayfly": (bytes.fromhex("CAFE0110 00000001 00100000"), 1024 * 1024),
}
"""The beginning of the largest frame a dialect allows, and how many bytes would follow."""


def client_hello() -> bytes:
    """What a TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="braidlog.example")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


STRANGERS: dict[str, bytes] = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n",
    "TLS": client_hello(),
    "RESP": b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
    "a zero": b"\x00",
    "zeros": bytes(1000),
    "the largest u32": b"\xff" * 4,
    "the largest i32": b"\x7f\xff\xff\xff" + b"x" * 1000,
    "4 GiB minus one in every place": b"\xff" * 64,
    "a line without end": b"A" * 100_000,
    "many lines": b"\r\n" * 10_000,
    "not UTF-8": b"\xc3\x28\n" * 100,
}


WAITED = "waited"
"""A topic without records, for `WAITS`."""
_TEN_HOURS_MS = 36_000_000


def _kafka(message: Message, version: int) -> bytes:
    return ClientConnection("hostile").request(message, version)


WAITS: dict[str, tuple[str, bytes]] = {
    "rustlog fetch": (
        "rustlog",
        framed(
            f'{{"type":"Fetch","group_id":"","topic":"{WAITED}","partition":0,"offset":0,"max_bytes":1000,"max_wait_ms":30000}}'.encode()
        ),
    ),
    "flux consume": ("flux", f"V1|1|CONSUME|{WAITED} 0 0 wait_ms=60000\n".encode()),
    "mlog stream": ("mlog", frame(mlog.FetchStreamRequest(WAITED))),
    "cursus consume": ("cursus", framed(f"CONSUME topic={WAITED} partition=0 offset=0 wait_ms=30000".encode())),
    "cursus stream": ("cursus", framed(f"STREAM topic={WAITED} partition=0 offset=0".encode())),
    "kafka fetch": (
        "kafka",
        _kafka(
            d.FetchRequest(
                max_wait_ms=_TEN_HOURS_MS,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=[
                    d.FetchRequestTopic(WAITED, partitions=[d.FetchRequestPartition(0, partition_max_bytes=1 << 20)])
                ],
            ),
            11,
        ),
    ),
    "kafka join": (
        "kafka",
        _kafka(
            g.JoinGroupRequest(
                "hostile",
                session_timeout_ms=1_800_000,
                rebalance_timeout_ms=_TEN_HOURS_MS,
                protocol_type="consumer",
                protocols=[g.JoinGroupRequestProtocol("range", b"")],
            ),
            3,
        ),
    ),
}
"""Dialect and a request that waits for as long as its door allows."""


class Leaving(Enum):
    CLOSE = auto()
    RESET = auto()
    HALF_CLOSE = auto()
    """It reads the answer, if there is one, and then closes."""


def leave(peer: socket.socket, how: Leaving) -> None:
    with contextlib.suppress(OSError):  # the server may have been faster
        if how is Leaving.RESET:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how is Leaving.HALF_CLOSE:
            peer.shutdown(socket.SHUT_WR)
            return
        peer.close()


def sockets_of(pid: int) -> int:
    """How many sockets a process has open."""
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += str(each.readlink()).startswith("socket:")
    return found


def connect(server: ServerProcess, dialect: str) -> socket.socket:
    return socket.create_connection(server.address(dialect), SECONDS_MAX)


def read_to_end(peer: socket.socket, bytes_max: int) -> bytes:
    """Everything until the server closes; it has to, and it has not more than `bytes_max` to say."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := peer.recv(CHUNK_BYTES):
            found += data
            assert len(found) <= bytes_max
    return bytes(found)


def is_cut_off(peer: socket.socket) -> bool:
    """Whether the server has ended the connection; what it says meanwhile is not read, but peeked at."""
    peer.setblocking(False)
    try:
        return peer.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def push_all(peers: dict[socket.socket, bytes], seconds: float = SECONDS_MAX, stalled_seconds: float = 3.0) -> None:
    """Send to many at once, reading nothing, until everything is sent, nobody takes any more, or all were cut off."""
    left = {peer: memoryview(data) for peer, data in peers.items() if data}
    with selectors.DefaultSelector() as selector:
        for peer in left:
            peer.setblocking(False)
            selector.register(peer, selectors.EVENT_WRITE)
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            ready = selector.select(stalled_seconds)
            if not ready:
                return
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                peer = key.fileobj
                try:
                    left[peer] = left[peer][peer.send(left[peer][: 4 * CHUNK_BYTES]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    left[peer] = left[peer][:0]
                if not left[peer]:
                    del left[peer]
                    selector.unregister(peer)


class Requests:
    """One request over and over, as far as a non-blocking peer takes it: it goes on where it stopped, within a frame too."""

    def __init__(self, peer: socket.socket, request: bytes) -> None:
        self._peer = peer
        self._request = request * max(CHUNK_BYTES // len(request), 1)
        self._at = 0

    def push(self) -> None:
        with contextlib.suppress(OSError):  # it takes no more now, or has ended the connection
            while True:
                self._at += self._peer.send(self._request[self._at :])
                self._at %= len(self._request)


def cpu_seconds(pid: int) -> float:
    """What a process has had of the processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settle(server: ServerProcess) -> None:
    """Wait until the node has digested the volley: until it is idle for most of a while."""

    def is_idle() -> bool:
        before, began = cpu_seconds(server.pid), time.monotonic()
        threading.Event().wait(0.2)
        return cpu_seconds(server.pid) - before < 0.3 * (time.monotonic() - began)

    until(is_idle)


def peak_bytes(server: ServerProcess) -> int:
    """The most that the node has ever had resident."""
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


class WellBehaved:
    """A client that writes, reads back and compares, all the time, and notes the node's memory meanwhile."""

    def __init__(self, server: ServerProcess, topic: str) -> None:
        self._server = server
        self._topic = topic
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None
        self.rounds = 0
        with Client(server) as client:
            client.create(topic)
            for _ in range(50):
                self._round(client)
        self.baseline_bytes = self.peak_bytes = server.resident_bytes()

    def _round(self, client: Client) -> None:
        value = f"{self.rounds}".encode() * 20
        offset = client.produce(self._topic, value).base_offset
        assert offset == self.rounds
        assert [record.payload for record in client.fetch(self._topic, offset).records] == [value]
        self.rounds += 1

    def _run(self) -> None:
        try:
            with Client(self._server, Form.JSON) as client:
                while not self._enough.is_set():
                    self._round(client)
                    self.peak_bytes = max(self.peak_bytes, self._server.resident_bytes())
        except BaseException as error:  # noqa: BLE001 - raised again by who asked for it
            self._failure = error

    @property
    def grown_bytes(self) -> int:
        return self.peak_bytes - self.baseline_bytes

    def go_on(self, rounds: int = 5) -> None:
        """Wait until it has got so much further: it is served, whatever the others do."""
        wanted = self.rounds + rounds
        until(lambda: self.rounds >= wanted or self._failure is not None)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(SECONDS_MAX)


@contextlib.contextmanager
def many(server: ServerProcess, dialect: str, count: int) -> Iterator[list[socket.socket]]:
    peers: list[socket.socket] = []
    try:
        while len(peers) < count:
            peers.append(connect(server, dialect))
        yield peers
    finally:
        for peer in peers:
            peer.close()


def check_unharmed(server: ServerProcess) -> None:
    """The node runs, serves, and has nothing to complain about but its clients."""
    with Client(server) as client:
        assert client.ask(m.Ping()) == m.Pong()
    check_running(server)


def check_running(server: ServerProcess) -> None:
    """The node runs and has nothing to complain about but its clients."""
    assert server.is_running
    said = server.errors()
    assert "Traceback" not in said, said[-3000:]
    assert " ERROR " not in said, said[-3000:]
    assert " CRITICAL " not in said, said[-3000:]
