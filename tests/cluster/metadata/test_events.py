"""Events as they are written: the numbers and names that mlog has are kept, and nothing unknown is passed over."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from braidlog.cluster.metadata import events as e

VECTORS = Path(__file__).with_name("vectors") / "published_events.vec"
PUBLISHED = [json.loads(found) for found in re.findall(r"`(.*)`", VECTORS.read_text("utf-8"))]
SHARED = {
    0: {"topic", "leader_epoch", "replicas"},
    1: {"topic"},
    2: {"topic", "leader_id", "leader_epoch"},
    4: {"node_id", "addr"},
    5: {"node_id"},
}


@pytest.mark.parametrize("number", SHARED)
def test_the_published_events_keep_their_numbers_and_names(number: int) -> None:
    published = [set(event["data"]) for event in PUBLISHED if event["event_type"] == number]
    ours = {field.encode_name for field in msgspec.structs.fields(e.EVENTS[number])}
    assert published
    assert all(SHARED[number] <= names & ours for names in published)


def test_the_number_of_a_published_event_that_is_not_written_stays_free() -> None:
    """IsrUpdate (3) has an in-sync set without an epoch; ours is changed by `ChangeSet`."""
    assert 3 in {event["event_type"] for event in PUBLISHED}
    assert 3 not in e.EVENTS


def test_an_event_in_its_envelope() -> None:
    events = [e.RemoveNode(node_id="n2"), e.IdBlock(taken=2000)]
    written = msgspec.json.encode(e.pack(events))
    assert written == (b'[{"event_type":5,"data":{"node_id":"n2"}},{"event_type":103,"data":{"taken":2000}}]')
    assert e.unpack(msgspec.json.decode(written, type=list[e.Envelope])) == events


def test_an_event_of_a_later_version_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="999"):
        e.unpack([e.Envelope(999, msgspec.Raw(b"{}"))])
