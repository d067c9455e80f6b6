"""What the process takes of the machine's memory.

Knows: where Linux says so. Refuses to know: who asks.
"""

import ctypes
import os

_STATM = "/proc/self/statm"


def resident_bytes() -> int:
    """Bytes of this process that are in memory; 0 where the kernel does not say."""
    try:
        with open(_STATM, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return 0


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
