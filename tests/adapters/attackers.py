"""A thousand hostile clients in a process of their own: `python -m tests.adapters.attackers` with the ports on standard input.

Each line that comes in is an order, each line that goes out says that it was carried out: `attack` opens the connections, sends
the opening volley and then trickles until `rest`, which closes them all. Of each door and each way there are equally many.

Not among the ways: many cheap, valid requests as fast as they can be sent. A node does not keep a good client's p99 under that
(docs/guides/security.md has a figure).
"""

import contextlib
import gzip
import itertools
import json
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from tests.adapters.hostility import CHEAP, LARGE
from tests.adapters.mayfly.client import Client as MayflyClient
from tests.adapters.rustlog.client import Client

from braidlog.testing.server import ServerProcess
from braidlog.wire.mayfly.messages import RPush

CONNECTIONS = 1000
TICK_SECONDS = 0.02
ROUND_SECONDS = 2.0
"""In which each of them does something once."""
TRICKLE_BYTES = 64
VOLLEY_BYTES = 256 * 1024
"""What one connection sends at most before the trickle begins, if the server takes it."""

_DEEP = b'{"type":' + b"[" * 50_000
_WIDE = b'{"type":[' + b"[]," * 300_000 + b"[]]}"
_BOMB = gzip.compress(bytes(64 * 1024 * 1024), 9)


