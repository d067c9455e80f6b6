"""A node's position in the metadata log of its cluster, stored in its data folder.

Invariant: a position is durable when `save` returns, and a crash leaves the old or the new one. So a restarted node
knows the last entry that it may have acted on, and rejects an etcd without that entry.
"""

from typing import Final

import msgspec

from braidlog.model.errors import StorageFault
from braidlog.storage.files import Disk
from braidlog.storage.two_copy_file import TwoCopyFile, load_newest

MAGIC = b"BRAIDCLU"
NO_ENTRY: Final = ""


class Position(msgspec.Struct, frozen=True):
    """The last metadata entry that a node applied, and its cluster."""

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
    """The files `cluster.a` and `cluster.b` of a data folder."""

    def __init__(self, disk: Disk, folder: str, node: str) -> None:
        self._slots = TwoCopyFile(disk, folder, "cluster", MAGIC)
        self._node = node

    def load(self) -> Position | None:
        """The saved position; None if this folder never belonged to a cluster."""
        kept = _load(self._slots)
        if kept is None:
            return None
        if kept.node != self._node:
            raise StorageFault(
                f"this folder belongs to node {kept.node!r} of cluster {kept.cluster!r}, not to {self._node!r}: "
                f"set node = {kept.node!r}, or start with an empty folder"
            )
        return Position(kept.cluster, kept.seq, kept.digest)

    def save(self, position: Position) -> None:
        self._slots.save(msgspec.json.encode(_Record(self._node, position.cluster, position.seq, position.digest)))


def read_position(disk: Disk, folder: str) -> tuple[str, Position] | None:
    """The folder's node and position; None if the folder never belonged to a cluster."""
    kept = _load(TwoCopyFile(disk, folder, "cluster", MAGIC))
    return None if kept is None else (kept.node, Position(kept.cluster, kept.seq, kept.digest))


def _load(slots: TwoCopyFile) -> _Record | None:
    if slots.was_never_saved():
        return None
    try:
        return msgspec.json.decode(load_newest(slots, "cluster.a", read_only=False), type=_Record)
    except msgspec.MsgspecError as error:
        raise StorageFault(f"cluster.a does not decode: {error}") from error
