"""Who reads what: pure functions from members and partitions to an assignment.

Knows: three ways to divide. Refuses to know: generations, time, dialects.
Invariant: every partition of a topic goes to exactly one of the members that want it; the same input gives the same output,
whatever the order it came in.
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
    """Divide each topic's partitions among the members that wish for it."""
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
    """Contiguous runs; the first members get one more where it does not divide evenly."""
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
    """Even shares, and as few partitions as possible change hands."""
    each, extra = divmod(count, len(members))
    kept = {member: [p for p in before[member] if p < count] for member in members}
    # Those who had most may keep the larger shares: cutting them would move a partition for nothing.
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
