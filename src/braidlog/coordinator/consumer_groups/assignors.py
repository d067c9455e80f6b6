"""Partition assignment for consumer groups: pure functions that run in slices.

Invariants: every partition of a topic is assigned to exactly one of its subscribers. Equal subscriptions and an
unchanged previous target give that target again. Each assignor is a generator: it yields after a number of steps and
returns the target.

`uniform` considers all topics together. Members with equal subscriptions get equal numbers of partitions, plus or
minus one, and as few partitions as possible move. Topics are grouped by their set of subscribers, those with the
fewest first; each group fills up the members with the fewest partitions so far. `range` assigns contiguous runs of
each topic, so topics with equal partition counts are assigned alike.
"""

from collections.abc import Collection, Generator, Iterable, Mapping

from braidlog.coordinator.groups.assignors import range_shares

Shares = dict[str, list[int]]
"""topic id → partitions, ascending."""
Target = dict[str, Shares]
"""member → partitions to read."""
Work = Generator[None, None, Target]

UNIFORM, RANGE = "uniform", "range"
ASSIGNORS = (UNIFORM, RANGE)
"""The first one is the default."""
STEPS_PER_SLICE = 20_000
"""Steps between two yields; a step takes a few hundred nanoseconds."""


class _Steps:
    def __init__(self) -> None:
        self._left = STEPS_PER_SLICE

    def taken(self, count: int) -> Iterable[None]:
        """For `yield from`: one pause if the step budget is used up."""
        self._left -= count
        if self._left > 0:
            return ()
        self._left = STEPS_PER_SLICE
        return (None,)


def assign(assignor: str, wishes: Mapping[str, frozenset[str]], counts: Mapping[str, int], previous: Target) -> Work:
    """Assign the topics of `counts` (id → partitions) to the members that subscribe to them."""
    steps = _Steps()
    target: Target = {member: {} for member in sorted(wishes)}
    loads = dict.fromkeys(target, 0)
    for readers, topics in (yield from _classes(wishes, counts, steps)):
        if assignor == RANGE:
            for topic in topics:
                yield from steps.taken(len(readers) + counts[topic])
                for member, share in range_shares(readers, counts[topic]).items():
                    if share:
                        target[member][topic] = share
        else:
            yield from _fill(readers, {topic: counts[topic] for topic in topics}, previous, target, loads, steps)
    return target


def _classes(
    wishes: Mapping[str, frozenset[str]], counts: Mapping[str, int], steps: _Steps
) -> Generator[None, None, list[tuple[list[str], list[str]]]]:
    """Groups of (members, topics): exactly these members subscribe to these topics."""
    alike: dict[frozenset[str], list[str]] = {}
    for member in sorted(wishes):
        alike.setdefault(wishes[member], []).append(member)
    wanted_by: dict[str, list[int]] = {}
    kinds = list(alike)
    for number, wish in enumerate(kinds):
        yield from steps.taken(len(wish))
        for topic in wish:
            if topic in counts:
                wanted_by.setdefault(topic, []).append(number)
    topics_of: dict[tuple[int, ...], list[str]] = {}
    for topic in sorted(wanted_by):
        topics_of.setdefault(tuple(wanted_by[topic]), []).append(topic)
    found = []
    for numbers, topics in topics_of.items():
        readers = sorted(member for number in numbers for member in alike[kinds[number]])
        yield from steps.taken(len(readers))
        found.append((readers, topics))
    return sorted(found, key=lambda each: (len(each[0]), each))


def _fill(
    readers: Collection[str],
    counts: Mapping[str, int],
    previous: Target,
    target: Target,
    loads: dict[str, int],
    steps: _Steps,
) -> Generator[None, None, None]:
    """Assign the partitions of topics with the same `readers`, keeping previous assignments where possible."""
    kept = {}
    taken: dict[str, set[int]] = {topic: set() for topic in counts}
    for member in readers:
        before = previous.get(member, {})
        mine = [
            (topic, n) for topic, numbers in before.items() if topic in counts for n in numbers if n < counts[topic]
        ]
        kept[member] = [place for place in mine if place[1] not in taken[place[0]]]
        for topic, number in kept[member]:
            taken[topic].add(number)
        yield from steps.taken(1 + len(before) + len(mine))
    quotas = _quotas({member: loads[member] for member in readers}, kept, sum(counts.values()))
    for member in readers:
        for topic, number in kept[member][quotas[member] :]:
            taken[topic].discard(number)
    free = iter([(topic, n) for topic, count in counts.items() for n in range(count) if n not in taken[topic]])
    yield from steps.taken(sum(counts.values()))
    for member in readers:
        mine = kept[member][: quotas[member]]
        mine += [next(free) for _ in range(quotas[member] - len(mine))]
        for topic, number in sorted(mine):
            target[member].setdefault(topic, []).append(number)
        loads[member] += quotas[member]
        yield from steps.taken(1 + len(mine))


def _quotas(loads: Mapping[str, int], kept: Mapping[str, Collection[object]], count: int) -> dict[str, int]:
    """Number of partitions per member: the least loaded fill up first, and the remainder goes to members that held
    more.
    """
    members = sorted(loads, key=lambda member: (loads[member], member))
    below = 0
    filled = 0
    for number, member in enumerate(members, 1):
        need = below + (number - 1) * (loads[member] - loads[members[number - 2]]) if number > 1 else 0
        if need > count:
            break
        below, filled = need, number
    level = loads[members[filled - 1]]
    each, extra = divmod(count - below, filled)
    base = {member: level - loads[member] + each for member in members[:filled]}
    first = sorted(base, key=lambda member: (base[member] - len(kept[member]), member))[:extra]
    quotas = dict.fromkeys(loads, 0) | base
    for member in first:
        quotas[member] += 1
    return quotas
