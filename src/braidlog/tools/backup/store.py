"""Where back-ups are kept: pieces by their SHA-256, and a manifest for each back-up.

Knows: names, and in which order things become durable. Refuses to know: what is backed up.
Invariants: a piece never changes, and several back-ups share it. A manifest is written last, when everything it names is durable:
a back-up without one does not exist, and what it left behind is used by the next. One process at a time writes.

    <folder>/LOCK
             backups/20261116T193000.123Z.json   a back-up
             pieces/ab/ab12…                     what `sha256sum` says of a piece is its name
             pieces/ab/ab12….new                 one that was never finished: written over
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.storage.files import Disk, join, parent, read_whole, write_whole
from braidlog.tools.backup.manifest import ID, Manifest, Piece, pack_manifest, unpack_manifest

_BACKUPS: Final = "backups"
_PIECES: Final = "pieces"
_NEW: Final = ".new"
_JSON: Final = ".json"


class BackupStore:
    """A folder of back-ups."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._unsynced: set[str] = set()

    # -- what is there ---------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """The back-ups, oldest first."""
        place = join(self.path, _BACKUPS)
        if not self._disk.is_folder(place):
            raise BrokerError(
                Reason.FOLDER_NOT_FOUND, f"{self.path} holds no back-ups; `braid backup create` makes one"
            )
        return [name.removesuffix(_JSON) for name in self._disk.names(place) if ID.fullmatch(name.removesuffix(_JSON))]

    def load(self, backup: str | None) -> Manifest:
        """One of them; None: the newest."""
        known = self.ids()
        if not known or (backup is not None and backup not in known):
            there = f"; there are: {', '.join(known[-5:])}" if known else "; none was ever finished there"
            raise BrokerError(Reason.FOLDER_NOT_FOUND, f"{self.path} has no back-up {backup or ''}{there}")
        name = f"{backup or known[-1]}{_JSON}"
        return unpack_manifest(read_whole(self._disk, join(self.path, _BACKUPS, name)), name)

    def has(self, piece: Piece) -> bool:
        """As far as its size tells."""
        return self._size(self._place(piece.digest)) == piece.size

    def _size(self, place: str) -> int | None:
        if not self._disk.exists(place):
            return None
        file = self._disk.open(place, writable=False)
        try:
            return file.size()
        finally:
            file.close()

    def read(self, piece: Piece) -> bytes:
        """`StorageFault` unless it is what was written."""
        place = self._place(piece.digest)
        if not self._disk.exists(place):
            raise StorageFault("the piece is missing", place)
        data = read_whole(self._disk, place)
        if len(data) != piece.size or hashlib.sha256(data).hexdigest() != piece.digest:
            raise StorageFault("the piece is not what was written: its SHA-256 is not its name", place)
        return data

    def _place(self, digest: str) -> str:
        return join(self.path, _PIECES, digest[:2], digest)

    # -- writing ---------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone, in a folder that is made if need be."""
        self._make(self.path)
        lock = self._disk.lock(join(self.path, "LOCK"))
        try:
            for name in (_BACKUPS, _PIECES):
                self._make(join(self.path, name))
            yield
        finally:
            lock.release()

    def _make(self, path: str) -> None:
        """Durable in the folder that holds it, and so are those above."""
        if not self._disk.exists(path):
            self._make(parent(path))
            self._disk.make_folder(path)
            self._disk.sync_folder(parent(path))

    def put(self, data: bytes, *, doubts: bool = False) -> tuple[Piece, int]:
        """Keep these bytes, durable with the next manifest; how many were not there. `doubts`: a piece of this name is read, and
        written again if it is not whole."""
        piece = Piece(hashlib.sha256(data).hexdigest(), len(data))
        place = self._place(piece.digest)
        self._unsynced.add(parent(place))  # whoever left it there may have been killed before its name was durable
        if self.has(piece) and not (doubts and not self._is_whole(piece)):
            return piece, 0
        self._make(parent(place))
        new = place + _NEW
        if self._disk.exists(new):
            self._disk.remove(new)
        write_whole(self._disk, new, data)
        self._disk.rename(new, place)
        return piece, piece.size

    def _is_whole(self, piece: Piece) -> bool:
        try:
            self.read(piece)
        except StorageFault:
            return False
        return True

    def finish(self, manifest: Manifest) -> None:
        """From here on it is a back-up."""
        for folder in sorted(self._unsynced):
            self._disk.sync_folder(folder)
        self._unsynced.clear()
        place = join(self.path, _BACKUPS, manifest.backup)
        if self._disk.exists(place + _NEW):
            self._disk.remove(place + _NEW)
        write_whole(self._disk, place + _NEW, pack_manifest(manifest))
        self._disk.rename(place + _NEW, place + _JSON)
        self._disk.sync_folder(join(self.path, _BACKUPS))

    def prune(self, keep: int) -> tuple[list[str], int]:
        """Remove all back-ups but the newest `keep`, then the pieces that no other one has; who went, and the bytes freed."""
        known = self.ids()
        gone = known[: max(0, len(known) - keep)]
        used = {piece.digest for each in known[len(gone) :] for file in self.load(each).files for piece in file.pieces}
        for each in gone:
            self._disk.remove(join(self.path, _BACKUPS, each + _JSON))
        self._disk.sync_folder(join(self.path, _BACKUPS))  # before any piece goes that one of them names
        freed = 0
        for shelf in self._disk.names(join(self.path, _PIECES)):
            for name in self._disk.names(join(self.path, _PIECES, shelf)):
                if name not in used:
                    place = join(self.path, _PIECES, shelf, name)
                    freed += self._size(place) or 0
                    self._disk.remove(place)
        return gone, freed
