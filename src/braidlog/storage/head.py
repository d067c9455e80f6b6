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
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from braidlog.codec.crc import crc32c
from braidlog.storage.damage import DamageKind

MAGIC = b"BRAIDSEG"
VERSION = 1
DATA_START = 128
MARK_AT = 64
_HEAD = struct.Struct(">8sHHI16sIIqqI")
_CRC = struct.Struct(">I")
_MARK = struct.Struct(">Qq")
_GENERATIONS_TRIED = 1024
BASE_DIGITS = 20
LOG = ".log"
INDEX = ".idx"
STATE = ".state"
CLEANED = ".cleaned"
SWAP = ".swap"
DAMAGED = ".damaged"


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
    """The first 64 bytes are not the head of this segment. `mark` is the durable mark if that one still holds, `generation` the
    one it holds for."""

    def __init__(self, why: str, mark: Mark | None, generation: int = 0, kind: DamageKind = DamageKind.HEAD) -> None:
        super().__init__(why)
        self.mark = mark
        self.generation = generation
        self.kind = kind


def is_damaged_copy(name: str, partition: int) -> bool:
    """Whether a folder beside a partition's is what was kept of it."""
    return name.startswith(f"{partition:04d}.") and name.endswith(DAMAGED)


def log_name(base_offset: int) -> str:
    return f"{base_offset:020d}{LOG}"


def index_name(base_offset: int) -> str:
    return f"{base_offset:020d}{INDEX}"


def state_name(base_offset: int) -> str:
    return f"{base_offset:020d}{STATE}"


def swap_name(base_offset: int) -> str:
    return f"{base_offset:020d}{SWAP}"


def bases_of(names: Sequence[str], suffix: str) -> list[int]:
    """The base offsets of the files of one kind, ascending. A stranger's file is none of ours, whatever it ends with."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if len(stem) == BASE_DIGITS and stem.isascii() and stem.isdigit())


def stray_names(names: Sequence[str], kept: Container[int]) -> list[str]:
    """The files that belong beside a segment whose base is not among `kept`."""
    kinds = ((index_name, INDEX), (state_name, STATE))
    return [name_of(base) for name_of, suffix in kinds for base in bases_of(names, suffix) if base not in kept]


def segment_names(names: Sequence[str], swaps: Mapping[int, int]) -> dict[int, str]:
    """Base offset → name of each segment's file, ascending, as if the rewrites `swaps` (base → next offset) had taken
    their place."""
    found = {base: log_name(base) for base in bases_of(names, LOG)}
    for base, next_offset in swaps.items():
        for inner in [other for other in found if base < other < next_offset]:
            del found[inner]
        found[base] = swap_name(base)
    return dict(sorted(found.items()))


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


def read_generation(data: bytes) -> int:
    """As the head says, believed or not."""
    return int.from_bytes(data[12:16], "big")


def read_head(data: bytes, identity: Identity, base_offset: int) -> tuple[SegmentHead, Mark | None]:
    """The head and, if it holds, the mark; `BadHead` if this is not the segment it should be."""
    if len(data) < DATA_START:
        generation, mark = _search_mark(data, base_offset, 0)
        raise BadHead(f"the file has {len(data)} bytes, its head alone has {DATA_START}", mark, generation)
    fields = _HEAD.unpack_from(data)
    magic, version, unused_a, generation, topic_id, partition, unused_b, base, created_ms, unused_c = fields
    head = SegmentHead(Identity(topic_id, partition), base, created_ms, generation)
    why, kind = None, DamageKind.HEAD
    if _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        why = "the head's checksum does not hold"
    elif magic != MAGIC or unused_a or unused_b or unused_c:
        why = "it is not the head of a segment"
    elif version != VERSION:
        why, kind = f"its head has version {version}; this version of braidlog reads {VERSION}", DamageKind.VERSION
    elif head.identity != identity or head.base_offset != base_offset:
        where = f"topic {topic_id.hex()} partition {partition} base {base}"
        why, kind = f"it is the segment of {where}, in a wrong place", DamageKind.FOREIGN
    elif any(data[MARK_AT + _MARK.size + _CRC.size : DATA_START]):
        why = "bytes that must be zero are not"
    if why is not None:
        generation, mark = _search_mark(data, base_offset, generation)
        raise BadHead(why, mark, generation, kind)
    return head, read_mark(data, base_offset, generation)


def _search_mark(data: bytes, base_offset: int, generation: int) -> tuple[int, Mark | None]:
    """The mark of a file whose head is lost, and the generation by which it is known: few files are rewritten often."""
    for tried in (generation, *range(_GENERATIONS_TRIED)):
        mark = read_mark(data, base_offset, tried)
        if mark is not None:
            return tried, mark
    return 0, None
