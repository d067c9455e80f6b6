"""Read a data folder batch by batch or record by record, without opening the log.

Changes nothing, takes no lock, and continues after damage: each unreadable range becomes a line.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from braidlog.codec.batch.header import BatchHeader
from braidlog.codec.batch.records import decode_batch
from braidlog.codec.compression import Compression
from braidlog.codec.errors import ProtocolError
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import DECOMPRESSED_BYTES_MAX
from braidlog.storage.files import Disk
from braidlog.storage.open_files import FilePool
from braidlog.storage.recovery.damage import ChangeKind, DamageKind
from braidlog.storage.recovery.recovery import Recovery
from braidlog.storage.segment.batch_scan import ScannedBatch, walk_past
from braidlog.storage.segment.segment import Segment
from braidlog.storage.segment.segment_files import (
    DATA_START,
    NO_TIMESTAMP,
    STATE,
    Entry,
    Identity,
    bases_of,
    index_name,
    state_name,
)
from braidlog.storage.state.partition_state import StateImage, read_snapshot
from braidlog.storage.state.transaction_index import read_end
from braidlog.tools.inspect import load_index
from braidlog.tools.layout import Layout, TopicPlace


class PartitionListing(msgspec.Struct, kw_only=True):
    """Offsets [start_offset, end_offset), and the size of the segment files."""

    partition: int
    start_offset: int
    end_offset: int
    segments: int
    bytes: int
    fault: str | None = None


class TopicListing(msgspec.Struct, kw_only=True):
    name: str
    topic_id: str
    created_ms: int
    partitions: list[PartitionListing]
    settings: dict[str, Any]


class BatchLine(msgspec.Struct, kw_only=True):
    """Header of a batch with a valid checksum."""

    file: str
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int
    records: int
    leader_epoch: int
    compression: str
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    marker: str | None
    crc_ok: bool = True


class RecordLine(msgspec.Struct, kw_only=True):
    """A record; `marker` is set for a transaction marker, which has no key or value for consumers."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    marker: str | None = None


class DamageLine(msgspec.Struct, kw_only=True):
    """Bytes that are not a batch. `next_offset` is None if no intact batch follows."""

    file: str
    position: int
    end: int
    first_offset: int
    next_offset: int | None
    why: str


class IndexLine(msgspec.Struct, kw_only=True):
    file: str
    offset: int
    position: int
    timestamp_ms: int
    seal: bool
    fault: str | None = None


class StateLine(msgspec.Struct, kw_only=True):
    """A checkpoint or a snapshot, or the reason why it cannot be read."""

    file: str
    image: StateImage | None
    fault: str | None = None


def list_topics(disk: Disk, path: str) -> list[TopicListing]:
    """List topics and partitions as an opening would find them; does not read data covered by a checkpoint."""
    layout = Layout(disk, path)
    return [
        TopicListing(
            name=place.meta.name,
            topic_id=place.meta.topic_id,
            created_ms=place.meta.created_ms,
            partitions=[_list_partition(layout, place, number) for number in place.meta.held],
            settings=msgspec.to_builtins(place.meta.settings),
        )
        for place in layout.topics
    ]


def _list_partition(layout: Layout, place: TopicPlace, partition: int) -> PartitionListing:
    folder = layout.partition_folder(place, partition)
    listing = PartitionListing(partition=partition, start_offset=0, end_offset=0, segments=0, bytes=0)
    if not layout.disk.is_folder(folder):
        listing.fault = "the partition's folder is missing"
        return listing
    try:
        opened = _dry_run(layout, place, partition).inspect()
    except StorageFault as fault:
        listing.fault = str(fault)
        return listing
    listing.segments, listing.bytes = len(opened.segments), sum(segment.size for segment in opened.segments)
    if not opened.segments:
        listing.fault = "all segments are missing"
    listing.start_offset, listing.end_offset = opened.state.start_offset, opened.state.end_offset
    return listing


