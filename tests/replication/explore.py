"""`make model`: explore every world of the model, breadth first, and say how many there are; look for schedules that kill bugs.

python -m tests.replication.explore                  every configuration, completely
python -m tests.replication.explore small            those that CI runs
python -m tests.replication.explore bug 7 [seed]     random walks until the planted bug 7 is found; prints the shortened schedule
"""

import sys
import time
from random import Random

from tests.replication.model import (
    FAULTS,
    NODES,
    Bounds,
    Broken,
    Label,
    Runtime,
    first_world,
    happen,
    in_words,
    labels,
    successors,
)
from tests.replication.planted import BUGS, planted

SMALL = {
    "one fault of any kind": Bounds(records=2, epochs=3, faults=1, slow=(2,)),
    "one fault, nothing synced": Bounds(
        records=2, epochs=3, faults=1, slow=(2,), flush_on_ack=False, allows_unclean=True
    ),
    "one fault, two of three in sync": Bounds(records=1, epochs=3, faults=1, slow=(2,), first_in_sync=(1, 2)),
    "one fault, somebody reads": Bounds(records=1, epochs=2, faults=1, slow=(2,), reads=1),
}
"""What CI explores."""
WHOLE = {
    **SMALL,
    "three records, one fault, syncs take their time": Bounds(faults=1, slow=(2,), lazy_syncs=True),
    "three records, two deaths or wrong accusations": Bounds(faults=2, slow=(2,), kinds=("kill", "accuse")),
    "two readers, one fault": Bounds(records=1, epochs=3, faults=1, slow=(2,), reads=2),
    "one record, one fault, all answers take their time": Bounds(records=1, faults=1),
}
"""What `make model` explores."""
STEPS_MAX = 80
FAULT_RATE = 0.3


def explore(bounds: Bounds, *, report: bool = False) -> int:
    """How many worlds there are; `Broken` if in one of them a promise is."""
    first = first_world(bounds)
    seen = {hash(first)}
    level, depth = [first], 0
    while level:
        following = []
        for runtime in level:
            for _, after in successors(runtime, bounds):
                number = hash(after)
                if number not in seen:
                    seen.add(number)
                    following.append(after)
        level, depth = following, depth + 1
        if report:
            print(f"  depth {depth}: {len(seen):,} states", file=sys.stderr, flush=True)
    return len(seen)


def walk(bounds: Bounds, random: Random) -> list[str] | None:
    """One random schedule; its lines, if it breaks a promise."""
    runtime, lines = first_world(bounds), []
    for _ in range(STEPS_MAX):
        possible = _possible(runtime, bounds)
        if not possible:
            return None
        # Mostly what would happen anyway: a walk of nothing but faults gets nowhere.
        usual = [each for each in possible if each[1][0] not in FAULTS and "unheard" not in each[0]]
        text, label = random.choice(usual if usual and random.random() > FAULT_RATE else possible)
        lines.append(text)
        try:
            runtime = happen(runtime, label, bounds)
        except Broken:
            return lines
    return None


def _possible(runtime: Runtime, bounds: Bounds) -> list[tuple[str, Label]]:
    found = [(in_words(label), label) for label in labels(runtime, bounds)]
    if "deaf" in bounds.kinds and runtime.faults and len(found) > 1:
        late = [node for node in NODES if runtime.hosts[node - 1].alive and not runtime.hosts[node - 1].is_deaf]
        for text, label in list(found):
            if label[0] in ("fence", "accuse", "elect", "start", "register") and runtime.faults > (
                label[0] == "accuse"
            ):
                found += [(f"{text} unheard by {node}", (*label, "unheard by", node)) for node in late]
    return found


def replay(lines: list[str], bounds: Bounds) -> Broken | None:
    """Play a schedule: lines that are not possible at their time are left out. The promise that it breaks, if it does."""
    runtime = first_world(bounds)
    for line in lines:
        label = next((label for text, label in _possible(runtime, bounds) if text == line), None)
        if label is None:
            continue
        try:
            runtime = happen(runtime, label, bounds)
        except Broken as broken:
            return broken
    return None


def shortened(lines: list[str], bounds: Bounds) -> list[str]:
    """Without the lines that are not needed."""
    at = len(lines) - 1
    while at >= 0:
        fewer = lines[:at] + lines[at + 1 :]
        if replay(fewer, bounds) is not None:
            lines = fewer
        at -= 1
    return lines


def search(number: int, seed: int, seconds: float = 120) -> list[str] | None:
    bug = BUGS[number]
    with planted(bug):
        random, began = Random(seed), time.process_time()
        while time.process_time() - began < seconds:
            lines = walk(bug.bounds, random)
            if lines is not None:
                return shortened(shortened(lines, bug.bounds), bug.bounds)
    return None


def wander(seed: int, count: int) -> None:
    """Random walks beyond what can be explored completely: six epochs, eight faults."""
    every = sorted({bug.bounds._replace(epochs=6, faults=8) for bug in BUGS.values()}, key=repr)
    random = Random(seed)
    for number in range(count):
        bounds = every[number % len(every)]
        lines = walk(bounds, random)
        if lines is not None:
            lines = shortened(lines, bounds)
            raise AssertionError("\n".join([str(bounds), *lines, str(replay(lines, bounds))]))


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["walk"]:
        wander(int(arguments[1]), int(arguments[2]))
        print("no promise broken")
        return
    if arguments[:1] == ["bug"]:
        found = search(int(arguments[1]), int(arguments[2]) if len(arguments) > 2 else 1)
        print("\n".join(found) if found else "not found")
        return
    for name, bounds in (SMALL if arguments == ["small"] else WHOLE).items():
        began = time.process_time()
        states = explore(bounds, report=not arguments)
        print(f"{name}: {states:,} states, {time.process_time() - began:.1f} CPU-s; {bounds}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
