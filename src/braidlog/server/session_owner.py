"""Who keeps account of sessions."""

from functools import cached_property

from braidlog.server.request_counters import RequestCounters
from braidlog.server.scheduler import FairTurns
from braidlog.server.session import Session


class SessionOwner:
    """Who keeps account of sessions: the listener."""

    @cached_property
    def counters(self) -> RequestCounters:
        """What its sessions count together."""
        return RequestCounters()

    @cached_property
    def fair_turns(self) -> FairTurns:
        """Where its sessions wait for the others."""
        return FairTurns()

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session) -> None: ...

    def address_for(self, session: Session) -> tuple[str, int]:
        raise NotImplementedError
