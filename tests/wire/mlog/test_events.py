"""Metadata events: what is not one of the seven is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.codec.errors import ProtocolError
from braidlog.wire.mlog.events import EVENTS, DeleteTopicEvent, MetadataEventType, decode_event, encode_event

from .strategies import any_of


@pytest.mark.parametrize("number", MetadataEventType)
@given(data=st.data())
def test_an_event_makes_the_round_trip(number: MetadataEventType, data: st.DataObject) -> None:
    event = data.draw(any_of(EVENTS[number]))
    assert decode_event(encode_event(event)) == event


def test_keys_are_read_as_go_reads_them() -> None:
    assert decode_event(b'{"Data":{"TOPIC":"a","x":1},"EVENT_TYPE":1,"y":[]}') == DeleteTopicEvent("a")
    assert decode_event(b'{"event_type":1,"data":{}}') == DeleteTopicEvent()


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (b'{"event_type":7,"data":{}}', "type 7 is not known"),
        (b'{"event_type":65536,"data":{}}', "65535"),
        (b'{"event_type":-1,"data":{}}', ">= 0"),
        (b'{"event_type":"1","data":{}}', "got `str`"),
        (b'{"event_type":1}', "without data"),
        (b'{"event_type":1,"data":null}', "without data"),
        (b'{"event_type":1,"data":[]}', "DeleteTopicEvent"),
        (b'{"event_type":1,"data":"{}"}', "DeleteTopicEvent"),
        (b'{"event_type":1,"data":{"topic":7}}', "DeleteTopicEvent"),
        (b'{"event_type":1,"data":{"topic":"\xff"}}', "utf-8"),
        (b'{"event_type":1,"data":{"topic":"a","Topic":"b"}}', "two spellings"),
        (b'{"event_type":3,"data":{"isr":1}}', "IsrUpdateEvent"),
        (b"", "truncated"),
        (b"[]", "got `array`"),
    ],
)
def test_what_is_no_event_is_refused(document: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        decode_event(document)
