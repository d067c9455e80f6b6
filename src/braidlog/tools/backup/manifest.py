"""The manifest of a backup: its files, and the pieces of each.

A manifest is valid only with its checksum, paths inside a data folder, and pieces within the size limit.

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
    """A range of a file, by its SHA-256."""

    digest: str
    size: int


class BackupFile(msgspec.Struct, frozen=True):
    """A file of the data folder: `head` followed by the pieces."""

    path: str
    size: int
    modified_ns: int
    head: bytes = b""
    pieces: list[Piece] = []
    is_final: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    backup: str
    """The backup's id: time of the snapshot in UTC."""
    folder_id: str
    """Identity of the data folder."""
    braidlog: str
    created_ms: int
    added_bytes: int
    """Bytes that this backup added to the store."""
    files: list[BackupFile]
    format: int = FORMAT

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files)


def pack_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return body + b"\nsha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"


def unpack_manifest(data: bytes, name: str) -> Manifest:
    """Parse and check a manifest. Raises `StorageFault`."""
    body, _, rest = data.partition(b"\n")
    if rest != b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise StorageFault("checksum mismatch: this backup is damaged", name)
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise StorageFault(f"not a backup manifest: {error}", name) from error
    if manifest.format != FORMAT:
        raise StorageFault(
            f"unsupported format {manifest.format}; this version of braidlog reads format {FORMAT}", name
        )
    for each in manifest.files:
        _check(each, name)
    return manifest


def _check(file: BackupFile, name: str) -> None:
    if not _PATH.fullmatch(file.path):
        raise StorageFault(f"invalid path {file.path[:80]!r}", name)
    if not all(_DIGEST.fullmatch(each.digest) and 0 < each.size <= PIECE_BYTES for each in file.pieces):
        raise StorageFault(f"invalid piece of {file.path}", name)
    if len(file.head) + sum(each.size for each in file.pieces) != file.size:
        raise StorageFault(f"the pieces of {file.path} do not add up to its size", name)
