"""A slice that is not what it was when it was found: its reader hears of it, and does not read the same place for ever."""

from itertools import islice
from pathlib import Path

import pytest

from braidlog.codec.batch.records import encode_batch
from braidlog.codec.errors import ProtocolError
from braidlog.partition.fetch.record_reader import PIECE_BYTES, batches_of
from braidlog.storage.files import OsDisk
from braidlog.storage.log.partition_log import FileSlice

SMALL = encode_batch([b"small"], base_timestamp=5)
LARGE = encode_batch([b"v" * PIECE_BYTES], base_timestamp=5, base_offset=1)


def slice_of(folder: Path, *batches: bytes) -> FileSlice:
    file = OsDisk().create(str(folder / "segment"))
    return FileSlice(file, 0, file.append(list(batches), 0), 0, len(batches))


def sizes(found: FileSlice) -> list[int]:
    return [header.size_bytes for _, _, header in islice(batches_of(found), 100)]


def test_batches_larger_than_a_piece_are_read_alone(tmp_path: Path) -> None:
    assert sizes(slice_of(tmp_path, SMALL, LARGE, SMALL)) == [len(SMALL), len(LARGE), len(SMALL)]


@pytest.mark.parametrize("cut", [1, len(LARGE) - 100, len(LARGE)])
def test_a_file_that_has_become_shorter(tmp_path: Path, cut: int) -> None:
    found = slice_of(tmp_path, SMALL, LARGE)
    found.file.truncate(found.size - cut)
    with pytest.raises(ProtocolError, match=r"truncated|are left"):
        sizes(found)


def test_a_batch_that_says_it_is_longer_than_its_slice(tmp_path: Path) -> None:
    found = slice_of(tmp_path, SMALL, LARGE)
    found.file.write_at((len(LARGE) + 1 - 12).to_bytes(4, "big"), len(SMALL) + 8)
    with pytest.raises(ProtocolError, match=f"batch of {len(LARGE) + 1} bytes is truncated"):
        sizes(found)
