"""Types of columns that grow: judged by pyiceberg's own rules, and by values that are still there afterwards."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids, promote

from braidlog.tables.evolution import fits, fitted, grown, storable, written

PLAIN = [
    *(pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.decimal128(20, 2), pa.decimal128(20, 0)),
]


def icebergs(kind: pa.DataType) -> Schema:
    """A table's schema with one column of the type."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(pa.schema([("c", kind)])))


def kinds() -> st.SearchStrategy[pa.DataType]:
    def around(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        named = st.dictionaries(st.sampled_from("abcA"), inner, min_size=1, max_size=3)
        return st.one_of(
            named.map(lambda fields: storable(pa.struct(list(fields.items())))),
            inner.map(lambda item: pa.list_(pa.field("element", item))),
            inner.map(lambda item: pa.map_(pa.string(), item)),
        )

    return st.recursive(st.sampled_from(PLAIN), around, max_leaves=6)


@pytest.mark.parametrize("narrow", PLAIN, ids=str)
def test_only_what_iceberg_promotes_grows(narrow: pa.DataType) -> None:
    for wide in PLAIN:
        if narrow != wide and grown(narrow, wide) == wide:
            promote(icebergs(narrow).fields[0].field_type, icebergs(wide).fields[0].field_type)


@given(kinds(), kinds())
def test_a_column_that_grew_holds_what_it_held(has: pa.DataType, wants: pa.DataType) -> None:
    more = grown(has, wants)
    assert fits(has, more)
    assert grown(more, has) == more
    assert grown(more, wants) == more, "once is enough"
    assert storable(more) == more
    assert written(schema_to_pyarrow(icebergs(more)).field("c").type) == more, "as it comes back from the catalog"


VALUES: Any = [
    {"a": [1, None], "m": {"k": 1}},
    None,
    {"a": None, "m": None},
    {"a": [], "m": {}},
    {"a": [7], "m": {"j": None}},
]


@pytest.mark.parametrize("first", [0, 1, 3])
def test_values_as_a_column_has_them(first: int) -> None:
    """Also of a part of an array, whose lists do not begin at its own beginning."""
    own = pa.struct([("a", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32()))])
    column = pa.struct([("new", pa.string()), ("m", pa.map_(pa.string(), pa.int64())), ("a", pa.list_(pa.int64()))])
    rows = [
        None if each is None else {**each, "m": None if each["m"] is None else list(each["m"].items())}
        for each in VALUES
    ]
    found = fitted(pa.array(rows, own).slice(first), column)
    found.validate(full=True)
    assert found.to_pylist() == [None if each is None else {"new": None, **each} for each in rows[first:]]
    assert fitted(pa.array([1, 2]), pa.string()).to_pylist() == [None, None]


@given(kinds(), kinds(), st.integers(0, 3))
def test_what_does_not_fit_is_null_and_never_an_error(own: pa.DataType, column: pa.DataType, rows: int) -> None:
    found = fitted(pa.nulls(rows, own), column)
    assert (found.type, found.null_count) == (column, rows)


def test_what_is_no_column() -> None:
    assert storable(pa.struct([])) is None
    assert storable(pa.list_(pa.struct([("a", pa.time64("us"))]))) is None
    assert storable(pa.map_(pa.string(), pa.null())) is None
    assert storable(pa.struct([("d", pa.duration("us")), ("D", pa.string()), ("e", pa.struct([]))])) == pa.struct(
        [("d", pa.int64())]
    )
