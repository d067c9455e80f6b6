"""What is wrong with a node, as its own snapshot shows.

Knows: what has to hold. Refuses to know: who asks, the disk (who can touch it looks at it).
"""

from collections.abc import Callable
from typing import Final

from braidlog.model.report import Check, Snapshot

NAMED_MAX: Final = 5
"""Partitions that a reason names; of more it says how many."""


def findings(snapshot: Snapshot) -> list[Check]:
    """Every check; then what is wrong while clients are served all the same."""
    found = [Check(name, not (why := find(snapshot)), why) for name, find in _FINDERS]
    return [*found, *(Check(name, ok=True, reason=words) for name, words in snapshot.warnings.items())]


def check_room(free_bytes: int, free_bytes_min: int) -> Check:
    """Of the data folder's disk."""
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


_FINDERS: Final[tuple[tuple[str, Callable[[Snapshot], str]], ...]] = (
    ("listeners", _listeners),
    ("partitions", _partitions),
    ("keyvalue", _keyvalue),
)
"""Name → what is wrong, "" if nothing is."""
