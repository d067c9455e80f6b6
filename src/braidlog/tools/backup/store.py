"""What is kept of back-ups: pieces by their SHA-256, and a manifest for each back-up.

Knows: names, and in which order things become durable. Refuses to know: what is backed up, and where this is kept (`place.py`).
Invariants: a piece never changes, and several back-ups share it. A manifest is written last, when everything it names is durable:
a back-up without one does not exist, and what it left behind is used by the next.

    backups/20261116T193000.123Z.json   a back-up
    pieces/ab/ab12…                     what `sha256sum` says of a piece is its name
"""

import hashlib
from contextlib import AbstractContextManager
from typing import Final

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.tools.backup.manifest import ID, Manifest, Piece, pack_manifest, unpack_manifest
from braidlog.tools.backup.place import Place

_BACKUPS: Final = "backups"
_PIECES: Final = "pieces"
_JSON: Final = ".json"


class BackupStore:
    """The back-ups in one place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.path = place.path

    # -- what is there ---------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """The back-ups, oldest first; refused where nobody ever made one."""
        known = self.finished()
        if not known and not self._place.sizes(_PIECES):
            raise BrokerError(
                Reason.FOLDER_NOT_FOUND, f"{self.path} holds no back-ups; `braid backup create` makes one"
            )
        return known

    def finished(self) -> list[str]:
        """The same; none is fine."""
        found = (name.removeprefix(f"{_BACKUPS}/").removesuffix(_JSON) for name in self._place.sizes(_BACKUPS))
        return sorted(name for name in found if ID.fullmatch(name))

    def load(self, backup: str | None) -> Manifest:
        """One of them; None: the newest."""
        known = self.ids()
        if not known or (backup is not None and backup not in known):
            there = f"; there are: {', '.join(known[-5:])}" if known else "; none was ever finished there"
            raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{self.path} has no back-up {backup or ''}{there}")
        return self.read_manifest(backup or known[-1])

    def read_manifest(self, backup: str) -> Manifest:
        """Of one that is finished."""
        return unpack_manifest(self._place.read(_manifest(backup)), f"{backup}{_JSON}")

    def has(self, piece: Piece) -> bool:
        """As far as its size tells."""
        return self._place.size(_name(piece)) == piece.size

    def read(self, piece: Piece) -> bytes:
        """`StorageFault` unless it is what was written."""
        data = self._place.read(_name(piece))
        if len(data) != piece.size or hashlib.sha256(data).hexdigest() != piece.digest:
            raise StorageFault(
                "the piece is not what was written: its SHA-256 is not its name", f"{self.path}/{_name(piece)}"
            )
        return data

    # -- writing ---------------------------------------------------------------------------------------------

    def writing(self) -> AbstractContextManager[None]:
        """What follows is done within this, alone."""
        return self._place.writing()

    def put(self, data: bytes, *, doubts: bool = False) -> tuple[Piece, int]:
        """Keep these bytes, durable with the next manifest; how many were not there. `doubts`: a piece of this name is read, and
        written again if it is not whole."""
        piece = Piece(hashlib.sha256(data).hexdigest(), len(data))
        if self.has(piece) and not (doubts and not self._is_whole(piece)):
            return piece, 0
        self._place.write(_name(piece), data)
        return piece, piece.size

    def _is_whole(self, piece: Piece) -> bool:
        try:
            self.read(piece)
        except StorageFault:
            return False
        return True

    def finish(self, manifest: Manifest) -> None:
        """From here on it is a back-up."""
        # Pieces that were there, too: whoever left one may have been killed before its name was durable.
        self._place.settle(_name(piece) for file in manifest.files for piece in file.pieces)
        self._place.write(_manifest(manifest.backup), pack_manifest(manifest))
        self._place.settle([_manifest(manifest.backup)])

    def prune(self, keep: int) -> tuple[list[str], int]:
        """Remove all back-ups but the newest `keep`, then the pieces that no other one has; who went, and the bytes freed."""
        known = self.ids()
        gone = known[: max(0, len(known) - keep)]
        kept = map(self.read_manifest, known[len(gone) :])
        used = {_name(piece) for each in kept for file in each.files for piece in file.pieces}
        for each in gone:
            self._place.remove(_manifest(each))
        self._place.settle(map(_manifest, gone))  # before any piece goes that one of them names
        freed = 0
        for name, size in self._place.sizes(_PIECES).items():
            if name not in used:
                self._place.remove(name)
                freed += size
        return gone, freed


def _manifest(backup: str) -> str:
    return f"{_BACKUPS}/{backup}{_JSON}"


def _name(piece: Piece) -> str:
    return f"{_PIECES}/{piece.digest[:2]}/{piece.digest}"
