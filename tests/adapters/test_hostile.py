"""Hostile clients against every port a node has: strangers, liars, the slow, those who never read; and memory stays bounded.

Parametrised over the dialects that the server serves: a new one joins by itself.
"""

import contextlib
import itertools
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.attackers import BOMBS, READS, Attackers, fill_bulk
from tests.adapters.hostility import (
    CHEAP,
    LARGE,
    MEMORY_BYTES_MAX,
    STRANGERS,
    WAITED,
    WAITS,
    Leaving,
    Requests,
    WellBehaved,
    check_unharmed,
    connect,
    is_cut_off,
    leave,
    many,
    peak_bytes,
    push_all,
    read_to_end,
    sockets_of,
)
from tests.adapters.rustlog.client import Client
from tests.waiting import until

from braidlog.testing.server import ServerProcess
from braidlog.wire.dialect import dialects

DIALECTS = sorted(dialects())
ANSWER_BYTES_MAX = 64 * 1024
IDLE_SOCKETS_MAX = 12
"""Of a node without clients: one for each port, and those that its loop has."""
UNFINISHED_BYTES = 8 * 1024 * 1024
"""What is sent of a frame that never ends: of 80 such, more than twice what the node may grow by."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("hostile") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with little patience."""
    limits = {"frame_seconds_max": 0.5, "output_seconds_max": 0.5, "idle_seconds_max": 3, "output_bytes_max": 65536}
    flags = [part for name, value in limits.items() for part in ("--set", f"limits.{name}={value}")]
    with ServerProcess(tmp_path_factory.mktemp("strict") / "data", *flags) as process:
        yield process


@pytest.fixture(scope="module")
def impatient_with_readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with little patience for answers that are not taken, and with much for all else: a busy machine sends in fits."""
    flags = ("--set", "limits.output_seconds_max=0.5", "--set", "limits.output_bytes_max=65536")
    with ServerProcess(tmp_path_factory.mktemp("readers") / "data", *flags) as process:
        fill_bulk(process)
        yield process


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A node with room for few connections."""
    flags = ("--set", "limits.connections_max=60", "--set", "groups.rebalance_delay_ms=0")
    with ServerProcess(tmp_path_factory.mktemp("narrow") / "data", *flags) as process:
        with Client(process) as client:
            client.create(WAITED)
        yield process


def test_every_port_is_tried(server: ServerProcess) -> None:
    assert sorted(server.ports) == DIALECTS
    assert set(DIALECTS) <= set(CHEAP)
    assert set(DIALECTS) <= set(LARGE)
    assert set(DIALECTS) <= set(BOMBS)
    assert set(DIALECTS) <= set(READS)


# ── Strangers and liars ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stranger_is_told_so_or_shown_out(server: ServerProcess, dialect: str, stranger: str) -> None:
    """It gets an error or an end, in few words; that it closes its half ends the connection in any case."""
    with connect(server, dialect) as peer:
        peer.sendall(STRANGERS[stranger])
        peer.shutdown(socket.SHUT_WR)
        read_to_end(peer, ANSWER_BYTES_MAX * 16)
    check_unharmed(server)


