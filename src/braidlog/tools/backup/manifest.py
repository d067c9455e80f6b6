"""What a back-up says of itself: which files it has, and of which pieces each is made.

Knows: the form of a manifest, and what may stand in one. Refuses to know: where it is kept.
Invariant: a manifest that was read names no place outside a data folder and no piece longer than one is; its own checksum holds.

    <backup id>.json    one line of JSON, then one line "sha256 <64 hexadecimal digits>" of the first
"""

import hashlib
import re
from typing import Final

import msgspec

from braidlog.model.errors import StorageFault

FORMAT: Final = 1
PIECE_BYTES: Final = 16 * 1024 * 1024
_LOG_FILE = r"(state\.[ab]|\d{20}\.(log|idx|state|swap))"
_PATH = re.compile(
    rf"folder\.[ab]|epochs\.[ab]|topics/\d{{8}}/(topic\.[ab]|(\d{{4}}|copy)/{_LOG_FILE})"
    r"|kv/(store\.[ab]|\d{20}\.(wal|snapshot))"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
ID: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z")


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of a file, by their SHA-256."""

    digest: str
    size: int


class BackupFile(msgspec.Struct, frozen=True):
    """A file of the data folder: `head`, then the pieces."""

    path: str
    size: int
    modified_ns: int
    head: bytes = b""
    pieces: list[Piece] = []
    is_final: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    backup: str
    """Its id: when the cut was taken, UTC."""
    folder_id: str
    """Whose data folder it is."""
    braidlog: str
    created_ms: int
    added_bytes: int
    """What this one added to the back-up folder; the rest was there."""
    files: list[BackupFile]
    format: int = FORMAT

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)


def pack_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return body + b"\nsha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"


def unpack_manifest(data: bytes, name: str) -> Manifest:
    """`StorageFault` if it is not one that was written here."""
    body, _, rest = data.partition(b"\n")
    if rest != b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise StorageFault("its checksum does not hold: it is damaged, and so is this back-up", name)
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise StorageFault(f"it is no manifest of a back-up: {error}", name) from error
    if manifest.format != FORMAT:
        raise StorageFault(f"it has format {manifest.format}; this version of braidlog reads {FORMAT}", name)
    for each in manifest.files:
        _check(each, name)
    return manifest


def _check(file: BackupFile, name: str) -> None:
    if not _PATH.fullmatch(file.path):
        raise StorageFault(f"it names {file.path[:80]!r}, which is no file of a data folder", name)
    if not all(_DIGEST.fullmatch(each.digest) and 0 < each.size <= PIECE_BYTES for each in file.pieces):
        raise StorageFault(f"a piece of {file.path} is none", name)
    if len(file.head) + sum(each.size for each in file.pieces) != file.size:
        raise StorageFault(f"the pieces of {file.path} do not add up to its size", name)
