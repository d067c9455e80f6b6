"""Size calculations that several dialects share."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def base64_bytes(size: int) -> int:
    """Return the base64 length of `size` bytes."""
    return (size + 2) // 3 * 4


def count_fitting(sizes: Sequence[int], room: int) -> int:
    """Return how many of the first items fit into `room` bytes; 0 if the first does not fit."""
    return len(sizes) if sum(sizes) <= room else bisect_right(list(accumulate(sizes)), room)
