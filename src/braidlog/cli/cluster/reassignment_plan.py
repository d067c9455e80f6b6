"""Plan a reassignment that spreads partitions evenly over nodes. Pure.

Replicas of a partition are on different racks where nodes have racks. Under that rule as few replicas as possible move.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from braidlog.client.drivers.cluster import ClusterPartition, Place

Replicas = list[int]
Racks = Mapping[int, str]


class PlannedPartition(msgspec.Struct, frozen=True):
    """Replicas of a partition after the plan, the preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[int, ...]


class Plan(msgspec.Struct, frozen=True):
    """Plan in the format of kafka-reassign-partitions; contains only partitions that change."""

    partitions: tuple[PlannedPartition, ...]
    version: int = 1


def make_plan(partitions: Sequence[ClusterPartition], racks: Racks, replicas: int | None = None) -> Plan:
    """Plan to move `partitions` to the nodes of `racks`, each with `replicas` replicas or as many as it has.

    Raises `ValueError` if there are too few nodes.
    """
    before = {(each.topic, each.partition): each.replicas for each in partitions}
    loads = Counter(dict.fromkeys(racks, 0))
    loads.update(node for nodes in before.values() for node in nodes if node in racks)
    after: dict[Place, Replicas] = {}
    for place, nodes in before.items():
        count = replicas or len(nodes)
        if count > len(racks):
            raise ValueError(
                f"{place[0]}/{place[1]} needs {count} replicas, but only {len(racks)} nodes are named; "
                "name more nodes or pass --replicas"
            )
        loads.subtract(node for node in nodes if node in racks)
        after[place] = _kept_and_added(nodes, racks, loads, count)
        loads.update(after[place])
    _even_replicas(after, racks, loads)
    _even_leaders(after, racks)
    return Plan(
        tuple(PlannedPartition(*place, tuple(nodes)) for place, nodes in after.items() if tuple(nodes) != before[place])
    )


def _kept_and_added(nodes: tuple[int, ...], racks: Racks, loads: Counter[int], count: int) -> Replicas:
    """Choose nodes on different racks, then current replicas, then the least loaded; a new node takes its predecessor's index."""
    chosen: Replicas = []
    while len(chosen) < count:
        taken = Counter(racks[node] for node in chosen)
        free = [node for node in racks if node not in chosen]
        chosen.append(min(free, key=lambda node: (taken[racks[node]], _position(nodes, node), loads[node], node)))
    added = [node for node in chosen if node not in nodes]
    placed = [node if node in chosen else added.pop(0) for node in nodes if node in chosen or added]
    return placed + added


def _position(nodes: tuple[int, ...], node: int) -> int:
    return nodes.index(node) if node in nodes else len(nodes)


def _even_replicas(after: dict[Place, Replicas], racks: Racks, loads: Counter[int]) -> None:
    """Move replicas until no node holds two more than another, unless racks forbid it."""
    while True:
        found = _shift(after, racks, loads)
        if found is None:
            return
        place, heavy, light = found
        after[place][after[place].index(heavy)] = light
        loads[heavy] -= 1
        loads[light] += 1


def _shift(after: dict[Place, Replicas], racks: Racks, loads: Counter[int]) -> tuple[Place, int, int] | None:
    ordered = sorted(racks, key=lambda node: (loads[node], node))
    for heavy in reversed(ordered):
        for light in ordered:
            if loads[heavy] - loads[light] < 2:
                break
            for place, nodes in after.items():
                if heavy in nodes and light not in nodes and _is_as_far_apart(nodes, racks, heavy, light):
                    return place, heavy, light
    return None


def _is_as_far_apart(nodes: Replicas, racks: Racks, heavy: int, light: int) -> bool:
    shared = Counter(racks[node] for node in nodes if node != heavy)
    return shared[racks[light]] <= shared[racks[heavy]]


def _even_leaders(after: dict[Place, Replicas], racks: Racks) -> None:
    """Reorder replicas until no node is preferred leader of two more partitions than another of their replicas."""
    leads = Counter(dict.fromkeys(racks, 0))
    leads.update(nodes[0] for nodes in after.values())
    has_changed = True
    while has_changed:
        has_changed = False
        for nodes in after.values():
            light = min(nodes, key=lambda node: (leads[node], node))
            if leads[nodes[0]] - leads[light] >= 2:
                leads.subtract([nodes[0]])
                leads.update([light])
                at = nodes.index(light)
                nodes[0], nodes[at] = light, nodes[0]
                has_changed = True
