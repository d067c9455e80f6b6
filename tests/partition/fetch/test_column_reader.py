"""A slice of a log as columns: which batches become blocks, and what is left of the others."""

from itertools import pairwise
from pathlib import Path

import pytest

from braidlog.codec.batch.header import BLOCK_MAGIC, MAGIC, iter_batches
from braidlog.codec.batch.records import append_to_columns, control_batch, encode_batch
from braidlog.codec.columns.records_to_arrow import Columns
from braidlog.codec.compression import Compression
from braidlog.partition.fetch import column_reader
from braidlog.partition.fetch.column_reader import TURN_BYTES, columns_of
from braidlog.storage.files import OsDisk
from braidlog.storage.log.log_reader import FileSlice

VALUES = [b"v" * 100] * 100


def batches() -> list[bytes]:
    """Of every kind, one after the other."""
    keys = [b"k%d" % number for number in range(100)]
    found: list[bytes] = []
    at = 0

    def add(batch: bytes, offsets: int) -> None:
        nonlocal at
        found.append(at.to_bytes(8, "big") + batch[8:])
        at += offsets

    add(encode_batch(VALUES, keys=keys, base_timestamp=5), 100)
    add(encode_batch(VALUES, keys=keys, base_timestamp=5, compression=Compression.ZSTD), 100)
    add(encode_batch(VALUES, keys=keys, base_timestamp=5, producer_id=4, producer_epoch=0, transactional=True), 100)
    fields = {"leader_epoch": 0, "producer_id": 4, "producer_epoch": 0, "commit": False, "timestamp_ms": 6}
    add(control_batch(base_offset=0, **fields), 1)  # type: ignore[arg-type]
    add(encode_batch([b"small"], base_timestamp=5), 1)
    add(encode_batch([b"large" * 12_000], base_timestamp=5), 1)
    add(encode_batch(VALUES, keys=keys, base_timestamp=5), 100)
    return found


def slice_of(folder: Path, found: list[bytes]) -> FileSlice:
    file = OsDisk().create(str(folder / f"segment-{len(list(folder.iterdir()))}"))
    size = file.append(found, 0)
    return FileSlice(file, 0, size, 0, 1000)


def turns(found: FileSlice, *, keys: bool) -> tuple[bytearray | FileSlice, int]:
    """What comes of it, and how often others had a turn meanwhile."""
    work, count = columns_of(found, keys=keys), 0
    while True:
        try:
            work.send(None)
            count += 1
        except StopIteration as ended:
            return ended.value, count


def rows_of(data: bytes | bytearray, *, keys: bool) -> list[tuple[object, ...]]:
    columns = Columns(want_key=keys, want_value=False, want_headers=False)
    for at, header in iter_batches(data, blocks=True):
        if not header.is_control:
            append_to_columns(columns, data, at, header, decompressed_bytes_max=1 << 30)
    columns.finish()
    offsets, times = (memoryview(each).cast("q").tolist() for each in (columns.offsets, columns.timestamps))
    ends = memoryview(columns.key.ends).cast("i").tolist()
    told = [bytes(columns.key.data[start:end]) for start, end in pairwise(ends)] if keys else [b""] * len(offsets)
    return list(zip(offsets, times, told, strict=True))


@pytest.mark.parametrize("keys", [True, False])
def test_what_can_be_columns_is_and_the_rest_is_as_it_was(
    tmp_path: Path, keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_reader, "BATCH_BYTES_MAX", 50_000)
    before = batches()
    found, _ = turns(slice_of(tmp_path, before), keys=keys)
    assert isinstance(found, bytearray)
    headers = list(iter_batches(found, blocks=True))
    kept = [bytes(found[at : at + each.size_bytes]) for at, each in headers if each.magic == MAGIC]
    assert kept == [before[1], before[3], before[5]], "a compressed one, a marker, one that would hold the loop"
    assert [each.record_count for _, each in headers] == [100, 100, 100, 1, 1, 1, 100]
    assert rows_of(found, keys=keys) == rows_of(b"".join(before), keys=keys)


