"""Drive the connection with arbitrary bytes. Anything but an event of the contract is a defect."""

from typing import Any

from braidlog.wire.contract import NEED_DATA, Refused
from braidlog.wire.peer.connection import Frame, PeerConnection, write


def fuzz_one(data: bytes) -> None:
    whole, bytewise = PeerConnection(), PeerConnection()
    whole.receive(data)
    found = events(whole)
    pieces = []
    for at in range(len(data)):
        bytewise.receive(data[at : at + 1])
        pieces += events(bytewise)
    assert pieces == found


def events(connection: PeerConnection) -> list[Any]:
    found: list[Any] = []
    while (event := connection.next_event()) is not NEED_DATA:
        if isinstance(event, Refused):
            assert event.close
            found.append((str(event.error), event.error.position))
        else:
            assert isinstance(event, Frame)
            assert len(write(event.sender, event.message)) > 24  # what was read can be written
            found.append(event)
    return found
