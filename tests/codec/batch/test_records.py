# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Whole batches: golden vectors, damage under a checksum that holds, compaction and transaction markers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec import strategies
from tests.codec.vectors.reader import FOLDER, read_vector

from braidlog.codec.batch.header import (
    HEADER,
    HEADER_BYTES,
    empty_batch,
    iter_batches,
    read_header,
    seal,
    with_append_time,
)
from braidlog.codec.batch.records import (
    NO_NUMBER,
    EndMarker,
    check_batch_records,
    control_batch,
    decode_batch,
    encode_batch,
    read_marker,
    sealed_batch,
    select_batch,
)
from braidlog.codec.compression import Compression, compress
from braidlog.codec.errors import ProtocolError

BOUND = 1 << 20
T = 1_700_000_000_123

BY_CLIENTS = sorted(path.name for path in FOLDER.glob("*-*.vec"))


def decode(data, bound=BOUND):
    return decode_batch(data, decompressed_bytes_max=bound)


def test_the_plain_vector_reads_and_writes():
    vector = read_vector("batch.vec")
    assert decode(vector) == [
        (5, T, b"user1", b"created", (("h", b"1"),)),
        (6, T + 2, None, b"x", ()),
    ]
    assert vector == encode_batch(
        [b"created", b"x"],
        keys=[b"user1", None],
        timestamps=[T, T + 2],
        headers=[(("h", b"1"),), ()],
        base_timestamp=T,
        base_offset=5,
        producer_id=1000,
        producer_epoch=0,
        base_sequence=7,
    )


def test_the_commit_vector_reads_and_writes():
    vector = read_vector("commit.vec")
    header = read_header(vector)
    assert header.is_control
    assert header.is_transactional
    assert read_marker(vector, 0, header, decompressed_bytes_max=BOUND).commit
    assert decode(vector) == [(9, T + 77, bytes.fromhex("00000001"), bytes(6), ())]
    fields = {"base_offset": 9, "leader_epoch": 0, "producer_id": 1000, "producer_epoch": 0}
    assert vector == control_batch(**fields, commit=True, timestamp_ms=T + 77)
    aborted = control_batch(**fields, commit=False, timestamp_ms=T + 77, coordinator_epoch=3)
    assert not read_marker(aborted, 0, read_header(aborted), decompressed_bytes_max=BOUND).commit
    assert decode(aborted)[0][3] == bytes.fromhex("000000000003")
    assert read_marker(aborted, 0, read_header(aborted)) == EndMarker(commit=False, coordinator_epoch=3)


def test_a_marker_tells_which_transaction_it_ends_behind_what_kafka_says():
    fields = {"base_offset": 9, "leader_epoch": 0, "producer_id": 1000, "producer_epoch": 0, "timestamp_ms": T}
    numbered = control_batch(**fields, commit=True, coordinator_epoch=3, number=258)
    assert decode(numbered)[0][3] == bytes.fromhex("0000 00000003 0000000000000102")
    assert read_marker(numbered, 0, read_header(numbered)) == EndMarker(True, 3, 258)
    vector = read_vector("commit.vec")
    assert read_marker(vector, 0, read_header(vector)) == EndMarker(True, 0, NO_NUMBER)


def test_there_are_vectors_of_clients():
    assert {(name.split("-")[0], name.split("-", 1)[1]) for name in BY_CLIENTS} == {
        (codec, client)
        for codec in ("gzip", "snappy", "lz4", "zstd")
        for client in ("kafka-python.vec", "librdkafka.vec")
    }


@pytest.mark.parametrize("name", BY_CLIENTS)
def test_vectors_of_clients_read(name):
    vector = read_vector(name)
    header = read_header(vector)
    assert Compression(header.compression).name.lower() == name.split("-")[0]
    assert check_batch_records(vector, 0, header, decompressed_bytes_max=BOUND) == header.max_timestamp == T + 2
    assert decode(vector) == [
        (0, T, b"user1", b"created", (("h", b"1"),)),
        (1, T + 2, None, b"x" * 60, ()),
    ]


@pytest.mark.parametrize("name", ["batch.vec", "commit.vec", *BY_CLIENTS])
def test_vectors_truncated_at_every_length(name):
    vector = read_vector(name)
    for size in range(len(vector)):
        with pytest.raises(ProtocolError):
            decode(vector[:size])


def test_a_flipped_bit_is_found_before_anything_is_believed():
    vector = read_vector("batch.vec")
    for place in range(21, len(vector)):
        damaged = bytearray(vector)
        damaged[place] ^= 0x10
        with pytest.raises(ProtocolError):
            decode(bytes(damaged))


@pytest.mark.parametrize("name", ["batch.vec", "commit.vec", *BY_CLIENTS])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_under_a_checksum_that_holds(name, data):
    batch = bytearray(read_vector(name))
    for _ in range(data.draw(st.integers(1, 3))):
        # Attributes, timestamps, counts and payload; lengths and magic have tests of their own.
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    sealed = seal(batch)
    for read in (
        lambda: decode(sealed),
        lambda: check_batch_records(sealed, 0, read_header(sealed), decompressed_bytes_max=BOUND),
        lambda: read_marker(sealed, 0, read_header(sealed), decompressed_bytes_max=BOUND),
        lambda: select_batch(
            sealed,
            0,
            read_header(sealed),
            [True] * read_header(sealed).record_count,
            decompressed_bytes_max=BOUND,
        ),
    ):
        try:
            read()
        except ProtocolError:
            continue


def resealed(batch, payload, **fields):
    header = read_header(batch)._replace(batch_length=HEADER_BYTES - 12 + len(payload), **fields)
    return seal(bytearray(HEADER.pack(*header) + payload))


