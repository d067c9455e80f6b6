"""Settings of consumer groups set at run time: after a crash, before those of the configuration, and within bounds."""

from collections.abc import Mapping

import pytest
from tests.broker.node import Node
from tests.refusals import refused_with

from braidlog.broker.coordination.group_settings import GroupSettings
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata import image_checks
from braidlog.coordinator.consumer_groups.messages import JOIN, Heartbeat
from braidlog.coordinator.consumer_groups.service import ConsumerGroupSettings
from braidlog.model.errors import Reason

SESSION, BEAT = "session_timeout_ms", "heartbeat_interval_ms"


def change(
    node: Node, group: str, values: Mapping[str, int | None], *, others_to_default: bool = False, only: bool = False
) -> None:
    settings = node.services.group_settings
    node.run(settings.change(group, values, others_to_default=others_to_default, validate_only=only))


def test_a_setting_holds_after_a_crash_and_for_its_group_alone() -> None:
    node = Node()
    change(node, "g", {SESSION: 50_000})
    for each in (node, node.restarted()):
        assert each.services.group_settings.settings_of("g") == ConsumerGroupSettings(50_000, 5_000)
        assert each.services.group_settings.settings_of("h") == ConsumerGroupSettings()
        assert each.services.group_settings.changed_groups() == ["g"]


def test_what_is_not_named_stays_or_returns_to_the_configuration() -> None:
    node = Node()
    settings = node.services.group_settings
    change(node, "g", {SESSION: 50_000})
    change(node, "g", {BEAT: 4_000})
    assert settings.changed("g") == {SESSION: 50_000, BEAT: 4_000}
    change(node, "g", {BEAT: 3_000}, only=True)
    assert settings.changed("g") == {SESSION: 50_000, BEAT: 4_000}, "it was only checked"
    change(node, "g", {BEAT: 3_000}, others_to_default=True)
    assert settings.changed("g") == {BEAT: 3_000}
    change(node, "g", {BEAT: None})
    assert settings.changed_groups() == []
    assert node.services.metadata.image.group_settings == {}


def test_members_of_a_group_are_expired_by_its_own_session_timeout() -> None:
    node = Node()
    node.create("a")
    joining = Heartbeat(member="m", epoch=JOIN, topics=["a"], rebalance_timeout_ms=60_000, owned={})
    for group in ("g", "h"):
        node.run(node.groups.consumer.heartbeat(group, joining))
    change(node, "g", {SESSION: 10_000})
    node.runtime.advance(10_001)
    assert node.run(node.groups.expire()) == {"g": ["m"]}


def test_members_report_within_their_session_timeout_when_the_configuration_has_changed() -> None:
    node = Node()
    change(node, "g", {SESSION: 10_000})
    later = GroupSettings(node.services.metadata, ConsumerGroupSettings(60_000, 20_000))
    assert later.settings_of("g") == ConsumerGroupSettings(10_000, 9_999)
    assert later.settings_of("h") == ConsumerGroupSettings(60_000, 20_000)


@pytest.mark.parametrize("only", [True, False])
@pytest.mark.parametrize("values", [{SESSION: 99}, {SESSION: 1_800_001}, {BEAT: 9}, {BEAT: 45_000}, {SESSION: 5_000}])
def test_values_that_a_group_cannot_have(values: dict[str, int], only: bool) -> None:
    node = Node()
    with refused_with(Reason.INVALID_SETTING, match=f"must be .* not {min(values.values())}"):
        change(node, "g", values, only=only)
    assert node.services.group_settings.changed_groups() == []


def test_groups_with_settings_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_checks, "GROUPS_MAX", 1)
    node = Node()
    change(node, "g", {SESSION: 50_000})
    with refused_with(Reason.QUOTA_EXCEEDED, match="limit of 1 groups with settings"):
        change(node, "h", {SESSION: 50_000})
    change(node, "g", {SESSION: None})
    change(node, "h", {SESSION: 50_000})


def test_nodes_of_an_older_version_are_upgraded_first() -> None:
    """They would stop before the event: they do not know it."""
    assert e.version_of(e.SetGroup(group="g", settings={})) == 2
    assert e.RegisterNode(node=1, incarnation=1, life=None).versions == (1, 2)  # type: ignore[arg-type]
