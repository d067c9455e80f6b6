"""Whether the node lives, and whether it can serve: `/healthz` and `/readyz`, with reasons.

Knows: what has to hold. Refuses to know: HTTP.
Invariants: "ready" is never said on hope: the disk was written to, the node has answered. "Not ready" is said of what was seen to
be wrong; who did not answer in the time there was is "slow".

| check | holds if |
|---|---|
| `node` | it answers its console |
| `listeners` | every one that is enabled is bound and accepts |
| `disk` | a file can be written and synced beside the data, and there is more room than `admin.disk_free_bytes_min` |
| `partitions` | each can be opened, is whole and takes writes |
| `keyvalue` | the store serves |
| `metadata` | there only while etcd does not answer, with the reason; it holds, for clients are served |
| `nodes` | there only while a node of the cluster is fenced, with its number; it holds, for this node serves |
| `replicas` | there only while partitions of the cluster are under-replicated or leaderless, with their names; it holds too |
| `keys in doubt` | there only while keys are refused for damage of the store, with the reason; it holds too |
| `clock` | there only while the node's clock is off from that of the other nodes, with the reason; it holds too |
"""

import asyncio
import os
import tempfile
from typing import Final

import msgspec

from braidlog.console.node_client import ANSWER_SECONDS_MAX, Node, NodeError, SlowNodeError
from braidlog.model.reporting.health_checks import check_room, health_checks
from braidlog.model.reporting.node_report import Check

PROBE_SECONDS: Final = 5.0


class Health(msgspec.Struct, frozen=True):
    status: str
    checks: list[Check]

    @property
    def is_ready(self) -> bool:
        return all(check.ok for check in self.checks)


class Doctor:
    """Looks when asked, at the disk at most once in `PROBE_SECONDS`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._disk: Check | None = None
        self._probed_at = 0.0
        self._probing: asyncio.Future[Check] | None = None

    async def look(self, seconds: float = ANSWER_SECONDS_MAX) -> Health:
        """What can be seen in so many seconds."""
        asked = {"node": asyncio.ensure_future(self._ask_node()), "disk": asyncio.ensure_future(self._ask_disk())}
        await asyncio.wait(asked.values(), timeout=seconds)
        checks: list[Check] = []
        slow = []
        for name, looking in asked.items():
            if looking.done() and not isinstance(looking.exception(), SlowNodeError):
                checks += looking.result()
            else:
                looking.cancel()
                slow.append(Check(name, ok=False, reason=f"did not answer within {seconds:g} s"))
        if not all(check.ok for check in checks):
            return Health("not ready", [*checks, *slow])
        return Health("slow" if slow else "ready", [*checks, *slow])

    async def _ask_node(self) -> list[Check]:
        try:
            snapshot = await self._node.snapshot()
        except SlowNodeError:
            raise
        except NodeError as error:
            return [Check("node", ok=False, reason=str(error))]
        return [Check("node", ok=True), *health_checks(snapshot)]

    async def _ask_disk(self) -> list[Check]:
        now = asyncio.get_running_loop().time()
        if self._disk is None or now - self._probed_at >= PROBE_SECONDS:
            if self._probing is None or self._probing.done():  # one: a disk that stands still must not collect threads
                welcome = self._node.welcome
                work = asyncio.to_thread(probe, welcome.data_dir, welcome.disk_free_bytes_min)
                self._probing = asyncio.ensure_future(work)
            self._disk = await asyncio.shield(self._probing)
            self._probed_at = now
        return [self._disk]


def probe(folder: str, free_bytes_min: int) -> Check:
    """Write a file that never has a name, and sync it; then look how much room is left."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        room = os.statvfs(folder)
    except OSError as error:
        return Check("disk", ok=False, reason=f"{folder} cannot be written: {error.strerror or error}")
    return check_room(room.f_bavail * room.f_frsize, free_bytes_min)
