"""Read every sealed segment of a folder periodically and slowly, to find damage before a consumer does.

A worker reads the segments (`worker/segment_scrub.py`). Invariants: reads stay within the configured rate. A
reported damage counts only after the partition has verified it itself, so a segment that was rewritten or removed
during the read is not damage. An interrupted round continues after a restart.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import msgspec

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition_registry import PartitionRegistry, is_hidden
from braidlog.storage.files import join
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.segment.segment_files import LOG, bases_of, log_name
from braidlog.storage.two_copy_file import TwoCopyFile
from braidlog.worker.jobs import Scrubbed, ScrubSegment, Worker, read_scrubbed

PIECE_BYTES: Final = 1024 * 1024
"""Size of one job: a few milliseconds of the worker's time, so that other jobs do not wait long."""
SAVE_BYTES: Final = 64 * 1024 * 1024
FOLDERS_MAX: Final = 500
"""Folders listed in one step."""
IDLE_SECONDS: Final = 1.0
REST_SECONDS_MAX: Final = 60.0
EPOCHS_MAX: Final = 1000
PROGRESS_MAGIC: Final = b"BRAIDSCR"


class ScrubSettings(msgspec.Struct, frozen=True):
    """Rate and interval of scrubbing, which finds bytes of sealed segments that have changed on the disk."""

    bytes_per_second: int = 4 * 1024 * 1024
    """Read rate of the verification; 0: segments are verified only when they are read."""
    round_hours: float = 72.0
    """Minimum time between the starts of two rounds; a round takes longer if its rate requires it."""
    check_hours: float = 1.0
    """How long a verification stays valid: records verified earlier are verified again before they are sent."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a round: everything before this place is done."""

    began_ms: int = 0
    is_done: bool = True
    topic: str = ""
    partition: int = 0
    base: int = 0
    generation: int = 0
    position: int = 0
    offset: int = 0