def test_small_batches_make_one_block(tmp_path: Path) -> None:
    one = encode_batch([b"v" * 30], keys=[b"key"], base_timestamp=5)
    before = [at.to_bytes(8, "big") + one[8:] for at in range(2000)]
    found, _ = turns(slice_of(tmp_path, before), keys=True)
    assert isinstance(found, bytearray)
    assert [each.record_count for _, each in iter_batches(found, blocks=True)] == [2000]
    assert rows_of(found, keys=True) == [(at, 5, b"key") for at in range(2000)]


@pytest.mark.parametrize("records", [1, 90, 700, 1000, 3000, 7000])
def test_others_have_their_turn(tmp_path: Path, records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large batches are, a turn reads no more than its share, or one of them; and little is read twice."""
    one = encode_batch([b"v" * 100] * records, base_timestamp=5)
    before = [(at * records).to_bytes(8, "big") + one[8:] for at in range(-(-(10 * TURN_BYTES) // len(one)))]
    whole = slice_of(tmp_path, before)
    read: list[int] = []
    read_at = whole.file.read_at

    def counted(size: int, position: int) -> bytes:
        read.append(size)
        return read_at(size, position)

    monkeypatch.setattr(whole.file, "read_at", counted)
    found, count = turns(whole, keys=True)
    assert isinstance(found, bytearray)
    assert rows_of(found, keys=True) == rows_of(b"".join(before), keys=True)
    assert max(read) <= max(TURN_BYTES, len(one) * 1.02)
    assert count >= whole.size // max(read) - 1
    assert sum(read) <= whole.size * 1.02 + TURN_BYTES


def test_a_batch_that_is_larger_than_a_turn_is_read_alone(tmp_path: Path) -> None:
    large, small = (encode_batch([b"v" * 100] * records, base_timestamp=5) for records in (7000, 10))
    before, at = [], 0
    for batch, records in ((small, 10), (large, 7000), (large, 7000), (small, 10)):
        before.append(at.to_bytes(8, "big") + batch[8:])
        at += records
    found, _ = turns(slice_of(tmp_path, before), keys=True)
    assert isinstance(found, bytearray)
    assert rows_of(found, keys=True) == rows_of(b"".join(before), keys=True)
    assert {each.magic for _, each in iter_batches(found, blocks=True)} == {BLOCK_MAGIC}


def test_what_would_hardly_be_smaller_goes_from_its_file(tmp_path: Path) -> None:
    packed = encode_batch(VALUES, base_timestamp=5, compression=Compression.ZSTD)
    whole = slice_of(tmp_path, [packed] * 3)
    assert turns(whole, keys=True)[0] is whole
    long_keys = encode_batch([b""] * 100, keys=[b"k" * 900] * 100, base_timestamp=5)
    whole = slice_of(tmp_path, [long_keys] * 20)
    assert turns(whole, keys=True) == (whole, 0)
    assert isinstance(turns(slice_of(tmp_path, [long_keys] * 20), keys=False)[0], bytearray)


def test_what_is_damaged_is_not_sealed_anew(tmp_path: Path) -> None:
    """Its reader finds out by the checksum that it has."""
    before = batches()
    before[2] = before[2][:-9] + b"?" + before[2][-8:]
    whole = slice_of(tmp_path, before)
    assert turns(whole, keys=True)[0] is whole


@pytest.mark.parametrize("left", [1, 60, 61, 200])
def test_a_file_that_ends_within_its_slice_is_not_waited_for(tmp_path: Path, left: int) -> None:
    """It was cut after the slice was found."""
    before = batches()
    whole = slice_of(tmp_path, before)
    whole.file.truncate(whole.size - len(before[-1]) + left)
    assert turns(whole, keys=True)[0] is whole
    whole.file.truncate(left)
    assert turns(whole, keys=True)[0] is whole
    longer = FileSlice(whole.file, 0, whole.size + 100, 0, 1000)
    assert turns(longer, keys=True)[0] is longer


def test_columns_are_told_where_numbers_begin_with_their_lowest_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_reader, "byteorder", "big")
    whole = slice_of(tmp_path, batches())
    assert turns(whole, keys=True)[0] is whole
