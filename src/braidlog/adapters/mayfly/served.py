"""The connection as a session serves it: what is wrong with a frame is told only to who may know it.

Knows: which refusals leave the connection open. Refuses to know: bytes, and who the client is.
Before AUTH everything gets one answer (the Mayfly page, §5), so that nobody can find out which commands exist. A refusal goes
straight to the client; so those that leave the connection open become requests, and the adapter decides.
"""

from braidlog.wire.contract import NeedData
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Burst, RefusedFrame, Request, ServerConnection

BURST_MAX = 256
"""Requests that are served as one: enough to share what each read costs, few enough for others to have their turn."""


class Unserved(m.Message, frozen=True):
    """In place of a message: a frame that is none, and what is to be said about it."""

    failure: m.Failure


class ServedConnection(ServerConnection):
    """What the adapter opens for each client."""

    def __init__(self) -> None:
        super().__init__(burst_max=BURST_MAX)

    def next_event(self) -> Request | Burst | RefusedFrame | NeedData:
        event = super().next_event()
        if type(event) is RefusedFrame and not event.close:
            return Request(event.id, Unserved(event.answer))
        return event
