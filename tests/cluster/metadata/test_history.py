"""What happened, in words: of every event, in order, each once, and no more than is kept."""

from typing import Any

import msgspec
import pytest
from tests.cluster.metadata.test_image import create
from tests.cluster.node import MetadataNode
from tests.cluster.test_membership import created, registered

from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata import history as histories
from braidlog.cluster.metadata.history import Cursor, History
from braidlog.cluster.metadata.image import Image
from braidlog.replication.assignment import Assignment, InSyncSetChange

LED = Assignment(replicas=(1, 2, 3), in_sync=(1, 2), leader=2, leader_epoch=2, partition_epoch=1)


def assign(after: Assignment) -> e.AssignPartition:
    return e.AssignPartition(topic="t", partition=0, leader_epoch=1, partition_epoch=0, after=after)


def told(*events: e.Event, image: Image | None = None) -> list[str]:
    """In words, what follows three registrations and a topic."""
    history, image = History(), image or Image()
    for before in (registered(1, 1), registered(2, 1), registered(3, 1), created()):
        image.apply(before)
    for number, event in enumerate(events):
        history.apply(image, event, number + 1, 1_000 * number)
    return [each.words for each in history.after()]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (e.FenceNode(node=3, incarnation=1), "node 3 fenced: other nodes do not hear it"),
        (e.DrainNode(node=3, incarnation=1, is_draining=True), "node 3 drains: it must not lead"),
        (e.DrainNode(node=3, incarnation=1, is_draining=False), "node 3 may lead again"),
        (e.RemoveNode(node_id="3"), "node 3 removed permanently"),
        (registered(3, 9, stopped_cleanly=True), "node 3 registered after a clean stop"),
        (create("u", "02"), "topic u created (partitions: 2, replicas: 1)"),
        (e.DeleteTopic(topic="t", topic_id="01", deleted_ms=1), "topic t deleted"),
        (assign(LED), "t/0: node 2 leads, epoch 2 (was node 1); in sync: 1, 2 (was 1, 2, 3)"),
        (assign(LED.with_leader(None)), "t/0: no node leads, epoch 3 (was node 1); in sync: 1, 2 (was 1, 2, 3)"),
        (
            assign(msgspec.structs.replace(LED, in_sync=(1, 2, 3), unclean_epoch=2)),
            "t/0: node 2 leads, epoch 2 (was node 1); records may be lost",
        ),
        (
            assign(Assignment(replicas=(1, 2, 3), in_sync=(1, 2, 3), leader=1, removing=(3,))),
            "t/0: moves to 1, 2",
        ),
        (assign(Assignment(replicas=(1, 2), in_sync=(1, 2), leader=1)), "t/0: in sync: 1, 2 (was 1, 2, 3); is on 1, 2"),
        (
            e.ChangeSet(
                topic="t",
                partition=0,
                change=InSyncSetChange(3, joins=False, incarnation=1, leader_epoch=1, partition_epoch=0),
            ),
            "t/0: in sync: 1, 2 (was 1, 2, 3)",
        ),
        (e.SetUser(user="ann", credentials={"x": e.Credential(b"SALT", 1, b"S", b"S")}), "user ann password changed"),
        (
            e.AddRule(principal="ann", topic="t", operations=("read", "write"), deny=True),
            "rule added: ann may not read, write t",
        ),
        (
            e.DropRule(principal="ann", topic="", operations=("cluster",)),
            "rule dropped: ann may cluster the cluster",
        ),
        (e.SetQuota.of(e.QuotaEntity("ann", ""), {"produce": 1.0}), "quotas of user ann, client id any set"),
        (e.SetGroup(group="g", settings={"session_timeout_ms": 1_000}), "settings of group g set"),
        (e.SetGroup(group="g", settings={}), "settings of group g dropped"),
    ],
)
def test_an_event_in_words(event: e.Event, words: str) -> None:
    assert told(event) == [words]


def test_every_event_has_words() -> None:
    """Of a partition the change is told, of everything else the event itself."""
    untold = {kind for kind in e.EVENTS.values() if issubclass(kind, (e.PartitionEvent, e.IdBlock, e.FolderMade))}
    assert histories.WORDS.keys() == set(e.EVENTS.values()) - untold


def test_what_a_registration_ends_is_told_of_each_partition() -> None:
    node, *partitions = told(registered(1, 9))
    assert node.startswith("node 1 registered after an unclean stop")
    assert [each.partition(" (was")[0] for each in partitions] == ["t/0: node 2 leads, epoch 2"]


def test_what_nodes_note_for_themselves_is_not_told() -> None:
    assert told(e.IdBlock(taken=2_000), e.FolderMade(topic="t", topic_id="01", node_id="1", partitions=1)) == []


def test_one_goes_on_after_the_last_that_was_seen() -> None:
    history, image = History(), Image()
    for seq, names in ((1, "ab"), (2, "c")):
        for name in names:
            history.apply(image, create(name, f"0{name}"), seq, seq * 1_000)
        history.finish(seq)
    assert [each.at for each in history.after()] == [(1, 0), (1, 1), (2, 0)]
    assert [each.at for each in history.after(Cursor(1, 0))] == [(1, 1), (2, 0)]
    assert [each.at for each in history.after(since_ms=1_500)] == [(2, 0)]
    assert [each.at for each in history.last(2)] == [(1, 1), (2, 0)]
    history.apply(Image(), create("a", "0a"), 1, 1_000)  # by another reader, to another image
    assert len(list(history.after())) == 3


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([e.FenceNode(node=1, incarnation=1), assign(LED)], "fenced"),
        ([e.DrainNode(node=1, incarnation=1, is_draining=True), assign(LED)], "drained"),
        ([assign(LED)], "moved"),
        ([e.ResignReplica(topic="t", partition=0, node=1, leader_epoch=1)], "resigned"),
        ([registered(1, 9)], "restarted"),
    ],
)
def test_a_leader_that_changes_is_counted_by_its_cause(events: list[e.Event], cause: str) -> None:
    history, image = History(), Image()
    for before in (registered(1, 1), registered(2, 1), registered(3, 1), created()):
        history.apply(image, before, 1, 0)
    for event in events:
        history.apply(image, event, 2, 0)
    assert {name: count for name, count in history.leader_changes.items() if count} == {cause: 1}


def test_the_story_of_a_partition_has_its_nodes_and_no_other_partition() -> None:
    history, image = History(), Image()
    for seq, event in enumerate(
        [
            *(registered(node, 1) for node in (1, 2, 3, 4)),
            created(),
            create("u", "02"),
            e.FenceNode(node=4, incarnation=1),
            e.FenceNode(node=1, incarnation=1),
            assign(LED),
            msgspec.structs.replace(assign(LED), partition=1),
        ],
        1,
    ):
        history.apply(image, event, seq, seq)
    assert [each.at.seq for each in history.partition_history("t", 0)] == [1, 2, 3, 5, 8, 9]


def test_no_more_is_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "KEPT_MAX", 3)
    history, image = History(), Image()
    for seq in range(1, 6):
        history.apply(image, create(f"t{seq}", f"0{seq}"), seq, 0)
    assert [each.at.seq for each in history.after()] == [3, 4, 5]


def test_a_node_that_is_started_again_knows_what_happened() -> None:
    node: Any = MetadataNode()
    node.run(node.topics.create("orders", 1))
    before = [(each.at, each.time_ms, each.words) for each in node.metadata.history.after()]
    assert [words for *_, words in before][-1] == "topic orders created (partitions: 1, replicas: 1)"
    after = node.restarted().metadata.history
    assert [(each.at, each.time_ms, each.words) for each in after.after()] == before