class Scrubber:
    """`step` reads one piece and returns when to call it again; one call at a time."""

    def __init__(
        self,
        folder: DataFolder,
        hosting: PartitionRegistry,
        runtime: Runtime,
        worker: Worker,
        settings: ScrubSettings,
        tell: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._hosting = hosting
        self._runtime = runtime
        self._worker = worker
        self._settings = settings
        self._tell = tell
        self._places: list[tuple[str, int]] = []
        self._at = 0
        self._unsaved_bytes = 0
        self.read_bytes = self.damages = self.rounds = 0
        """Bytes read, damaged places found and rounds completed since the node's start."""
        self._slots = TwoCopyFile(folder.disk, folder.path, "scrub", PROGRESS_MAGIC)
        self.progress = self._load()
        if not self.progress.is_done:
            self._plan()

    def _load(self) -> Progress:
        try:
            slots = self._slots.load()
            return msgspec.msgpack.decode(slots[0].payload, type=Progress) if slots else Progress()
        except msgspec.MsgspecError:
            return Progress()  # written by another version: only the progress of the round is lost

    def save(self) -> None:
        self._unsaved_bytes = 0
        self._slots.save(msgspec.msgpack.encode(self.progress))

    async def step(self) -> float:
        """Read a piece, if there is one; return the number of seconds until the next step."""
        rest = self._begin()
        if rest > 0:
            return rest
        job = await self._runtime.blocking(self._find)
        if job is None:
            if self._at < len(self._places):
                return IDLE_SECONDS
            self.progress = Progress(began_ms=self.progress.began_ms, is_done=True)
            self.rounds += 1
            await self._runtime.blocking(self.save)
            return IDLE_SECONDS
        try:
            with await self._worker.do(job, b"") as answer:
                found = read_scrubbed(answer.payload)
        except BrokerError:
            return REST_SECONDS_MAX  # no worker is running, or it is overloaded
        await self._look_at(job, found)
        return found.bytes_read / self._settings.bytes_per_second

    @property
    def partitions_left(self) -> int:
        """The number of partitions left in the current round."""
        return 0 if self.progress.is_done else len(self._places) - self._at

    def _begin(self) -> float:
        """Start a round if none is running and the next is due; return the seconds until then, bounded."""
        if not self.progress.is_done:
            return 0.0
        now_ms, round_ms = self._runtime.now_ms(), self._settings.round_hours * 3_600_000
        since_ms = now_ms - self.progress.began_ms
        if 0 <= since_ms < round_ms:
            return min((round_ms - since_ms) / 1000, REST_SECONDS_MAX)
        self.progress = Progress(began_ms=now_ms, is_done=False)
        self._plan()
        return 0.0

    def _plan(self) -> None:
        topics = self._folder.topics()
        self._places = sorted((topic.name, number) for topic in topics for number in range(topic.partitions))
        self._at = bisect_left(self._places, (self.progress.topic, self.progress.partition))

    def _find(self) -> ScrubSegment | None:
        """Return the next piece, on a thread; None if the listed folders have none."""
        for _ in range(FOLDERS_MAX):
            if self._at == len(self._places):
                return None
            topic, number = self._places[self._at]
            if (topic, number) != (self.progress.topic, self.progress.partition):
                self._reach(topic=topic, partition=number)
            base = next((base for base in self._closed(topic, number) if base >= self.progress.base), None)
            if base is not None:
                if base != self.progress.base:
                    self._reach(topic=topic, partition=number, base=base)
                return self._job(topic, number)
            self._at += 1
        return None

    def _closed(self, topic: str, number: int) -> list[int]:
        try:
            return bases_of(self._folder.disk.names(self._folder.partition_folder(topic, number)), LOG)[:-1]
        except (BrokerError, StorageFault):
            return []  # deleted since the plan, or lost: the node reports that itself

    def _job(self, topic: str, number: int) -> ScrubSegment:
        hosted = self._hosting.hosted(topic, number)
        epochs = [] if hosted is None else hosted.epochs()
        at = self.progress
        return ScrubSegment(
            path=join(self._folder.partition_folder(topic, number), log_name(at.base)),
            base_offset=at.base,
            generation=at.generation,
            position=at.position,
            offset=at.offset,
            bytes_max=PIECE_BYTES,
            epochs=epochs if len(epochs) <= EPOCHS_MAX else [],
        )

    async def _look_at(self, job: ScrubSegment, found: Scrubbed) -> None:
        topic, number = self.progress.topic, self.progress.partition
        if found.fault:
            self._tell(f"{topic}/{number}: a segment could not be read: {found.fault}")
        for offset in found.damaged:
            await self._confirm(topic, number, offset, job.path)
        if found.is_end:
            self._reach(topic=topic, partition=number, base=job.base_offset + 1)
        else:
            place = {"generation": found.generation, "position": found.position, "offset": found.offset}
            self._reach(topic=topic, partition=number, base=job.base_offset, **place)
        self.read_bytes += found.bytes_read
        self._unsaved_bytes += found.bytes_read
        if self._unsaved_bytes >= SAVE_BYTES:
            await self._runtime.blocking(self.save)

    async def _confirm(self, topic: str, number: int, offset: int, path: str) -> None:
        """Have the partition verify the damage: it records what it finds, and no longer serves it."""
        if is_hidden(topic):
            self.damages += 1
            self._tell(f"internal topic {topic!r} is damaged at offset {offset} ({path}); see `braid log verify`")
            return
        with contextlib.suppress(BrokerError, StorageFault):  # deleted since, or recorded: every later read raises it
            hosted = self._hosting.partition(topic, number)
            known = len(hosted.damages)
            try:
                await self._runtime.blocking(lambda: hosted.log.check_again(offset))
            finally:
                self.damages += len(hosted.damages) - known

    def _reach(self, **place: int | str) -> None:
        began = {"began_ms": self.progress.began_ms, "is_done": False}
        self.progress = msgspec.convert({**began, **place}, Progress)

    # -- outdated verification ---------------------------------------------------------------------------------

    async def forget_checks(self) -> None:
        """Make every open partition verify its batches again before they are read."""
        for hosted in self._hosting.opened():
            if (log := hosted.open_log) is not None:
                await self._runtime.blocking(log.forget_checks)
