"""Settings of consumer groups that an administrator sets while nodes run.

Knows: which settings were set, for which group. Does not know: how a group uses them (`coordinator/consumer_groups`), how a
dialect spells them. Invariant: a setting that was acknowledged holds on every node that follows the metadata, and after a crash;
where none is set the configuration's holds.
"""

from collections.abc import Mapping

import msgspec

from braidlog.cluster.metadata.events import Event, SetGroup
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.coordinator.consumer_groups.service import ConsumerGroupSettings
from braidlog.coordinator.offsets import check_group_name
from braidlog.model.errors import BrokerError, Reason


class GroupSettings:
    """The use case."""

    def __init__(self, metadata: Metadata, defaults: ConsumerGroupSettings) -> None:
        self._metadata = metadata
        self._defaults = defaults

    def settings_of(self, group: str) -> ConsumerGroupSettings:
        """Return the settings that hold for a group. The configuration may have changed since: members report within their
        session timeout all the same."""
        found = self._merged(self.changed(group))
        most = found.bounds["heartbeat_interval_ms"][1]
        return (
            found if found.heartbeat_interval_ms <= most else msgspec.structs.replace(found, heartbeat_interval_ms=most)
        )

    def changed(self, group: str) -> dict[str, int]:
        """Return the settings of a group that were set at run time."""
        return self._metadata.image.group_settings.get(group, {})

    def changed_groups(self) -> list[str]:
        """Return the groups that have settings of their own."""
        return sorted(self._metadata.image.group_settings)

    async def change(
        self, group: str, changes: Mapping[str, int | None], *, others_to_default: bool, validate_only: bool
    ) -> None:
        """Set some settings of a group; None: to the configuration's value. All or none; durable when this returns."""
        check_group_name(group)

        def decide(image: Image) -> list[Event]:
            known = image.group_settings.get(group, {})
            wanted = {**({} if others_to_default else known), **changes}
            settings = {name: value for name, value in wanted.items() if value is not None}
            for name, (low, high) in (merged := self._merged(settings)).bounds.items():
                if not low <= (value := getattr(merged, name)) <= high:
                    raise BrokerError(Reason.INVALID_SETTING, f"{name} must be {low} to {high}, not {value}")
            return [SetGroup(group=group, settings=settings)] if settings != known else []

        if validate_only:
            self._metadata.image.check_all(decide(self._metadata.image))
        else:
            await self._metadata.change(decide)

    def _merged(self, settings: Mapping[str, int]) -> ConsumerGroupSettings:
        return msgspec.structs.replace(self._defaults, **settings) if settings else self._defaults
