# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Zigzag varints: the numbers the specification prints, every edge, and every way to be wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.codec.errors import ProtocolError
from braidlog.codec.varint import encode_varint, encode_varlong, read_varint, read_varlong

# Source: Protocol Buffers encoding guide, "Signed Integers", and the widths of seven bits a byte.
KNOWN = {
    0: "00",
    -1: "01",
    1: "02",
    -2: "03",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    8192: "808001",
    2**31 - 1: "feffffff0f",
    -(2**31): "ffffffff0f",
}


@pytest.mark.parametrize(("value", "encoded"), KNOWN.items())
def test_known_numbers(value, encoded):
    assert encode_varint(value).hex() == encoded
    assert encode_varlong(value).hex() == encoded
    data = b"\xff" + bytes.fromhex(encoded)
    assert read_varint(data, 1, len(data)) == (value, len(data))
    assert read_varlong(data, 1, len(data)) == (value, len(data))


def test_widest_numbers():
    assert encode_varlong(2**63 - 1).hex() == "feffffffffffffffff01"
    assert encode_varlong(-(2**63)).hex() == "ffffffffffffffffff01"
    assert read_varlong(bytes.fromhex("ffffffffffffffffff01"), 0, 10) == (-(2**63), 10)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_too_wide_to_write(value):
    with pytest.raises(ProtocolError):
        encode_varint(value)
    with pytest.raises(ProtocolError):
        encode_varlong(value << 32)


@pytest.mark.parametrize("data", ["", "80", "ffffffff", "ffffffff10", "ffffffff8f00", "808080808000"])
def test_refused_varints(data):
    with pytest.raises(ProtocolError):
        read_varint(bytes.fromhex(data), 0, len(data) // 2)


@pytest.mark.parametrize("data", ["ffffffffffffffffff02", "ffffffffffffffffff8100", "ffffffffffffffffff"])
def test_refused_varlongs(data):
    with pytest.raises(ProtocolError):
        read_varlong(bytes.fromhex(data), 0, len(data) // 2)


def test_more_bytes_than_needed_are_the_same_number():
    # Java's reader takes them, so batches that have them exist.
    assert read_varint(b"\x81\x80\x00", 0, 3) == (-1, 3)


@given(st.integers(-(2**63), 2**63 - 1))
def test_round_trip_and_end(value):
    data = encode_varlong(value)
    assert read_varlong(data + b"\xff", 0, len(data)) == (value, len(data))
    with pytest.raises(ProtocolError):
        read_varlong(data, 0, len(data) - 1)
