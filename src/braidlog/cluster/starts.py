"""What a data folder remembers of its node's starts in a cluster.

Knows: the last incarnation that it was told of, the starts under which it asked since, whether the node stopped cleanly. Refuses
to know: what the metadata makes of it (`replication/registration.py`).
Invariant: a start is durable here before the metadata hears of it, and an incarnation before the node acts under it.
"""

from typing import Final

import msgspec

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk
from braidlog.storage.slots import SlotPair, load_newest

MAGIC: Final = b"BRAIDRUN"
START_IDS_MAX: Final = 64
"""Of starts that died before they heard: one that is forgotten makes the folder pass for a copy, which is safe."""


class Starts(msgspec.Struct, frozen=True):
    remembers: int = 0
    start_ids: tuple[str, ...] = ()
    """Under which it asked to be registered, without having heard what became of it."""
    stopped_cleanly: bool = False
    """And has written nothing since."""

    def asking(self, start_id: str) -> "Starts":
        return msgspec.structs.replace(self, start_ids=(*self.start_ids, start_id)[-START_IDS_MAX:])


class StartFile:
    """`starts.a` and `starts.b` of a data folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._slots = SlotPair(disk, folder, "starts", MAGIC)

    def load(self) -> Starts:
        """Nothing is remembered by a folder that was never part of a cluster."""
        if self._slots.was_never_saved():
            return Starts()
        try:
            return msgspec.json.decode(load_newest(self._slots, "starts.a", read_only=False), type=Starts)
        except msgspec.MsgspecError as error:
            raise StorageFault(f"starts.a does not decode: {error}") from error

    def save(self, starts: Starts) -> None:
        self._slots.save(msgspec.json.encode(starts))
