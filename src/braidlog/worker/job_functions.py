"""Executes jobs: each is a function of its job, its payload and the files it names, without state or time.

Exception: a compaction's keys are cached between its jobs, and read again if they are not cached.
"""

import msgspec

from braidlog.codec.batch.header import read_header
from braidlog.codec.batch.records import check_section, heads_of, read_section, slice_batch
from braidlog.codec.compression import DecompressedTooLarge
from braidlog.model.errors import BrokerError, ProtocolError, Reason
from braidlog.storage.compaction.compaction_merge import KeyRewriting, Plan
from braidlog.storage.files import Disk
from braidlog.tables import plan as tables
from braidlog.worker.jobs import (
    Answer,
    Buffer,
    CheckRecords,
    ClipRecords,
    CompareSchemas,
    Job,
    RewriteSegments,
    ScrubSegment,
    TurnSegments,
)
from braidlog.worker.segment_scrub import scrub


def perform(job: Job, payload: Buffer, disk: Disk) -> Answer:
    """Execute a job. `BrokerError` or `ProtocolError` says what is wrong with the payload."""
    match job:
        case CheckRecords():
            return _check(job, payload)
        case ClipRecords():
            return _clip(job, payload)
        case ScrubSegment():
            return Answer(0, msgspec.msgpack.encode(scrub(job, disk)))
        case RewriteSegments():
            return _rewrite(job, bytes(payload), disk)
        case TurnSegments():
            return _turn(bytes(payload), disk)
        case CompareSchemas():
            return _compare(payload)


def _check(job: CheckRecords, batch: Buffer) -> Answer:
    header = read_header(batch)
    try:
        section = read_section(batch, 0, header, decompressed_bytes_max=job.decompressed_bytes_max)
        check_section(section, header, keyed=job.keyed)
    except DecompressedTooLarge as error:
        raise BrokerError(Reason.RECORD_TOO_LARGE, str(error)) from error
    except ProtocolError as error:
        raise BrokerError(Reason.INVALID_RECORD, str(error)) from error
    return Answer(len(section), msgspec.msgpack.encode(heads_of(section, header)) if job.heads else b"")


def _clip(job: ClipRecords, batch: Buffer) -> Answer:
    clipped, next_offset = slice_batch(
        batch,
        start_offset=job.start_offset,
        start_timestamp_ms=job.start_timestamp_ms,
        records_max=job.records_max,
        bytes_max=job.bytes_max,
        decompressed_bytes_max=job.decompressed_bytes_max,
    )
    return Answer(next_offset, clipped)


_under_way: dict[bytes, KeyRewriting] = {}
"""The cache has at most one entry: an idle worker should hold little memory."""


def _rewrite(job: RewriteSegments, payload: bytes, disk: Disk) -> Answer:
    plan = msgspec.msgpack.decode(payload, type=Plan)
    rewriting = _under_way.pop(payload, None) or KeyRewriting(disk, plan)
    _under_way.clear()
    written = rewriting.write(job.first)
    if written.segments and job.first + written.segments < len(plan.sources):
        _under_way[payload] = rewriting
    return Answer(0, msgspec.msgpack.encode(written))


def _turn(payload: bytes, disk: Disk) -> Answer:
    try:
        from braidlog.tables.table_writer import turn  # noqa: PLC0415 - heavy, and an extra: for nodes that have tables
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        said = f"{package} is not installed where the node runs: pip install 'braidlog[tables]'"
        raise BrokerError(Reason.UNAVAILABLE, said) from error
    return Answer(0, msgspec.msgpack.encode(turn(msgspec.msgpack.decode(payload, type=tables.Plan), disk)))


def _compare(payload: Buffer) -> Answer:
    from braidlog.registry import compatibility, errors  # noqa: PLC0415 - other workers compare no schemas

    try:
        answer = compatibility.compute(msgspec.msgpack.decode(payload, type=compatibility.Task))
    except errors.RegistryError as error:
        raise BrokerError(Reason.INVALID_SETTING, str(error)) from error
    return Answer(0, msgspec.msgpack.encode(answer))
