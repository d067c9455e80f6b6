"""A disk that refuses, once, at every operation of every workload: no false acknowledgement, no lost mutation, none twice."""

import errno
from random import Random
from typing import Any

import pytest
from tests.kv import workloads
from tests.kv.crashing import SETTINGS, Runtime, go_on, lost, open_store, see

from braidlog.kv.engine import operations as o
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.testing.disk import Operation, SimulatedDisk

WRITES = ("append", "write_at")
SEED = 4


def plans(operation: Operation, random: Random) -> list[tuple[int, int]]:
    """(errno, bytes that a failing write still writes) to try at an operation."""
    if operation.kind in WRITES:
        return [(errno.EIO, 0), (errno.ENOSPC, random.randrange(operation.bytes + 1))]
    return (
        [(errno.EIO, 0), (errno.ENOSPC, 0)] if operation.kind in ("create", "rename", "truncate") else [(errno.EIO, 0)]
    )


def check_power(runtime: Runtime, disk: SimulatedDisk) -> None:
    for state in (lost(disk), next(state for _, state in disk.crash_states(1))):
        runtime.compare(open_store(state, SETTINGS, runtime.clock.now_ms()))


def check_restart(runtime: Runtime) -> None:
    """The page cache shows bytes that a failed sync did not write: what is shown after a restart must be made durable."""
    killed, now_ms = runtime.disk.after_kill(), runtime.clock.now_ms()
    store = open_store(killed, SETTINGS, now_ms)
    seen = runtime.compare(store, killed=True)
    assert see(open_store(lost(killed), SETTINGS, now_ms)) == seen
    go_on(store, killed, SETTINGS, now_ms)


@pytest.mark.parametrize("name", workloads.ALL)
def test_a_fault_at_every_operation(name: str) -> None:
    random = Random(SEED)
    faults = refused = 0
    rehearsal = Runtime()
    workloads.ALL[name](rehearsal)
    for operation in rehearsal.disk.operations[2:]:  # the first two make the data folder
        for code, short in plans(operation, random):
            runtime = Runtime()
            runtime.disk.fail_at, runtime.disk.short = {operation.number: code}, short
            faults += 1
            where = f"{errno.errorcode[code]} at {operation.number} {operation.kind} {operation.path}, {short} bytes written"
            try:
                try:
                    workloads.ALL[name](runtime)
                except StorageFault:
                    refused += 1
                    check_power(runtime, runtime.disk)
                    check_restart(runtime)
                    carry_on(runtime)
                check_power(runtime, runtime.disk)
            except Exception as error:
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    print(f"{name}: {faults} faults, {refused} of them noticed by the caller, seed {SEED}")
    assert faults > 25


def carry_on(runtime: Runtime) -> None:
    """A store that still takes mutations keeps them; one that does not says so."""
    if runtime._store is None:
        return
    try:
        once_more(runtime)
    except (StorageFault, BrokerError):  # stopped by the fault, or closed in spite of it
        with pytest.raises((StorageFault, BrokerError)):
            once_more(runtime)


def once_more(runtime: Runtime) -> None:
    runtime.store.execute(o.Increment(b"more"), runtime.clock.now_ms())
    runtime.finish(sync=True)


def fail_next(runtime: Runtime, kind: str, code: int, short: int = 0) -> None:
    """Make the next operation of a kind fail."""

    def before(operation: Operation) -> None:
        if operation.kind == kind:
            runtime.disk.fail_at = {operation.number: code}
            runtime.disk.short = short
            runtime.disk.on_operation = None

    runtime.disk.on_operation = before


def test_a_full_disk_stops_mutations_and_loses_none() -> None:
    runtime = Runtime()
    runtime.open()
    runtime.do(o.Increment(b"count"))
    fail_next(runtime, "append", errno.ENOSPC, 10)
    runtime.store.execute(o.Increment(b"count"), runtime.clock.now_ms())
    with pytest.raises(StorageFault, match="No space"):
        runtime.store.wal.sync()
    fail_next(runtime, "append", errno.ENOSPC, 3)
    with pytest.raises(StorageFault, match="No space"):
        runtime.store.execute(o.Increment(b"count"), runtime.clock.now_ms())
    assert runtime.store.execute(o.Get(b"count"), 0) == b"2", "refused while there is no room, so it did not happen"
    assert runtime.store.execute(o.Increment(b"count"), runtime.clock.now_ms()) == 3
    runtime.finish(sync=True)
    assert runtime.compare(open_store(lost(runtime.disk)))[0] == 3


def test_a_failed_sync_is_final() -> None:
    runtime = Runtime()
    runtime.open()
    runtime.do(o.Set(b"a", b"1"))
    fail_next(runtime, "sync", errno.EIO)
    runtime.store.execute(o.Set(b"a", b"2"), runtime.clock.now_ms())
    for _ in range(2):
        with pytest.raises(StorageFault):
            runtime.store.wal.sync()
    operations: list[o.Operation[Any]] = [o.Get(b"a"), o.Set(b"a", b"3")]
    for operation in operations:
        with pytest.raises(StorageFault, match="must be reopened"):
            runtime.store.execute(operation, runtime.clock.now_ms())
    with pytest.raises(StorageFault):
        runtime.close()
    assert open_store(lost(runtime.disk)).execute(o.Get(b"a"), 0) == b"1"


def test_a_snapshot_that_does_not_fit_leaves_the_store_as_it_was() -> None:
    runtime = Runtime()
    runtime.open()
    runtime.do(o.Set(b"a", b"1"))
    for kind in ("create", "rename"):
        fail_next(runtime, kind, errno.ENOSPC)
        try:
            runtime.snapshot()
        except StorageFault as fault:
            assert fault.is_full  # noqa: PT017 - a refused roll is no failure: the snapshot goes on without it
        runtime.disk.on_operation = None
        runtime.do(o.Increment(b"count"))
        runtime.compare(open_store(lost(runtime.disk)))
    runtime.snapshot()
    assert not [name for name in runtime.disk.names("/data/kv") if name.endswith(".new")]
    runtime.compare(open_store(lost(runtime.disk)))
