"""Messages by hypothesis, made from the declarations: a new field is exercised without a word here."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec.inspect import (
    BoolType,
    BytesType,
    IntType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)


def any_of(struct_type: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return _any(type_info(struct_type))


_PLAIN = {
    BytesType: st.binary(max_size=8),
    StrType: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    BoolType: st.booleans(),
    NoneType: st.none(),
}


def _any(shape: Type) -> st.SearchStrategy[Any]:
    match shape:
        case StructType():
            return st.builds(shape.cls, **{field.name: _any(field.type) for field in shape.fields})
        case UnionType():
            return st.one_of([_any(part) for part in shape.types])
        case VarTupleType():
            return st.lists(_any(shape.item_type), max_size=4).map(tuple)
        case IntType():
            return st.integers(shape.ge, shape.le)
        case _:
            return _PLAIN[type(shape)]
