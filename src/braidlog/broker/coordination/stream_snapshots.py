"""Reads and saves snapshots of event streams at their coordinator, on any node.

Does not handle: storing snapshots (`coordinator/snapshot_store.py`).
"""

from typing import Final

import msgspec

from braidlog.broker.coordination.coordinators import Coordinators
from braidlog.broker.forwarding import Forwarding, read_asked
from braidlog.coordinator.snapshot_store import Snapshot, StreamName
from braidlog.coordinator.state_limits import NODE

CALL: Final = "snapshot"


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """A request between nodes: save `snapshot`, or without one read the saved snapshot."""

    stream: StreamName
    snapshot: Snapshot | None = None


class StreamSnapshots:
    """Finds and saves snapshots of event streams."""

    def __init__(self, coordinators: Coordinators, forwarding: Forwarding) -> None:
        self._coordinators = coordinators
        self._forwarding = forwarding
        forwarding.client_answers[CALL] = self.handle_call

    async def find(self, stream: StreamName) -> Snapshot | None:
        return await self._ask(Asked(stream), NODE)

    async def save(self, stream: StreamName, snapshot: Snapshot, *, by: str = NODE) -> None:
        await self._ask(Asked(stream, snapshot), by)

    async def handle_call(self, body: bytes, by: str) -> bytes:
        """Serve a request of another node."""
        return msgspec.msgpack.encode(await self._here(read_asked(body, Asked), by))

    async def _ask(self, asked: Asked, by: str) -> Snapshot | None:
        # Saving the same snapshot twice has no further effect: retry after a timeout.
        return await self._forwarding.at_owner(
            CALL, asked, Snapshot | None, lambda: self._here(asked, by), principal=by
        )

    async def _here(self, asked: Asked, by: str) -> Snapshot | None:
        """Serve a request here: return the snapshot, or None after saving."""
        async with self._coordinators.settled_after(asked.stream.counted_as) as coordinator:
            if asked.snapshot is None:
                return coordinator.snapshots.find(asked.stream)
            await coordinator.snapshots.save(asked.stream, asked.snapshot, by=by)
            return None
