"""A record in JSON: what is written can be read back, and what is no record is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.braid import check

from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.model.record_json import json_line, read_json


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"value": 3}', b'{"key": "k"}', b'{"value": "v", "valeu": 1}', b'{"value": {"base64": "*"}}'],
)
def test_what_no_record_in_json_is(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a record in JSON"):
        read_json(line)


_BYTES = st.none() | st.binary(max_size=20)


@given(_BYTES, _BYTES, st.lists(st.tuples(st.text(max_size=5), _BYTES), max_size=3), st.none() | st.integers(0, 2**62))
def test_json_there_and_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp_ms: int | None
) -> None:
    line = json_line(ConsumedRecord("t", 1, 2, key, value, tuple(headers), timestamp_ms))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    check("record", json.loads(line))
    record, partition = read_json(line)
    assert (record.key, record.value, record.headers, record.timestamp_ms) == (key, value, tuple(headers), timestamp_ms)
    assert partition == 1
