"""A disk that refuses, once, at every operation of every workload: no false acknowledgement, no lost mutation, none twice."""

import errno
from random import Random
from typing import Any

import pytest
from tests.kv import workloads
from tests.kv.crashing import SETTINGS, World, go_on, lost, open_store, see

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


def check_power(world: World, disk: SimulatedDisk) -> None:
    for state in (lost(disk), next(state for _, state in disk.crash_states(1))):
        world.compare(open_store(state, SETTINGS, world.clock.now_ms()))


def check_restart(world: World) -> None:
    """The page cache shows bytes that a failed sync did not write: what is shown after a restart must be made durable."""
    killed, now_ms = world.disk.after_kill(), world.clock.now_ms()
    store = open_store(killed, SETTINGS, now_ms)
    seen = world.compare(store, killed=True)
    assert see(open_store(lost(killed), SETTINGS, now_ms)) == seen
    go_on(store, killed, SETTINGS, now_ms)


@pytest.mark.parametrize("name", workloads.ALL)
def test_a_fault_at_every_operation(name: str) -> None:
    random = Random(SEED)
    faults = refused = 0
    rehearsal = World()
    workloads.ALL[name](rehearsal)
    for operation in rehearsal.disk.operations[2:]:  # the first two make the data folder
        for code, short in plans(operation, random):
            world = World()
            world.disk.fail_at, world.disk.short = {operation.number: code}, short
            faults += 1
            where = f"{errno.errorcode[code]} at {operation.number} {operation.kind} {operation.path}, {short} bytes written"
            try:
                try:
                    workloads.ALL[name](world)
                except StorageFault:
                    refused += 1
                    check_power(world, world.disk)
                    check_restart(world)
                    carry_on(world)
                check_power(world, world.disk)
            except Exception as error:
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    print(f"{name}: {faults} faults, {refused} of them noticed by the caller, seed {SEED}")
    assert faults > 25


def carry_on(world: World) -> None:
    """A store that still takes mutations keeps them; one that does not says so."""
    if world._store is None:
        return
    try:
        once_more(world)
    except (StorageFault, BrokerError):  # stopped by the fault, or closed in spite of it
        with pytest.raises((StorageFault, BrokerError)):
            once_more(world)


def once_more(world: World) -> None:
    world.store.execute(o.Increment(b"more"), world.clock.now_ms())
    world.finish(sync=True)


def fail_next(world: World, kind: str, code: int, short: int = 0) -> None:
    """Make the next operation of a kind fail."""

    def before(operation: Operation) -> None:
        if operation.kind == kind:
            world.disk.fail_at = {operation.number: code}
            world.disk.short = short
            world.disk.on_operation = None

    world.disk.on_operation = before


def test_a_full_disk_stops_mutations_and_loses_none() -> None:
    world = World()
    world.open()
    world.do(o.Increment(b"count"))
    fail_next(world, "append", errno.ENOSPC, 10)
    world.store.execute(o.Increment(b"count"), world.clock.now_ms())
    with pytest.raises(StorageFault, match="No space"):
        world.store.wal.sync()
    fail_next(world, "append", errno.ENOSPC, 3)
    with pytest.raises(StorageFault, match="No space"):
        world.store.execute(o.Increment(b"count"), world.clock.now_ms())
    assert world.store.execute(o.Get(b"count"), 0) == b"2", "refused while there is no room, so it did not happen"
    assert world.store.execute(o.Increment(b"count"), world.clock.now_ms()) == 3
    world.finish(sync=True)
    assert world.compare(open_store(lost(world.disk)))[0] == 3


def test_a_failed_sync_is_final() -> None:
    world = World()
    world.open()
    world.do(o.Set(b"a", b"1"))
    fail_next(world, "sync", errno.EIO)
    world.store.execute(o.Set(b"a", b"2"), world.clock.now_ms())
    for _ in range(2):
        with pytest.raises(StorageFault):
            world.store.wal.sync()
    operations: list[o.Operation[Any]] = [o.Get(b"a"), o.Set(b"a", b"3")]
    for operation in operations:
        with pytest.raises(StorageFault, match="must be reopened"):
            world.store.execute(operation, world.clock.now_ms())
    with pytest.raises(StorageFault):
        world.close()
    assert open_store(lost(world.disk)).execute(o.Get(b"a"), 0) == b"1"


def test_a_snapshot_that_does_not_fit_leaves_the_store_as_it_was() -> None:
    world = World()
    world.open()
    world.do(o.Set(b"a", b"1"))
    for kind in ("create", "rename"):
        fail_next(world, kind, errno.ENOSPC)
        try:
            world.snapshot()
        except StorageFault as fault:
            assert fault.is_full  # noqa: PT017 - a refused roll is no failure: the snapshot goes on without it
        world.disk.on_operation = None
        world.do(o.Increment(b"count"))
        world.compare(open_store(lost(world.disk)))
    world.snapshot()
    assert not [name for name in world.disk.names("/data/kv") if name.endswith(".new")]
    world.compare(open_store(lost(world.disk)))
