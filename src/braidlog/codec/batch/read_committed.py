"""Selects the batches that a reader may see: no control batches, and none of the aborted transactions it passes."""

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from braidlog.codec.batch.header import BatchHeader, Buffer
from braidlog.codec.batch.records import read_marker
from braidlog.codec.batch.records_section import INT64_MAX

B = TypeVar("B", bound=Buffer)


class AbortedRange(NamedTuple):
    """Transactional batches of a producer from an offset on, up to `last_offset` or else to its next abort marker."""

    first_offset: int
    producer_id: int
    last_offset: int = INT64_MAX


def visible(
    batches: Iterable[tuple[B, int, BatchHeader]], aborted: Iterable[AbortedRange] = ()
) -> Iterator[tuple[B, int, BatchHeader]]:
    """Yield the visible batches (data, position, header). The batches must be in log order."""
    ahead = list(aborted)
    heapq.heapify(ahead)
    hidden_upto: dict[int, int] = {}  # producer ids within an aborted transaction, and where it ends
    for batch in batches:
        data, position, header = batch
        while ahead and ahead[0].first_offset <= header.last_offset:
            _, producer_id, last_offset = heapq.heappop(ahead)
            hidden_upto[producer_id] = last_offset
        is_within = header.base_offset <= hidden_upto.get(header.producer_id, -1)
        if header.is_control:
            if is_within and not read_marker(data, position, header).commit:
                del hidden_upto[header.producer_id]
        elif not (is_within and header.is_transactional):
            yield batch
