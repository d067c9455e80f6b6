"""How far a node has come in the metadata of its cluster, kept in its data folder.

Knows: the last entry, and whose folder this is. Refuses to know: etcd, and what an entry says.
Invariant: a position is durable when `save` returns, and a crash leaves the old or the new one; so a node that starts again knows
the last entry that it may have acted on, and an etcd that does not have it is refused.
"""

from typing import Final

import msgspec

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk
from braidlog.storage.slots import SlotPair, load_newest

MAGIC = b"BRAIDCLU"
NO_ENTRY: Final = ""


class Position(msgspec.Struct, frozen=True):
    """A place in the log of a cluster: its end (etcd's key `head`), or how far a node has come."""

    cluster: str
    seq: int = 0
    """The number of the last entry."""
    digest: str = NO_ENTRY
    """Of that entry."""


class _Record(msgspec.Struct, frozen=True):
    node: str
    cluster: str
    seq: int
    digest: str


class PositionFile:
    """`cluster.a` and `cluster.b` of a data folder."""

    def __init__(self, disk: Disk, folder: str, node: str) -> None:
        self._slots = SlotPair(disk, folder, "cluster", MAGIC)
        self._node = node

    def load(self) -> Position | None:
        """None: this folder was never part of a cluster."""
        kept = _load(self._slots)
        if kept is None:
            return None
        if kept.node != self._node:
            raise StorageFault(
                f"this folder is node {kept.node!r} of cluster {kept.cluster!r}, and not {self._node!r}: "
                f"set node = {kept.node!r}, or start with an empty folder"
            )
        return Position(kept.cluster, kept.seq, kept.digest)

    def save(self, position: Position) -> None:
        self._slots.save(msgspec.json.encode(_Record(self._node, position.cluster, position.seq, position.digest)))


def read_position(disk: Disk, folder: str) -> tuple[str, Position] | None:
    """Whose folder this is, and how far it has come; None: it was never part of a cluster."""
    kept = _load(SlotPair(disk, folder, "cluster", MAGIC))
    return None if kept is None else (kept.node, Position(kept.cluster, kept.seq, kept.digest))


def _load(slots: SlotPair) -> _Record | None:
    if slots.was_never_saved():
        return None
    try:
        return msgspec.json.decode(load_newest(slots, "cluster.a", read_only=False), type=_Record)
    except msgspec.MsgspecError as error:
        raise StorageFault(f"cluster.a does not decode: {error}") from error
