"""Quotas that an administrator sets while the node runs.

Knows: which rates were set, for whom. Refuses to know: how anybody is slowed down (`quotas.py`), how a dialect spells a rate.
Invariants: a rate that was acknowledged holds at once and after a crash; where none is set the configuration's holds.
"""

from collections.abc import Mapping

from braidlog.broker.quotas import Quotas, Rates
from braidlog.cluster.events import Event, SetQuota
from braidlog.cluster.image import Image
from braidlog.cluster.store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX

Changes = Mapping[str, float | None]
"""Rates by the names of the configuration; None: no longer set."""


class QuotaChanges:
    """The use case."""

    def __init__(self, metadata: Metadata, quotas: Quotas) -> None:
        self._metadata = metadata
        self._quotas = quotas
        self.apply()

    def apply(self) -> None:
        """Those of the metadata hold from now on."""
        self._quotas.administer(dict(self._metadata.image.quotas))

    def limited(self) -> dict[str | None, Rates]:
        return self._quotas.limited()

    def check(self, principal: str | None, changes: Changes) -> None:
        """Refuse what could not be set. None is whoever has no rates of its own."""
        if principal is not None and not (1 <= len(principal) <= NAME_CHARS_MAX and principal.isprintable()):
            raise BrokerError(Reason.INVALID_SETTING, f"a principal has 1 to {NAME_CHARS_MAX} printable characters")
        for name, value in changes.items():
            if value is not None and value <= 0:
                raise BrokerError(
                    Reason.INVALID_SETTING, f"a quota is more than 0, not {value:g}; remove it to have none"
                )
            Rates().with_rates({} if value is None else {name: value})

    async def change(self, wanted: Mapping[str | None, Changes]) -> None:
        """Set rates of these principals, all or none."""
        for principal, changes in wanted.items():
            self.check(principal, changes)

        def decide(image: Image) -> list[Event]:
            events: list[Event] = []
            for principal, changes in wanted.items():
                known = image.quotas.get(principal or "", {})
                rates = {name: value for name, value in {**known, **changes}.items() if value is not None}
                if rates != known:
                    events.append(SetQuota(principal=principal or "", rates=rates))
            return events

        await self._metadata.change(decide)
        self.apply()
