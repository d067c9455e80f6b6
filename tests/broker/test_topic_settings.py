"""A topic's settings: described with their defaults, changed at once and for good, refused as a whole."""

from typing import Any

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.broker.topic_settings import MIN_IN_SYNC
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import TopicSettings


@pytest.fixture
def node() -> Node:
    made = Node(defaults=TopicSettings(retention_ms=1000))
    made.create("a", 2, settings={"compact": True})
    return made


def alter(node: Node, *args: Any, **more: Any) -> None:
    node.run(node.services.configs.alter("a", *args, **more))


def own(node: Node) -> dict[str, Any]:
    """The settings that are not the node's defaults."""
    found = node.services.configs.describe("a")
    return {name: setting.value for name, setting in found.items() if not setting.is_default}


def test_everything_is_told_with_its_default(node: Node) -> None:
    found = node.services.configs.describe("a")
    assert set(found) == {*TopicSettings.__struct_fields__, MIN_IN_SYNC}
    assert (found["retention_ms"].value, found["retention_ms"].default) == (1000, 1000)
    assert (found["compact"].value, found["compact"].default) == (True, False)
    assert own(node) == {"compact": True}
    with pytest.raises(BrokerError):
        node.services.configs.describe("nope")


def test_changes_hold_at_once_and_after_a_restart(node: Node) -> None:
    hosted = node.services.hosting.partition("a", 1)
    alter(node, {"batch_bytes_max": 2048, "min_in_sync": 2, "flush": "os"}, ["compact"])
    assert hosted.log.settings.batch_bytes_max == 2048
    assert hosted.replicas.min_in_sync == 2
    with refused_with(Reason.RECORD_TOO_LARGE):
        node.append("a", b"x" * 3000)
    for each in (node, node.restarted()):
        assert each.services.hosting.meta("a").settings.batch_bytes_max == 2048
        assert each.services.hosting.meta("a").min_in_sync == 2
    assert own(node) == {"batch_bytes_max": 2048, "min_in_sync": 2, "flush": "os"}
    alter(node, {"segment_ms": 5}, others_to_default=True)
    assert own(node) == {"segment_ms": 5}
    assert hosted.replicas.min_in_sync == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonsense": 1},
        {"retention_ms": -2},
        {"retention_ms": "x"},
        {"min_in_sync": 0},
        {"min_in_sync": "x"},
        {"min_in_sync": 99},
    ],
)
def test_a_change_that_is_wrong_in_one_thing_changes_nothing(node: Node, wrong: dict[str, Any]) -> None:
    before = node.services.configs.describe("a")
    with refused_with(Reason.INVALID_SETTING):
        alter(node, {"segment_ms": 77, **wrong})
    assert node.services.configs.describe("a") == before
    with pytest.raises(BrokerError):
        alter(node, {}, ["nonsense"])


def test_looking_whether_it_could_be(node: Node) -> None:
    alter(node, {"segment_ms": 77}, validate_only=True)
    assert own(node) == {"compact": True}
    with pytest.raises(BrokerError):
        alter(node, {"segment_ms": 0}, validate_only=True)
    node.services.configs.check_new({"segment_ms": 77})
    with pytest.raises(BrokerError):
        node.services.configs.check_new({"segment_ms": 0})


def test_a_topic_may_need_replicas_from_the_start(node: Node) -> None:
    node.create("b", 1, min_in_sync=2)
    for each in (node, node.restarted()):
        assert each.services.hosting.partition("b", 0).replicas.min_in_sync == 2
