"""The pipeline's own state beside Spark's checkpoints: its generation, and the progress of its batches.

Does not handle: what a stage does. A replay begins a generation with new checkpoints. The generation file is replaced
atomically and durably: after a crash the old or the new one exists. Only one process at a time runs, replays or
backfills.

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
    """`stages`: the generation of each replayed stage; others have the first. `starts`: the options for where a stage
    begins to read, until it has a checkpoint. `replacing`: tables of the previous generation that are still in place.
    `from_bronze`: silver must be rebuilt from bronze before its stream continues. `token` is unique to the
    generation, even if a folder is deleted and created again. `owner` and `tables`, for tables in an object store:
    their owner, and the generation in which each was last recreated."""

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
    """Rows that the sink wrote; None if Spark does not report it: the key-value stage, and batches of older
    versions."""


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
        """Yield the recorded batches, oldest first. An incomplete last line, left by a crash, is skipped."""
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

    # -- locking -----------------------------------------------------------------------------------------------

    @contextmanager
    def alone(self) -> Iterator[ExitStack]:
        """Hold the lock; refused while another process runs, replays or backfills this pipeline. A caller that leaves
        writers behind takes the lock over with `pop_all`, and holds it until the process ends."""
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
    # Sync the folder too, or a crash can keep the bytes and lose the name.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
