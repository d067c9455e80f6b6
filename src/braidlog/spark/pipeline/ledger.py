"""What a pipeline remembers of itself beside Spark's checkpoints: its generation, and the progress of its batches.

Knows: three files in the storage folder. Refuses to know: what a stage does.
Invariants: a replay begins a generation, with checkpoints of its own; the file that names it is replaced whole and durably, so
that a crash leaves the old one or the new one. One process at a time runs, replays or backfills.

    storage/generation.json     {"latest": 2, "stages": {"silver": 2}, "starts": {"silver": {"startingOffsets": "{…}"}}}
    storage/progress.jsonl      a line for every micro-batch; the older half is dropped when it is large
    storage/lock                held while a command changes something
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from braidlog.spark.pipeline.config import refusal

PROGRESS_BYTES_MAX: Final = 8 * 1024 * 1024


class Generation(msgspec.Struct, frozen=True):
    """`stages`: of which generation each stage is; those that were never replayed are of the first. `starts`: the options that
    say where a stage begins to read, while it has no checkpoint of its own. `replacing`: tables of the generation before that are
    still in their places. `from_bronze`: silver is yet to be made out of bronze, before its stream goes on. `token` is
    the generation's own and nobody else's, also if a folder is thrown away and made again. `owner` and `tables`, of tables in an
    object store: whose they are, and in which generation each was last made anew."""

    latest: int = 1
    stages: dict[str, int] = {}
    starts: dict[str, dict[str, str]] = {}
    replacing: tuple[str, ...] = ()
    from_bronze: bool = False
    token: str = ""
    owner: str = ""
    tables: dict[str, int] = {}

    def edition(self, table: str) -> str:
        assert self.owner
        return f"{self.owner}:{self.tables.get(table, 1)}"

    def of(self, stage: str) -> int:
        return self.stages.get(stage, 1)


class BatchProgress(msgspec.Struct, frozen=True):
    """One micro-batch of one stage."""

    time: str
    stage: str
    generation: int
    batch: int
    rows: int
    rows_per_second: float
    duration_ms: int
    late_rows: int = 0
    state_rows: int = 0
    checked: int = 0
    violations: dict[str, int] = {}
    written: int | None = None
    """Rows that the sink took; None where Spark does not say: the key-value stage, and batches of older versions."""


class Ledger:
    """The files of one storage folder."""

    def __init__(self, storage: Path) -> None:
        self._storage = storage
        self._generation = storage / "generation.json"
        self._progress = storage / "progress.jsonl"

    # -- the generation ----------------------------------------------------------------------------------------

    def generation(self) -> Generation:
        try:
            return msgspec.json.decode(self._generation.read_bytes(), type=Generation)
        except FileNotFoundError:
            return Generation()
        except msgspec.DecodeError as error:
            raise refusal(f"{self._generation} is damaged: {error}") from error

    def begin(self, generation: Generation) -> None:
        self._storage.mkdir(parents=True, exist_ok=True)
        _replace(self._generation, msgspec.json.format(msgspec.json.encode(generation), indent=2))

    # -- progress ----------------------------------------------------------------------------------------------

    def record(self, batch: BatchProgress) -> None:
        self._storage.mkdir(parents=True, exist_ok=True)
        self._shorten()
        with self._progress.open("ab") as file:
            file.write(msgspec.json.encode(batch) + b"\n")

    def batches(self) -> Iterator[BatchProgress]:
        """What was recorded, oldest first. A line that a crash has cut is passed over: it is the last one."""
        try:
            lines = self._progress.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=BatchProgress)
            except msgspec.DecodeError:
                continue

    def _shorten(self) -> None:
        if not self._progress.exists() or self._progress.stat().st_size < PROGRESS_BYTES_MAX:
            return
        lines = self._progress.read_bytes().splitlines(keepends=True)
        _replace(self._progress, b"".join(lines[len(lines) // 2 :]))

    # -- one at a time -----------------------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[ExitStack]:
        """Refused while another process of this pipeline runs, replays or backfills. What is given holds the lock: whoever leaves
        writers behind takes it over with `pop_all`, and the lock is held until the process has ended."""
        self._storage.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            lock = held.enter_context((self._storage / "lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise refusal(f"{self._storage} is in use: the pipeline is running") from None
            yield held


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    # The folder too, or a crash can keep the bytes and lose the name.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
