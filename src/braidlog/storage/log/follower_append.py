"""Slice a leader's batches so that they continue at the end of a replica's log.

A leader sends complete batches from the one that holds the requested offset. That batch may begin earlier:
compaction has replaced several batches by one empty batch, or the leader's log starts inside it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from braidlog.codec.batch.header import NO_PRODUCER, BatchHeader, empty_batch, iter_batches, read_header
from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.files import Buffer


class Fitted(NamedTuple):
    """`data` holds the batches of `headers`, which begin at `base_offset`."""

    base_offset: int
    data: Buffer
    headers: Sequence[BatchHeader]


def fit(data: Buffer, start_offset: int, end_offset: int) -> Fitted:
    """Return the batches as they continue at `end_offset`, each checked. Reject a gap or a duplicate offset."""
    headers = [header for _, header in iter_batches(data)]
    if not headers:
        raise BrokerError(Reason.INVALID_RECORD, "an append needs at least one batch")
    fitted, first = Fitted(end_offset, data, headers), headers[0]
    if first.base_offset < end_offset < first.next_offset:
        fitted = _fit_first(data, headers, start_offset, end_offset)
    offset = fitted.base_offset
    for header in fitted.headers:
        if header.base_offset != offset:
            raise _refused(header, offset)
        offset = header.next_offset
    return fitted


def _fit_first(data: Buffer, headers: list[BatchHeader], start_offset: int, end_offset: int) -> Fitted:
    first = headers[0]
    if begins_inside(start_offset, end_offset):
        return Fitted(first.base_offset, data, headers)
    if not is_gap(first):
        raise _refused(first, end_offset)
    cut = empty_batch(end_offset, first.next_offset, first.leader_epoch, first.max_timestamp)
    return Fitted(end_offset, cut + bytes(memoryview(data)[first.size_bytes :]), [read_header(cut), *headers[1:]])


def begins_inside(start_offset: int, end_offset: int) -> bool:
    """Return whether the log has no record: it then begins with the whole batch that holds its start."""
    return start_offset == end_offset


def is_gap(header: BatchHeader) -> bool:
    """Return whether the batch is empty and has no producer: any sub-range of it means the same."""
    return header.record_count == 0 and header.producer_id == NO_PRODUCER and not header.is_control


def _refused(header: BatchHeader, next_offset: int) -> BrokerError:
    return BrokerError(
        Reason.OFFSET_OUT_OF_RANGE,
        f"a replicated batch has offset {header.base_offset}, {next_offset} is next",
    )
