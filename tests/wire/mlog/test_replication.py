"""The replication batch: what is written is read, and no damage passes that a header can show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.codec.errors import ProtocolError
from braidlog.wire.mlog.replication import ReplicationBatch, ReplicationRecord, batch_bytes, decode_batch, encode_batch

from .vectors import Vector, load


@st.composite
def batches(draw: st.DrawFn) -> ReplicationBatch:
    offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)))
    base = draw(st.integers(0, 2**62))
    records = tuple(ReplicationRecord(base + offset, draw(st.binary(max_size=20))) for offset in offsets)
    return ReplicationBatch(draw(st.integers(0, 2**31 - 1)), records)


@given(batches())
def test_a_batch_makes_the_round_trip(batch: ReplicationBatch) -> None:
    data = encode_batch(batch.records, batch.leader_epoch)
    assert decode_batch(data) == batch
    assert len(data) == batch_bytes(sum(len(record.value) for record in batch.records), len(batch.records))


@given(batches(), st.data())
def test_every_flipped_bit_outside_the_epoch_is_found(batch: ReplicationBatch, data: st.DataObject) -> None:
    encoded = bytearray(encode_batch(batch.records, batch.leader_epoch))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    if 12 <= bit // 8 < 16 and not encoded[12] & 0x80:
        assert decode_batch(encoded).records == batch.records  # known issue: nothing vouches for the epoch
    else:
        with pytest.raises(ProtocolError):
            decode_batch(encoded)


@given(st.binary(max_size=80))
def test_garbage_is_refused(data: bytes) -> None:
    if data:
        with pytest.raises(ProtocolError):
            decode_batch(data)


@pytest.mark.parametrize("vector", load("batches", "epochs"), ids=str)
def test_a_lying_size_is_refused(vector: Vector) -> None:
    for place in range(len(vector.data)):
        for value in (0x00, 0x7F, 0x80, 0xFF):
            damaged = bytearray(vector.data)
            damaged[place] = value
            try:
                decode_batch(damaged)
            except ProtocolError:
                continue
            assert damaged == vector.data or 12 <= place < 16  # the epoch


def test_the_first_wrong_byte_of_a_record_is_named() -> None:
    damaged = {vector.name: vector.data for vector in load("damaged_batches")}
    with pytest.raises(ProtocolError, match=r"said to have -1 bytes, 3 are left \(at byte 49\)"):
        decode_batch(damaged["a negative record size"])
    with pytest.raises(ProtocolError, match=r"said to have 3 bytes, 2 are left \(at byte 49\)"):
        decode_batch(damaged["the last record is cut off, the checksum is right"])
    with pytest.raises(ProtocolError, match=r"cut off after 11 bytes \(at byte 41\)"):
        decode_batch(damaged["the last record's header is cut off"])


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_an_epoch_that_does_not_fit_is_our_own_mistake(epoch: int) -> None:
    with pytest.raises(ValueError, match="epoch"):
        encode_batch([ReplicationRecord(0, b"")], epoch)


def test_offsets_too_far_apart_or_out_of_order_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        encode_batch([ReplicationRecord(0, b""), ReplicationRecord(2**31, b"")], 1)
    with pytest.raises(ValueError, match="do not fit"):
        encode_batch([ReplicationRecord(1, b""), ReplicationRecord(0, b"")], 1)
