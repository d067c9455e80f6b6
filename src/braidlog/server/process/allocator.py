"""Freed memory is kept for the next answer.

Knows: two knobs of glibc's allocator. Refuses to know: who allocates.
An answer of a hundred kilobytes or more lives for a millisecond. By default its pages are given back to the kernel at once and
come back zeroed, page by page, for the next one (a test counts the page faults). Kept memory is bounded.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES_MAX = 16 * 1024 * 1024
KEPT_ALLOCATION_BYTES_MAX = 4 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Whether the allocator could be told; with another one than glibc's everything works as before."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(tune(_TRIM_THRESHOLD, KEPT_BYTES_MAX)) and bool(tune(_MMAP_THRESHOLD, KEPT_ALLOCATION_BYTES_MAX))
