"""Content-addressed store of backups: pieces by SHA-256, and a manifest per backup.

A piece never changes, and backups share pieces. A manifest is written last, when all its pieces are durable: a backup
without a manifest does not exist, and the next backup reuses its pieces.

    backups/20261116T193000.123Z.json   the manifest of a backup
    pieces/ab/ab12…                     a piece, named by its SHA-256
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
    """The backups in one place."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.path = place.path

    # -- reading ---------------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """Return the ids of all backups, oldest first. Raises if the place is not a backup store."""
        known = self.finished()
        if not known and not self._place.sizes(_PIECES):
            raise BrokerError(
                Reason.FOLDER_NOT_FOUND, f"{self.path} holds no backups; create one with `braid backup create`"
            )
        return known

    def finished(self) -> list[str]:
        """Return the ids of all backups; may be empty."""
        found = (name.removeprefix(f"{_BACKUPS}/").removesuffix(_JSON) for name in self._place.sizes(_BACKUPS))
        return sorted(name for name in found if ID.fullmatch(name))

    def load(self, backup: str | None) -> Manifest:
        """Return the manifest of a backup; None: of the newest."""
        known = self.ids()
        if not known or (backup is not None and backup not in known):
            there = f"; backups: {', '.join(known[-5:])}" if known else "; it has no complete backup"
            raise BrokerError(Reason.FOLDER_NOT_FOUND, f"unknown backup {backup or ''} in {self.path}{there}")
        return self.read_manifest(backup or known[-1])

    def read_manifest(self, backup: str) -> Manifest:
        """Return the manifest of a complete backup."""
        return unpack_manifest(self._place.read(_manifest(backup)), f"{backup}{_JSON}")

    def has(self, piece: Piece) -> bool:
        """Return whether a piece of this size exists."""
        return self._place.size(_name(piece)) == piece.size

    def read(self, piece: Piece) -> bytes:
        """Return a piece. Raises `StorageFault` if its SHA-256 does not match."""
        data = self._place.read(_name(piece))
        if len(data) != piece.size or hashlib.sha256(data).hexdigest() != piece.digest:
            raise StorageFault("damaged piece: its SHA-256 does not match its name", f"{self.path}/{_name(piece)}")
        return data

    # -- writing ---------------------------------------------------------------------------------------------

    def writing(self) -> AbstractContextManager[None]:
        """Lock the store for the calls that follow."""
        return self._place.writing()

    def put(self, data: bytes, *, doubts: bool = False) -> tuple[Piece, int]:
        """Store bytes as a piece, durable with the next manifest; return the piece, and the number of added bytes. `doubts`:
        verify an existing piece, and rewrite it if it is damaged."""
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
        """Write the manifest, which makes the backup exist."""
        # Existing pieces, too: the process that wrote one may have been killed before its name was durable.
        self._place.settle(_name(piece) for file in manifest.files for piece in file.pieces)
        self._place.write(_manifest(manifest.backup), pack_manifest(manifest))
        self._place.settle([_manifest(manifest.backup)])

    def prune(self, keep: int) -> tuple[list[str], int]:
        """Remove all but the newest `keep` backups and their unshared pieces; return the removed ids and the freed bytes."""
        known = self.ids()
        gone = known[: max(0, len(known) - keep)]
        kept = map(self.read_manifest, known[len(gone) :])
        used = {_name(piece) for each in kept for file in each.files for piece in file.pieces}
        for each in gone:
            self._place.remove(_manifest(each))
        self._place.settle(map(_manifest, gone))  # before any of their pieces is removed
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