@pytest.mark.parametrize("compression", [c for c in Compression if c is not Compression.NONE])
def test_a_sound_block_of_unsound_records(compression):
    """Compressed anew, so that the damage is inside the block and reaches the record decoder."""
    plain = encode_batch([b"a", b"b"], base_timestamp=T)
    section = plain[HEADER_BYTES:]
    assert decode(resealed(plain, compress(compression, section), attributes=int(compression)))
    for wrong in (section[:-1], section + b"\x00", section[8:], b"", b"\x00" + section):
        batch = resealed(plain, compress(compression, wrong), attributes=int(compression))
        with pytest.raises(ProtocolError):
            decode(batch)
        with pytest.raises(ProtocolError):
            check_batch_records(batch, 0, read_header(batch), decompressed_bytes_max=BOUND)


@pytest.mark.parametrize("compression", Compression)
@given(columns=strategies.columns())
@settings(max_examples=25, deadline=None)
def test_columns_come_back(compression, columns):
    values, keys, timestamps, headers, base = columns
    batch = encode_batch(
        values,
        keys=keys,
        timestamps=timestamps,
        headers=headers,
        base_timestamp=base,
        base_offset=100,
        compression=compression,
        transactional=True,
    )
    ((position, header),) = iter_batches(batch)
    assert (position, header.base_offset, header.last_offset) == (0, 100, 99 + len(values))
    assert header.is_transactional
    assert header.max_timestamp == (base if timestamps is None else max(timestamps))
    rows = decode(batch)
    assert [row[3] for row in rows] == values
    stamped = with_append_time(batch, 0, header, 55)
    assert [row[1] for row in decode(stamped)] == [55] * len(values)


def test_no_records_is_not_a_batch():
    with pytest.raises(ValueError, match="empty_batch"):
        encode_batch([], base_timestamp=T)
    assert decode(empty_batch(5, 9, 0, T)) == []


def test_an_unknown_compression():
    for code in (5, 6, 7):
        with pytest.raises(ProtocolError, match="compression"):
            decode(resealed(read_vector("batch.vec"), b"x", attributes=code))


@pytest.mark.parametrize("compression", Compression)
def test_select_keeps_everything_but_the_records(compression):
    batch = encode_batch(
        [b"a" * 50, b"b" * 50, None, b"d" * 50],
        keys=[b"1", b"2", b"3", b"4"],
        timestamps=[T, T + 9, T + 3, T + 1],
        base_timestamp=T,
        base_offset=70,
        leader_epoch=4,
        compression=compression,
        producer_id=8,
        producer_epoch=2,
        base_sequence=6,
    )
    header = read_header(batch)
    kept = select_batch(batch, 0, header, [True, False, True, False], decompressed_bytes_max=BOUND)
    ((_, after),) = iter_batches(kept)
    changed = {"batch_length", "crc", "record_count", "max_timestamp"}
    assert {name for name in header._fields if getattr(header, name) != getattr(after, name)} == changed
    assert after.max_timestamp == T + 3
    assert decode(kept) == [decode(batch)[0], decode(batch)[2]]
    assert check_batch_records(kept, 0, after, decompressed_bytes_max=BOUND, dense=False) == T + 3
    with pytest.raises(ProtocolError):
        check_batch_records(kept, 0, after, decompressed_bytes_max=BOUND)
    # Compacted again, now with gaps.
    again = select_batch(kept, 0, after, [False, True], decompressed_bytes_max=BOUND)
    assert decode(again) == [decode(batch)[2]]
    # To nothing: the offsets and the producer's sequence stay.
    nothing = select_batch(again, 0, read_header(again), [False], decompressed_bytes_max=BOUND)
    ((_, empty),) = iter_batches(nothing)
    assert (empty.record_count, empty.base_offset, empty.last_offset, empty.base_sequence) == (0, 70, 73, 6)
    assert decode(nothing) == []
    assert select_batch(nothing, 0, empty, [], decompressed_bytes_max=BOUND) == nothing


def test_select_leaves_the_append_time():
    batch = encode_batch([b"a", b"b"], timestamps=[T, T + 5], base_timestamp=T)
    stamped = with_append_time(batch, 0, read_header(batch), T + 1000)
    kept = select_batch(stamped, 0, read_header(stamped), [True, False], decompressed_bytes_max=BOUND)
    assert read_header(kept).max_timestamp == T + 1000
    assert decode(kept) == [(0, T + 1000, None, b"a", ())]


def test_control_records_that_are_none():
    batch = encode_batch([b"a"], base_timestamp=T)
    with pytest.raises(ProtocolError):
        read_marker(batch, 0, read_header(batch), decompressed_bytes_max=BOUND)
    marker = bytearray(read_vector("commit.vec"))
    marker[69] = 2  # the kind's last byte
    with pytest.raises(ProtocolError, match="kind 2"):
        read_marker(seal(marker), 0, read_header(marker), decompressed_bytes_max=BOUND)


@pytest.mark.parametrize("keys", [None, [b"k", None, b""]])
def test_a_sealed_batch_knows_the_header_that_stands_in_it(keys):
    sealed = sealed_batch([b"a", None, b"c" * 300], keys=keys, base_timestamp=T)
    assert sealed.data == encode_batch([b"a", None, b"c" * 300], keys=keys, base_timestamp=T)
    assert sealed.header == read_header(sealed.data)
    assert len(decode(sealed.data)) == 3
    with pytest.raises(ValueError, match="at least one record"):
        sealed_batch([], base_timestamp=T)
