"""The common parts of log files and snapshots: the number in the name, and the fields of the first 64 bytes.

wal.py and snapshot.py draw the bytes.
"""

import struct

from braidlog.codec.crc import crc32c
from braidlog.model.errors import ProtocolError

VERSION = 1
_HEAD = struct.Struct(">8sH6x16sQQIQ")
_CRC = struct.Struct(">I")
HEAD_BYTES = _HEAD.size + _CRC.size

Fields = tuple[bytes, int, int, int, int]
"""Node, sequence, wall time and counter of a stamp, creation time."""


def number_in(name: str) -> int:
    """Return the number in the name of a store's file; 0 for any other name."""
    digits = name.partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def pack_head(magic: bytes, fields: Fields) -> bytes:
    head = _HEAD.pack(magic, VERSION, *fields)
    return head + _CRC.pack(crc32c(head))


def unpack_head(magic: bytes, data: bytes) -> Fields:
    """Return the fields, or raise `ProtocolError` with the reason."""
    if len(data) < HEAD_BYTES:
        raise ProtocolError(f"{len(data)} bytes are fewer than its head")
    found, version, *fields = _HEAD.unpack_from(data)
    if found != magic:
        raise ProtocolError(f"it does not begin with {magic.decode()}")
    if version != VERSION:
        raise ProtocolError(f"version {version} is not known here, only {VERSION}")
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        raise ProtocolError("the head's checksum does not hold")
    return tuple(fields)
