"""Health checks of a node from its own snapshot. Checks of the disk are elsewhere: they need access to it."""

from collections.abc import Callable
from typing import Final

from braidlog.model.reporting.node_report import FENCED, Check, ClusterReport, Snapshot

NAMED_MAX: Final = 5
"""Maximum partitions that a reason names; of more it gives the count."""


def health_checks(snapshot: Snapshot) -> list[Check]:
    """Return every check, then the problems during which clients are still served."""
    found = [Check(name, not (why := find(snapshot)), why) for name, find in _FINDERS]
    warnings = _cluster(snapshot.cluster) | snapshot.warnings
    return [*found, *(Check(name, ok=True, reason=words) for name, words in warnings.items())]


def check_room(free_bytes: int, free_bytes_min: int) -> Check:
    """Check the free space of the data folder's disk."""
    if free_bytes < free_bytes_min:
        reason = f"{free_bytes} bytes are free, less than admin.disk_free_bytes_min = {free_bytes_min}"
        return Check("disk", ok=False, reason=reason)
    return Check("disk", ok=True)


def _listeners(snapshot: Snapshot) -> str:
    return ", ".join(f"listener {each.dialect} does not accept" for each in snapshot.listeners if not each.is_serving)


def _partitions(snapshot: Snapshot) -> str:
    faulty = [each for each in snapshot.partitions if each.fault]
    named = "; ".join(f"{each.topic}/{each.partition}: {each.fault}" for each in faulty[:NAMED_MAX])
    more = f"; and {len(faulty) - NAMED_MAX} more" if len(faulty) > NAMED_MAX else ""
    return f"{named}{more}"


def _keyvalue(snapshot: Snapshot) -> str:
    return snapshot.keyvalue.fault


def _cluster(cluster: ClusterReport) -> dict[str, str]:
    """Dead nodes and under-replicated partitions of the whole cluster. This node can still serve its own partitions."""
    fenced = [str(each.node) for each in cluster.nodes if each.state == FENCED]
    under = len(cluster.weak) + cluster.weak_left_out
    said = {}
    if fenced:
        said["nodes"] = f"{len(fenced)} of {len(cluster.nodes)} nodes fenced: {', '.join(fenced)}"
    if under:
        named = ", ".join(f"{each.topic}/{each.partition}" for each in cluster.weak[:NAMED_MAX]) or "slots of keys"
        more = f" and {under - NAMED_MAX} more" if cluster.weak and under > NAMED_MAX else ""
        said["replicas"] = f"under-replicated={under} leaderless={cluster.leaderless}: {named}{more}"
    return said


_FINDERS: Final[tuple[tuple[str, Callable[[Snapshot], str]], ...]] = (
    ("listeners", _listeners),
    ("partitions", _partitions),
    ("keyvalue", _keyvalue),
)
"""Check name → problem, "" if the check passes."""
