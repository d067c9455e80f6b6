"""Keys land where Kafka's clients put them."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.codec.murmur import murmur2, partition_for_key

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the client reads its own files in a way that Python deprecates
    from kafka.partitioner.default import murmur2 as reference

# Source: Apache Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2
VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("data", "signed"), VECTORS)
def test_kafkas_own_vectors(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32


@given(st.binary(max_size=40))
def test_as_another_client_has_it(data: bytes) -> None:
    assert murmur2(data) == reference(data) % 2**32


@pytest.mark.parametrize(("data", "signed"), VECTORS)
def test_partitions_are_those_of_the_default_partitioner(data: bytes, signed: int) -> None:
    for partitions in (1, 2, 3, 10, 1000):
        assert partition_for_key(data, partitions) == (signed & 0x7FFFFFFF) % partitions
