"""Columns of JSON values: each parser of columns finds what is found object by object, or leaves it to that."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.codec.columns import json_to_arrow
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
NESTED = [
    b"[]",
    b'[1, {"a": "]}\\"\\\\"}]',
    b'{ "b" : [ [ ] ] , "c" : "\xc3\xa9" }',
    b'{"a": null}',
    b"[ 1.50 ]",
    b'["\\u00e9"]',
]
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


PARSERS = [fields._by_arrow, *([fields._in_c] if json_to_arrow.COMPILED else [])]


def check(values: Sequence[bytes | None]) -> bool:
    """Whether all parsers have done it; what one does is the same."""
    wanted = one_by_one(values)
    names = [fields._field_of(name) for name in SCHEMA.names]
    done = [each(pa.array(values, pa.binary()), names, SCHEMA) for each in PARSERS]
    for parser, parsed in zip(PARSERS, done, strict=True):
        if parsed is not None:
            assert [each.type for each in parsed] == SCHEMA.types
            found = [each.to_pylist() for each in parsed]
            assert found == wanted
            if parser is fields._in_c:  # Arrow's has -0.0 of -0
                assert repr(found) == repr(wanted)
            for each in parsed:
                each.validate(full=True)
    return None not in done


def test_plain_objects_are_parsed_as_columns() -> None:
    spaced = b' { "n" :\n-1 , "x": 12, "text" : null }\r\n'
    assert check([json.dumps(PLAIN).encode(), None, b"{}", spaced, json.dumps(PLAIN, ensure_ascii=False).encode()])
    assert not check([])


def test_a_slice_of_a_column_is_parsed() -> None:
    values = pa.array([b"no", None, b'{"n": 1}', None, b'{"n": 3, "text": "b"}', b"no"], pa.binary())
    found = fields.parse(values[1:5], SCHEMA)
    assert found is not None
    assert [found[0].to_pylist(), found[2].to_pylist()] == [[None, 1, None, 3], [None, None, None, "b"]]


@pytest.mark.skipif(not json_to_arrow.COMPILED, reason="the compiled parser: nothing was compiled here")
def test_lists_and_objects_are_texts_in_c() -> None:
    values = [b'{"text": %s, "n": 1}' % each for each in NESTED]
    parsed = fields.parse(pa.array(values, pa.binary()), SCHEMA)
    assert parsed is not None
    assert [each.to_pylist() for each in parsed] == one_by_one(values)


@pytest.mark.parametrize("odd", [b"[1,]", b'{"a": "\xff"}', b"[" * 5000 + b"]" * 5000, b"[}", b'["]"', b"[1"])
def test_odd_lists_and_objects_are_left_alone(odd: bytes) -> None:
    check([b'{"text": %s}' % odd])


@pytest.mark.parametrize(
    "number",
    [
        *("0", "-0", "-0.0", "0.1", "1e22", "1e23", "-1.5E+3", "9007199254740993", "0.30000000000000004", "5e-324"),
        *("123456789012345678", "1234567890123456789", "12345678901234567890", "0.00000000000000000000000000000012"),
        *(
            "1e-22",
            "1e-23",
            "1.7976931348623157e308",
            "2.2250738585072011e-308",
            "1e-400",
            "0e400",
            "1e",
            "1.",
            ".5",
            "+1",
            "00",
        ),
        *("9223372036854775807", "-9223372036854775808", "-9223372036854775809", "18446744073709551617"),
    ],
)
def test_numbers_are_what_python_has_of_them(number: str) -> None:
    for field in ("x", "n"):
        check([b'{"%s": %s}' % (field.encode(), number.encode())])


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


_as_utf8 = _fitting.map(lambda row: json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@given(st.lists(st.none() | _fitting.map(json.dumps).map(str.encode) | _as_utf8, min_size=1, max_size=5))
def test_values_that_fit_are_the_same(values: list[bytes | None]) -> None:
    huge = any(abs(each) >= 2.0**1000 for each in one_by_one(values)[1] if each is not None)
    assert check(values) or huge


@given(st.lists(_row.map(json.dumps).map(str.encode) | st.binary(max_size=8) | st.sampled_from(ODD), max_size=4))
def test_whatever_is_there_is_the_same_or_left_alone(values: list[bytes]) -> None:
    check(values)


def test_drawn_doubles_are_rounded_as_python_rounds_them() -> None:
    """Seventeen digits: more than a double holds, so that one rounding too many shows in some of them."""
    chance = random.Random(19)
    assert check([b'{"x": %a}' % (chance.random() * 10 ** chance.randrange(-12, 12)) for _ in range(3000)])
