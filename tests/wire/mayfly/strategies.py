"""Any message of the dialect, made from its declared fields."""

from typing import Any, Final

from hypothesis import strategies as st

from braidlog.wire.fields import I64, U16, U32, U64
from braidlog.wire.mayfly import fields as f
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Request

key: Final = st.binary(min_size=1, max_size=40) | st.binary(min_size=256, max_size=256)
value: Final = st.binary(max_size=60)
u32: Final = st.integers(0, 2**32 - 1)
u64: Final = st.integers(0, 2**64 - 1)
i64: Final = st.integers(-(2**63), 2**63 - 1)
text: Final = st.text(st.characters(codec="utf-8"), max_size=40)
hosts: Final = st.ip_addresses().map(str)
nodes: Final = st.builds(m.Node, text, st.sampled_from(m.NodeState), text, st.integers(0, 65535))

_KINDS: Final = (
    (f.KEY, key),
    (f.FIELD, key),
    (f.VALUE, value),
    (f.TOKEN, st.binary(max_size=60)),
    (f.NAME, st.just(b"") | key),
    (f.NAMES, st.lists(key, max_size=6).map(tuple)),
    (U16, st.integers(0, 2**16 - 1)),
    (U32, u32),
    (U64, u64),
    (I64, i64),
    (f.VALUES, st.lists(value, max_size=6).map(tuple)),
    (f.PAIRS, st.lists(st.tuples(key, value), max_size=6).map(tuple)),
    (f.SOME_VALUES, st.lists(value, min_size=1, max_size=6).map(tuple)),
    (f.SOME_PAIRS, st.lists(st.tuples(key, value), min_size=1, max_size=6).map(tuple)),
    (f.SOME_FIELDS, st.lists(key, min_size=1, max_size=6).map(tuple)),
    (f.NODES, st.lists(nodes, max_size=4).map(tuple)),
)
_TAGGED: Final[dict[str, st.SearchStrategy[Any]]] = {
    "condition": st.sampled_from(m.Condition),
    "stored": st.booleans(),
    "mode": st.none() | text,
    "node": st.none() | text,
    "message": text,
}


def message(kind: type[m.Message]) -> st.SearchStrategy[Any]:
    """Any request, or any answer that is an OK."""
    wanted = {name: next(found for each, found in _KINDS if each is field) for name, field in f.LAYOUTS[kind]}
    wanted |= {name: _TAGGED.get(name, st.none() | u64) for name in f.TAGS.get(kind, {})}
    return st.builds(kind, **wanted)


failures: Final = (
    st.builds(m.Failure, st.sampled_from([s for s in m.Status if s not in (m.Status.OK, 0x10, 0x11)]), text)
    | st.builds(m.Moved, hosts, st.integers(0, 65535))
    | st.builds(m.TopologyChanged, st.none() | u64, text)
)


def request(kind: type[m.Message]) -> st.SearchStrategy[Request]:
    return st.builds(Request, st.integers(1, 2**32 - 1), message(kind), st.sampled_from(m.Consistency))
