"""The layout of a data folder, read without trusting any file.

Changes nothing. Raises only if the path is not a data folder, or the disk fails.
"""

import re

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import TopicSettings
from braidlog.storage.files import Disk, join
from braidlog.storage.folder.data_folder import FOLDER_MAGIC, STRAY, TOPIC_MAGIC, FolderIdentity, TopicMeta, unreadable
from braidlog.storage.segment.segment_files import Identity
from braidlog.storage.state.leader_epoch_file import LeaderEpochFile
from braidlog.storage.two_copy_file import TwoCopyFile
from braidlog.tools.findings import Finding, Kind, Severity, empty_report
from braidlog.tools.inspect import Inspection, Inspector, Progress, segment_bytes

_NUMBER = re.compile(r"\d{8}")
_PARTITION = re.compile(r"\d{4,5}")
_KNOWN = (
    "LOCK",
    "folder.a",
    "folder.b",
    "epochs.a",
    "epochs.b",
    "cluster.a",
    "cluster.b",
    "starts.a",
    "starts.b",
    "topics",
    "quarantine",
    "kv",
)
_TOPIC_ID_AT = slice(16, 32)


class TopicPlace(msgspec.Struct):
    """A numbered folder of topics/. `meta` is a placeholder if both copies of the description are lost."""

    number: str
    meta: TopicMeta
    is_lost: bool = False
    bad_slots: list[str] = []

    @property
    def label(self) -> str:
        return f"topics/{self.number}"


