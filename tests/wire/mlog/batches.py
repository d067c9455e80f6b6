"""What a replica makes of a replication batch: a reader of the tests' own, since a node only writes them."""

import struct
import zlib
from typing import NamedTuple

from braidlog.wire.mlog.replication import ReplicationRecord


class ReplicationBatch(NamedTuple):
    """`leader_epoch` 0 is "not said": the original always writes 0, and epochs begin at 1."""

    leader_epoch: int
    records: tuple[ReplicationRecord, ...]


def read_batch(data: bytes) -> ReplicationBatch:
    """The batch, held against everything that its header says of it. No bytes are no records."""
    if not data:
        return ReplicationBatch(0, ())
    base, length, epoch, crc, attributes, delta = struct.unpack_from(">qiiIBi", data)
    rest = data[25:]
    assert (length, crc, attributes) == (len(rest), zlib.crc32(rest), 0)
    records: list[ReplicationRecord] = []
    while rest:
        offset, size = struct.unpack_from(">qi", rest)
        assert 0 <= size <= len(rest) - 12
        records.append(ReplicationRecord(offset, rest[12 : 12 + size]))
        rest = rest[12 + size :]
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert (offsets[0], offsets[-1]) == (base, base + delta)
    return ReplicationBatch(epoch, tuple(records))
