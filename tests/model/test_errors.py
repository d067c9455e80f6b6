"""Errors as objects: what they hold on to."""

import errno
import os

import pytest
from tests.broker.node import Node

from braidlog.kv.engine import operations as o
from braidlog.model.errors import StorageFault
from braidlog.testing.faults import Operation


def frames(error: BaseException) -> int:
    count, here = 0, error.__traceback__
    while here is not None:
        count, here = count + 1, here.tb_next
    return count


def test_a_fault_that_is_said_again_is_the_same_and_not_itself() -> None:
    fault = StorageFault("cannot write", "/data/x")
    fault.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    again = fault.again()
    assert again is not fault
    assert (str(again), again.path, again.is_full) == ("/data/x: cannot write", "/data/x", True)


def test_who_is_refused_again_and_again_is_not_remembered() -> None:
    """A kept exception that is raised keeps every frame on its way, and the batches in them."""
    node = Node()
    node.services.keyvalue.open()
    node.create("t")

    def fail(operation: Operation) -> None:
        if operation.kind == "sync":
            node.disk.fail_at[operation.number] = errno.EIO

    node.disk.on_operation = fail
    for work in (
        lambda: node.append("t", b"x"),
        lambda: node.run(node.services.keyvalue.execute(o.Set(b"k", b"v"))),
    ):
        seen = []
        for _ in range(6):
            with pytest.raises(StorageFault) as refused:
                work()
            seen.append(frames(refused.value))
        assert len(set(seen[2:])) == 1, f"it grows: {seen}"
