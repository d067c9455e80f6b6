"""From the image, the folder and what is hosted to what is to be done: a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.topic_state import Topic, held_alone
from braidlog.cluster.reconciliation import (
    Action,
    AddReplicas,
    Close,
    CreateFolder,
    Follow,
    Lead,
    Open,
    Quarantined,
    RecordFolderCreated,
    Remove,
    RemoveReplicas,
    UpdateFolder,
    reconcile,
)
from braidlog.model.settings import TopicSettings
from braidlog.storage.folder.data_folder import TopicMeta

META = TopicMeta(name="a", topic_id="01", partitions=1, settings=TopicSettings(), created_ms=1)
TOPIC = Topic(
    name="a",
    topic_id="01",
    settings=TopicSettings(),
    created_ms=1,
    min_in_sync=1,
    holder="0",
    assignments=held_alone("0", 1, 1),
)
ALTERED = msgspec.structs.replace(TOPIC, settings=TopicSettings(retention_ms=7))
GROWN = msgspec.structs.replace(TOPIC, assignments=TOPIC.assignments * 2)
FOLLOWED = TOPIC.changed(0, lambda known: known.with_leader(9))
LED = FOLLOWED.changed(0, lambda known: known.with_leader(0))
NEWER = msgspec.structs.replace(TOPIC, topic_id="02")
MADE = {"01": {"0": 1}}
CLUSTERED = msgspec.structs.replace(TOPIC, holder="")
MOVED = CLUSTERED.changed(0, lambda known: known.with_changes(replicas=(8, 9)))
WITHOUT = msgspec.structs.replace(META, absent=(0,))
THERE, NEVER_MADE, GONE = Image({"a": TOPIC}, made=MADE), Image({"a": TOPIC}), Image({}, {"01": 5})

CASES: list[tuple[Image, Sequence[TopicMeta], Mapping[str, Topic], list[Action]]] = [
    (THERE, [META], {"a": TOPIC}, []),
    (THERE, [META], {}, [Open(TOPIC, None)]),
    (NEVER_MADE, [], {}, [CreateFolder(TOPIC), RecordFolderCreated(TOPIC), Open(TOPIC, None)]),
    (NEVER_MADE, [META], {}, [RecordFolderCreated(TOPIC), Open(TOPIC, None)]),
    (THERE, [], {}, [Open(TOPIC, None)]),
    (GONE, [META], {"a": TOPIC}, [Close(TOPIC), Remove(META)]),
    (GONE, [META], {}, [Remove(META)]),
    (GONE, [], {}, []),
    (Image(), [META], {}, [Quarantined(META)]),
    (Image({"a": ALTERED}, made=MADE), [META], {"a": TOPIC}, [UpdateFolder(ALTERED, META, 1), Open(ALTERED, TOPIC)]),
    (
        Image({"a": GROWN}, made=MADE),
        [META],
        {},
        [UpdateFolder(GROWN, META, 1), RecordFolderCreated(GROWN), Open(GROWN, None)],
    ),
    (Image({"a": GROWN}, made=MADE), [], {}, [Open(GROWN, None)]),
    (Image({"a": FOLLOWED}, made=MADE), [META], {"a": TOPIC}, [Open(FOLLOWED, TOPIC), Follow(FOLLOWED, 0)]),
    (Image({"a": LED}, made=MADE), [META], {"a": FOLLOWED}, [Open(LED, FOLLOWED), Lead(LED, 0, 3)]),
    (Image({"a": MOVED}, made=MADE), [META], {"a": CLUSTERED}, [Open(MOVED, CLUSTERED), RemoveReplicas(MOVED, (0,))]),
    (Image({"a": MOVED}, made=MADE), [META], {}, [Open(MOVED, None), RemoveReplicas(MOVED, (0,))]),
    (Image({"a": MOVED}, made=MADE), [WITHOUT], {}, [Open(MOVED, None)]),
    (Image({"a": MOVED}), [], {}, [CreateFolder(MOVED, (0,)), RecordFolderCreated(MOVED), Open(MOVED, None)]),
    (Image({"a": CLUSTERED}, made=MADE), [WITHOUT], {}, [AddReplicas(CLUSTERED, (0,)), Open(CLUSTERED, None)]),
    (
        Image({"a": NEWER}, {"01": 5}),
        [META],
        {"a": TOPIC},
        [Close(TOPIC), Remove(META), CreateFolder(NEWER), RecordFolderCreated(NEWER), Open(NEWER, None)],
    ),
]
"""A topic that was made and has no folder is opened all the same: whoever asks for it is told."""


@pytest.mark.parametrize("names", [None, {"a"}])
@pytest.mark.parametrize(("image", "found", "hosted", "actions"), CASES)
def test_actions(
    image: Image,
    found: Sequence[TopicMeta],
    hosted: Mapping[str, Topic],
    actions: list[Action],
    names: set[str] | None,
) -> None:
    assert named(reconcile(image, found, hosted, node="0", names=names)) == named(actions)


def named(actions: Iterable[Action]) -> list[tuple[object, ...]]:
    """With their kinds: as tuples, to remove a folder and to set it aside are equal."""
    return [(type(action).__name__, *action) for action in actions]


def test_a_folder_is_removed_only_if_the_image_says_so() -> None:
    assert named(reconcile(Image(), [META], {}, node="0")) == named([Quarantined(META)])
    assert named(reconcile(Image(deleted={META.topic_id: 5}), [META], {}, node="0")) == named([Remove(META)])


def test_what_the_folder_itself_remembers_is_not_made_again() -> None:
    assert named(reconcile(NEVER_MADE, [], {}, node="0", remembered=["a"])) == named([Open(TOPIC, None)])


class Counted(dict[str, Topic]):
    """Counts what is looked up, and cannot be walked."""

    looks = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("walked")

    values = items = keys = __iter__  # type: ignore[assignment]


def test_a_change_costs_what_it_changes() -> None:
    topics = {str(number): TOPIC for number in range(10_000)}
    image, hosted = Image(Counted(topics, a=ALTERED), made=MADE), Counted(topics, a=TOPIC)
    assert list(reconcile(image, [META], hosted, node="0", names={"a"}))
    assert image.topics.looks + hosted.looks < 10  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="walked"):
        list(reconcile(image, [META], hosted, node="0"))
