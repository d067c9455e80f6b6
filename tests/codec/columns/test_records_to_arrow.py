# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Arrow's columns as they grow, by both twins. What they hold of one section is compared in test_kernel.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec import strategies
from tests.codec.twins import COMPILED, PLAIN, buffers, require_compiled

from braidlog.codec.errors import ProtocolError

TWINS = [pytest.param(COMPILED, id="built"), pytest.param(PLAIN, id="plain")]


@pytest.fixture(autouse=True, scope="module")
def _both_twins():
    require_compiled()


@given(st.lists(strategies.columns(), max_size=5), st.integers(0, 100), st.integers(0, 200))
@settings(max_examples=50)
def test_columns_grow_batch_by_batch(batches, start, length):
    built, plain = COMPILED.Columns(), PLAIN.Columns()
    offset = 0
    for values, keys, timestamps, headers, base in batches:
        section_bytes = COMPILED.encode_records(values, keys, timestamps, headers, base)
        last = len(values) - 1
        for columns in (built, plain):
            columns.append(
                section_bytes, len(values), offset, last, base, start_offset=start, end_offset=start + length
            )
            # A refused batch leaves no trace.
            with pytest.raises(ProtocolError):
                columns.append(section_bytes + b"\x00", len(values), offset, last, base)
        offset += len(values)
    assert buffers(built) == buffers(plain)


@pytest.mark.parametrize("twin", TWINS)
def test_columns_not_wanted_stay_empty_but_checked(twin):
    records = twin.encode_records([b"v"], [b"k"], None, [(("h", b"x"),)], 0)
    columns = twin.Columns(want_key=False, want_value=False, want_headers=False)
    columns.append(records, 1, 0, 0, 0)
    assert columns.rows == 1
    assert columns.key.rows == columns.value.rows == columns.header_lists.rows == 0
    with pytest.raises(ProtocolError):
        columns.append(records[:-1], 1, 0, 0, 0)


@pytest.mark.parametrize("twin", TWINS)
def test_a_column_ends_at_32_bits(twin, monkeypatch):
    columns = twin.Columns()
    records = twin.encode_records([b"v" * 100], None, None, None, 0)
    columns.append(records, 1, 0, 0, 0)
    columns.value.size, size = 2**31 - 100, columns.value.size
    with pytest.raises(OverflowError):
        columns.append(records, 1, 1, 0, 0)
    columns.value.size = size
