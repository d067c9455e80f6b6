"""Watches the nodes' leases, as a fallback of failure detection.

Reports only what it reads. An etcd that does not answer proves nothing about a node.
"""

from collections.abc import Callable
from typing import Final

from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.port import Etcd, EtcdError
from braidlog.cluster.membership import Membership
from braidlog.model.runtime.runtime import Runtime
from braidlog.replication.control.controller import LeaseLost
from braidlog.replication.control.swim import LeaseExpired, MetadataSilent, MetadataTick

LOOK_SECONDS: Final = 1.0
LOOKS_MIN: Final = 2
"""A node that lost etcd rewrites its key as soon as possible, so one read without the key proves little."""

LeaseMessage = LeaseExpired | MetadataTick | MetadataSilent


class LeaseMonitor:
    """Start `run` as a task. `told` receives messages for failure detection, `lost` those for the controller."""

    def __init__(
        self,
        etcd: Etcd,
        runtime: Runtime,
        keys: Keys,
        members: Callable[[], Membership],
        told: Callable[[LeaseMessage], None],
        lost: Callable[[LeaseLost], None],
    ) -> None:
        self._etcd = etcd
        self._runtime = runtime
        self._alive = keys.alive
        self._members = members
        self._told = told
        self._lost = lost
        self._missed: dict[int, tuple[int, int]] = {}
        """Per node number: the incarnation whose key was missing, and how often in a row."""

    async def run(self) -> None:
        looked = self._runtime.monotonic()
        while True:
            await self._runtime.wakeup().wait(LOOK_SECONDS)
            before, looked = looked, self._runtime.monotonic()
            if looked - before > 2 * LOOK_SECONDS:
                self._missed.clear()  # this node was late, and nodes whose key it missed may be starved as well
            try:
                found = await self._etcd.read(self._alive, keys_only=True)
            except EtcdError:
                self._missed.clear()
                self._told(MetadataSilent())
                continue
            self._look({item.key[len(self._alive.first) :].decode(errors="replace") for item in found.items})

    def _look(self, names: set[str]) -> None:
        members = {int(number): member for number, member in self._members().members.items() if not member.is_fenced}
        holders = tuple(sorted(number for number, member in members.items() if member.name in names))
        self._told(MetadataTick(holders))
        before, self._missed = self._missed, {}
        for number, member in members.items():
            if number in holders:
                continue
            incarnation = member.registered.incarnation
            known, times = before.get(number, (incarnation, 0))
            times = times + 1 if known == incarnation else 1
            self._missed[number] = (incarnation, times)
            if times >= LOOKS_MIN:
                self._told(LeaseExpired(number, incarnation))
                if holders:  # otherwise etcd lost all leases
                    self._lost(LeaseLost(number, incarnation, holders))
