"""What the node says of itself to who runs it.

Knows: that whoever counts and measures (`server/reporting.py`) has been asked to answer. Refuses to know: the answer.
"""

from collections.abc import Awaitable, Callable

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.report import NodeDescription


class SelfDescription:
    """The use case."""

    def __init__(self) -> None:
        self.answer: Callable[[bool], Awaitable[NodeDescription]] | None = None
        """Whether in full. Set by who runs the node: a node in another's program has none."""

    async def describe(self, *, in_full: bool) -> NodeDescription:
        if self.answer is None:
            raise BrokerError(
                Reason.UNAVAILABLE, "this node was not started by `braid serve` and does not describe itself"
            )
        return await self.answer(in_full)
