"""What earlier versions wrote is read: an image and entries of the first version, as a node wrote them."""

from pathlib import Path

import msgspec
import pytest

from braidlog.cluster import events as e
from braidlog.cluster.image import Image
from braidlog.cluster.image_state import IMAGE_VERSION
from braidlog.cluster.old_images import decode_image

FIRST = Path(__file__).with_name("vectors") / "image_version_1.json"
"""Written by the release before assignments had numbers: node n1, followed by an mlog peer; a topic that it leads half of."""


def test_an_image_of_the_first_version() -> None:
    image = decode_image(FIRST.read_bytes())
    topic = image.topics["a"]
    assert (topic.holder, topic.observers, topic.created_by) == ("n1", ("peer",), "root")
    led, followed = topic.assignments
    assert (led.replicas, led.in_sync, led.leader, led.leader_epoch) == ((0,), (0,), 0, 1)
    assert (followed.leader, followed.partition_epoch) == (None, 1)
    assert image.users["alice"]["SCRAM-SHA-256"].salt == b"salt"
    assert (image.deleted, image.made, image.version) == ({"02": 5}, {"01": {"n1": 2}}, IMAGE_VERSION)
    assert decode_image(msgspec.json.encode(image)) == image


def test_entries_of_the_first_version_make_the_same_image() -> None:
    """A log without a snapshot: the events were the same, what they mean is what the old image says."""
    old = msgspec.json.decode(FIRST.read_bytes())["topics"]["a"]
    written = [
        {key: old[key] for key in ("topic_id", "settings", "created_ms", "min_in_sync", "replicas", "created_by")}
        | {"topic": "a", "partitions": 2, "leader_epoch": 1},
        {"topic": "a", "partition": 1, "leader_id": "", "leader_epoch": 1},
    ]
    envelopes = [
        e.Envelope(number, msgspec.Raw(msgspec.json.encode(data))) for number, data in zip((0, 2), written, strict=True)
    ]
    image = Image()
    for event in e.unpack(envelopes):
        image.apply(event)
    expected = decode_image(FIRST.read_bytes()).topics["a"]
    assert [each.leader for each in image.topics["a"].assignments] == [each.leader for each in expected.assignments]
    assert (image.topics["a"].holder, image.topics["a"].observers) == (expected.holder, expected.observers)


def test_topics_from_before_the_replication_factor_was_kept_have_none() -> None:
    image = Image()
    (event,) = e.unpack(
        [
            e.Envelope(
                0,
                msgspec.Raw(
                    b'{"topic":"a","topic_id":"01","partitions":1,"settings":{},"created_ms":1,"replicas":["1"],"placement":[[1,2]]}'
                ),
            )
        ]
    )
    image.apply(event)
    written = msgspec.json.decode(msgspec.json.encode(image))
    assert written["topics"]["a"].pop("replication_factor") == 0
    topic = decode_image(msgspec.json.encode(written)).topics["a"]
    assert topic == image.topics["a"]
    assert topic.copies == 2
    assert not topic.lacks_replicas(topic.assignments[0])


def test_an_image_of_a_later_version_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="later version"):
        decode_image(b'{"version":99}')


def test_an_image_that_needs_a_later_cluster_version_is_refused() -> None:
    """Its events are gone, and what this version would not know of them is in it."""
    image = Image()
    image.cluster.version = e.CLUSTER_VERSION + 1
    with pytest.raises(msgspec.ValidationError, match="upgrade this node"):
        decode_image(msgspec.json.encode(image))
