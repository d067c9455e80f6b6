"""Save the latest leader epochs of many partitions in one value: one save makes all of them durable.

For each partition the file holds its epoch history and the number of the save that recorded it. Invariant: a
partition's own checkpoint names the last save that it includes. A record with a higher number replaces the
checkpoint's history; an older record is ignored. So a checkpoint that drops an epoch (a truncation) stays valid.
"""

import threading
from collections.abc import Collection, Mapping

import msgspec

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk
from braidlog.storage.segment.segment_files import Identity
from braidlog.storage.state.partition_state import StateImage
from braidlog.storage.two_copy_file import TwoCopyFile

BEGUN_MAGIC = b"BRAIDEPO"
STEM = "epochs"


class EpochStart(msgspec.Struct, frozen=True, array_like=True):
    """The epoch history of one partition, as recorded by save `number`."""

    topic_id: bytes
    partition: int
    number: int
    epochs: list[tuple[int, int]]


def with_epoch_start(image: StateImage, begun: EpochStart | None) -> StateImage:
    """Return a checkpoint's image with the epochs begun after it was saved."""
    if begun is None or begun.number <= image.begun:
        return image
    return msgspec.structs.replace(image, epochs=begun.epochs, begun=begun.number)


class LeaderEpochFile:
    """The two-copy file `epochs.a`, `epochs.b` of a data folder; it does not exist until a first epoch is begun."""

    def __init__(self, disk: Disk, folder: str, topics: Collection[bytes] | None = None) -> None:
        """Load the file. Records of topics that are not in `topics` are dropped."""
        self._slots = TwoCopyFile(disk, folder, STEM, BEGUN_MAGIC)
        self._lock = threading.Lock()
        slots = self._slots.load()
        found = _decode(slots[0].payload) if slots else []
        self._records = {_key(each): each for each in found}
        self._number = max((each.number for each in found), default=0)
        if topics is not None:
            self._records = {key: each for key, each in self._records.items() if each.topic_id in topics}

    @property
    def faults(self) -> dict[str, str]:
        return self._slots.faults

    @property
    def latest(self) -> int:
        """The number of the last save.

        A newly created partition starts with it: no save up to it contains the partition.
        """
        return self._number

    def epoch_of(self, identity: Identity) -> EpochStart | None:
        return self._records.get(identity)

    def next_number(self) -> int:
        """Return the number for a new save. Never returned twice: a failed save may still be on the disk."""
        with self._lock:
            self._number += 1
            return self._number

    def forget(self, identity: Identity) -> None:
        """Drop a removed partition: a later one in its place begins without an epoch."""
        with self._lock:
            self._records = {key: each for key, each in self._records.items() if key != identity}

    def save(self, number: int, histories: Mapping[Identity, list[tuple[int, int]]]) -> None:
        """Make these histories durable in both files."""
        with self._lock:
            begun = {key: EpochStart(key.topic_id, key.partition, number, each) for key, each in histories.items()}
            records = {**self._records, **begun}
            self._slots.save(msgspec.msgpack.encode(list(records.values())), copies=2)
            self._records = records


def _decode(payload: bytes) -> list[EpochStart]:
    try:
        return msgspec.msgpack.decode(payload, type=list[EpochStart])
    except msgspec.MsgspecError as error:
        raise StorageFault(f"{STEM}: begun epochs with a valid checksum do not decode: {error}") from error


def _key(begun: EpochStart) -> Identity:
    return Identity(begun.topic_id, begun.partition)
