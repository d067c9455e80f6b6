"""Columns of JSON values: Arrow's parser finds what is found object by object, or leaves it to that."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.tables import fields

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("text", pa.string()),
        ("ok", pa.bool_()),
        ("_offset", pa.int64()),
        ("_own", pa.string()),
    ]
)
PLAIN = {"n": 7, "x": 0.5, "text": "\u00e9\n\u0000", "ok": False, "offset": 3, "_own": "y"}
ODD = [
    b"",
    b"null",
    b"5",
    b"[{}]",
    b'{"n": 1.0}',
    b'{"n": 1e2}',
    b'{"n": 9223372036854775808}',
    b'{"n": true}',
    b'{"x": NaN}',
    b'{"x": -Infinity}',
    b'{"x": 1e400}',
    b'{"x": ' + b"9" * 305 + b"}",
    b'{"x": ' + b"9" * 310 + b"}",
    b'{"x": "1"}',
    b'{"text": 5}',
    b'{"text": ["a", {"b": null}]}',
    b'{"text": "\xff"}',
    b'{"text": "\\ud800"}',
    b'{"text": "\n"}',
    b'{"text": "2020-01-01T00:00:00"}',
    b'{"n": 1, "n": 2}',
    b'{"n": 1}, "v": {"n": 2}',
    b'{"n": 1}}\n{"v": {"n": 2}',
    b'{"n": 1}}{"v": {"n": 2}',
    b'{"n": 1',
    b'"',
    b'{"new": 1}',
    b'{"new": null}',
    b'{"N": 1}',
    b'{"own": "no column of it"}',
    b'\xef\xbb\xbf{"n": 1}',
    b'{"n": 01}',
    b'{"n": 1} // more',
    b"{'n': 1}",
]


def one_by_one(values: Sequence[bytes | None]) -> list[list[Any]]:
    return [each.to_pylist() for each in fields.columns(fields.objects(values), SCHEMA)]


def check(values: Sequence[bytes | None]) -> bool:
    """Whether Arrow's parser has done it; then it is the same."""
    parsed = fields.parse(pa.array(values, pa.binary()), SCHEMA)
    if parsed is None:
        return False
    assert [each.type for each in parsed] == SCHEMA.types
    assert [each.to_pylist() for each in parsed] == one_by_one(values)
    return True


def test_plain_objects_are_left_to_arrows_parser() -> None:
    spaced = b' { "n" :\n-1 , "x": 12, "text" : null }\r\n'
    assert check([json.dumps(PLAIN).encode(), None, b"{}", spaced, json.dumps(PLAIN, ensure_ascii=False).encode()])
    assert not check([])


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_is_the_same_or_left_alone(odd: bytes) -> None:
    plain = json.dumps(PLAIN).encode()
    for values in ([odd], [plain, odd], [odd, plain], [b"", odd], [odd, odd, b""]):
        check(values)


_whatever = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.text(max_size=5)
_row = st.dictionaries(st.sampled_from([*PLAIN, "new"]), _whatever | st.lists(_whatever, max_size=2), max_size=6)
_fitting = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
        "text": st.none() | st.text(),
        "ok": st.none() | st.booleans(),
    },
)


@given(st.lists(st.none() | _fitting.map(json.dumps).map(str.encode), min_size=1, max_size=5))
def test_values_that_fit_are_the_same(values: list[bytes | None]) -> None:
    huge = any(abs(each) >= 2.0**1000 for each in one_by_one(values)[1] if each is not None)
    assert check(values) or huge


@given(st.lists(_row.map(json.dumps).map(str.encode) | st.binary(max_size=8) | st.sampled_from(ODD), max_size=4))
def test_whatever_is_there_is_the_same_or_left_alone(values: list[bytes]) -> None:
    check(values)
