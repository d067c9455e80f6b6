"""The fast reader and the careful one agree, and both follow Go."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.codec.errors import ProtocolError
from braidlog.wire.mlog.gojson import INT64_MAX, GoReader, write
from braidlog.wire.mlog.messages import (
    CommitOffsetRequest,
    FetchBatchRequest,
    ListTopicsResponse,
    ProduceBatchRequest,
    ProduceRequest,
    ReplicaInfo,
    ReplicateResponse,
    TopicInfo,
)
from braidlog.wire.mlog.operations import NUMBER_OF

from .strategies import any_of

TYPES = [pytest.param(message_type, id=message_type.__name__) for message_type in NUMBER_OF]


@pytest.mark.parametrize("message_type", TYPES)
@given(data=st.data())
def test_both_readers_read_what_is_written(message_type: Any, data: st.DataObject) -> None:
    message = data.draw(any_of(message_type))
    reader = GoReader(message_type)
    payload = write(message)
    assert reader.read(payload) == message
    assert reader.read_by_rules(payload) == message


@pytest.mark.parametrize("message_type", TYPES)
@given(data=st.data())
def test_case_extras_and_order_do_not_matter(message_type: Any, data: st.DataObject) -> None:
    message = data.draw(any_of(message_type))
    pairs = list(json.loads(write(message)).items())
    respelled = [(data.draw(st.sampled_from([key, key.lower(), key.upper(), key.swapcase()])), v) for key, v in pairs]
    respelled += [("unknown", [{"a": None}]), ("Ünknown", "x")]
    document = json.dumps(dict(data.draw(st.permutations(respelled)))).encode()
    assert GoReader(message_type).read(document) == message


@pytest.mark.parametrize("message_type", TYPES)
def test_nothing_is_the_zero_value(message_type: Any) -> None:
    reader = GoReader(message_type)
    assert reader.read(b"{}") == reader.read(b"null") == reader.read_by_rules(b"{}") == message_type()


def test_an_offset_beyond_every_log_is_as_far_as_can_be() -> None:
    reader = GoReader(CommitOffsetRequest)
    assert reader.read(b'{"Offset":9223372036854775807}').offset == INT64_MAX
    assert reader.read(b'{"Offset":9223372036854775808}').offset == INT64_MAX
    assert reader.read(b'{"Offset":18446744073709551615}').offset == INT64_MAX
    with pytest.raises(ProtocolError):
        reader.read(b'{"Offset":18446744073709551616}')
    with pytest.raises(ProtocolError):
        GoReader(ReplicateResponse).read(b'{"LeaderLEO":9223372036854775808}')
    with pytest.raises(ProtocolError):
        GoReader(FetchBatchRequest).read(b'{"MaxCount":9223372036854775808}')


@pytest.mark.parametrize("depth", [31, 32])
def test_depth_is_limited(depth: int) -> None:
    document = b'{"x":' + b"[" * depth + b"]" * depth + b"}"
    reader = GoReader(ProduceRequest)
    if depth == 31:
        assert reader.read(document) == ProduceRequest()
    else:
        with pytest.raises(ProtocolError, match="nested deeper"):
            reader.read(document)


def test_values_are_limited() -> None:
    reader = GoReader(ProduceBatchRequest)
    assert len(reader.read(b'{"Values":[' + b'"YQ==",' * 199_997 + b'"YQ=="]}').values or ()) == 199_998
    with pytest.raises(ProtocolError, match="values, the limit is"):
        reader.read(b'{"Values":[' + b'"YQ==",' * 199_999 + b'"YQ=="]}')


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    for document in (
        b'{"Topic":7,"Value":"c2VjcmV0"}',
        b'{"Value":"secret!"}',
        b'{"secret":1,"Acks":"secret"}',
        b'"secret"',
    ):
        with pytest.raises(ProtocolError) as caught:
            GoReader(ProduceRequest).read(document)
        assert "secret" not in str(caught.value)
        assert "c2Vj" not in str(caught.value)
        assert "ProduceRequest" in str(caught.value)


def test_nested_nulls_are_zero_values() -> None:
    document = b'{"Topics":[{"Replicas":[null]},null]}'
    assert GoReader(ListTopicsResponse).read(document) == ListTopicsResponse(
        (TopicInfo(replicas=(ReplicaInfo(),)), TopicInfo())
    )