class PartitionDump:
    """A partition's files as an opening would use and repair them."""

    def __init__(self, disk: Disk, path: str, topic: str, partition: int) -> None:
        layout = Layout(disk, path)
        place = layout.choose(topic)[0]
        if not 0 <= partition < place.meta.partitions:
            count = place.meta.partitions
            raise BrokerError(
                Reason.PARTITION_NOT_FOUND, f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
            )
        self._disk = disk
        self._folder = layout.partition_folder(place, partition)
        self._label = f"{place.label}/{partition:04d}"
        self._recovery = _dry_run(layout, place, partition)
        self._opened = self._recovery.inspect()

    def batches(self, first: int | None = None, upto: int | None = None) -> Iterator[BatchLine | DamageLine]:
        """Yield the batches with offsets in [first, upto)."""
        for found in self._found(first, upto):
            yield found if isinstance(found, DamageLine) else self._batch_line(*found)

    def records(self, first: int | None = None, upto: int | None = None) -> Iterator[RecordLine | DamageLine]:
        """Yield the records and transaction markers with offsets in [first, upto)."""
        start, end = self._range(first, upto)
        for item in self._found(first, upto):
            if isinstance(item, DamageLine):
                yield item
                continue
            name, found = item
            try:
                rows = decode_batch(found.window, found.at, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
                marker = _marker(found)
            except ProtocolError as error:
                place = (found.position, found.position + found.header.size_bytes)
                offsets = (found.header.base_offset, found.header.next_offset)
                yield _damage_line(name, place, offsets, f"records do not decode: {error}")
                continue
            for offset, timestamp_ms, key, value, headers in rows:
                if start <= offset < end:
                    yield RecordLine(
                        offset=offset,
                        timestamp_ms=timestamp_ms,
                        key=key,
                        value=value,
                        headers=list(headers),
                        marker=marker,
                    )

    def index(self) -> Iterator[IndexLine]:
        """Yield every valid index entry, and the reason why an index is invalid."""
        for segment in self._opened.segments:
            index, fault = load_index(self._disk, segment)
            name = f"{self._label}/{index_name(segment.base_offset)}"
            for number in range(len(index)):
                yield IndexLine(file=name, **index.entry(number)._asdict(), seal=False)
            if index.end is not None:
                yield IndexLine(file=name, **index.end._asdict(), seal=True)
            if fault is not None:
                nowhere = Entry(segment.base_offset, 0, NO_TIMESTAMP)
                yield IndexLine(file=name, **nowhere._asdict(), seal=False, fault=fault)

    def state(self) -> Iterator[StateLine]:
        """Yield the checkpoints, newest first, then the snapshots."""
        for number, image in enumerate(self._recovery.images):
            yield StateLine(file=f"{self._label}/state", image=image, fault=None if number == 0 else "superseded")
        for name, fault in self._opened.slots.all_faults().items():
            yield StateLine(file=f"{self._label}/{name}", image=None, fault=fault)
        for base in bases_of(self._disk.names(self._folder), STATE):
            line = StateLine(file=f"{self._label}/{state_name(base)}", image=None)
            try:
                line.image = read_snapshot(self._disk, self._folder, base)
            except ValueError as error:
                line.fault = str(error)
            yield line

    # -- the batches -----------------------------------------------------------------------------------------

    def _range(self, first: int | None, upto: int | None) -> tuple[int, int]:
        start = self._opened.state.start_offset
        return (start if first is None else first), (2**63 if upto is None else upto)

    def _found(self, first: int | None, upto: int | None) -> Iterator[tuple[str, ScannedBatch] | DamageLine]:
        start, end = self._range(first, upto)
        bases = [segment.base_offset for segment in self._opened.segments]
        for segment, following in zip(self._opened.segments, [*bases[1:], 2**63], strict=True):
            if segment.base_offset >= end or following <= start:
                continue
            for item in self._walk(segment):
                header = None if isinstance(item, DamageLine) else item[1].header
                if header is not None and header.next_offset <= start:
                    continue
                if header is not None and header.base_offset >= end:
                    return
                yield item

    def _walk(self, segment: Segment) -> Iterator[tuple[str, ScannedBatch] | DamageLine]:
        """Yield every byte of the file, including those that an opening would truncate."""
        report, path = self._opened.report, segment.path
        name = f"{self._label}/{path.rsplit('/', 1)[-1]}"
        heads = [damage for damage in report.damages if damage.file == path and damage.position < DATA_START]
        for damage in heads:
            offsets = (damage.first_offset, damage.next_offset)
            yield _damage_line(name, (damage.position, damage.end), offsets, damage.why)
        if any(damage.kind in (DamageKind.FOREIGN, DamageKind.VERSION) for damage in heads):
            return
        cut = [
            change.position for change in report.changes if change.kind is ChangeKind.CUT and name.endswith(change.file)
        ]
        with contextlib.closing(self._disk.open(path, writable=False)) as source:
            # Without truncation, only preallocated zeros may follow the segment in its file.
            end = source.size() if cut else segment.size
            for found in walk_past(source, DATA_START, end, segment.base_offset):
                if isinstance(found, ScannedBatch):
                    yield name, found
                    continue
                bad = found.bad
                why = f"incomplete write: {bad.why}" if bad.position in cut else bad.why
                yield _damage_line(name, (bad.position, found.end), (bad.offset, found.next_offset), why)

    def _batch_line(self, name: str, found: ScannedBatch) -> BatchLine:
        header = found.header
        try:
            marker = _marker(found)
        except ProtocolError:
            marker = "unreadable"
        return BatchLine(
            file=name,
            position=found.position,
            size_bytes=header.size_bytes,
            first_offset=header.base_offset,
            next_offset=header.next_offset,
            records=header.record_count,
            leader_epoch=header.leader_epoch,
            compression=_codec(header),
            max_timestamp_ms=header.max_timestamp,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            marker=marker,
        )


def _dry_run(layout: Layout, place: TopicPlace, partition: int) -> Recovery:
    identity = Identity(bytes.fromhex(place.meta.topic_id), partition)
    folder, pool = layout.partition_folder(place, partition), FilePool(layout.disk)
    begun = layout.begun.epoch_of(identity)
    return Recovery(layout.disk, folder, identity, place.meta.settings, pool, read_only=True, begun=begun)


def _damage_line(name: str, place: tuple[int, int], offsets: tuple[int, int | None], why: str) -> DamageLine:
    return DamageLine(
        file=name, position=place[0], end=place[1], first_offset=offsets[0], next_offset=offsets[1], why=why
    )


def _codec(header: BatchHeader) -> str:
    known = {int(codec): codec.name.lower() for codec in Compression}
    return known.get(header.compression, f"unknown-{header.compression}")


def _marker(found: ScannedBatch) -> str | None:
    end = read_end(found.window, found.at, found.header)
    return None if end is None else "commit" if end.commit else "abort"
