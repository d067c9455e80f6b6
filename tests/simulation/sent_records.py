"""What simulated producers have sent: the records of each batch, and the key of each record.

A record is known by its value, which nobody else sends; one without a value, a tombstone, by a header in its place.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from braidlog.codec.batch.header import iter_batches
from braidlog.codec.batch.records import BatchFields, decode_batch, encode_batch

BASE_MS = 1_700_000_000_000
BATCH_BYTES_MAX = 64 * 1024
NAMED_BY = "record"


class Sent(NamedTuple):
    """One record. Without a key it is one of its own kind: nothing takes its place."""

    value: bytes
    key: bytes | None = None
    is_tombstone: bool = False


class SentRecords:
    """By batch and by record."""

    def __init__(self) -> None:
        self._batches: dict[bytes, list[bytes]] = {}
        self._records: dict[bytes, Sent] = {}
        self._tombstones: dict[bytes, list[bytes]] = {}

    def encode(self, records: Sequence[Sent], timestamp_ms: int, fields: BatchFields) -> bytes:
        data = encode_batch(
            [None if each.is_tombstone else each.value for each in records],
            keys=[each.key for each in records],
            headers=[((NAMED_BY, each.value),) if each.is_tombstone else None for each in records],
            base_timestamp=timestamp_ms,
            **fields,
        )
        self._batches[data] = [each.value for each in records]
        for each in records:
            self._records[each.value] = each
            if each.is_tombstone and each.key is not None:
                self._tombstones.setdefault(each.key, []).append(each.value)
        return data

    def values(self, data: bytes) -> list[bytes]:
        return self._batches[data]

    def key_of(self, value: bytes) -> bytes:
        return self._records[value].key or value

    def tombstones(self, key: bytes) -> Iterable[bytes]:
        """All that were ever sent for it, wherever they are now."""
        return self._tombstones.get(key, ())

    def latest(self, held: Mapping[int, bytes]) -> dict[bytes, int]:
        """Key → where its last record is."""
        return {self.key_of(held[offset]): offset for offset in sorted(held)}

    def state(self, held: Mapping[int, bytes]) -> dict[int, bytes]:
        """The last record of each key, if that is no tombstone."""
        last = sorted(self.latest(held).values())
        return {offset: held[offset] for offset in last if not self._records[held[offset]].is_tombstone}


def read_records(data: bytes, offset: int, end: int) -> tuple[list[tuple[int, bytes]], int]:
    """(offset, value) of the records of these batches from `offset` on and below `end`; and where the next batch begins."""
    found: list[tuple[int, bytes]] = []
    upto = offset
    for at, header in iter_batches(data):
        for row in decode_batch(data, at, decompressed_bytes_max=BATCH_BYTES_MAX):
            value = row[4][0][1] if row[3] is None and row[4] else row[3]
            if offset <= row[0] < end:
                found.append((row[0], value or b""))
        upto = header.next_offset
    return found, upto
