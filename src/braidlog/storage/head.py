"""The first 128 bytes of a segment file, and the names of a segment's files.

File `<base offset, 20 digits>.log`:

     0  magic        8  "BRAIDSEG"
     8  version      u16
    10  unused       u16
    12  generation   u32  0, and one more each time compaction or repair rewrites the segment
    16  topic id    16
    32  partition    u32
    36  unused       u32
    40  base offset  i64
    48  created_ms   i64
    56  unused       u32
    60  crc          u32  CRC-32C of bytes 0..60
    64  mark: position     u64  everything below was synced by a sync that had returned
    72  mark: next offset  i64
    80  mark: crc          u32  CRC-32C of bytes 64..80, seeded with the head's
    84  unused      44
   128  batches

The mark is rewritten in place after each sync and so becomes durable with the next one. It lies in one sector: never torn.
It tells recovery how far damage is damage and from where on a bad batch is merely a write that never finished.
"""

import struct
from typing import NamedTuple

from braidlog.codec.crc import crc32c

MAGIC = b"BRAIDSEG"
VERSION = 1
DATA_START = 128
MARK_AT = 64
_HEAD = struct.Struct(">8sHHI16sIIqqI")
_CRC = struct.Struct(">I")
_MARK = struct.Struct(">Qq")


class Identity(NamedTuple):
    """Whose segment this is: a file moved to a wrong folder is noticed."""

    topic_id: bytes
    partition: int


class Mark(NamedTuple):
    """How far the file is durable."""

    position: int
    next_offset: int


class SegmentHead(NamedTuple):
    identity: Identity
    base_offset: int
    created_ms: int
    generation: int


class BadHead(Exception):  # noqa: N818 - a finding, like BadBatch
    """The first 64 bytes are not the head of this segment. `mark` is the durable mark if that one still holds."""

    def __init__(self, why: str, mark: Mark | None) -> None:
        super().__init__(why)
        self.mark = mark


def log_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


def index_name(base_offset: int) -> str:
    return f"{base_offset:020d}.idx"


def state_name(base_offset: int) -> str:
    return f"{base_offset:020d}.state"


def pack_head(head: SegmentHead) -> bytes:
    body = _HEAD.pack(MAGIC, VERSION, 0, head.generation, *head.identity, 0, head.base_offset, head.created_ms, 0)
    return body + _CRC.pack(crc32c(body))


def pack_mark(mark: Mark, seed: int) -> bytes:
    body = _MARK.pack(*mark)
    return body + _CRC.pack(crc32c(body, seed))


def mark_seed(base_offset: int, generation: int) -> int:
    """Ties a mark to its file, so that neither a stray sector nor a stale copy passes for one."""
    return crc32c(struct.pack(">qI", base_offset, generation))


def read_mark(data: bytes, base_offset: int, generation: int) -> Mark | None:
    body = data[MARK_AT : MARK_AT + _MARK.size]
    crc = data[MARK_AT + _MARK.size : MARK_AT + _MARK.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != crc32c(body, mark_seed(base_offset, generation)):
        return None
    return Mark._make(_MARK.unpack(body))


def read_head(data: bytes, identity: Identity, base_offset: int) -> tuple[SegmentHead, Mark | None]:
    """The head and, if it holds, the mark; `BadHead` if this is not the segment it should be."""
    if len(data) < DATA_START:
        raise BadHead(f"the file has {len(data)} bytes, its head alone has {DATA_START}", None)
    fields = _HEAD.unpack_from(data)
    magic, version, unused_a, generation, topic_id, partition, unused_b, base, created_ms, unused_c = fields
    mark = read_mark(data, base_offset, generation)
    head = SegmentHead(Identity(topic_id, partition), base, created_ms, generation)
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        raise BadHead("the head's checksum does not hold", mark)
    if magic != MAGIC or unused_a or unused_b or unused_c:
        raise BadHead("it is not the head of a segment", mark)
    if version != VERSION:
        raise BadHead(f"its head has version {version}; this version of braidlog reads {VERSION}", mark)
    if head.identity != identity or head.base_offset != base_offset:
        raise BadHead(
            f"it is the segment of topic {topic_id.hex()} partition {partition} base {base}, in a wrong place",
            mark,
        )
    if any(data[MARK_AT + _MARK.size + _CRC.size : DATA_START]):
        raise BadHead("bytes that must be zero are not", mark)
    return head, mark
