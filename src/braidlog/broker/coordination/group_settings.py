"""Settings of consumer groups that an administrator changes at run time.

Does not handle: the effect of a setting (`coordinator/consumer_groups`), its name in a wire protocol.
Invariant: an acknowledged setting applies on every node that follows the metadata, and survives a crash. Unset
settings come from the configuration.
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
    """Reads and changes the settings of consumer groups."""

    def __init__(self, metadata: Metadata, defaults: ConsumerGroupSettings) -> None:
        self._metadata = metadata
        self._defaults = defaults

    def settings_of(self, group: str) -> ConsumerGroupSettings:
        """Return the effective settings of a group. The heartbeat interval is capped by the session timeout, in case
        the configuration changed after the group's settings were set."""
        found = self._merged(self.changed(group))
        most = found.bounds["heartbeat_interval_ms"][1]
        return (
            found if found.heartbeat_interval_ms <= most else msgspec.structs.replace(found, heartbeat_interval_ms=most)
        )

    def changed(self, group: str) -> dict[str, int]:
        """Return the settings of a group that were set at run time."""
        return self._metadata.image.group_settings.get(group, {})

    def changed_groups(self) -> list[str]:
        """Return the groups that have run-time settings."""
        return sorted(self._metadata.image.group_settings)

    async def change(
        self, group: str, changes: Mapping[str, int | None], *, others_to_default: bool, validate_only: bool
    ) -> None:
        """Change some settings of a group; None resets to the configuration's value. All or none; durable on return."""
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
