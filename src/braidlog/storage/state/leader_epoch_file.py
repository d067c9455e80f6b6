"""The epochs that began last, of many partitions in one value: one save makes all of them durable.

Knows: for each partition the history of epochs as it was when one was begun here, and the number of that save. Refuses to know:
logs.
Invariant: a partition's own checkpoint says which save it has seen; a record that is newer takes the place of the checkpoint's
history, an older one means nothing. So a checkpoint that forgets an epoch (a truncation) is never contradicted.
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
    """What was begun of one partition. `number` is that of the save it came with."""

    topic_id: bytes
    partition: int
    number: int
    epochs: list[tuple[int, int]]


def with_epoch_start(image: StateImage, begun: EpochStart | None) -> StateImage:
    """A checkpoint with what was begun since it was saved."""
    if begun is None or begun.number <= image.begun:
        return image
    return msgspec.structs.replace(image, epochs=begun.epochs, begun=begun.number)


class LeaderEpochFile:
    """The pair of files `epochs.a`, `epochs.b` of a data folder; there is none until an epoch is begun here."""

    def __init__(self, disk: Disk, folder: str, topics: Collection[bytes] | None = None) -> None:
        """Of topics that are not there any more nothing is kept."""
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
        """The number of the last save: a partition that is made now has seen all up to it, and none of them is about it."""
        return self._number

    def epoch_of(self, identity: Identity) -> EpochStart | None:
        return self._records.get(identity)

    def next_number(self) -> int:
        """Of a save that is about to be made; never given out twice, for a save that fails may be found on the disk."""
        with self._lock:
            self._number += 1
            return self._number

    def forget(self, identity: Identity) -> None:
        """A partition is removed here: one that is made in its place later begins with no epoch."""
        with self._lock:
            self._records = {key: each for key, each in self._records.items() if key != identity}

    def save(self, number: int, histories: Mapping[Identity, list[tuple[int, int]]]) -> None:
        """Make these durable, in both files."""
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
