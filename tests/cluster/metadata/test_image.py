"""The image: an event that makes no sense is refused, one that does changes what it says and nothing else."""

import msgspec
import pytest
from tests.refusals import refused_with

from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata.image import HANDLERS, Image, decode_image
from braidlog.cluster.metadata.image_state import DELETED_KEPT_MS
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import TopicSettings
from braidlog.replication.assignment import InSyncSetChange
from braidlog.replication.control.incarnation import Life


def create(name: str = "a", topic_id: str = "01", partitions: int = 2, **more: object) -> e.CreateTopic:
    fields = {"settings": TopicSettings(), "created_ms": 1, "replicas": ("0", "1"), **more}
    return e.CreateTopic(topic=name, topic_id=topic_id, partitions=partitions, **fields)  # type: ignore[arg-type]


def image_of(*events: e.Event) -> Image:
    image = Image()
    for event in events:
        image.check(event)
        image.apply(event)
    return image


REFUSED: list[tuple[e.Event, Reason]] = [
    (create(), Reason.TOPIC_EXISTS),
    (create("b", "02", 0), Reason.INVALID_PARTITION_COUNT),
    (create("b", "02", 10_001), Reason.INVALID_PARTITION_COUNT),
    (create("b", "02", min_in_sync=0), Reason.INVALID_SETTING),
    (e.DeleteTopic(topic="b", topic_id="01", deleted_ms=1), Reason.TOPIC_NOT_FOUND),
    (e.DeleteTopic(topic="a", topic_id="02", deleted_ms=1), Reason.TOPIC_NOT_FOUND),
    (e.AlterTopic(topic="a", topic_id="02", settings=TopicSettings()), Reason.TOPIC_NOT_FOUND),
    (e.AddPartitions(topic="a", topic_id="01", partitions=2), Reason.INVALID_PARTITION_COUNT),
    (e.PlaceTopic(topic="a", topic_id="01", replicas=("0",), min_in_sync=99), Reason.INVALID_SETTING),
    (e.ChangeLeader(topic="a", partition=2, leader_id="0", leader_epoch=9), Reason.PARTITION_NOT_FOUND),
    (e.ChangeLeader(topic="a", partition=0, leader_id="1", leader_epoch=1), Reason.STALE_LEADER_EPOCH),
    (e.ChangeLeader(topic="a", partition=0, leader_id="9", leader_epoch=2), Reason.REPLICA_NOT_FOUND),
    (e.AddNode(node_id="7", addr="h:1", epoch=4), Reason.STALE_LEADER_EPOCH),
    (e.RemoveNode(node_id="8"), Reason.REPLICA_NOT_FOUND),
    (e.DropUser(user="nobody"), Reason.USER_NOT_FOUND),
]


@pytest.mark.parametrize(("event", "reason"), REFUSED)
def test_refused(event: e.Event, reason: Reason) -> None:
    image = image_of(create(), e.AddNode(node_id="7", addr="h:1", epoch=5))
    before = msgspec.json.encode(image)
    with refused_with(reason):
        image.check(event)
    assert msgspec.json.encode(image) == before


def test_every_event_has_a_check_and_a_change() -> None:
    assert HANDLERS.keys() == set(e.EVENTS.values())


def test_a_list_is_checked_as_it_would_be_applied() -> None:
    image = image_of(create())
    delete = e.DeleteTopic(topic="a", topic_id="01", deleted_ms=1)
    image.check_all([delete, create("a", "02")])
    with pytest.raises(BrokerError):
        image.check_all([create("b", "02"), create("b", "03")])
    assert list(image.topics) == ["a"]
    assert not image.deleted


def test_leaders_and_in_sync_sets_are_fenced_by_their_epochs() -> None:
    nodes = [e.RegisterNode(node=node, incarnation=1, life=Life(boot_id="b", folder_id=f"f{node}")) for node in (0, 1)]
    image = image_of(
        *nodes,
        create(placement=((0, 1), (0, 1))),
        e.ChangeSet(topic="a", partition=1, change=InSyncSetChange(1, False, 0, 1, 0)),
        e.ChangeSet(topic="a", partition=1, change=InSyncSetChange(1, True, 1, 1, 1)),
        e.ChangeLeader(topic="a", partition=1, leader_id="1", leader_epoch=2),
    )
    untouched, changed = image.topics["a"].assignments
    assert (untouched.leader, untouched.in_sync, untouched.partition_epoch) == (0, (0, 1), 0)
    assert (changed.leader, changed.leader_epoch, changed.in_sync, changed.partition_epoch) == (1, 2, (0, 1), 3)
    assert changed.last_leader == 0


