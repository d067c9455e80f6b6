"""What the node says of itself to its operator.

Does not know the answer: `server/node_reporter.py` counts and measures.
"""

from collections.abc import Awaitable, Callable

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.reporting.node_report import NodeDescription

Describe = Callable[[bool], Awaitable[NodeDescription]]
"""describe(in full) → what the node says."""


async def no_description(_: bool) -> NodeDescription:  # noqa: FBT001 - a port's signature
    """Raise UNAVAILABLE: a node in another's program has none."""
    raise BrokerError(Reason.UNAVAILABLE, "this node was not started by `braid serve` and does not describe itself")
