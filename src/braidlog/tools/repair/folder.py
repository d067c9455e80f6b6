"""Repair a damaged data folder without losing intact data.

`inspect.py` finds damage, `partition.py` repairs partitions, `cli` asks for confirmation.
"""

from collections.abc import Callable, Iterator

import msgspec

from braidlog.model.clock import Clock
from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk, join
from braidlog.storage.folder.data_folder import FOLDER_MAGIC, FORMAT, TOPIC_MAGIC, DataFolder, FolderIdentity
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.recovery import Recovered
from braidlog.storage.two_copy_file import TwoCopyFile
from braidlog.tools.findings import Kind, VerifyReport
from braidlog.tools.inspect import Inspection, Progress
from braidlog.tools.layout import Layout, TopicPlace
from braidlog.tools.repair.partition import PartitionRepair, Step
from braidlog.tools.verify import verify

_OF_A_NODE = ("__coordinator_state", "__metadata")
"""Internal topics of a node; the metadata records whether they exist."""


class RepairPlan(msgspec.Struct, kw_only=True):
    """Plan of a repair, in order."""

    folder: str
    steps: list[Step]
    offsets_lost: int
    beyond_repair: list[str]
    """Damage that a repair cannot fix, in sentences."""


class RepairReport(RepairPlan, kw_only=True):
    """What a repair did, and what a check said afterwards."""

    quarantined: list[str]
    verified: VerifyReport


class Repair:
    """Repairs a data folder: `plan` shows what `run` does. Only `run` needs the folder's lock."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        clock: Clock,
        topic: str | None = None,
        *,
        drop_unreadable: bool = False,
        progress: Progress | None = None,
        new_id: Callable[[], str],
    ) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._topic = topic
        self._new_id = new_id
        self._drop_unreadable = drop_unreadable
        self._progress = progress
        self._pool = FilePool(disk)
        self._layout = Layout(disk, path)
        self._inspections: list[tuple[TopicPlace, Inspection]] = []
        self._quarantined: list[str] = []

    def plan(self) -> RepairPlan:
        self._layout = Layout(self._disk, self._path)
        self._inspections = [
            (place, self._inspect(place, partition))
            for place in self._layout.choose(self._topic)
            for partition in place.meta.held
        ]
        steps = list(self._steps_of_folder())
        for place, inspection in self._inspections:
            if inspection.opened is not None:
                steps += [task.step for task in self._repair_of(place, inspection, inspection.opened).tasks()]
        kinds = {Kind.PARTITION, Kind.UNREADABLE} | (set() if self._drop_unreadable else {Kind.RECORDS})
        findings = [finding for _, inspection in self._inspections for finding in inspection.report.findings]
        beyond = [finding for finding in findings if finding.kind in kinds]
        beyond += [finding for finding in self._layout.findings if finding.kind is Kind.TOPIC and finding.topic is None]
        hopeless = [f"{finding.file}: {finding.why}; {finding.meaning}" for finding in beyond]
        lost = sum(step.offsets_lost for step in steps)
        return RepairPlan(folder=self._path, steps=steps, offsets_lost=lost, beyond_repair=hopeless)

    def _inspect(self, place: TopicPlace, partition: int) -> Inspection:
        return self._layout.inspect(place, partition, progress=self._progress, drop_unreadable=self._drop_unreadable)

    def _repair_of(self, place: TopicPlace, inspection: Inspection, opened: Recovered) -> PartitionRepair:
        settings, now_ms = place.meta.settings, self._clock.now_ms()
        return PartitionRepair(self._disk, self._path, self._pool, settings, inspection, opened, now_ms)

    def run(self) -> RepairReport:
        """Do it. The plan is made again under the lock: what a person agreed to may have been made without it."""
        lock = self._disk.lock(join(self._path, "LOCK"))
        try:
            plan = self.plan()
            self._repair_folder()
            for place in self._layout.choose(self._topic):
                self._repair_topic(place)
            for place, inspection in self._inspections:
                if inspection.report.findings and inspection.opened is not None:
                    repair = self._repair_of(place, inspection, inspection.opened)
                    repair.run()
                    self._quarantined += repair.quarantined
                    self._open(place, inspection)
        finally:
            lock.release()
        DataFolder(self._disk, self._path, self._clock, create=False).release()  # removes leftovers beside topics
        verified = verify(self._disk, self._path, self._topic)
        return RepairReport(**msgspec.structs.asdict(plan), quarantined=self._quarantined, verified=verified)

    # -- outside of partitions -------------------------------------------------------------------------------

    def _steps_of_folder(self) -> Iterator[Step]:
        layout = self._layout
        for name in layout.bad_folder_slots:
            detail = "give the folder a new identity" if layout.is_identity_lost else "copy it from the other copy"
            yield Step(action="write", file=name, detail=detail)
        for place in layout.choose(self._topic):
            for name in place.bad_slots:
                detail = f"rewrite the topic's description, as {place.meta.name!r} with the default settings"
                yield Step(
                    action="write",
                    file=f"{place.label}/{name}",
                    detail=detail if place.is_lost else "copy it from the other copy",
                    topic=place.meta.name,
                )
        for name in layout.leftovers:
            yield Step(action="remove", file=f"topics/{name}", detail="left by an interrupted change")

    def _repair_folder(self) -> None:
        if self._layout.bad_folder_slots:
            metas = [place.meta for place in self._layout.topics]
            was_served = any(meta.by_metadata or meta.name in _OF_A_NODE for meta in metas)
            # A node creates both topics: if one is lost as well, its loss must be detected, so it is not recreated.
            fresh = FolderIdentity(self._new_id(), FORMAT, _OF_A_NODE if was_served else ())
            _repair_copies(self._disk, self._path, "folder", FOLDER_MAGIC, msgspec.json.encode(fresh))

    def _repair_topic(self, place: TopicPlace) -> None:
        if place.bad_slots:
            meta = msgspec.structs.replace(place.meta, created_ms=place.meta.created_ms or self._clock.now_ms())
            folder = join(self._path, "topics", place.number)
            _repair_copies(self._disk, folder, "topic", TOPIC_MAGIC, msgspec.json.encode(meta))

    def _open(self, place: TopicPlace, inspection: Inspection) -> None:
        """Open the partition as a node does; recovery completes the repair, and must find no damage."""
        settings = place.meta.settings
        partition = PartitionLog(
            self._disk, inspection.folder, inspection.identity, settings, self._pool, begun=inspection.begun
        )
        if partition.damages:
            raise StorageFault(f"still damaged after a repair: {partition.damages[0]}", inspection.folder)
        partition.close()


def _repair_copies(disk: Disk, folder: str, stem: str, magic: bytes, fresh: bytes) -> None:
    """Rewrite damaged or missing copies from the newest valid one, or from `fresh` if none is valid."""
    pair = TwoCopyFile(disk, folder, stem, magic)
    slots = pair.load()
    pair.save(slots[0].payload if slots else fresh, copies=1 if slots else 2)
    disk.sync_folder(folder)
