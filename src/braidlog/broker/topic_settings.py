"""Reads and changes a topic's settings for administrators.

Does not handle: the effect of a setting, its name in a wire protocol.
Invariants: a change is checked as a whole before it is applied. An acknowledged change is durable and effective.
A setting counts as the topic's own exactly if its value differs from the node's default.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from braidlog.broker.topic_placement import Placement
from braidlog.broker.topics import Topics
from braidlog.coordinator.shards import STATE_SETTINGS, STATE_TOPIC
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import TopicSettings, settings_from

MIN_IN_SYNC = "min_in_sync"
"""Stored with a topic's replicas; administrators see it as a setting."""
_MIN_IN_SYNC_DEFAULT = 1
NOTED = "noted"
"""Foreign settings under their own names: changed one by one, removed by None."""


class Setting(msgspec.Struct, frozen=True):
    name: str
    value: Any
    default: Any

    @property
    def is_default(self) -> bool:
        return bool(self.value == self.default)


class Configs:
    """Describes and changes the settings of topics."""

    def __init__(self, topics: Topics, placement: Placement) -> None:
        self._topics = topics
        self._placement = placement

    def defaults(self) -> dict[str, Any]:
        """Return the settings of a new topic without explicit ones."""
        return {**msgspec.to_builtins(self._topics.defaults), MIN_IN_SYNC: _MIN_IN_SYNC_DEFAULT}

    def describe(self, topic: str) -> dict[str, Setting]:
        """Return all settings of a topic, by name."""
        found = self._topics.hosting.meta(topic)
        return self._described(found.settings, found.min_in_sync)

    def of_coordinators(self) -> dict[str, Setting]:
        """Return the settings of the coordinators' topic, also before it exists."""
        found = self._topics.hosting.topics.get(STATE_TOPIC)
        if found is None:
            return self._described(STATE_SETTINGS, _MIN_IN_SYNC_DEFAULT)
        return self._described(found.settings, found.min_in_sync)

    def _described(self, settings: TopicSettings, min_in_sync: int) -> dict[str, Setting]:
        values = {**msgspec.to_builtins(settings), MIN_IN_SYNC: min_in_sync}
        defaults = self.defaults()
        return {name: Setting(name, value, defaults[name]) for name, value in values.items()}

    def check_new(self, changes: Mapping[str, Any]) -> None:
        """Raise if a topic could not be created with these settings."""
        self._check({**self.defaults(), **changes, NOTED: self.noted({}, changes)})

    @staticmethod
    def noted(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, str]:
        """Return the noted settings after a change."""
        changed = changes.get(NOTED, {})
        if not isinstance(changed, Mapping):
            raise BrokerError(
                Reason.INVALID_SETTING, f"{NOTED} is a table of others' settings, not {str(changed)[:60]!r}"
            )
        wanted = {**before.get(NOTED, {}), **changed}
        return {name: value for name, value in wanted.items() if value is not None}

    async def alter(
        self,
        topic: str,
        changes: Mapping[str, Any],
        resets: Collection[str] = (),
        *,
        others_to_default: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change some settings, and reset others (or all others) to the node's default."""
        defaults = self.defaults()
        unknown = sorted({*changes, *resets} - defaults.keys())
        if unknown:
            raise BrokerError(
                Reason.INVALID_SETTING, f"{unknown[0][:60]!r} is none of a topic's settings: {', '.join(defaults)}"
            )
        before = {name: setting.value for name, setting in self.describe(topic).items()}
        start = defaults if others_to_default else before
        wanted = {**start, **{name: defaults[name] for name in resets}, **changes, NOTED: self.noted(start, changes)}
        self._check(wanted)
        if validate_only or wanted == before:
            return
        if wanted[MIN_IN_SYNC] != before[MIN_IN_SYNC]:
            await self._placement.set_min_in_sync(topic, wanted[MIN_IN_SYNC])
        settings = {name: value for name, value in wanted.items() if value != before[name] and name != MIN_IN_SYNC}
        if settings:
            await self._topics.alter(topic, settings)

    @staticmethod
    def _check(wanted: Mapping[str, Any]) -> TopicSettings:
        settings = dict(wanted)
        count = settings.pop(MIN_IN_SYNC)
        if not isinstance(count, int) or count < 1:
            raise BrokerError(Reason.INVALID_SETTING, f"{MIN_IN_SYNC} is a number from 1 on, not {count!r}")
        return settings_from(settings)
