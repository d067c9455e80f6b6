"""A data folder's record of its node's starts in a cluster.

Stores the last confirmed incarnation, later start ids without confirmation, and whether the node stopped cleanly.
Invariant: a start is durable here before the metadata learns of it, and an incarnation before the node acts under it.
"""

from typing import Final

import msgspec

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk
from braidlog.storage.two_copy_file import SlotPair, load_newest

MAGIC: Final = b"BRAIDRUN"
START_IDS_MAX: Final = 64
"""Limit of unconfirmed start ids. If one is forgotten, the folder counts as a copy, which is safe."""


class Starts(msgspec.Struct, frozen=True):
    remembers: int = 0
    start_ids: tuple[str, ...] = ()
    """Start ids of registrations without a confirmed outcome."""
    stopped_cleanly: bool = False
    """Whether the node stopped cleanly and has written nothing since."""

    def asking(self, start_id: str) -> "Starts":
        return msgspec.structs.replace(self, start_ids=(*self.start_ids, start_id)[-START_IDS_MAX:])


class StartFile:
    """The files `starts.a` and `starts.b` of a data folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._slots = SlotPair(disk, folder, "starts", MAGIC)

    def load(self) -> Starts:
        """Load the record; empty if the folder never belonged to a cluster."""
        if self._slots.was_never_saved():
            return Starts()
        try:
            return msgspec.json.decode(load_newest(self._slots, "starts.a", read_only=False), type=Starts)
        except msgspec.MsgspecError as error:
            raise StorageFault(f"starts.a does not decode: {error}") from error

    def save(self, starts: Starts) -> None:
        self._slots.save(msgspec.json.encode(starts))
