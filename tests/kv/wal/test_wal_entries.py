"""The bytes of the log's entries, against bytes put together by hand from the Mayfly protocol document's table."""

import pytest
from tests.kv.crashing import NODE, new_disk

from braidlog.kv.wal.wal import DATA_START, Mark, WalHead, create_wal, pack_mark, unpack_mark, unpack_wal_head
from braidlog.kv.wal.wal_entries import ENTRY_BYTES_MIN, BadEntry, Op, pack_entry, walk_entries
from braidlog.storage.files import File

# Source: the Mayfly document, "Persistence": CRC-32 4, Timestamp 8, Operation 1, Key Length 2, Key, Value Length 4, Value, TTL 4.
# SET "foo" = "bar" for 60 s at 1772365880192 ms. The checksum is what gzip(1) writes behind the 25 bytes after it.
SET_FOO_BAR = bytes.fromhex(
    "5950032d"  # CRC-32
    "0000019ca93d1b80"  # timestamp
    "01"  # SET
    "0003 666f6f"  # key
    "00000003 626172"  # value
    "0000003c"  # TTL
)


def file_of(data: bytes) -> File:
    file = new_disk().create("/data/x")
    file.write_at(data, 0)
    return file


def walk(data: bytes, wall_ms: int = 0) -> list[tuple[int, int, int, bytes, bytes, int]]:
    return [tuple(entry) for entry in walk_entries(file_of(data), 0, len(data), wall_ms)]  # type: ignore[misc]


def test_the_documents_entry() -> None:
    assert b"".join(pack_entry(1772365880192, Op.SET, b"foo", b"bar", 60)) == SET_FOO_BAR
    assert walk(SET_FOO_BAR) == [(len(SET_FOO_BAR), 1772365880192, 1, b"foo", b"bar", 60)]


def test_entries_follow_one_another() -> None:
    more = b"".join(pack_entry(1772365880193, Op.DEL, b"foo", b"", 0))
    assert [entry[2] for entry in walk(SET_FOO_BAR + more)] == [Op.SET, Op.DEL]
    assert len(more) == ENTRY_BYTES_MIN + 3


@pytest.mark.parametrize("size", range(1, len(SET_FOO_BAR)))
def test_an_entry_cut_short(size: int) -> None:
    found = walk_entries(file_of(SET_FOO_BAR + SET_FOO_BAR[:size]), 0, len(SET_FOO_BAR) + size, 0)
    assert next(found).key == b"foo"
    with pytest.raises(BadEntry) as bad:
        next(found)
    assert bad.value.position == len(SET_FOO_BAR)


@pytest.mark.parametrize("bit", range(8 * len(SET_FOO_BAR)))
def test_an_entry_with_a_flipped_bit(bit: int) -> None:
    data = bytearray(SET_FOO_BAR)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadEntry):
        walk(bytes(data))


def test_zeros_are_no_entry() -> None:
    with pytest.raises(BadEntry):
        walk(bytes(4096))


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(BadEntry, match="before"):
        walk(SET_FOO_BAR, wall_ms=1772365880193)


def test_an_operation_of_a_later_version() -> None:
    with pytest.raises(BadEntry, match="not known"):
        walk(b"".join(pack_entry(1, 0x7F, b"k", b"", 0)))


def test_entries_larger_than_a_window() -> None:
    data = b"".join(b"".join(pack_entry(5, Op.LPUSH, b"k%d" % n, bytes(700_000), 0)) for n in range(4))
    assert [(entry[3], len(entry[4])) for entry in walk(data)] == [(b"k%d" % n, 700_000) for n in range(4)]


def test_a_length_that_lies_is_not_believed() -> None:
    data = bytearray(SET_FOO_BAR)
    data[18:22] = b"\xff\xff\xff\xff"
    with pytest.raises(BadEntry, match="does not fit"):
        walk(bytes(data))


def test_the_head_of_a_file() -> None:
    disk = new_disk()
    head = WalHead(NODE, base=7, wall_ms=1000, counter=3, created_ms=2000)
    file = create_wal(disk, "/data", head)
    data = file.read_at(1000, 0)
    assert len(data) == DATA_START
    assert data[:60] == (
        b"BRAIDKVW\0\1"
        + bytes(6)
        + NODE
        + (7).to_bytes(8, "big")
        + (1000).to_bytes(8, "big")
        + (3).to_bytes(4, "big")
        + (2000).to_bytes(8, "big")
    )
    assert unpack_wal_head(data) == head
    assert unpack_mark(data) == Mark(DATA_START, 6)
    assert unpack_mark(data[:64] + pack_mark(data, Mark(500, 9)) + data[84:]) == Mark(500, 9)
    other = WalHead(NODE, base=8, wall_ms=1000, counter=3, created_ms=2000).pack()
    assert unpack_mark(data[:64] + pack_mark(other, Mark(500, 9)) + data[84:]) is None, "a mark of another file"
