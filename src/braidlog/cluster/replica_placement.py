"""Replica placement of new partitions: even load, and different racks as far as possible.

Pure, with the same result on every node. A topic's name selects the first node, and its partitions continue round
robin from there. So leaders are on all nodes before one node has a second, and topics with one partition are spread as
well.
"""

from collections.abc import Sequence
from typing import Final

from braidlog.cluster.membership import Membership
from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX
from braidlog.codec.crc import crc32c
from braidlog.kv.replicated.slots import FEED_TOPIC, LOG_TOPIC, placements
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.assignment import Nodes

REPLICAS: Final = 3
"""Default replication factor, unless fewer nodes exist."""
MIN_IN_SYNC: Final = 2
RANKED_TOPICS: Final = frozenset({LOG_TOPIC, FEED_TOPIC})
"""Topics placed by ranking nodes (kv/replicated/slots.py), so an added node takes its share. A key log and its feed are on the
same nodes.
"""


def place(known: Membership, topic: str, numbers: Sequence[int], replicas: int | None = None) -> tuple[Nodes, ...]:
    """Return the nodes of each numbered partition, the preferred leader first.

    Leaders are live nodes. Fenced nodes are used only if too few racks have a live node. Draining nodes get no
    replica, so a partition may have fewer than `replicas`; `complete` adds them later. Internal topics use live nodes
    only.
    """
    count, leading = replica_count(known, replicas), live(known)
    if not 1 <= count <= len(known.members):
        raise BrokerError(
            Reason.INVALID_SETTING, f"{count} replicas need {count} nodes, but {len(known.members)} are registered"
        )
    if not leading:
        raise BrokerError(Reason.NOT_ENOUGH_REPLICAS, "every registered node is fenced or draining; try again later")
    if topic in RANKED_TOPICS:
        ranked = placements(len(numbers), leading, count)
        return tuple(ranked[number] for number in numbers)
    is_internal = topic.startswith(INTERNAL_PREFIX)
    racks = {
        number: known.members[str(number)].rack
        for number, node in sorted(known.nodes().items())
        if (node.may_lead if is_internal else node.is_fenced or not node.is_draining)
    }
    circle = _interleaved(racks)
    leaders = [node for node in circle if node in leading]
    first = crc32c(topic.encode())
    return tuple(_replicas(circle, leaders, racks, first + number, min(count, len(circle))) for number in numbers)


def complete(known: Membership, topic: str, number: int, held: Nodes, count: int) -> Nodes:
    """Return `held` plus the missing live nodes, on other racks as far as possible; fewer if too few nodes are live."""
    racks = {int(node): member.rack for node, member in known.members.items()}
    circle = _round(_interleaved(racks), crc32c(topic.encode()) + number)
    return _filled(held, [node for node in circle if node in live(known)], racks, count)


def replica_count(known: Membership, replicas: int | None = None) -> int:
    """Return the desired number of replicas: the requested number, or the default."""
    return min(REPLICAS, len(known.members)) if replicas is None else replicas


def live(known: Membership) -> list[int]:
    """Nodes that may lead."""
    return sorted(number for number, node in known.nodes().items() if node.may_lead)


def _interleaved(racks: dict[int, str]) -> list[int]:
    """Order nodes so that neighbours are on different racks if possible: one node of each rack, then the second of
    each, …
    """
    turns: dict[str, int] = {}
    ranked = []
    for number, rack in racks.items():
        turns[rack] = turns.get(rack, 0) + 1
        ranked.append((turns[rack], rack, number))
    return [number for _, _, number in sorted(ranked)]


def _replicas(circle: list[int], leaders: list[int], racks: dict[int, str], at: int, count: int) -> Nodes:
    """Replicas round robin from the leader. Each round of leaders shifts its followers by one, so no two nodes share
    all partitions.
    """
    leader = leaders[at % len(leaders)]
    others = _round(circle, circle.index(leader))[1:]
    return _filled(
        (leader,), sorted(_round(others, at // len(leaders)), key=lambda node: node not in leaders), racks, count
    )


def _round(circle: list[int], at: int) -> list[int]:
    shift = at % len(circle) if circle else 0
    return circle[shift:] + circle[:shift]


def _filled(held: Nodes, candidates: list[int], racks: dict[int, str], count: int) -> Nodes:
    """Add the first candidate on the rack with the fewest replicas so far, until `count` is reached."""
    chosen, left = list(held), [node for node in candidates if node not in held]
    while len(chosen) < count and left:
        taken = [racks[node] for node in chosen if node in racks]
        chosen.append(min(left, key=lambda node: taken.count(racks[node])))
        left.remove(chosen[-1])
    return tuple(chosen)
