"""Which member is to read what: pure, and in slices.

Knows: two ways to divide. Refuses to know: epochs, who reads what meanwhile, time.
Invariants: every partition of a topic goes to exactly one of the members that want it; the same wishes over the previous target
give that target again. Each is a generator: it yields after every so many steps, and returns the target.

`uniform` looks at all topics together: members that want the same have equally many partitions, give or take one, and as few as
possible change hands. Topics are taken by who wants them, those with the fewest members first; each such class fills up the
members that have least so far. `range` gives each topic in contiguous runs, so that topics that are alike are divided alike.
"""

from collections.abc import Collection, Generator, Iterable, Mapping

from braidlog.coordinator.groups.assignors import range_shares

Shares = dict[str, list[int]]
"""topic id → partitions, ascending."""
Target = dict[str, Shares]
"""member → what it is to read."""
Work = Generator[None, None, Target]

UNIFORM, RANGE = "uniform", "range"
ASSIGNORS = (UNIFORM, RANGE)
"""The first is taken where nobody asks for one."""
STEPS_AT_ONCE = 20_000
"""Of a few hundred nanoseconds each: what is done between two turns of the loop."""


class _Steps:
    def __init__(self) -> None:
        self._left = STEPS_AT_ONCE

    def taken(self, count: int) -> Iterable[None]:
        """To `yield from`: a pause, if it is time."""
        self._left -= count
        if self._left > 0:
            return ()
        self._left = STEPS_AT_ONCE
        return (None,)


def assign(assignor: str, wishes: Mapping[str, frozenset[str]], counts: Mapping[str, int], previous: Target) -> Work:
    """Divide the topics of `counts` (id → partitions) among the members that wish for them."""
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
    """(members, topics) that belong together: all of these, and nobody else, want all of those."""
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
    """Divide the partitions of topics that all of `readers` want, with regard to what each of them has already."""
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
    """How many each gets: the least loaded are filled up first, what is left over goes to those who had more."""
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
