"""A connection between nodes that is given up while it is read."""

import asyncio
from typing import Any

from tests.server.peers.station import play

from braidlog.server.peers.peer_link import PeerLink
from braidlog.wire.kafka.connection import Response


class Transport:
    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted


class TwoAnswers:
    """What a connection has read: both at once."""

    def __init__(self) -> None:
        self._events: list[Any] = ["first", "second"]

    def receive_buffer(self) -> None: ...

    def receive(self, data: bytes) -> None: ...

    def next_event(self) -> Any:
        return self._events.pop(0)


@play
async def test_who_is_given_up_for_its_answer_ends_after_it_was_read() -> None:
    """uvloop's TLS fails if its transport ends while it hands over what it has read."""
    answers: list[Any] = []

    def answered(answer: Response) -> None:
        answers.append(answer)
        link.abort()

    connection: Any = TwoAnswers()
    transport: Any = Transport()
    link = PeerLink(connection, answered, lambda _: None)
    link.connection_made(transport)
    link.get_buffer(1)
    link.buffer_updated(1)
    assert (answers, transport.is_aborted, link.is_open) == (["first"], False, False)
    await asyncio.sleep(0)
    assert transport.is_aborted
