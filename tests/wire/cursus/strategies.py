"""Messages of every type, made by hypothesis from the declarations alone."""

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus.batch import Batch, BatchRecord, Spelling
from braidlog.wire.cursus.failures import Failure
from braidlog.wire.cursus.messages import BATCH, Operation
from braidlog.wire.cursus.requests import Acks, AppendStream, Credentials, PartitionOffset

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# A word of a command or of a line: no blank of any kind, no quote or bracket that a list or a line gives a meaning.
WORD = st.text(
    st.characters(exclude_categories=["Cs", "Z", "Cc"], exclude_characters=' "\\[]{},='), min_size=1, max_size=12
)
NUMBER = st.integers(0, 2**63 - 1)
RECORDS = st.builds(
    BatchRecord, st.binary(max_size=20), st.binary(max_size=8), I64, I64, TEXT, I64, TEXT, I32, I64, TEXT
)
ACKS = st.sampled_from([str(acks) for acks in Acks])
BATCHES = st.builds(
    Batch,
    TEXT,
    st.integers(-1, 0xFFFF),
    st.lists(RECORDS, max_size=4).map(tuple),
    ACKS,
    st.booleans(),
    I64,
    I64,
)
OFFSETS = st.dictionaries(st.integers(0, 2**31 - 1), NUMBER, min_size=1, max_size=4).map(
    lambda offsets: tuple(PartitionOffset(p, o) for p, o in offsets.items())
)
RANGES = st.lists(st.builds(a.OffsetRange, st.integers(0, 2**31 - 1), NUMBER, NUMBER, NUMBER, NUMBER), max_size=3).map(
    tuple
)
FAILURES = st.builds(
    Failure,
    st.one_of(WORD, st.just("NOT_LEADER")),
    st.lists(st.tuples(st.one_of(WORD, st.just("LEADER_IS")), TEXT), max_size=3).map(tuple),
)
METADATA = st.one_of(
    WORD,
    st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.lists(TEXT, max_size=2)), max_size=3).map(
        lambda value: msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
    ),
)
CREDENTIALS = st.one_of(st.none(), st.builds(Credentials, WORD, WORD))


def _of_type(kind: Any, *, line: bool) -> st.SearchStrategy[Any]:
    if get_origin(kind) in {Union, UnionType}:
        (some,) = (option for option in get_args(kind) if option not in (NoneType, msgspec.UnsetType))
        nothing = st.none() if NoneType in get_args(kind) else st.just(msgspec.UNSET)
        return st.one_of(nothing, _of_type(some, line=line))
    if get_origin(kind) is Annotated:
        meta = get_args(kind)[1]
        return st.integers(meta.ge, meta.le)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: WORD if line else TEXT,
        bytes: WORD.map(str.encode),
        bool: st.booleans(),
        int: I64,
        Acks: st.sampled_from(Acks),
        Batch: BATCHES,
        tuple[PartitionOffset, ...]: OFFSETS,
        tuple[a.OffsetRange, ...]: RANGES,
        tuple[int, ...]: st.lists(st.integers(0, 2**31), max_size=4).map(tuple),
        tuple[str, ...]: st.lists(WORD if line else TEXT, max_size=4).map(tuple),
    }
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is tuple:
        return st.lists(_struct(get_args(kind)[0], line=line), max_size=3).map(tuple)
    return _struct(kind, line=line)


def _struct(kind: type, *, line: bool) -> st.SearchStrategy[Any]:
    fields = {field.name: _of_type(field.type, line=line) for field in msgspec.structs.fields(kind)}
    if "message" in fields:
        fields["message"] = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(str.encode)
    if kind is AppendStream:
        fields["metadata"] = METADATA
    return st.builds(kind, **fields)


def request_of(row: Operation, spelling: Spelling) -> st.SearchStrategy[Any]:
    if row.name == BATCH:
        return BATCHES
    strategy = _struct(row.request, line=True)
    if spelling is Spelling.DOCUMENT and row.positional is not None:
        return strategy.map(lambda message: _only_positional(row, message))
    return strategy


def _only_positional(row: Operation, message: Any) -> Any:
    """The protocol document has no place for the other arguments, nor for a gap between them."""
    names = list(row.positional or ())
    given = {name: getattr(message, name) for name in names}
    if any(value is None for value in given.values()):
        given = {name: value for name, value in given.items() if value is not None}
    return row.request(**given)


def answer_of(kind: type) -> st.SearchStrategy[Any]:
    if kind is Batch:
        return BATCHES
    documents = {
        a.Ack,
        a.TopicDescription,
        a.GroupDescription,
        a.SnapshotFound,
        a.BrokerList,
        a.ClusterReport,
        a.StreamContents,
    }
    return _struct(kind, line=kind not in documents)
