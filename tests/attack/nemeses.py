"""What is done to the node: one method each, chosen by a seed, over when the node serves again.

Knows: the process, its disk, its clock, its connections. Refuses to know: what clients make of it.
"""

import contextlib
import random
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.adapters.hostility import CHEAP, STRANGERS, WAITED, WAITS, Leaving, Requests, leave, sockets_of
from tests.adapters.rustlog.client import framed
from tests.attack.attacked import AttackedNode, Proxies
from tests.attack.disk import Disk
from tests.attack.node import Fault

from braidlog.testing.server import ServerProcess
from braidlog.wire.dialect import dialects

TWO_DAYS_MS = 2 * 24 * 3600 * 1000
CUTS = 12
ACTS = 20
SHUTTER_SECONDS = 0.05
DIES_WHILE_FULL = 0.3
"""How often a node is killed, and has to start again, while there is no room."""
FLOOD_ROUNDS = 20
WAITING_EACH = 30
"""Connections of each kind of wait and each way to leave: more together than all others have."""
FREED_SECONDS_MAX = 60


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


class Nemeses:
    """`counts` says what was done, `skipped` what could not be, and why."""

    def __init__(self, node: AttackedNode, disk: Disk, proxies: Proxies, rng: random.Random, folder: Path) -> None:
        self._node = node
        self._disk = disk
        self._proxies = proxies
        self._rng = rng
        self._folder = folder
        self.judge_damaged: Callable[[ServerProcess | None, float], None] = lambda node, copied: None
        """Looks at a node over a damaged copy, or at None if it does not start; and when the copy was made."""
        self.counts: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.table: dict[str, Callable[[], None]] = {
            "kill -9": self.kill,
            "stop": self.stop,
            "power cut": self.cut_power,
            "unsynced lost": self.lose_unsynced,
            "pause": self.pause,
            "cut connections": self.cut_connections,
            "clock jump": self.jump,
            "full disk": self.fill,
            "EIO": self.fail_syncs,
            "hostile clients": self.be_hostile,
            "closed long polls": self.leave_waiting,
            "damaged copy": self.damage,
        }

    def do(self, name: str) -> None:
        self.table[name]()
        self.counts[f"{name}: skipped" if name in self.skipped else name] += 1

    def kill(self) -> None:
        """Sometimes again when it has just begun to serve."""
        for _ in range(self._rng.choice((1, 1, 2))):
            self._node.kill()
            self._node.restart()

    def stop(self) -> None:
        """In good order, under load."""
        self._node.stop()
        self._node.restart()

    def cut_power(self) -> None:
        if self._disk.reason:
            self.skipped["power cut"] = self._disk.reason
            return
        self._node.cut_power()
        self._node.restart()

    def lose_unsynced(self) -> None:
        self._node.kill()
        self.counts["names and ends lost"] += self._node.lose_unsynced()
        self._node.restart()

    def pause(self) -> None:
        self._node.pause(self._rng.uniform(0.2, 2))

    def cut_connections(self) -> None:
        for _ in range(CUTS):
            self._proxies.cut(self._rng, self._rng.choice(sorted(dialects())))
            _wait(SHUTTER_SECONDS)

    def jump(self) -> None:
        """Two days ahead, two days back, and right again, in one life of the node."""
        ahead = [TWO_DAYS_MS, -TWO_DAYS_MS]
        self._rng.shuffle(ahead)
        for ahead_ms in (*ahead, 0):
            self._node.control.set(ahead_ms=ahead_ms)
            _wait(self._rng.uniform(0.1, 0.5))

    def fill(self) -> None:
        """On a disk of its own it is really full; elsewhere every write that needs room is refused."""
        with contextlib.ExitStack() as stack:
            if self._disk.reason:
                self._node.control.set(fault=Fault.FULL)
                stack.callback(self._node.control.set)
            else:
                self._disk.fill()
                stack.callback(self._disk.clear)
            _wait(self._rng.uniform(0.5, 1.5))
            if self._rng.random() < DIES_WHILE_FULL:
                self._node.kill()
                # It may say that it needs room to start, and must start when there is some.
                with contextlib.suppress(RuntimeError):
                    self._node.restart()
        if not self._node.is_running:
            self.counts["refused to start on a full disk"] += 1
            self._node.restart()

    def fail_syncs(self) -> None:
        """A partition whose sync failed takes no writes until it is opened again, so the node is started anew."""
        self._node.control.set(fault=Fault.EIO)
        _wait(self._rng.uniform(0.1, 0.5))
        self._node.kill()
        self._node.control.set()
        self._node.restart()

    def be_hostile(self) -> None:
        """Lying lengths, bombs, endless requests and strangers' protocols, beside the others and not through the proxies."""
        from tests.adapters.attackers import WAYS, Attacker  # noqa: PLC0415 - its bombs take a while to make

        ports = self._node.ports_of_its_own
        attackers = [Attacker(ports[dialect], dialect, way) for dialect in sorted(ports) for way in WAYS]
        try:
            for attacker in attackers:
                attacker.open_fire()
            for stranger in STRANGERS.values():
                for port in ports.values():
                    self._strange(port, stranger)
            for _ in range(ACTS):
                for attacker in attackers:
                    attacker.act()
            self._flood(ports)
        finally:
            for attacker in attackers:
                attacker.socket.close()
        self.counts["hostile connections"] += len(attackers) + len(STRANGERS) * len(ports)

    def _flood(self, ports: dict[str, int]) -> None:
        """Cheap requests, as fast as the node takes them; nobody reads the answers."""
        with contextlib.ExitStack() as stack:
            floods = []
            for dialect, port in ports.items():
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
                peer.setblocking(False)
                floods.append(Requests(peer, CHEAP[dialect]))
            for _ in range(FLOOD_ROUNDS):
                for flood in floods:
                    flood.push()
                _wait(SHUTTER_SECONDS)

    def _strange(self, port: int, said: bytes) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as peer:
            peer.sendall(said)

    def leave_waiting(self) -> None:
        """Clients ask for what comes later, and close, reset or close one half; the node frees what it kept for them."""
        before = sockets_of(self._node.pid)
        ports = self._node.ports_of_its_own
        with socket.create_connection(("127.0.0.1", ports["rustlog"]), 60) as peer:
            peer.sendall(framed(f'{{"type":"CreateTopic","topic":"{WAITED}","partition_count":1}}'.encode()))
            peer.recv(65536)  # refused if an earlier attack made it
        crowd = []
        with contextlib.ExitStack() as stack:
            for dialect, request in WAITS.values():
                for how in [*Leaving] * WAITING_EACH:
                    peer = stack.enter_context(socket.create_connection(("127.0.0.1", ports[dialect]), 60))
                    peer.sendall(CHEAP[dialect])
                    peer.recv(65536)
                    peer.sendall(request)
                    crowd.append((peer, how))
            held = sockets_of(self._node.pid)
            for peer, how in crowd:
                leave(peer, how)
            self._wait_until_freed(before + (held - before) // 4)
        self.counts["closed long polls: connections"] += len(crowd)

    def _wait_until_freed(self, sockets_max: int) -> None:
        """The other clients' connections come and go meanwhile."""
        deadline = time.monotonic() + FREED_SECONDS_MAX
        while (held := sockets_of(self._node.pid)) > sockets_max:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{held} sockets are open {FREED_SECONDS_MAX} s after their clients left, {sockets_max} may be"
                )
            _wait(SHUTTER_SECONDS)

    def damage(self) -> None:
        """A bit of one file of a copy is turned; whoever reads there is told the truth or nothing."""
        copy = self._folder / "copy"
        copied = time.monotonic()
        # A clean stop: after a kill, damage to the very last records is taken for a write that was not finished.
        self._node.stop()
        shutil.copytree(self._disk.data, copy)
        self._node.restart()
        try:
            files = sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size > 0)
            path = self._rng.choice([path for path in files if path.name != "LOCK"])
            data = bytearray(path.read_bytes())
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            path.write_bytes(data)
            self.counts["bits turned"] += 1
            self._judge(copy, copied)
        finally:
            shutil.rmtree(copy)

    def _judge(self, copy: Path, copied: float) -> None:
        node = ServerProcess(copy)
        try:
            node.start()
        except RuntimeError:
            self.counts["refused to start damaged"] += 1
            self.judge_damaged(None, copied)
            return
        with contextlib.ExitStack() as stack:
            stack.push(node.__exit__)
            self.judge_damaged(node, copied)
