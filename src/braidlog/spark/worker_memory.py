"""What a Python worker of Spark's keeps from task to task: its imports, and the memory that its last pieces took.

Knows: Python's garbage collector, glibc's malloc. Refuses to know: what a task does.
Both are settings of a whole process, so that they are made in workers alone, never in a program that reads by itself.

Spark collects all garbage of a worker between two tasks, and of a process that plans queries after each of them. Over the
modules that were imported, which never are garbage, that takes some 20 to 40 ms of a processor: more than a task of a small
micro-batch does otherwise, and while the first tasks of a query start.

A reader takes and gives back a few megabytes for each chunk and each piece of columns. As malloc is set, they go back to the
kernel, and come again page by page, each cleared: a sixth of what a reader costs.
"""

import ctypes
import gc
import os
import sys

from pyspark import TaskContext

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 64 * 1024 * 1024
"""Freed memory at the end of the heap that is kept: the chunks and pieces that a reader has at a time take less."""
_HEAP_BYTES = 32 * 1024 * 1024
"""Up to this size memory comes from the heap. malloc takes no more."""

_REUSED = "SPARK_REUSE_WORKER"
"""Set by Spark for processes that it uses more than once, those that plan among them. They have no task."""

_frozen: dict[int, int] = {}
"""How many modules a process had when they were frozen."""
_keeping: set[int] = set()
"""Processes: one that is forked from another has its own objects and settings to keep."""


def freeze_imports() -> None:
    """To be called when a task ends, or a step of planning. In a process that Spark uses again, and there only if something was
    imported since the last time."""
    if _frozen.get(os.getpid()) != len(sys.modules) and (TaskContext.get() is not None or _REUSED in os.environ):
        gc.collect()
        gc.freeze()
        _frozen[os.getpid()] = len(sys.modules)


def keep_memory() -> None:
    """To be called when a task begins. Once in the life of a worker; outside of a task, or where malloc is another, nothing."""
    if os.getpid() not in _keeping and TaskContext.get() is not None:
        _keeping.add(os.getpid())
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)
