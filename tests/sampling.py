"""How much of a long campaign one run takes: all of it with `CRASH=full` (`make crash`), else one in so many.

The stride stands where the sample is taken; where it starts is drawn and printed, so that many runs together take everything.
`SAMPLE_START=3` takes the sample of a run that printed 3.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import TypeVar

Item = TypeVar("Item")

FULL = os.environ.get("CRASH") == "full"
_STARTS = 1 << 16


def one_in(stride: int, items: Sequence[Item]) -> Sequence[Item]:
    """Every `stride`-th of the items."""
    return items if FULL else items[_start() % stride :: stride]


def one_in_of_each_kind(stride: int, items: Sequence[Item], kind: Callable[[Item], object]) -> list[Item]:
    """Every `stride`-th of the items of each kind, in their order; of a kind that is rarer than that, all."""
    if FULL:
        return list(items)
    start = _start()
    kinds: dict[object, list[int]] = defaultdict(list)
    for at, item in enumerate(items):
        kinds[kind(item)].append(at)
    taken = {
        at for found in kinds.values() for at in (found if len(found) < stride else found[start % stride :: stride])
    }
    return [item for at, item in enumerate(items) if at in taken]


def _start() -> int:
    start = int(os.environ.get("SAMPLE_START", SystemRandom().randrange(_STARTS)))
    print(f"SAMPLE_START={start}")
    return start
