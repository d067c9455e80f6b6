"""Messages for hypothesis, one strategy per row of the table."""

from hypothesis import strategies as st

from braidlog.wire.flux.messages import (
    Acks,
    Answer,
    Assignor,
    ConsumedRecord,
    Encoding,
    ErrorCode,
    Failed,
    Produce,
    Request,
    Role,
)
from braidlog.wire.flux.operations import Operation
from braidlog.wire.flux.records import plain_text_problem

I32 = st.integers(0, 2**31 - 1)
OFFSET = st.integers(0, 2**63 - 1)
ANY = st.integers(-(2**63), 2**63 - 1)
HW = st.integers(-1, 2**63 - 1)
LETTERS = st.characters(codec="utf-8").filter(lambda letter: letter != " " and letter.isprintable())
NAME = st.text(LETTERS, min_size=1, max_size=249)
LISTED = st.text(LETTERS.filter(lambda letter: letter not in "[]="), min_size=1, max_size=20)
IDS = st.text(st.characters(codec="utf-8", exclude_characters="|\n"), min_size=1, max_size=20).filter(
    lambda text: text != "0"
)
KEY = st.binary(max_size=40)
IN_SYNC = st.lists(I32, min_size=1, max_size=5).map(tuple)

FIELDS = {
    "topic": NAME,
    "group": NAME,
    "consumer_id": NAME,
    "host": NAME,
    "partition": I32,
    "offset": OFFSET,
    "generation": ANY,
    "assignor": st.none() | st.sampled_from(Assignor),
    "replica_id": st.integers(1, 2**31 - 1),
    "follower_id": I32,
    "timeout_ms": st.integers(1, 2**31 - 1),
    "reconciled": I32,
    "elected_changes": I32,
    "fenced": st.lists(I32, max_size=5).map(tuple),
    "role": st.sampled_from(Role),
    "partitions": st.integers(1, 2**31 - 1),
    "replication_factor": st.integers(1, 2**31 - 1),
    "broker_id": I32,
    "port": st.integers(1, 65535),
    "epoch": st.none() | OFFSET,
    "leader": I32,
    "in_sync": IN_SYNC,
    "encoding": st.sampled_from(Encoding),
    "records_max": st.none() | st.integers(1, 2**31 - 1),
    "wait_ms": st.integers(0, 60_000),
    "high_watermark": HW,
    "assigned": st.lists(I32, max_size=5).map(tuple),
    "acked_offset": OFFSET,
    "under_replicated": st.booleans(),
    "term": ANY,
    "index": ANY,
    "topics": st.lists(LISTED, max_size=5).map(tuple),
    "brokers": st.lists(I32, max_size=5).map(tuple),
}


def _is_word(data: bytes) -> bool:
    return (b"x" + data).split() == [b"x" + data]


PLAIN_KEY = KEY.filter(lambda data: b":" not in data and _is_word(data))
PLAIN_VALUE = st.binary(max_size=60).filter(_is_word)
SHOWABLE = (st.text(max_size=30).map(lambda text: text.encode()) | st.binary(max_size=30)).filter(
    lambda value: plain_text_problem(value) is None
)

PRODUCE = st.builds(Produce, IDS, NAME, PLAIN_KEY, PLAIN_VALUE, st.sampled_from(Acks)) | st.builds(
    Produce,
    IDS,
    NAME,
    st.none() | KEY,
    st.none() | st.binary(max_size=60),
    st.sampled_from(Acks),
    st.just(Encoding.BASE64),
)


def requests(operation: Operation) -> st.SearchStrategy[Request]:
    if operation.request is Produce:
        return PRODUCE
    fields = operation.request.__struct_fields__[1:]
    return st.builds(operation.request, correlation_id=IDS, **{name: FIELDS[name] for name in fields})


@st.composite
def records(draw: st.DrawFn, encoding: Encoding) -> tuple[ConsumedRecord, ...]:
    offsets = sorted(draw(st.sets(OFFSET, max_size=8)))
    if encoding is Encoding.PLAIN:
        return tuple(ConsumedRecord(offset, None, draw(SHOWABLE)) for offset in offsets)
    data = st.none() | KEY
    return tuple(ConsumedRecord(offset, draw(data), draw(data)) for offset in offsets)


def answers(operation: Operation, request: Request) -> st.SearchStrategy[Answer]:
    fields = {name: FIELDS.get(name) for name in operation.answer.__struct_fields__}
    if "records" in fields:
        fields["records"] = records(getattr(request, "encoding", Encoding.PLAIN))
    if operation.command == "OFFSET":
        fields["offset"] = HW
    message = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=80)
    failed = st.builds(Failed, st.sampled_from(ErrorCode), message)
    known = {name: strategy for name, strategy in fields.items() if strategy is not None}
    assert len(known) == len(fields), f"no strategy for {set(fields) - set(known)}"
    return st.builds(operation.answer, **known) | failed
