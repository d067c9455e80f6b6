"""A disk that refuses, once, at every operation of every workload: no false acknowledgement, no lost record, no stuck folder.

Row 8 of the promises, and the disk's part of row 20. After the refusal the process goes on as a client would: it appends again
(and is told honestly whether that worked), then the power goes, or the process is killed and started again. A plain run refuses
one in REFUSED_ONE_IN of the operations of each kind, `make crash` every one.
"""

import contextlib
import errno
from collections.abc import Callable
from random import Random

import pytest
from tests.sampling import FULL, one_in_of_each_kind
from tests.storage import workloads
from tests.storage.crashing import Runtime, compare, fixed_ids, go_on, lost, open_log, operations_of, see_all

from braidlog.model.errors import StorageFault
from braidlog.testing.disk import Operation, SimulatedDisk

WRITES = ("append", "write_at")
ROOMY = (*WRITES, "create", "make_folder", "rename", "truncate")
SEED = 4
REFUSED_ONE_IN = 3


@pytest.fixture(autouse=True)
def _same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_ids(monkeypatch)


def plans(operation: Operation, random: Random) -> list[tuple[int, int]]:
    """(errno, bytes that a failing write still writes) to try at an operation."""
    if operation.kind in WRITES:
        return [(errno.EIO, 0), (errno.ENOSPC, random.randrange(operation.bytes + 1))]
    return [(errno.ENOSPC, 0)] if operation.kind in ROOMY and random.random() < 0.5 else [(errno.EIO, 0)]


def run_with_fault(work: Callable[[Runtime], None], number: int, code: int, short: int) -> tuple[Runtime, bool]:
    """Run the workload up to the call that the fault makes fail; tell whether one did."""
    runtime = Runtime()
    runtime.disk.fail_at = {number: code}
    runtime.disk.short = short
    try:
        work(runtime)
    except StorageFault:
        return runtime, True
    return runtime, False


def write_through(runtime: Runtime, name: str, number: int) -> None:
    runtime.at(name, number)[0].sync()
    runtime.append(name, number, size=30)


def settle(runtime: Runtime) -> None:
    """What the caller of a failed call knows: what is in the log now is what it sees there, if it can still write."""
    for name, topic in runtime.topics.items():
        if name not in runtime.log.topics():
            continue
        for number, model in enumerate(topic.partitions):
            p = runtime.log.topic(name).partition(number)
            end = p.end_offset
            batches, epoch, cut_to = model.batches, model.epoch, model.cut_to
            try:
                model.batches, model.epoch = model.below(end), max(model.epoch, p.state.epochs.latest)
                model.cut_to = None
                runtime.append(name, number, size=30)
                runtime.sync(name, number)
            except StorageFault:
                if p.end_offset == end:
                    model.batches, model.epoch, model.cut_to = batches, epoch, cut_to
                with pytest.raises(StorageFault):
                    write_through(runtime, name, number)


def check_power(runtime: Runtime, disk: SimulatedDisk) -> None:
    """After the power went, with everything or nothing of what was pending."""
    for state in (lost(disk), next(state for label, state in disk.crash_states(1))):
        compare(open_log(state, runtime.clock.now_ms()), runtime.topics)


def check_restart(runtime: Runtime, disk: SimulatedDisk) -> None:
    """After a mere restart the page cache shows bytes that a failed sync did not write: what is shown must be made durable."""
    killed = disk.after_kill()
    log = open_log(killed, runtime.clock.now_ms())
    shown = compare(log, runtime.topics, killed=True)
    assert see_all(open_log(lost(killed), runtime.clock.now_ms())) == shown
    go_on(log, killed, shown)