def test_a_stranger_is_not_kept_waiting(strict: ServerProcess) -> None:
    """Without closing anything: an error, an end, or the end that comes to every frame that does not. All at once: they wait."""
    with contextlib.ExitStack() as opened:
        peers = {}
        for dialect, stranger in itertools.product(DIALECTS, ("HTTP", "TLS", "RESP")):
            peers[dialect, stranger] = peer = opened.enter_context(connect(strict, dialect))
            peer.sendall(STRANGERS[stranger])
        for (dialect, stranger), peer in peers.items():
            print(f"{stranger} at {dialect}")
            read_to_end(peer, ANSWER_BYTES_MAX)
    check_unharmed(strict)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_random_bytes(server: ServerProcess, dialect: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(100):
        data = rng.randbytes(rng.choice([1, 3, 4, 5, 8, 20, 300, 5000]))
        if rng.random() < 0.5:  # the length is honest, the rest is not
            data = struct.pack(">I", len(data)) + data
        with connect(server, dialect) as peer:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            read_to_end(peer, ANSWER_BYTES_MAX)
    check_unharmed(server)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_damaged_requests(server: ServerProcess, dialect: str) -> None:
    """A good request with one byte changed, at every place."""
    request = CHEAP[dialect]
    for at in range(len(request)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(request)
            damaged[at] ^= mask
            with connect(server, dialect) as peer:
                peer.sendall(bytes(damaged))
                peer.shutdown(socket.SHUT_WR)
                read_to_end(peer, ANSWER_BYTES_MAX)
    check_unharmed(server)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_announcing_much_costs_nothing(server: ServerProcess, dialect: str) -> None:
    """Frames of the largest size there is are announced on 200 connections and never sent: nothing is set aside for them."""
    before = server.resident_bytes()
    with many(server, dialect, 200) as peers:
        for peer in peers:
            peer.sendall(LARGE[dialect][0])
        check_unharmed(server)
        assert server.resident_bytes() - before < 32 * 1024 * 1024


@pytest.mark.parametrize("dialect", DIALECTS)
def test_connections_that_break_off(server: ServerProcess, dialect: str) -> None:
    """Opened and reset, in the middle of a request and before its answer."""
    for at in (0, 1, len(CHEAP[dialect]) // 2, len(CHEAP[dialect])):
        for _ in range(20):
            with connect(server, dialect) as peer:
                peer.sendall(CHEAP[dialect][:at])
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    check_unharmed(server)


@pytest.mark.parametrize("how", Leaving)
@pytest.mark.parametrize("wait", WAITS)
def test_a_crowd_that_waits_and_is_gone_keeps_nobody_out(narrow: ServerProcess, wait: str, how: Leaving) -> None:
    """Many more than there may be connections, one after another."""
    dialect, request = WAITS[wait]
    check_unharmed(narrow)
    until(lambda: sockets_of(narrow.pid) <= IDLE_SOCKETS_MAX)
    with contextlib.ExitStack() as opened:
        for _ in range(4):
            for _ in range(50):
                peer = opened.enter_context(connect(narrow, dialect))
                peer.sendall(CHEAP[dialect] + request)
                peer.recv(65536)  # both have come, and it resets nothing by what it leaves unread
                leave(peer, how)
            until(lambda: sockets_of(narrow.pid) <= IDLE_SOCKETS_MAX)
            check_unharmed(narrow)


# ── The slow and the silent ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_trickle_is_cut_off(strict: ServerProcess, dialect: str) -> None:
    """A byte at a time, the last one never: each byte that arrives buys no more time for the frame."""
    with many(strict, dialect, 20) as peers:
        rest = {peer: iter(CHEAP[dialect][:-1]) for peer in peers}

        def trickle() -> bool:
            alive = [peer for peer in peers if not is_cut_off(peer)]
            for peer in alive:
                byte = next(rest[peer], None)
                if byte is not None:
                    push_all({peer: bytes([byte])})
            return not alive

        until(trickle)
    assert "frame not completed within" in strict.errors()
    check_unharmed(strict)


def test_the_silent_are_cut_off(strict: ServerProcess) -> None:
    """Of every dialect at once: they wait together."""
    with contextlib.ExitStack() as opened:
        peers = {dialect: opened.enter_context(many(strict, dialect, 20)) for dialect in DIALECTS}

        def all_cut_off() -> bool:
            for dialect, each in peers.items():
                if not all(map(is_cut_off, each)):
                    print(f"not yet: {dialect}")
                    return False
            return True

        until(all_cut_off)
    assert "idle for " in strict.errors()
    check_unharmed(strict)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_who_never_reads_is_cut_off(impatient_with_readers: ServerProcess, dialect: str) -> None:
    """It asks and asks and takes no answer: it is not read from, and after its time is up it is let go."""
    with socket.socket() as peer:
        peer.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024
        )  # before it connects, or the kernel promises more
        peer.connect(impatient_with_readers.address(dialect))
        peer.setblocking(False)
        host, port = peer.getsockname()
        requests = Requests(peer, READS[dialect])

        def asks_until_it_is_cut_off() -> bool:
            requests.push()
            # What the server says last cannot reach a client whose buffers are full: its log tells.
            said = impatient_with_readers.errors()
            closing = f"closing {dialect} {host}:{port}: "  # for the time, or for the size of what waits
            return closing + "answers not read" in said or closing + "client does not read responses" in said

        until(asks_until_it_is_cut_off)
    check_unharmed(impatient_with_readers)


# ── Many at once ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dialect", DIALECTS)
def test_two_hundred_hostile_connections(server: ServerProcess, dialect: str) -> None:
    """The largest frames there are, unfinished, requests whose answers nobody reads, garbage: one client is served all along."""
    header, size = LARGE[dialect]
    with WellBehaved(server, f"kept-{dialect}") as client, many(server, dialect, 200) as peers:
        client.go_on()
        rng = random.Random(7)
        unfinished = dict.fromkeys(peers[:80], header + bytes(min(size - 1, UNFINISHED_BYTES)))
        unread = dict.fromkeys(peers[80:160], CHEAP[dialect] * (1024 * 1024 // len(CHEAP[dialect])))
        garbage = {peer: rng.randbytes(10_000) for peer in peers[160:]}
        push_all({**unfinished, **unread, **garbage}, seconds=30)
        client.go_on()
    assert client.grown_bytes < MEMORY_BYTES_MAX
    check_unharmed(server)


# ── A thousand at once, on all doors ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_thousand_hostile_connections(tmp_path: Path) -> None:
    """All doors, all ways: memory stays within 256 MB, and a good client is served while the opening volley is digested and after
    it. How much slower it is served depends on the machine: `make bench-hostile` measures that."""
    with ServerProcess(tmp_path / "data") as server, Attackers(server) as attackers:
        fill_bulk(server)
        with WellBehaved(server, "kept") as client:
            client.go_on()
            attackers.order("attack")
            client.go_on(rounds=100)
        with WellBehaved(server, "after") as late:
            late.go_on(rounds=100)
        grown = peak_bytes(server) - client.baseline_bytes
        attackers.order("rest")
        print(f"grown by {grown >> 20} MB")
        check_unharmed(server)
    assert grown < MEMORY_BYTES_MAX
