"""How much fits, before anything is built: what the dialects' own counts have in common."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def base64_bytes(size: int) -> int:
    """How long `size` bytes become."""
    return (size + 2) // 3 * 4


def count_fitting(sizes: Sequence[int], room: int) -> int:
    """How many of the first items fit into `room` bytes; 0 if not even the first."""
    return len(sizes) if sum(sizes) <= room else bisect_right(list(accumulate(sizes)), room)
