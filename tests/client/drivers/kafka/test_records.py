"""Records to batches and back, without a server."""

from itertools import count

import pytest

from braidlog.client.drivers.kafka.records import batch_of, fetched, weigh, whole_batches
from braidlog.codec.batch.header import HEADER_BYTES
from braidlog.codec.batch.read_committed import AbortedRange
from braidlog.codec.batch.records import control_batch, encode_batch
from braidlog.codec.compression import Compression
from braidlog.codec.errors import ProtocolError
from braidlog.model.record import NewRecord


def test_one_record_weighs_what_its_batch_takes() -> None:
    """Apache Kafka takes batches of 1048588 bytes unless set otherwise, and ours hold 1 MiB of weight unless set otherwise."""
    record = NewRecord(b"x", b"k" * 1000, (("h", b"v" * 300), ("h", None)), 1_700_000_000_000)
    large = NewRecord(b"x" * (2**20 - weigh(record) + 1), record.key, record.headers, record.timestamp_ms)
    assert weigh(large) == 2**20
    assert len(batch_of([large], Compression.NONE, (2**62, 0), 2**31 - 1)) <= 1048588
    many = [NewRecord(b"x" * at, None, (), 2**41 * (at % 2)) for at in range(1000)]
    assert len(batch_of(many, Compression.NONE, (2**62, 0), 0)) <= sum(map(weigh, many))


def test_what_a_server_cut_off_is_left_for_the_next_fetch() -> None:
    first = encode_batch([b"a", b"b"], base_timestamp=5, base_offset=10)
    second = encode_batch([b"c"], base_timestamp=6, base_offset=12)
    for size in range(len(first), len(first) + len(second)):
        found = fetched(("t", 0), 11, (first + second)[:size], high_watermark=13)
        assert ([(each.offset, each.value) for each in found.records], found.next_offset) == ([(11, b"b")], 12)
    assert fetched(("t", 0), 11, first + second, high_watermark=13).next_offset == 13
    for size in range(len(first)):
        assert fetched(("t", 0), 10, first[:size], high_watermark=13).next_offset == 10


def test_damaged_batches_are_never_read() -> None:
    whole = encode_batch([b"value"], base_timestamp=5)
    with pytest.raises(ProtocolError, match="CRC"):
        list(whole_batches(whole[:-1] + b"?"))
    old = bytearray(whole)
    old[16] = 1
    with pytest.raises(ProtocolError, match="magic is 1"):
        list(whole_batches(bytes(old)))
    short = bytearray(whole)
    short[8:12] = b"\xff\xff\xff\xff"
    with pytest.raises(ProtocolError, match="shorter than its own header"):
        list(whole_batches(bytes(short)))


def transaction(producer: int, base: int, *, commit: bool | None) -> bytes:
    if commit is None:
        return encode_batch(
            [b"%d" % producer], base_timestamp=1, base_offset=base, producer_id=producer, transactional=True
        )
    return control_batch(
        base_offset=base, leader_epoch=0, producer_id=producer, producer_epoch=0, commit=commit, timestamp_ms=1
    )


def test_of_transactions_that_were_aborted_nothing_is_seen() -> None:
    """Producers 1 and 2 interleave; 1 aborts, then commits a second transaction; somebody without one writes in between."""
    plain = encode_batch([b"plain"], base_timestamp=1, base_offset=2)
    parts: list[bytes] = []
    offsets = count()

    def add(producer: int, *, commit: bool | None = None) -> None:
        parts.append(transaction(producer, next(offsets), commit=commit))

    add(1)  # 0, aborted
    add(2)  # 1
    parts.append(plain)
    next(offsets)
    add(1)  # 3, aborted
    add(1, commit=False)  # 4
    add(1)  # 5
    add(2, commit=True)  # 6
    add(1, commit=True)  # 7
    data = b"".join(parts)
    seen = fetched(("t", 0), 0, data, high_watermark=8, aborted=[AbortedRange(0, 1)])
    assert [(each.offset, each.value) for each in seen.records] == [(1, b"2"), (2, b"plain"), (5, b"1")]
    assert seen.next_offset == 8
    everything = fetched(("t", 0), 0, data, high_watermark=8)
    assert [each.offset for each in everything.records] == [0, 1, 2, 3, 5]
    # A fetch that begins behind the marker of an aborted transaction is not told of it.
    assert [each.offset for each in fetched(("t", 0), 5, b"".join(parts[5:]), high_watermark=8).records] == [5]


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_made_again_is_the_very_same(compression: Compression) -> None:
    records = [NewRecord(b"v%d" % at, None, (("h", b"1"),), 1_700_000_000_000 + at) for at in range(100)]
    first = batch_of(records, compression, (7, 0), 3)
    assert first == batch_of(records, compression, (7, 0), 3)
    assert int.from_bytes(first[43:51], "big") == 7  # producer id
    assert int.from_bytes(first[53:57], "big") == 3  # base sequence
    assert int.from_bytes(first[57:61], "big") == 100
    assert first[22] & 7 == compression
    assert len(first) > HEADER_BYTES
