"""Reads and changes quotas at run time.

Does not handle: throttling (`quotas.py`), the name of a rate in a wire protocol.
Invariants: an acknowledged rate is effective immediately and survives a crash, on every node that follows the
metadata. Unset rates come from the configuration.
"""

import ipaddress
from collections.abc import Mapping

from braidlog.cluster.metadata.events import Event, QuotaEntity, SetQuota
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.security.quotas import Quotas, check_rates

Changes = Mapping[str, float | None]
"""Rates by their names in the configuration; None removes a rate."""


class QuotaChanges:
    """Changes quotas and applies them."""

    def __init__(self, metadata: Metadata, quotas: Quotas) -> None:
        self._metadata = metadata
        self._quotas = quotas
        self.apply()

    def apply(self) -> None:
        """Apply the rates of the metadata."""
        self._quotas.administer(self._metadata.image.quota_rates())

    def limited(self) -> dict[QuotaEntity, dict[str, float]]:
        return self._quotas.limited()

    def check(self, entity: QuotaEntity, changes: Changes) -> None:
        """Raise if a rate could not be set."""
        for name in (entity.user, entity.client_id):
            if name and not (len(name) <= NAME_CHARS_MAX and name.isprintable()):
                raise BrokerError(
                    Reason.INVALID_SETTING, f"a user or a client id has 1 to {NAME_CHARS_MAX} printable characters"
                )
        if entity.address and not _is_address(entity.address):
            text = (
                f"{entity.address[:60]!r} is no address as connections come from: write it as 10.0.0.1 or 2001:db8::1"
            )
            raise BrokerError(Reason.INVALID_SETTING, text)
        rates = {name: value for name, value in changes.items() if value is not None}
        for value in rates.values():
            if value <= 0:
                raise BrokerError(
                    Reason.INVALID_SETTING, f"a quota is more than 0, not {value:g}; remove it to have none"
                )
        check_rates(entity, rates)

    async def change(self, wanted: Mapping[QuotaEntity, Changes]) -> None:
        """Set rates of these entities, all or none."""
        for entity, changes in wanted.items():
            self.check(entity, changes)

        def decide(image: Image) -> list[Event]:
            events: list[Event] = []
            every = image.quota_rates()
            for entity, changes in wanted.items():
                known = every.get(entity, {})
                rates = {name: value for name, value in {**known, **changes}.items() if value is not None}
                if rates != known:
                    events.append(SetQuota.of(entity, rates))
            return events

        await self._metadata.change(decide)
        self.apply()


def _is_address(text: str) -> bool:
    """Return whether the text is an address in the operating system's format."""
    try:
        return str(ipaddress.ip_address(text)) == text
    except ValueError:
        return False
