"""How benchmarks here measure: repeat, interleave, print medians with their spread, and ratios from one run.

Knows: clocks and tables, and how busy the machine is. Refuses to know: what is measured.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

DOUBT: Final = 0.05
_STATES_AT_REST: Final = slice(3, 4)
"""Of the times in the first line of /proc/stat: idle. Who waits for a disk keeps it from others, and counts as busy."""
_GUESTS_FROM: Final = 8
"""The times of guests are in those of their hosts already."""


class Spread(NamedTuple):
    """The middle of several runs, and how far they lie apart."""

    low: float
    median: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}..{self.high:{spec}})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))


def likely(values: Sequence[float]) -> tuple[float, float]:
    """Between which of the values the median of all that could be measured lies, 19 times of 20 (of six values or more).

    Each value is above it as a coin falls, however they are spread: of many, a few that lie far out, as a hiccup of the machine
    makes them, change nothing. Of fewer than nine all count.
    """
    ordered, count = sorted(values), len(values)
    left_out, missed = 0, 2 / 2**count
    while missed <= DOUBT:
        left_out += 1
        missed += 2 * math.comb(count, left_out) / 2**count
    left_out = max(left_out - 1, 0)
    return ordered[left_out], ordered[count - 1 - left_out]


def busy_share(seconds: float, times: Callable[[], str] = lambda: Path("/proc/stat").read_text("ascii")) -> float:
    """How much of its time the machine works, all cores together, while nothing is done here for so many seconds."""
    before = _times(times())
    time.sleep(seconds)  # noqa: TID251 - what passes meanwhile is measured
    passed = [now - then for now, then in zip(_times(times()), before, strict=True)]
    return 1 - sum(passed[_STATES_AT_REST]) / (sum(passed) or 1)


def _times(stat: str) -> list[int]:
    return [int(word) for word in stat.splitlines()[0].split()[1 : 1 + _GUESTS_FROM]]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleave(contenders: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run each contender in turn, `repeats` times: what the machine does meanwhile meets them all alike."""
    results: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            results[name].append(run())
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ratio of neighbours: each of ours to the run beside it."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def verdict(ratio: Spread, target: float) -> str:
    return f"{ratio:.2f}, target {target:g}: {'reached' if ratio.median >= target else 'MISSED'}"
