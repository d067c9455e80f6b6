"""FNV-1a, 32 bits: published test vectors, and the partition that the Flux page (§2) names."""

import pytest

from braidlog.wire.flux.partitioner import fnv1a_32, partition_for_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # Source: the FNV authors' list of test vectors (isthe.com, test_fnv.c, fnv1a_32)
        (b"", 0x811C9DC5),
        (b"a", 0xE40C292C),
        (b"b", 0xE70C2DE5),
        (b"foo", 0xA9F37ED7),
        (b"foobar", 0xBF9CF968),
    ],
)
def test_the_hash(data: bytes, expected: int) -> None:
    assert fnv1a_32(data) == expected


def test_the_partition_of_a_key() -> None:
    assert partition_for_key(b"user1", 3) == 2  # Source: the Flux page, §2
    assert partition_for_key(b"", 3) == 0x811C9DC5 % 3
    assert partition_for_key(b"user1", 1) == 0
    long = b"k" * 1000
    assert partition_for_key(long, 7) == fnv1a_32(long) % 7
