"""A table on a simulated disk, the rows it must show beside it, and what a crash at any moment may leave of it.

Knows: what was asked of the table and what it has promised. Refuses to know: how it keeps its promises.
Invariant: `now` holds the rows of what has returned; what is on its way may only turn `now` into `then`.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from random import Random

import pyarrow as pa

from braidlog.spark.lake.contract import NoTableError
from braidlog.spark.lake.folder import FolderTable
from braidlog.spark.lake.places import make_folders
from braidlog.spark.lake.written import Change, DataFile, hidden_since_ms, new_path, partition_folder, staged_path
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import Crash, SimulatedDisk

TABLE = "/lake/events"
SCHEMA = pa.schema([("row", pa.string()), ("p", pa.string())])
SINK = "query-1"
Rows = Counter[str]


def visible(disk: SimulatedDisk) -> Rows:
    """What whoever lists the folder reads: a line is a row."""
    rows: Rows = Counter()
    for path in disk.files():
        if path.startswith(f"{TABLE}/") and not any(part.startswith((".", "_")) for part in path.split("/")):
            rows.update(disk.content(path).decode().split())
    return rows


class Writer:
    """Writes what a batch's tasks would, and commits it. Its clock ticks: names of files differ between attempts."""

    def __init__(self, disk: SimulatedDisk, clock: ManualClock, names: Random) -> None:
        self.disk = disk
        self.clock = clock
        self._names = names
        self.table = FolderTable(TABLE, disk=disk, clock=clock)

    def stage(self, rows: list[str], partition: str) -> DataFile:
        values: dict[str, str | None] = {"p": partition}
        path = new_path(partition_folder(values), self.clock.now_ms(), f"{self._names.getrandbits(64):016x}")
        make_folders(self.disk, TABLE, path.rpartition("/")[0])
        data = "\n".join(rows).encode()
        file = self.disk.create(f"{TABLE}/{staged_path(path)}")
        file.append([data], 0)
        file.sync()
        file.close()
        self.disk.sync_folder(f"{TABLE}/{path.rpartition('/')[0]}")
        return DataFile(path, len(rows), len(data), values)

    def batch(self, number: int, *, overwrite: bool = False) -> bool:
        files = tuple(self.stage(rows_of(number, part), str(part)) for part in range(1 + number % 2))
        sink = (SINK, number) if not overwrite else (None, None)
        return self.table.commit(
            Change(files, SCHEMA, sink[0], sink[1], overwrite=overwrite, partition_by=("p",)),
        )

    def compact(self) -> None:
        """All files of each partition become one."""
        by_partition: dict[str, list[DataFile]] = {}
        for file in self.table.files():
            by_partition.setdefault(file.partition["p"] or "", []).append(file)
        for partition, files in by_partition.items():
            rows = [row for file in files for row in self.disk.content(f"{TABLE}/{file.path}").decode().split()]
            assert self.table.replace([file.path for file in files], [self.stage(rows, partition)])


def rows_of(number: int, part: int) -> list[str]:
    return [f"b{number}p{part}r{row}" for row in range(3)]


def all_rows_of(number: int) -> Rows:
    return Counter(row for part in range(1 + number % 2) for row in rows_of(number, part))


class World:
    """Runs a workload and, before each operation on the disk, tries what a crash there may leave."""

    def __init__(self, seed: int) -> None:
        self.disk = SimulatedDisk()
        self.clock = ManualClock()
        self.random = Random(seed)
        self.now: Rows = Counter()
        self.then: Rows = Counter()
        self.states = self.inside = 0
        self._seen: set[int] = set()
        self._again: Callable[[Writer], object] = lambda writer: None
        self.writer = Writer(self.disk, self.clock, self.random)
        self.disk.make_folder("/lake")
        self.disk.sync_folder("/")
        self.disk.on_operation = lambda operation: self._try_crashes()

    # -- the workload ----------------------------------------------------------------------------------------

    def do(self, then: Rows, act: Callable[[Writer], object]) -> None:
        """`act` turns what is shown into `then`; after a crash it is done again, by another process."""
        self.then, self._again = then, act
        self.clock.advance(10)
        act(self.writer)
        self.now = then
        self._seen = set()  # what was well before this was promised may be a loss now
        assert visible(self.disk) == self.now
        self._try_crashes()

    def batch(self, number: int) -> None:
        self.do(self.now | all_rows_of(number), lambda writer: writer.batch(number))

    def replay(self, number: int) -> None:
        def again(writer: Writer) -> None:
            assert writer.batch(number) is False

        self.do(self.now, again)

    def overwrite(self, number: int) -> None:
        self.do(all_rows_of(number), lambda writer: writer.batch(number, overwrite=True))

    def compact(self) -> None:
        self.do(self.now, Writer.compact)

    def vacuum(self) -> None:
        self.do(self.now, lambda writer: writer.table.vacuum(0))

    # -- crashes ---------------------------------------------------------------------------------------------

    def _try_crashes(self) -> None:
        self.disk.on_operation, hook = None, self.disk.on_operation
        for label, crashed in self.disk.crash_states(seen=self._seen, rng=self.random, limit=60):
            self.states += 1
            try:
                self._check(crashed)
            except AssertionError as error:
                raise AssertionError(f"{label}: {error}") from error
        self._check(self.disk.after_kill())
        self.disk.on_operation = hook

    def _check(self, disk: SimulatedDisk) -> None:
        shown = visible(disk)
        assert all(count == 1 for count in shown.values()), f"twice before anything was done about it: {shown}"
        assert not shown - (self.now | self.then), f"rows that nobody committed: {shown - (self.now | self.then)}"
        twin = disk.after_kill()
        # Somebody comes who only looks: it is all of the change or nothing of it.
        with contextlib.suppress(NoTableError):
            self._writer_on(twin).table.files()
        assert visible(twin) in (self.now, self.then), f"a part of a change: {visible(twin)}"
        assert visible(_lose_power(twin)) == visible(twin), "what was shown is gone with the power"
        # And then it is done again, as Spark replays a batch; now and then with another crash in the middle.
        if self.random.random() < 0.3:
            disk = self._crash_again(disk)
        self._again(self._writer_on(disk))
        assert visible(disk) == self.then, f"after the replay: {visible(disk)}, not {self.then}"
        writer = self._writer_on(disk)
        writer.table.vacuum(0)
        left = [path for path in disk.files() if hidden_since_ms(path.rpartition("/")[2]) is not None]
        assert left == [], f"vacuum has left {left}"
        assert visible(disk) == self.then, "vacuum has removed rows"

    def _crash_again(self, disk: SimulatedDisk) -> SimulatedDisk:
        self.inside += 1
        disk.stop_at = self.random.randint(1, 12)
        try:
            self._again(self._writer_on(disk))
        except Crash:
            _, disk = next(iter(disk.crash_states(rng=self.random, limit=1)))
            return disk
        return disk.after_kill()

    def _writer_on(self, disk: SimulatedDisk) -> Writer:
        clock = ManualClock(self.clock.now_ms() + 5)
        return Writer(disk, clock, Random(self.random.random()))


def _lose_power(disk: SimulatedDisk) -> SimulatedDisk:
    """What is left if nothing survives that was not synced."""
    states = dict(itertools.islice(disk.crash_states(), 2))
    return states.get("lost") or states["kept"]
