"""`make sim`, `make sim-planted`: many seeds of the simulated cluster, on all cores; a seed that fails is made shorter and told.

python -m tests.simulation.search 10000 [first]      that many seeds; prints what happened how often, and seeds per CPU-second
python -m tests.simulation.search story 17           one seed, made shorter if it fails, and its story
python -m tests.simulation.search planted [500]      for each planted bug the first seed that finds it: a table
"""

import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from tests.cluster.test_planted import METADATA_BUGS
from tests.replication.planted import BUGS, RULE_BUGS, Bug, RuleBug, planted
from tests.simulation.promises import BrokenPromise
from tests.simulation.real_codec import RealCodec
from tests.simulation.universe import Universe
from tests.storage.planted import BUGS as STORAGE_BUGS
from tests.storage.planted import Bug as StorageBug

from braidlog.model.errors import BrokerError, StorageFault

FAILURES = (BrokenPromise, AssertionError, BrokerError, StorageFault)
"""What a run ends with that finds something: a promise that is broken, or a node that cannot go on."""
SEARCHED_MAX = 500
CHUNK = 25
CODEC_EVERY = 10
IN_STORAGE, IN_METADATA = (25, 26, 28, 30, 67), (40, 41)
"""Those of the other tables that a simulated cluster runs into."""
EVERY_BUG: dict[int, Bug | RuleBug | StorageBug] = {
    **BUGS,
    **RULE_BUGS,
    **{number: STORAGE_BUGS[number] for number in IN_STORAGE},
    **{number: METADATA_BUGS[number] for number in IN_METADATA},
}


class Batch(NamedTuple):
    counts: Counter[str]
    failed: list[tuple[int, str]]
    cpu_seconds: float


class Simulated(Protocol):
    """Of a seed."""

    def run(self) -> object: ...


def failure_of(universe: Simulated) -> str:
    """Why its run fails; empty if it does not."""
    try:
        universe.run()
    except FAILURES as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_each(seeds: Iterable[int], run: Callable[[int], tuple[str, Counter[str]]]) -> Batch:
    """`run` tells of a seed why it fails, if it does, and what happened how often."""
    counts: Counter[str] = Counter()
    failed = []
    began = time.process_time()
    for seed in seeds:
        why, happened = run(seed)
        if why:
            failed.append((seed, why))
        counts.update(happened)
    return Batch(counts, failed, time.process_time() - began)


def codec_for(seed: int) -> RealCodec | None:
    """One seed of ten sends bytes between its nodes; the run is the same, or the codec is wrong."""
    return RealCodec() if seed % CODEC_EVERY == 0 else None


def failure(seed: int, skipped: frozenset[int] = frozenset()) -> str:
    """Why the run of this seed fails; empty if it does not."""
    return failure_of(Universe(seed, codec=codec_for(seed), skipped=skipped))


def run_all(seeds: Iterable[int]) -> Batch:
    def run(seed: int) -> tuple[str, Counter[str]]:
        codec = codec_for(seed)
        universe = Universe(seed, codec=codec)
        why = failure_of(universe)
        counts = Counter({"seed": 1, "acknowledged": universe.acknowledged})
        return why, counts + universe.counts + (codec.counts if codec is not None else Counter())

    return run_each(seeds, run)


def shortened(seed: int) -> frozenset[int]:
    """The faults that can be left out while the run still fails: in halves, quarters, and so on, down to single ones."""
    universe = Universe(seed, codec=codec_for(seed))
    failure_of(universe)
    skipped: frozenset[int] = frozenset()
    size = max(universe.faults // 2, 1)
    while size:
        for first in range(1, universe.faults + 1, size):
            longer = skipped | frozenset(range(first, first + size))
            if longer != skipped and failure(seed, longer):
                skipped = longer
        size //= 2
    return skipped


def story(seed: int) -> str:
    skipped = shortened(seed) if failure(seed) else frozenset[int]()
    universe = Universe(seed, codec=codec_for(seed), tells=True, skipped=skipped)
    end = failure_of(universe) or "all promises kept"
    assert universe.story is not None
    return "\n".join([f"seed {seed}: {universe.mix}", *universe.story, end])


def first_seed(number: int, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of these seeds in whose run the planted bug shows itself."""
    with planted(EVERY_BUG[number]):
        for seed in seeds:
            why = failure(seed)
            if why:
                return seed, why
    return None


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def _search(number: int) -> tuple[int, tuple[int, str] | None]:
    return number, first_seed(number, range(1, SEARCHED_MAX + 1))


def main(arguments: list[str]) -> int:
    _quiet()
    if arguments[:1] == ["story"]:
        print(story(int(arguments[1])))
        return 0
    with multiprocessing.get_context("spawn").Pool(initializer=_quiet) as pool:
        if arguments[:1] == ["planted"]:
            for number, found in pool.imap(_search, EVERY_BUG):
                result = f"seed {found[0]} | {found[1][:110]}" if found else f"not by {SEARCHED_MAX} seeds |"
                print(f"| {number} | {EVERY_BUG[number].what} | {result} |", flush=True)
            return 0
        count, first = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 1
        began = time.monotonic()
        chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
        counts: Counter[str] = Counter()
        failed: list[tuple[int, str]] = []
        cpu_seconds = 0.0
        for batch in pool.imap_unordered(run_all, chunks):
            counts.update(batch.counts)
            cpu_seconds += batch.cpu_seconds
            for seed, why in batch.failed:
                print(f"seed {seed}: {why}", flush=True)
            failed += batch.failed
    print(", ".join(f"{what}: {times:,}" for what, times in sorted(counts.items())))
    print(
        f"{count} seeds, {len(failed)} failed, {time.monotonic() - began:.0f} s, {count / cpu_seconds:.1f} seeds per CPU-s"
    )
    if failed:
        print(story(min(failed)[0]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
