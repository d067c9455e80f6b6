"""From the image, the folder and what is hosted to what is to be done: a table."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from braidlog.cluster.image import Assignment, Image, Topic
from braidlog.cluster.reconcile import (
    Action,
    Close,
    Describe,
    Follow,
    Lead,
    Make,
    Open,
    Remove,
    SetAside,
    reconcile,
)
from braidlog.model.settings import TopicSettings
from braidlog.storage.folder import TopicMeta

META = TopicMeta(name="a", topic_id="01", partitions=1, settings=TopicSettings(), created_ms=1)
TOPIC = Topic(
    name="a",
    topic_id="01",
    settings=TopicSettings(),
    created_ms=1,
    min_in_sync=1,
    replicas=("0",),
    assignments=(Assignment(("0",), "0", ("0",)),),
)
ALTERED = msgspec.structs.replace(TOPIC, settings=TopicSettings(retention_ms=7))
GROWN = msgspec.structs.replace(TOPIC, assignments=TOPIC.assignments * 2)
FOLLOWED = TOPIC.reassigned(0, TOPIC.assignments[0].changed(leader="9", leader_epoch=2))
LED = TOPIC.reassigned(0, TOPIC.assignments[0].changed(leader="0", leader_epoch=3))
NEWER = msgspec.structs.replace(TOPIC, topic_id="02")
THERE, GONE = Image({"a": TOPIC}), Image({}, {"01": 5})

CASES: list[tuple[Image, Sequence[TopicMeta], Mapping[str, Topic], list[Action]]] = [
    (THERE, [META], {"a": TOPIC}, []),
    (THERE, [META], {}, [Open(TOPIC, None)]),
    (THERE, [], {}, [Make(TOPIC), Open(TOPIC, None)]),
    (GONE, [META], {"a": TOPIC}, [Close(TOPIC), Remove(META)]),
    (GONE, [META], {}, [Remove(META)]),
    (GONE, [], {}, []),
    (Image(), [META], {}, [SetAside(META)]),
    (Image({"a": ALTERED}), [META], {"a": TOPIC}, [Describe(ALTERED, META), Open(ALTERED, TOPIC)]),
    (Image({"a": GROWN}), [META], {}, [Describe(GROWN, META), Open(GROWN, None)]),
    (Image({"a": FOLLOWED}), [META], {"a": TOPIC}, [Open(FOLLOWED, TOPIC), Follow(FOLLOWED, 0)]),
    (Image({"a": LED}), [META], {"a": FOLLOWED}, [Open(LED, FOLLOWED), Lead(LED, 0, 3)]),
    (
        Image({"a": NEWER}, {"01": 5}),
        [META],
        {"a": TOPIC},
        [Close(TOPIC), Remove(META), Make(NEWER), Open(NEWER, None)],
    ),
]


@pytest.mark.parametrize(("image", "found", "hosted", "actions"), CASES)
def test_actions(image: Image, found: Sequence[TopicMeta], hosted: Mapping[str, Topic], actions: list[Action]) -> None:
    assert list(reconcile(image, found, hosted, node="0")) == actions


def test_while_folders_cannot_be_read_none_is_made_in_their_place() -> None:
    assert list(reconcile(THERE, [], {}, node="0", may_make=False)) == [Open(TOPIC, None)]
