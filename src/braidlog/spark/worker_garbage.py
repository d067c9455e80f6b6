"""What a Python worker of Spark's holds for good is not searched for garbage after every task.

Spark collects all garbage of a worker between two tasks. Over the modules that were imported, which never are garbage, that takes
some 20 ms of a processor: more than a task of a small micro-batch does otherwise.
"""

import gc
import os

from pyspark import TaskContext

_frozen: set[int] = set()
"""Processes: one that is forked from another has its own objects to keep."""


def freeze_imports() -> None:
    """To be called when a task ends. Once in the life of a worker; outside of a task, nothing."""
    if os.getpid() not in _frozen and TaskContext.get() is not None:
        _frozen.add(os.getpid())
        gc.collect()
        gc.freeze()
