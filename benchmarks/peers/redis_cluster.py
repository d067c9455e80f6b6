"""Redis Cluster: three masters with a replica each, six processes of Debian's `redis-server` on loopback.

Knows: how they are made one cluster, which master has a key. Refuses to know: what is measured.
Writes are synced by each master before they are answered (appendfsync always); whoever wants a replica to have them sends WAIT.
"""

import binascii
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from benchmarks.peers.process import free_port
from benchmarks.peers.redis import Redis

MASTERS = 3
READY_SECONDS_MAX = 60.0
SLOTS = 16384
NODE_TIMEOUT_MS = 1000
BUS_PORT_AFTER = 10_000
"""Its nodes speak with each other so many ports above."""
PORT_MAX = 65_535 - BUS_PORT_AFTER
Address = tuple[str, int]


def missing() -> str:
    """Why it cannot be run here; empty if it can."""
    lacking = [name for name in ("redis-server", "redis-cli") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not found; on Debian: apt-get install redis-server" if lacking else ""


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


class _ClusterNode(Redis):
    is_alive = True

    def __init__(self) -> None:
        super().__init__(fsync=True)
        while self.port > PORT_MAX or not _is_free(self.port + BUS_PORT_AFTER):
            self.port = free_port()

    def command(self) -> list[str]:
        kept = [
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            "--cluster-require-full-coverage",
            "no",
        ]
        return [*super().command(), *kept, "--cluster-node-timeout", str(NODE_TIMEOUT_MS)]


class RedisCluster:
    """Six processes that are one cluster as long as the context is open."""

    def __init__(self) -> None:
        self._nodes = [_ClusterNode() for _ in range(2 * MASTERS)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # those that were started end if another is not
            for node in self._nodes:
                stack.enter_context(node)
            self._join()
            self._stack = stack.pop_all()
        return self

    def _join(self) -> None:
        places = [f"127.0.0.1:{node.port}" for node in self._nodes]
        self._cli("--cluster", "create", *places, "--cluster-replicas", "1", "--cluster-yes")
        until = time.monotonic() + READY_SECONDS_MAX
        while not all(self._is_ready(node) for node in self._nodes):
            if time.monotonic() > until:
                raise RuntimeError(f"the Redis Cluster is not ready after {READY_SECONDS_MAX:g} s")
            time.sleep(0.1)  # noqa: TID251 - nothing else is measured meanwhile

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self._nodes]

    def owners(self) -> list[Address]:
        """The master of each slot."""
        found: list[Address] = [("", 0)] * SLOTS
        living = next(node for node in self._nodes if node.is_alive)
        for line in self._cli("-p", str(living.port), "cluster", "nodes").splitlines():
            words = line.split()
            if "master" not in words[2] or "fail" in words[2]:
                continue
            host, _, port = words[1].partition("@")[0].rpartition(":")
            for slots in words[8:]:
                first, _, last = slots.partition("-")
                for slot in range(int(first), int(last or first) + 1):
                    found[slot] = host, int(port)
        return found

    def kill_master_of(self, key: bytes) -> None:
        _, port = self.owners()[slot_of(key)]
        node = next(node for node in self._nodes if node.port == port)
        os.kill(node.pid, signal.SIGKILL)
        node.is_alive = False

    def _is_ready(self, node: Redis) -> bool:
        said = self._cli("-p", str(node.port), "cluster", "info")
        is_replicating = "master_link_status:up" in self._cli("-p", str(node.port), "info", "replication")
        has_replica = "state=online" in self._cli("-p", str(node.port), "info", "replication")
        return "cluster_state:ok" in said and (is_replicating or has_replica)

    @staticmethod
    def _cli(*words: str) -> str:
        return subprocess.run(["redis-cli", *words], check=True, capture_output=True, text=True, timeout=60).stdout


def slot_of(key: bytes) -> int:
    """Redis's CRC-16 is XMODEM's."""
    return binascii.crc_hqx(key, 0) % SLOTS
