"""How benchmarks here measure: repeat, interleave, print medians with their spread, and ratios from one run.

Knows: clocks and tables. Refuses to know: what is measured.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """The middle of several runs, and how far they lie apart."""

    low: float
    median: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}..{self.high:{spec}})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))


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