def _length(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def _mlog(payload: bytes, number: int = 2) -> bytes:
    return struct.pack(">HI", number, len(payload)) + payload


def _mayfly(command: int, payload: bytes) -> bytes:
    return struct.pack(">HBBII", 0xCAFE, 1, command, 1, len(payload)) + payload


BOMBS: dict[str, tuple[bytes, ...]] = {
    "cursus": (_length(_BOMB), _length(gzip.compress(_BOMB, 9)), _length(b"CREATE topic=" + b"x" * 60_000)),
    "flux": (b"V1|" * 80_000 + b"\n", b"V1|1|CONSUME|t 0 " + b"9" * 60_000 + b"\n"),
    "mlog": (_mlog(_DEEP), _mlog(_WIDE)),
    "rustlog": (_length(_DEEP), _length(_WIDE)),
    # A produce of one batch that claims to be gzip, and is the bomb.
    "kafka": (_length(struct.pack(">hhih", 0, 9, 1, -1) + _BOMB), _length(b"\x00\x12\x00\x03" + b"\xff" * 60_000)),
    # A push of as many empty values as fit, and a hash of the smallest fields; on a key that is a string, so that none stays.
    "mayfly": (
        _mayfly(0x01, b"\x00\x04bomb\x00\x00\x00\x00"),
        _mayfly(0x10, b"\x00\x04bomb" + struct.pack(">I", 60_000) + bytes(4 * 60_000)),
        _mayfly(0x30, b"\x00\x04bomb" + struct.pack(">I", 30_000) + b"\x00\x01f\x00\x00\x00\x00" * 30_000),
    ),
}
"""What is small to send and large to understand: bombs, deep and wide JSON, endless arguments. A door that is not here fails."""


BULK = "bulk"
"""A topic, and a list of the key-value store, that `fill_bulk` has filled with a megabyte."""
ASKED_MAX = 4

KEPT = "kept"
"""The topic of the client that is measured."""
_SMALL_BOMB = _length(gzip.compress(bytes(4_000_000), 9))
KEPT_POLL = _length(
    struct.pack(">hhih iiiib i", 1, 4, 1, -1, -1, 60_000, 2**31 - 1, 10_000_000, 0, 1)
    + struct.pack(">h4s iiqi", 4, KEPT.encode(), 1, 0, 0, 1_000)
)
_KAFKA_FETCH = struct.pack(">hhih iiiib i", 1, 4, 1, -1, -1, 0, 1, 10_000_000, 0, 1) + struct.pack(
    ">h4s iiqi", 4, BULK.encode(), 1, 0, 0, 1_000_000
)
READS: dict[str, bytes] = {
    "cursus": _length(f"CONSUME topic={BULK} partition=0 offset=0".encode()),
    "flux": f"V1|1|CONSUME|{BULK} 0 0\n".encode(),
    "mlog": _mlog(json.dumps({"Topic": BULK, "Offset": 0, "MaxCount": 1000}).encode(), 8),
    "rustlog": _length(
        json.dumps(
            {"type": "Fetch", "group_id": "", "topic": BULK, "partition": 0, "offset": 0, "max_bytes": 1_000_000}
        ).encode()
    ),
    "kafka": _length(_KAFKA_FETCH),
    "mayfly": _mayfly(0x14, struct.pack(">H4sqq", 4, BULK.encode(), 0, -1)),
}
"""A request for all of it."""


def slowloris(dialect: str) -> tuple[bytes, Iterator[bytes]]:
    """A request that never ends, a byte at a time."""
    return b"", (bytes([byte]) for byte in LARGE[dialect][0] + b"x" * 1_000_000)


def oversize(dialect: str) -> tuple[bytes, Iterator[bytes]]:
    """The largest frame there is is announced, a part of it sent."""
    return LARGE[dialect][0] + bytes(VOLLEY_BYTES), itertools.repeat(bytes(TRICKLE_BYTES))


def lying(dialect: str) -> tuple[bytes, Iterator[bytes]]:
    """More than the largest frame is announced; or what is no frame at all."""
    return b"\xff" * 64, itertools.repeat(b"\x7f\xff\xff\xff")


def bombing(dialect: str) -> tuple[bytes, Iterator[bytes]]:
    """All of the door's bombs at once, then again in small pieces."""
    volley = b"".join(BOMBS[dialect])
    again = itertools.cycle(volley[at : at + TRICKLE_BYTES] for at in range(0, len(volley), TRICKLE_BYTES))
    return volley, again


def never_reading(dialect: str) -> tuple[bytes, Iterator[bytes]]:
    """It asks for megabytes and takes none; then it asks for little, again and again."""
    return READS[dialect] * ASKED_MAX, itertools.repeat(CHEAP[dialect])


def pounding(_: str) -> tuple[bytes, Iterator[bytes]]:
    """A few kilobytes that become four megabytes, one request after the other."""
    return _SMALL_BOMB, itertools.repeat(_SMALL_BOMB)


def polling(_: str) -> tuple[bytes, Iterator[bytes]]:
    """Long polls for more than there is: each append wakes all of them."""
    return KEPT_POLL, itertools.repeat(KEPT_POLL)


WAYS: tuple[Callable[[str], tuple[bytes, Iterator[bytes]]], ...] = (slowloris, oversize, lying, bombing, never_reading)
KINDS: dict[str, tuple[tuple[Callable[[str], tuple[bytes, Iterator[bytes]]], str], ...]] = {
    "bombs": ((pounding, "cursus"),),
    "polls": ((polling, "kafka"),),
}
"""What a thousand may also do, all of them alike: in `make bench-hostile BENCH='--kind bombs'`."""


class Attacker:
    """One connection; it comes back when it is thrown out."""

    def __init__(self, port: int, dialect: str, way: Callable[[str], tuple[bytes, Iterator[bytes]]]) -> None:
        self._port = port
        self._volley, self._trickle = way(dialect)
        self.socket = self._connect()

    def _connect(self) -> socket.socket:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(60)
        peer.connect(("127.0.0.1", self._port))
        peer.setblocking(False)
        return peer

    def open_fire(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.socket.send(self._volley)

    def act(self) -> None:
        """A little more; where it was thrown out, it comes again and begins again."""
        try:
            self.socket.send(next(self._trickle))
        except BlockingIOError:
            return
        except ConnectionError:
            self.socket.close()
            self.socket = self._connect()


def attack(ports: dict[str, int], kind: str) -> Iterator[None]:
    """Everything before the first `yield` is the volley; each further step is a part of the trickle."""
    kinds = itertools.cycle(KINDS.get(kind) or itertools.product(WAYS, sorted(ports)))
    attackers = [Attacker(ports[dialect], dialect, way) for way, dialect in itertools.islice(kinds, CONNECTIONS)]
    try:
        for attacker in attackers:
            attacker.open_fire()
        turns = itertools.cycle(attackers)
        yield
        while True:
            for attacker in itertools.islice(turns, int(CONNECTIONS * TICK_SECONDS / ROUND_SECONDS)):
                attacker.act()
            yield
    finally:
        for attacker in attackers:
            attacker.socket.close()


def fill_bulk(server: ServerProcess) -> None:
    """A megabyte in a topic and in a list, for `READS`."""
    with Client(server) as client:
        client.create(BULK)
        for _ in range(100):
            client.produce(BULK, b"x" * 10_000)
    with MayflyClient(server) as store:
        for _ in range(20):
            store.ask(RPush(BULK.encode(), (b"x" * 50_000,)))


class Attackers:
    """The thousand, in a process of their own: they must not take this one's time."""

    def __init__(self, server: ServerProcess) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.adapters.attackers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._say(json.dumps(server.ports))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def order(self, what: str) -> None:
        """Returns when it is done."""
        self._say(what)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith(what)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(60)


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    orders = open(sys.stdin.fileno(), "rb", buffering=0)  # noqa: SIM115 - unbuffered: `select` sees only what was not read yet
    ports: dict[str, int] = json.loads(orders.readline())
    missing = set(ports) - (BOMBS.keys() & READS.keys() & CHEAP.keys() & LARGE.keys())
    assert not missing, f"nobody knows how to attack {missing}"
    fight: Iterator[None] | None = None
    while True:
        if select.select([orders], [], [], None if fight is None else TICK_SECONDS)[0]:
            order = orders.readline().decode().strip()
            if fight is not None:
                fight.close()  # type: ignore[attr-defined]
            verb, _, kind = order.partition(" ")
            fight = attack(ports, kind) if verb == "attack" else None
            if not order:
                return
            if fight is not None:
                next(fight)
            print(order, time.monotonic(), flush=True)
        elif fight is not None:
            next(fight)


if __name__ == "__main__":
    main()
