"""The connection of a session: errors in frames are revealed only to authenticated clients.

Before AUTH every request gets one answer (the Mayfly page, §5), so that clients cannot find out which commands exist.
A `Refused` goes directly to the client; so those that leave the connection open become requests, and the adapter
answers them.
"""

from braidlog.wire.contract import NeedData
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Burst, RefusedFrame, Request, ServerConnection

BURST_MAX = 256
"""Maximum requests of a burst: enough to share the cost of a read, few enough to yield to other clients."""


class RejectedRequest(m.Message, frozen=True):
    """A request for a frame that is not a message, with its error."""

    failure: m.Failure


class SessionConnection(ServerConnection):
    """The connection that the adapter opens for each client."""

    def __init__(self) -> None:
        super().__init__(burst_max=BURST_MAX)

    def next_event(self) -> Request | Burst | RefusedFrame | NeedData:
        event = super().next_event()
        if type(event) is RefusedFrame and not event.close:
            return Request(event.id, RejectedRequest(event.answer))
        return event