def test_a_single_node_is_followed_by_name() -> None:
    image = image_of(create(), e.ChangeLeader(topic="a", partition=1, leader_id="", leader_epoch=1))
    assert [(each.leader, each.in_sync) for each in image.topics["a"].assignments] == [(0, (0,)), (None, (0,))]
    assert (image.topics["a"].holder, image.topics["a"].observers) == ("0", ("1",))
    image.apply(e.PlaceTopic(topic="a", topic_id="01", replicas=("alpha", "2"), min_in_sync=2))
    image.apply(e.ChangeLeader(topic="a", partition=1, leader_id="alpha", leader_epoch=2))
    image.apply(e.AddPartitions(topic="a", topic_id="01", partitions=3))
    topic = image.topics["a"]
    assert (topic.holder, topic.observers, topic.min_in_sync) == ("alpha", ("2",), 2)
    assert [(each.replicas, each.leader) for each in topic.assignments] == [((0,), 0)] * 3, (
        "a name that is no number is node 0"
    )


def test_deleted_ids_are_remembered_for_a_while() -> None:
    image = image_of(create(), e.DeleteTopic(topic="a", topic_id="01", deleted_ms=5), create("a", "02"))
    assert image.deleted == {"01": 5}
    image.apply(e.DeleteTopic(topic="a", topic_id="02", deleted_ms=6 + DELETED_KEPT_MS))
    assert list(image.deleted) == ["02"]


def test_a_snapshot_is_the_image() -> None:
    credential = e.Credential(b"salt", 4096, b"stored", b"server")
    image = image_of(
        create(),
        e.AddNode(node_id="7", addr="h:1", epoch=5),
        e.SetUser(user="alice", credentials={"SCRAM-SHA-256": credential}),
        e.AddRule(principal="alice", topic="*", operations=("read",)),
        e.AddRule(principal="alice", topic="*", operations=("read",)),
        e.AddRule(principal="bob", topic="*", operations=("read",)),
        e.DropRule(principal="bob", topic="*", operations=("read",)),
        e.IdBlock(taken=2000),
        e.SetQuota(principal="", rates={"append_bytes_per_second": 5.0}),
        e.SetQuota(principal="bob", rates={"append_bytes_per_second": 5.0}),
        e.SetQuota(principal="bob", rates={}),
        e.SetQuota.of(e.QuotaEntity("", "app"), {"append_bytes_per_second": 6.0}),
        e.SetQuota.of(e.QuotaEntity(client_id="app"), {"append_bytes_per_second": 7.0}),
        e.SetQuota.of(e.QuotaEntity(client_id="app"), {}),
        e.SetGroup(group="g", settings={"session_timeout_ms": 50_000}),
        e.SetGroup(group="h", settings={"session_timeout_ms": 50_000}),
        e.SetGroup(group="h", settings={}),
        e.SetGroup(group="h", settings={}),
    )
    assert image.group_settings == {"g": {"session_timeout_ms": 50_000}}
    assert len(image.rules) == 1
    assert image.quotas == {"": {"append_bytes_per_second": 5.0}}
    app = {e.QuotaEntity("", "app"): {"append_bytes_per_second": 6.0}}
    assert image.quota_rates() == {e.QuotaEntity(""): {"append_bytes_per_second": 5.0}, **app}
    assert image.copy() == image
    assert msgspec.json.decode(msgspec.json.encode(image), type=Image) == image
    image.check(e.DropUser(user="alice"))
    image.apply(e.DropUser(user="alice"))
    image.apply(e.RemoveNode(node_id="7"))
    assert (image.users, image.nodes) == ({}, {})


def test_an_image_of_another_version_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="another version"):
        decode_image(b'{"version":99}')


def test_an_image_that_needs_a_later_cluster_version_is_refused() -> None:
    """Its events are gone, and what this version would not know of them is in it."""
    image = Image()
    image.cluster.version = e.CLUSTER_VERSION + 1
    with pytest.raises(msgspec.ValidationError, match="upgrade this node"):
        decode_image(msgspec.json.encode(image))
