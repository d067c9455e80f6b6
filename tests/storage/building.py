"""What the storage tests build with: batches, headers, a partition on a simulated disk."""

from typing import Any

from braidlog.codec.batch.header import HEADER_BYTES, BatchHeader, read_header
from braidlog.codec.batch.records import control_batch, encode_batch
from braidlog.model.settings import TopicSettings, settings_from
from braidlog.storage.files import Disk
from braidlog.storage.log.partition_log import PartitionLog, create_partition
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.segment_files import DATA_START, Identity

NOW = 1_700_000_000_000
IDENTITY = Identity(bytes(range(16)), 0)
FOLDER = "/p"


def batch(*values: bytes | None, key: bytes | None = None, at: int = NOW, **fields: Any) -> bytes:
    """One batch; `fields` are those of `encode_batch`."""
    fields.setdefault("keys", None if key is None else [key] * len(values))
    return encode_batch(list(values), base_timestamp=at, **fields)


def sent(producer: int, epoch: int, sequence: int, count: int = 1, *, offset: int = 0, **fields: Any) -> BatchHeader:
    """The header of an idempotent producer's batch as it stands in the log."""
    values = [b"v"] * count
    data = batch(
        *values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, base_offset=offset, **fields
    )
    return read_header(data)


def marker(producer: int, epoch: int = 0, *, commit: bool, offset: int = 0) -> bytes:
    return control_batch(
        base_offset=offset,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=epoch,
        commit=commit,
        timestamp_ms=NOW,
    )


def small(**changes: object) -> TopicSettings:
    """Settings under which a few batches fill a segment."""
    return settings_from({"segment_bytes": 4096, "index_interval_bytes": 256, **changes})


def make_partition(disk: Disk, settings: TopicSettings | None = None, pool: FilePool | None = None) -> PartitionLog:
    pool = pool or FilePool(disk)
    settings = settings or small()
    create_partition(disk, FOLDER, IDENTITY, settings, pool, now_ms=NOW)
    disk.sync_folder("/")
    return PartitionLog(disk, FOLDER, IDENTITY, settings, pool)


def open_partition(disk: Disk, settings: TopicSettings | None = None, *, read_only: bool = False) -> PartitionLog:
    return PartitionLog(disk, FOLDER, IDENTITY, settings or small(), FilePool(disk), read_only=read_only)


def batches_in(segment: bytes) -> list[tuple[int, BatchHeader]]:
    """The batches of a segment's file and where each begins in it, up to the zeros that may stand ahead of its end."""
    found, position = [], DATA_START
    while any(segment[position : position + HEADER_BYTES]):
        header = read_header(segment, position)
        found.append((position, header))
        position += header.size_bytes
    return found
