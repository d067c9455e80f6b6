"""Tunes a Python worker of Spark across tasks: freezes its imports, and keeps freed memory.

Both settings apply to a whole process, so that they are made in workers only, never in a program that reads directly.

Spark runs the garbage collector between two tasks of a worker, and after each step in a process that plans queries.
Scanning the imported modules, which never are garbage, takes 20 to 40 ms of CPU. That is more than the rest of a task
of a small micro-batch.

A reader allocates and frees a few megabytes for each chunk and each piece of columns. By default malloc returns them
to the kernel, and gets them back page by page, each cleared: a sixth of a reader's time.
"""

import ctypes
import gc
import os
import sys

from pyspark import TaskContext

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 64 * 1024 * 1024
"""Free memory kept at the end of the heap: more than a reader's chunks and pieces at a time."""
_HEAP_BYTES = 32 * 1024 * 1024
"""Allocations up to this size come from the heap. malloc allows no more."""

_REUSED = "SPARK_REUSE_WORKER"
"""Set by Spark for processes that it reuses, including those that plan, which have no task."""

_frozen: dict[int, int] = {}
"""The number of modules when the process was frozen."""
_keeping: set[int] = set()
"""Process ids: a forked process has its own objects and settings."""


def freeze_imports() -> None:
    """Freeze imported modules at the end of a task or a planning step. Only in a process that Spark reuses, and only
    if modules were imported since the last call."""
    if _frozen.get(os.getpid()) != len(sys.modules) and (TaskContext.get() is not None or _REUSED in os.environ):
        gc.collect()
        gc.freeze()
        _frozen[os.getpid()] = len(sys.modules)


def keep_memory() -> None:
    """Configure malloc at the start of a task, once per worker; does nothing outside a task, or with another
    malloc."""
    if os.getpid() not in _keeping and TaskContext.get() is not None:
        _keeping.add(os.getpid())
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)
