"""Any message of the dialect that a form can carry, made from the table of operations."""

from typing import Any, Final

from hypothesis import strategies as st

from braidlog.wire.rustlog import messages as m
from braidlog.wire.rustlog.messages import Form

u16: Final = st.integers(0, 2**16 - 1)
u32: Final = st.integers(0, 2**32 - 1)
u63: Final = st.integers(0, 2**63 - 1)
u64: Final = st.integers(0, 2**64 - 1)
text: Final = st.text(st.characters(codec="utf-8"), max_size=20)
blob: Final = st.binary(max_size=40)
even: Final = st.integers(0, 12).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=9))
records: Final = st.lists(blob, max_size=20) | even
ids: Final = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8"), max_size=256)
headers: Final = st.lists(st.tuples(text, st.none() | blob), max_size=3).map(tuple)
fetched: Final = st.builds(m.FetchedRecord, u63, u63, blob, st.none() | blob, headers)
topics: Final = st.lists(st.builds(m.TopicSummary, text, u32), max_size=5)
partitions: Final = st.lists(st.builds(m.PartitionSummary, u32, u63, u63, u63), max_size=5)
details: Final = st.dictionaries(text, st.none() | st.booleans() | u32 | text | st.lists(u32, max_size=3), max_size=3)


def _produce(values: list[bytes], keyed: bool, **fields: Any) -> m.Produce:
    keys = [value[:1] or None for value in values] if keyed else None
    return m.Produce(records=values, keys=keys, **fields)


def request(kind: type[m.Message], form: Form) -> st.SearchStrategy[Any]:
    """Any request of a type; in the binary form without the fields that only JSON carries."""
    json = form is Form.JSON
    fields: dict[str, Any] = {
        "topic": text,
        "partition": u32,
        "group": text,
        "group_id": text,
        "offset": u64,
        "max_bytes": u64 if json else u32,
        "partition_count": st.integers(1, 1000) if json else u32,
        "max_wait_ms": st.none() | u32 if json else st.none(),
        "id": ids if json else st.none(),
    }
    if kind is m.Produce:
        keyed = st.booleans() if json else st.just(False)
        return st.builds(_produce, records, keyed, topic=text, partition=u32, id=fields["id"])
    return st.builds(kind, **{name: fields[name] for name in kind.__struct_fields__})


answers: Final[dict[type, st.SearchStrategy[Any]]] = {
    m.ProduceResponse: st.builds(m.ProduceResponse, u64, u32),
    m.FetchResponse: st.builds(m.FetchResponse, st.lists(fetched, max_size=8), u64),
    m.BriefFetchResponse: st.builds(m.BriefFetchResponse, records, u64),
    m.OffsetCommitResponse: st.builds(m.OffsetCommitResponse, st.booleans()),
    m.OffsetFetchResponse: st.builds(m.OffsetFetchResponse, st.none() | u64),
    m.CreateTopicResponse: st.builds(m.CreateTopicResponse, st.booleans(), u32),
    m.BriefCreateTopicResponse: st.builds(m.BriefCreateTopicResponse, st.booleans()),
    m.ListTopicsResponse: st.builds(m.ListTopicsResponse, topics),
    m.DescribeTopicResponse: st.builds(m.DescribeTopicResponse, text, partitions),
    m.BriefDescribeTopicResponse: st.builds(
        m.BriefDescribeTopicResponse, text, u32, st.lists(st.builds(m.BriefPartition, u32, u64), max_size=5)
    ),
    m.DescribePartitionResponse: st.builds(m.DescribePartitionResponse, text, u32, u64, u64, u64),
    m.BriefDescribePartitionResponse: st.builds(m.BriefDescribePartitionResponse, text, u32, u64),
    m.MetricsFetchResponse: st.builds(m.MetricsFetchResponse, text),
    m.Pong: st.builds(m.Pong),
}
errors: Final = st.builds(m.Error, u16, text, st.none() | details)
brief_errors: Final = st.builds(m.Error, u16, text, st.none())
