"""Confluent's wire format, as its published text and its own serializer have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.registry.framing import FramingError, head, id_of, read_indexes

# Source: Confluent's "Wire format" (Schema Registry, serializers): magic byte 0, id of four bytes in network order, then for
# Protobuf the message indexes; "[1, 0]" is written as 2, 1, 0 in zig-zag varints, and "[0]" as a single 0.
PUBLISHED = [((1, 0), b"\x04\x02\x00"), ((0,), b"\x00"), ((2,), b"\x02\x04")]


@pytest.mark.parametrize(("indexes", "data"), PUBLISHED)
def test_published_indexes(indexes: tuple[int, ...], data: bytes) -> None:
    value = head(258) + data + b"payload"
    assert value[:5] == b"\0\0\0\1\2"
    assert id_of(value) == 258
    assert read_indexes(value) == (indexes, 5 + len(data))


@pytest.mark.parametrize("value", [b"", b"\0\0\0\0", b"\1\0\0\0\1", b'{"a":1}'])
def test_what_has_no_id(value: bytes) -> None:
    with pytest.raises(FramingError, match="no schema id"):
        id_of(value)


@given(st.binary(max_size=40))
def test_whatever_follows_an_id_is_indexes_or_refused(data: bytes) -> None:
    try:
        indexes, position = read_indexes(head(1) + data)
    except FramingError:
        return
    assert indexes
    assert 5 < position <= 5 + len(data)