class Layout:
    """The topics of a data folder, and findings outside of partitions."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path
        self.findings: list[Finding] = []
        self.bad_folder_slots: list[str] = []
        self.is_identity_lost = False
        self.folder_id = ""
        self.cluster = ""
        """The cluster of the folder; empty: none."""
        self.leftovers: list[str] = []
        topics = join(path, "topics")
        if not disk.exists(path):
            raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{path} does not exist")
        names = disk.names(topics) if disk.is_folder(topics) else []
        described = any(disk.exists(join(path, name)) for name in ("folder.a", "folder.b"))
        if not described and not any(_NUMBER.fullmatch(name) for name in names):
            raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{path} is not a braidlog data folder")
        self._read_identity()
        self.begun = LeaderEpochFile(disk, path)
        self.topics = self._read_topics(names)
        for name in disk.names(path):
            if name not in _KNOWN:
                self._find(Severity.NOTE, Kind.STRANGER, name, "not a file of braidlog's", "it is ignored")

    def _find(
        self, severity: Severity, kind: Kind, file: str, why: str, meaning: str, topic: str | None = None
    ) -> None:
        self.findings.append(Finding(severity=severity, kind=kind, file=file, why=why, meaning=meaning, topic=topic))

    def _read_identity(self) -> None:
        pair = TwoCopyFile(self.disk, self.path, "folder", FOLDER_MAGIC)
        slots = pair.load()
        faults = pair.all_faults()
        if slots:
            try:
                identity = msgspec.json.decode(slots[0].payload, type=FolderIdentity)
                self.folder_id, self.cluster = identity.folder_id, identity.cluster
                why = unreadable(identity)
            except msgspec.MsgspecError as error:
                why = f"does not decode: {error}"
            if why is not None:
                raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{self.path}: {why}")
        self.is_identity_lost = not slots
        self.bad_folder_slots = sorted(faults)
        lost = None if slots else "the folder has lost its identity; repair gives a new one"
        self._find_slots(Kind.FOLDER, "", faults, lost)

    def _find_slots(
        self, kind: Kind, place: str, faults: dict[str, str], lost: str | None, topic: str | None = None
    ) -> None:
        """Report damaged files of a pair: one is a fault, both are a loss with the meaning `lost`."""
        if lost is not None:
            why = "; ".join(f"{name}: {why}" for name, why in sorted(faults.items()))
            self._find(Severity.DAMAGE, kind, place or self.path, why, lost, topic)
            return
        for name, why in sorted(faults.items()):
            meaning = "the other copy is used, and this one rewritten"
            self._find(Severity.FAULT, kind, place + name, why, meaning, topic)

    # -- topics ----------------------------------------------------------------------------------------------

    def _read_topics(self, names: list[str]) -> list[TopicPlace]:
        places = []
        for name in names:
            if _NUMBER.fullmatch(name):
                place = self._read_topic(name)
                if place is not None:
                    places.append(place)
            elif name.endswith((".new", ".gone")):
                self.leftovers.append(name)
                why = "incomplete creation" if name.endswith(".new") else "incomplete deletion"
                self._find(Severity.NOTE, Kind.LEFTOVER, f"topics/{name}", why, "opening removes it")
            else:
                why = "quarantined: not in the node's metadata" if name.endswith(STRAY) else "not a topic's folder"
                self._find(Severity.NOTE, Kind.STRANGER, f"topics/{name}", why, "it is ignored")
        return sorted(places, key=lambda place: place.meta.name)

    def _read_topic(self, number: str) -> TopicPlace | None:
        folder = join(self.path, "topics", number)
        pair = TwoCopyFile(self.disk, folder, "topic", TOPIC_MAGIC)
        metas = []
        undecoded: dict[str, str] = {}
        for slot in pair.load():
            try:
                metas.append(msgspec.json.decode(slot.payload, type=TopicMeta))
            except msgspec.MsgspecError as error:
                undecoded[slot.name] = f"does not decode: {error}"
        faults = {**pair.all_faults(), **undecoded}
        place = TopicPlace(number, metas[0]) if metas else self._invent_topic(number)
        if place is None:
            meaning = "all partitions are missing, too: the topic cannot be identified"
            self._find(Severity.DAMAGE, Kind.TOPIC, f"topics/{number}", "the topic's description is lost", meaning)
            return None
        place.bad_slots = sorted(faults)
        name = place.meta.name
        lost = f"name and settings are lost; repair gives the topic the name {name!r}, with the defaults"
        self._find_slots(Kind.TOPIC, f"topics/{number}/", faults, None if metas else lost, name)
        return place

    def _invent_topic(self, number: str) -> TopicPlace | None:
        """Reconstruct a lost description from the segments of the topic."""
        folder = join(self.path, "topics", number)
        partitions = [name for name in self.disk.names(folder) if _PARTITION.fullmatch(name)]
        ids: list[str] = []
        for partition in partitions:
            place = join(folder, partition)
            for name in self.disk.names(place):
                if name.endswith(".log"):
                    file = self.disk.open(join(place, name), writable=False)
                    ids.append(file.read_at(64, 0)[_TOPIC_ID_AT].hex())
                    file.close()
        ids = [topic_id for topic_id in ids if len(topic_id) == 32 and int(topic_id, 16)]
        if not ids:
            return None
        meta = TopicMeta(
            name=f"recovered-{number}",
            topic_id=max(sorted(set(ids)), key=ids.count),
            partitions=1 + max(map(int, partitions)),
            settings=TopicSettings(),
            created_ms=0,
        )
        return TopicPlace(number, meta, is_lost=True)

    def choose(self, topic: str | None) -> list[TopicPlace]:
        """Return all topics, or the named topic."""
        if topic is None:
            return self.topics
        chosen = [place for place in self.topics if place.meta.name == topic]
        if not chosen:
            known = ", ".join(place.meta.name for place in self.topics[:5])
            hint = f"; topics: {known}" if known else "; the folder has no topics"
            raise BrokerError(Reason.TOPIC_NOT_FOUND, f"topic {topic[:60]!r} does not exist{hint}")
        return chosen

    # -- partitions ------------------------------------------------------------------------------------------

    def partition_folder(self, place: TopicPlace, partition: int) -> str:
        return join(self.path, "topics", place.number, f"{partition:04d}")

    def data_bytes(self, places: list[TopicPlace]) -> int:
        """Return the total size of all segments."""
        folders = [self.partition_folder(place, each) for place in places for each in place.meta.held]
        return sum(segment_bytes(self.disk, folder) for folder in folders if self.disk.is_folder(folder))

    def inspect(
        self, place: TopicPlace, partition: int, *, progress: Progress | None = None, drop_unreadable: bool = False
    ) -> Inspection:
        """Inspect every byte of a partition."""
        identity = Identity(bytes.fromhex(place.meta.topic_id), partition)
        inspection = Inspection(
            report=empty_report(place.meta.name, partition),
            folder=self.partition_folder(place, partition),
            label=f"{place.label}/{partition:04d}",
            identity=identity,
            begun=self.begun.epoch_of(identity),
        )
        inspector = Inspector(
            self.disk, inspection, place.meta.settings, progress=progress, drop_unreadable=drop_unreadable
        )
        return inspector.run()
