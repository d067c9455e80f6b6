"""Health checks for `/healthz` and `/readyz`, with reasons.

"ready" means that all checks passed: the node answered and the disk was written to. "not ready" means that a check
failed. "slow" means that a check did not finish in time.

| check | passes if |
|---|---|
| `node` | the node answers its console |
| `listeners` | every enabled listener is bound and accepts connections |
| `disk` | a file can be written and synced beside the data, and more than `admin.disk_free_bytes_min` is free |
| `partitions` | every partition can be opened, is intact and accepts writes |
| `keyvalue` | the store serves |
| `metadata` | warning while etcd does not answer, with the reason; always passes, since clients are served |
| `nodes` | warning while a node of the cluster is fenced, with its number; always passes |
| `replicas` | warning while partitions are under-replicated or leaderless, with their names; always passes |
| `keys in doubt` | warning while keys are refused because of damage to the store, with the reason; always passes |
| `clock` | warning while the node's clock differs from that of other nodes, with the reason; always passes |
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
    """Runs health checks on request; probes the disk at most once in `PROBE_SECONDS`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._disk: Check | None = None
        self._probed_at = 0.0
        self._probing: asyncio.Future[Check] | None = None

    async def look(self, seconds: float = ANSWER_SECONDS_MAX) -> Health:
        """Run the checks within a time limit."""
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
            if (
                self._probing is None or self._probing.done()
            ):  # one probe at a time: a blocked disk must not accumulate threads
                welcome = self._node.welcome
                work = asyncio.to_thread(probe, welcome.data_dir, welcome.disk_free_bytes_min)
                self._probing = asyncio.ensure_future(work)
            self._disk = await asyncio.shield(self._probing)
            self._probed_at = now
        return [self._disk]


def probe(folder: str, free_bytes_min: int) -> Check:
    """Write and sync an unnamed file, then check the free space."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        room = os.statvfs(folder)
    except OSError as error:
        return Check("disk", ok=False, reason=f"{folder} cannot be written: {error.strerror or error}")
    return check_room(room.f_bavail * room.f_frsize, free_bytes_min)