@pytest.mark.parametrize("name", workloads.ALL)
def test_a_fault_at_every_operation(name: str) -> None:
    random = Random(SEED)
    faults = 0
    operations = operations_of(workloads.ALL[name])
    for operation in one_in_of_each_kind(REFUSED_ONE_IN, operations, lambda each: each.kind):
        for code, short in plans(operation, random):
            runtime, failed = run_with_fault(workloads.ALL[name], operation.number, code, short)
            where = f"{errno.errorcode[code]} at {operation.number} {operation.kind} {operation.path}, {short} bytes written"
            faults += 1
            try:
                check_power(runtime, runtime.disk)
                if failed and runtime.is_open:
                    settle(runtime)
                    check_restart(runtime, runtime.disk)
                    with contextlib.suppress(StorageFault):
                        runtime.close()
                    check_power(runtime, runtime.disk)
            except Exception as error:
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    print(f"{name}: {faults} faults, seed {SEED}")
    assert faults > (150 if FULL else 150 // REFUSED_ONE_IN)


def partition_with(records: int) -> Runtime:
    runtime = Runtime()
    runtime.open()
    runtime.create("t")
    for _ in range(records):
        runtime.append("t")
    return runtime


def fail_next(runtime: Runtime, kind: str, ending: str, code: int = errno.EIO, short: int = 0) -> None:
    """Make the next operation of this kind on such a file fail."""
    disk = runtime.disk

    def before(operation: Operation) -> None:
        if operation.kind == kind and operation.path.endswith(ending):
            disk.fail_at = {operation.number: code}
            disk.short = short
            disk.on_operation = None

    disk.on_operation = before


def test_a_failed_sync_is_final() -> None:
    """The second sync would succeed and mean nothing: the kernel has called the lost pages clean."""
    runtime = partition_with(3)
    p = runtime.log.topic("t").partition()
    fail_next(runtime, "sync", ".log")
    with pytest.raises(StorageFault):
        runtime.append("t")
    assert p.durable_offset == 3
    for _ in range(3):
        with pytest.raises(StorageFault, match="stopped after a fault"):
            p.sync()
        with pytest.raises(StorageFault, match="stopped after a fault"):
            runtime.log.topic("t").append(b"more")
    assert len(runtime.log.topic("t").read()) == 3
    with pytest.raises(StorageFault, match="stopped after a fault"):
        runtime.log.close()
    assert see_all(open_log(lost(runtime.disk)))["t", 0].end == 3


@pytest.mark.parametrize("short", [0, 1, 60, 100])
def test_a_full_disk_fails_one_append_alone(short: int) -> None:
    runtime = partition_with(3)
    p = runtime.log.topic("t").partition()
    fail_next(runtime, "append", ".log", errno.ENOSPC, short)
    size = len(runtime.disk.content(p.segments[-1].path))
    with pytest.raises(StorageFault, match="No space"):
        runtime.log.topic("t").append(b"too much")
    assert len(runtime.disk.content(p.segments[-1].path)) == size, "remains of a refused append"
    assert runtime.log.topic("t").append(b"room again") == 3
    records = open_log(lost(runtime.disk)).topic("t").read()
    assert [record.value for record in records][3:] == [b"room again"]


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("create", ".state"), ("write_at", ".state"), ("sync", ".state"), ("create", ".log"), ("write_at", ".log")],
)
def test_a_full_disk_at_a_roll(kind: str, ending: str) -> None:
    """A roll that is refused leaves no names behind, and the next append rolls."""
    runtime = partition_with(3)
    topic = runtime.log.topic("t")
    for _ in range(2):
        topic.append(b"x" * 1500)
    before = runtime.disk.files()
    fail_next(runtime, kind, ending, errno.ENOSPC)
    with pytest.raises(StorageFault, match="No space"):
        topic.append(b"x" * 1500)
    assert runtime.disk.files() == before
    runtime.log.alter_topic(
        "t", segment_bytes=65536
    )  # the segment that could not be left grows on past the refused roll
    assert topic.append(b"room again" * 200) == 5
    for state in (lost(runtime.disk), runtime.disk.after_kill()):
        assert [record.offset for record in open_log(state).topic("t").read()] == list(range(6))


def test_a_full_disk_at_the_first_append_of_an_epoch() -> None:
    runtime = Runtime()
    runtime.open()
    runtime.create("t")
    fail_next(runtime, "write_at", "state.a", errno.ENOSPC, 5)
    with pytest.raises(StorageFault, match="No space"):
        runtime.log.topic("t").append(b"too much")
    assert runtime.log.topic("t").append(b"room again") == 0
    assert [r.value for r in open_log(lost(runtime.disk)).topic("t").read()] == [b"room again"]


