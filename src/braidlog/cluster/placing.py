"""On which nodes new partitions are placed: spread evenly, the copies of one on different racks as far as there are any.

Pure, and the same for everyone: a topic begins where its name says and goes round from there, so its leaders are on all nodes
before one has a second, and topics of one partition begin everywhere.
"""

from collections.abc import Sequence
from typing import Final

from braidlog.cluster.membership import Membership
from braidlog.codec.crc import crc32c
from braidlog.kv.slots import FEED_TOPIC, LOG_TOPIC, placed
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.assignment import Nodes

REPLICAS: Final = 3
"""Unless something else is asked for, or there are fewer nodes."""
MIN_IN_SYNC: Final = 2
BY_RANK: Final = frozenset({LOG_TOPIC, FEED_TOPIC})
"""Topics whose partitions rank the nodes, each by itself (kv/slots.py): a node that is added takes its share of them, and nothing
else moves. A slot and its feed are on the same nodes."""


def place(known: Membership, topic: str, numbers: Sequence[int], replicas: int | None = None) -> tuple[Nodes, ...]:
    """The nodes of each partition of these numbers, the preferred leader first; by the nodes that are there now."""
    racks = {number: known.members[str(number)].rack for number in live(known)}
    if not racks or not 1 <= (replicas or 1) <= len(racks):
        raise BrokerError(
            Reason.NOT_ENOUGH_REPLICAS,
            f"{replicas or 1} replicas need as many nodes that are there and do not drain; there are {len(racks)}",
        )
    if topic in BY_RANK:
        return tuple(placed(number, racks, replicas or min(REPLICAS, len(racks))) for number in numbers)
    circle = _interleaved(racks)
    first = crc32c(topic.encode())
    return tuple(_replicas(circle, racks, first + number, replicas or min(REPLICAS, len(circle))) for number in numbers)


def live(known: Membership) -> list[int]:
    """The nodes that may lead."""
    return sorted(number for number, node in known.nodes().items() if node.may_lead)


def _interleaved(racks: dict[int, str]) -> list[int]:
    """Neighbours are on different racks as far as that is possible: one of each rack, then the second of each, …"""
    turns: dict[str, int] = {}
    ranked = []
    for number, rack in racks.items():
        turns[rack] = turns.get(rack, 0) + 1
        ranked.append((turns[rack], rack, number))
    return [number for _, _, number in sorted(ranked)]


def _replicas(circle: list[int], racks: dict[int, str], at: int, count: int) -> Nodes:
    """Round from the leader; each round of leaders begins its followers one further, so that no two nodes share everything."""
    size = len(circle)
    leader = circle[at % size]
    others = [circle[(at + 1 + step) % size] for step in range(size - 1)]
    shift = at // size % len(others) if others else 0
    chosen = [leader]
    others = others[shift:] + others[:shift]
    while len(chosen) < count:
        taken = [racks[node] for node in chosen]
        chosen.append(min((node for node in others if node not in chosen), key=lambda node: taken.count(racks[node])))
    return tuple(chosen)
