"""A slice of a log without its values: which batches are made bare, and what is left of the others."""

from pathlib import Path

import pytest

from braidlog.codec.batch import check_crc, read_headers
from braidlog.codec.compression import Compression
from braidlog.codec.records import control_batch, decode_batch, encode_batch
from braidlog.partition import bare
from braidlog.partition.bare import TURN_BYTES, bare_slice
from braidlog.storage.files import OsDisk
from braidlog.storage.reading import FileSlice

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


def turns(found: FileSlice, *, keys: bool) -> tuple[bytes | FileSlice, int]:
    """What comes of it, and how often others had a turn meanwhile."""
    work, count = bare_slice(found, keys=keys), 0
    while True:
        try:
            work.send(None)
            count += 1
        except StopIteration as ended:
            return ended.value, count


@pytest.mark.parametrize(
    ("keys", "size_min", "wanted_ones"), [(True, bare.BATCH_BYTES_MIN, [0, 2, 6]), (False, 0, [0, 2, 4, 6])]
)
def test_what_is_worth_it_is_bare_and_the_rest_is_as_it_was(
    tmp_path: Path, keys: bool, size_min: int, wanted_ones: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare, "BATCH_BYTES_MIN", size_min)
    monkeypatch.setattr(bare, "BATCH_BYTES_MAX", 50_000)
    before = batches()
    found, _ = turns(slice_of(tmp_path, before), keys=keys)
    assert isinstance(found, bytes)
    at, bare_ones = 0, []
    for number, (old, header) in enumerate(zip(before, read_headers(found), strict=True)):
        check_crc(found, at, header)
        new = found[at : at + header.size_bytes]
        at += header.size_bytes
        if new == old:
            continue
        bare_ones.append(number)
        rows = decode_batch(old, decompressed_bytes_max=0)
        wanted = [(offset, time, key if keys else None, None, ()) for offset, time, key, _, _ in rows]
        assert decode_batch(new, decompressed_bytes_max=0) == wanted
    assert bare_ones == wanted_ones, "not a compressed one, a marker, a small one, one that would hold the loop"


def test_others_have_their_turn(tmp_path: Path) -> None:
    one = encode_batch(VALUES * 10, base_timestamp=5)
    found, count = turns(slice_of(tmp_path, [one] * 40), keys=True)
    assert isinstance(found, bytes)
    assert count == 40 // -(-TURN_BYTES // len(one)) == 8


def test_what_would_hardly_be_smaller_goes_from_its_file(tmp_path: Path) -> None:
    packed = encode_batch(VALUES, base_timestamp=5, compression=Compression.ZSTD)
    whole = slice_of(tmp_path, [packed] * 3)
    assert turns(whole, keys=True)[0] is whole
    long_keys = encode_batch([b""] * 100, keys=[b"k" * 900] * 100, base_timestamp=5)
    whole = slice_of(tmp_path, [long_keys] * 20)
    assert turns(whole, keys=True) == (whole, 0)
    assert isinstance(turns(slice_of(tmp_path, [long_keys] * 20), keys=False)[0], bytes)


def test_what_is_damaged_is_not_sealed_anew(tmp_path: Path) -> None:
    """Its reader finds out by the checksum that it has."""
    before = batches()
    before[2] = before[2][:-9] + b"?" + before[2][-8:]
    whole = slice_of(tmp_path, before)
    assert turns(whole, keys=True)[0] is whole
    short = FileSlice(whole.file, 0, whole.size + 100, 0, 1000)
    assert turns(short, keys=True)[0] is short
