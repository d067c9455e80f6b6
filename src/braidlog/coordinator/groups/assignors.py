"""Partition assignment in broker-assigned groups: pure functions from members and partitions to an assignment.

Invariant: every partition of a topic is assigned to exactly one of its subscribers. Equal input gives equal output in
any order.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

Assignment = dict[str, dict[str, list[int]]]
"""member → topic → partitions, ascending."""


class Assignor(StrEnum):
    RANGE = "range"
    ROUND_ROBIN = "round_robin"
    STICKY = "sticky"


def assign(
    assignor: Assignor,
    wishes: Mapping[str, frozenset[str]],
    partitions: Mapping[str, int],
    previous: Assignment,
) -> Assignment:
    """Assign each topic's partitions to the members that subscribe to it."""
    result: Assignment = {member: {} for member in sorted(wishes)}
    for topic in sorted({topic for wish in wishes.values() for topic in wish}):
        members = sorted(member for member, wish in wishes.items() if topic in wish)
        before = {member: previous.get(member, {}).get(topic, []) for member in members}
        for member, share in _WAYS[assignor](members, partitions.get(topic, 0), before).items():
            result[member][topic] = share
    return result


def range_shares(
    members: list[str], count: int, _: Mapping[str, list[int]] = MappingProxyType({})
) -> dict[str, list[int]]:
    """Contiguous runs; the first members get one more if the count does not divide evenly."""
    each, extra = divmod(count, len(members))
    shares, start = {}, 0
    for number, member in enumerate(members):
        end = start + each + (number < extra)
        shares[member] = list(range(start, end))
        start = end
    return shares


def _round_robin(members: list[str], count: int, _: Mapping[str, list[int]]) -> dict[str, list[int]]:
    return {member: list(range(number, count, len(members))) for number, member in enumerate(members)}


def _sticky(members: list[str], count: int, before: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Even shares with as few moved partitions as possible."""
    each, extra = divmod(count, len(members))
    kept = {member: [p for p in before[member] if p < count] for member in members}
    # Members that held most keep the larger shares; otherwise a partition would move without need.
    by_holding = sorted(members, key=lambda member: (-len(kept[member]), member))
    quota = {member: each + (number < extra) for number, member in enumerate(by_holding)}
    shares = {member: kept[member][: quota[member]] for member in members}
    taken = {partition for share in shares.values() for partition in share}
    free = [partition for partition in range(count) if partition not in taken]
    for member in members:
        need = quota[member] - len(shares[member])
        shares[member] = sorted(shares[member] + free[:need])
        del free[:need]
    return shares


_WAYS: dict[Assignor, Callable[[list[str], int, Mapping[str, list[int]]], dict[str, list[int]]]] = {
    Assignor.RANGE: range_shares,
    Assignor.ROUND_ROBIN: _round_robin,
    Assignor.STICKY: _sticky,
}
