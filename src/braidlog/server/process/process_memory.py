"""Reads the process's resident memory, and tunes the allocator."""

import ctypes
import os

_STATM = "/proc/self/statm"


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the kernel does not report it."""
    try:
        with open(_STATM, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return 0


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES_MAX = 16 * 1024 * 1024
KEPT_ALLOCATION_BYTES_MAX = 4 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Make glibc's allocator keep freed memory; return whether it could. Other allocators are left unchanged."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(tune(_TRIM_THRESHOLD, KEPT_BYTES_MAX)) and bool(tune(_MMAP_THRESHOLD, KEPT_ALLOCATION_BYTES_MAX))