SAVING = [(kind, ending) for ending in ("slot", ".idx") for kind in ("write_at", "truncate", "sync")]


@pytest.mark.parametrize(("kind", "ending"), [*SAVING, ("create", ".idx")])
def test_a_full_disk_at_the_first_checkpoint_of_a_segment(kind: str, ending: str) -> None:
    """The record is in doubt: not acknowledged, not seen, not lost. The next sync saves the checkpoint, and both are there."""
    runtime = partition_with(3)
    topic, p = runtime.log.topic("t"), runtime.log.topic("t").partition()
    p.roll(runtime.clock.now_ms())
    fail_next(runtime, kind, next_slot(runtime) if ending == "slot" else ending, errno.ENOSPC, short=5)
    with pytest.raises(StorageFault, match="No space") as caught:
        topic.append(b"one")
    assert caught.value.left_remains
    assert p.durable_offset == 3
    assert len(topic.read()) == 3
    assert topic.append(b"two") == 4
    assert p.durable_offset == 5
    check_values(runtime, [b"one", b"two"])
    runtime.log.close()
    check_values(runtime, [b"one", b"two"])


def test_a_full_disk_at_a_later_checkpoint_holds_up_nobody() -> None:
    """Records are durable without it; the next sync saves it."""
    runtime = partition_with(3)
    runtime.log.alter_topic("t", flush_window_bytes=65536, segment_bytes=1 << 20)
    topic = runtime.log.topic("t")
    fail_next(runtime, "write_at", next_slot(runtime), errno.ENOSPC, short=5)
    assert topic.append(b"x" * 70_000) == 3
    assert runtime.disk.fail_at, "no checkpoint was due"
    check_values(runtime, [b"x" * 70_000])
    count = len(runtime.disk.operations)
    topic.append(b"more")
    assert any(each.kind == "sync" and "state." in each.path for each in runtime.disk.operations[count:])
    check_values(runtime, [b"x" * 70_000, b"more"])


def test_a_partition_that_could_not_save_its_checkpoint_keeps_its_files() -> None:
    """It is not let go: its last record is not durable yet."""
    runtime = partition_with(3)
    p = runtime.log.topic("t").partition()
    p.roll(runtime.clock.now_ms())
    runtime.append("t", sync=False)
    fail_next(runtime, "write_at", next_slot(runtime), errno.ENOSPC)
    assert not p.maybe_close(settled_only=False)
    assert p.maybe_close(settled_only=False)
    assert p.durable_offset == 4


def next_slot(runtime: Runtime) -> str:
    """The file that the next checkpoint goes to."""
    last = [each.path for each in runtime.disk.operations if each.path.endswith(("state.a", "state.b"))][-1]
    return "state.a" if last.endswith("state.b") else "state.b"


def check_values(runtime: Runtime, values: list[bytes]) -> None:
    """What is seen behind the first three, after a loss of power with nothing or all of what was pending, and after a kill."""
    states = (lost(runtime.disk), next(state for _, state in runtime.disk.crash_states(1)), runtime.disk.after_kill())
    for state in states:
        assert [record.value for record in open_log(state).topic("t").read()][3:] == values


def test_a_failed_creation_can_be_repeated() -> None:
    runtime = Runtime()
    runtime.open()
    fail_next(runtime, "create", "state.b", errno.ENOSPC)
    with pytest.raises(StorageFault):
        runtime.log.create_topic("t")
    assert runtime.disk.names("/data/topics") == []
    runtime.log.create_topic("t").append(b"x")
    assert len(open_log(lost(runtime.disk)).topic("t").read()) == 1


def test_close_closes_the_rest() -> None:
    """One partition that cannot be made durable does not keep the others from it."""
    runtime = Runtime()
    runtime.open()
    runtime.create("t", partitions=3, flush="os", flush_window_bytes=1 << 20)
    for number in range(3):
        runtime.append("t", number)
    fail_next(runtime, "sync", ".log")
    with pytest.raises(StorageFault):
        runtime.log.close()
    ends = [seen.end for seen in see_all(open_log(lost(runtime.disk))).values()]
    assert sorted(ends) == [0, 1, 1]
