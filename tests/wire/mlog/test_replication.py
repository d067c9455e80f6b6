"""The replication batch: what is written, a replica reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.wire.mlog.replication import ReplicationRecord, batch_bytes, encode_batch

from .batches import ReplicationBatch, read_batch


@st.composite
def batches(draw: st.DrawFn) -> ReplicationBatch:
    offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)))
    base = draw(st.integers(0, 2**62))
    records = tuple(ReplicationRecord(base + offset, draw(st.binary(max_size=20))) for offset in offsets)
    return ReplicationBatch(draw(st.integers(0, 2**31 - 1)), records)


@given(batches())
def test_a_batch_makes_the_round_trip(batch: ReplicationBatch) -> None:
    data = encode_batch(batch.records, batch.leader_epoch)
    assert read_batch(data) == batch
    assert len(data) == batch_bytes(sum(len(record.value) for record in batch.records), len(batch.records))


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_an_epoch_that_does_not_fit_is_our_own_mistake(epoch: int) -> None:
    with pytest.raises(ValueError, match="epoch"):
        encode_batch([ReplicationRecord(0, b"")], epoch)


def test_offsets_too_far_apart_or_out_of_order_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        encode_batch([ReplicationRecord(0, b""), ReplicationRecord(2**31, b"")], 1)
    with pytest.raises(ValueError, match="do not fit"):
        encode_batch([ReplicationRecord(1, b""), ReplicationRecord(0, b"")], 1)
