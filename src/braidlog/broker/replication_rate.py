"""How fast records leave this node for followers that are not in sync.

Knows: the figure. Refuses to know: who keeps to it.
As configured, or as an administrator has asked since this node's start; who starts it again takes that back.
"""

from braidlog.model.settings import UNLIMITED


class ReplicationRate:
    """In bytes a second, for all followers together."""

    def __init__(self, configured: float = UNLIMITED) -> None:
        self.configured = configured
        self.asked: int | None = None

    @property
    def bytes_per_second(self) -> float:
        return self.configured if self.asked is None else self.asked
