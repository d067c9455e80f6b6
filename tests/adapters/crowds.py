"""Groups of as many members as one may have, and the requests about them: on the ports whose members join at once."""

from collections.abc import Iterator
from typing import Any

from tests.adapters.largest import PARTITIONS, WIDE, Large

from braidlog.coordinator.state_limits import StateLimits
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.connection import ClientConnection as CursusConnection
from braidlog.wire.flux import messages as f
from braidlog.wire.flux.connection import ClientConnection as FluxConnection

MEMBERS = StateLimits().members_per_group_max
CROWD = "crowd"
CURSUS_CROWD, FLUX_CROWD = "crowd-cursus", "crowd-flux"


def crowded() -> Iterator[Large]:
    """The requests, in their order: the first of each port makes the group."""
    yield from _cursus()
    yield from _flux()


def _cursus() -> Iterator[Large]:
    def frame(*messages: Any) -> bytes:
        return b"".join(CursusConnection().request(message) for message in messages)

    names = [f"m{number}" for number in range(MEMBERS)]
    group: dict[str, Any] = {"topic": WIDE, "group": CURSUS_CROWD}
    offsets = tuple(r.PartitionOffset(number, 0) for number in range(PARTITIONS))
    yield Large("cursus", "JOIN_GROUP", "a crowd", frame(*(r.JoinGroup(**group, member=name) for name in names)))
    last = {**group, "member": names[-1]}
    yield Large("cursus", "SYNC_GROUP", CROWD, frame(r.SyncGroup(**last)))
    yield Large("cursus", "GROUP_STATUS", CROWD, frame(r.GroupStatus(group["group"])))
    yield Large("cursus", "BATCH_COMMIT", CROWD, frame(r.BatchCommit(**last, generation=MEMBERS, offsets=offsets)))
    yield Large("cursus", "LEAVE_GROUP", CROWD, frame(r.LeaveGroup(**last)))


def _flux() -> Iterator[Large]:
    def frame(*messages: Any) -> bytes:
        return b"".join(FluxConnection().request(message) for message in messages)

    of = [("1", FLUX_CROWD, WIDE, f"m{number}") for number in range(MEMBERS)]
    yield Large("flux", "JOIN", "a crowd", frame(*(f.Join(*member) for member in of)))
    yield Large("flux", "SYNC", CROWD, frame(f.Sync(*of[-1], MEMBERS)))
    yield Large("flux", "COMMIT", CROWD, frame(f.Commit(*of[-1], MEMBERS, 0, 0)))
    yield Large("flux", "LEAVE", CROWD, frame(f.Leave(*of[-1], MEMBERS)))
