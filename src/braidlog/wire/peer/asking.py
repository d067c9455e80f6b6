"""Both ends of a connection between nodes about keys: one requests, the other answers, in any order.

Does not handle: the meaning of requests and answers.
Invariants: an answer without a request ends the connection. The keys of one leaf are returned together, and are
bounded.
A request about leaves has no id: for each range of each log at most one is open, and for each log at most one about a
single leaf.
"""

from typing import Any, Final, NamedTuple

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.wire.contract import NeedData, Refused
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.connection import Frame, PeerConnection, write

U32_MAX: Final = 2**32 - 1
LEAF_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum bytes of all keys of a leaf; a larger leaf is not repaired."""

_ANSWERS: Final[dict[type[m.Message], tuple[type[m.Message], ...]]] = {
    m.Forward: (m.Answer, m.TopologyChanged),
    m.Replicate: (m.Replicated, m.TopologyChanged),
    m.SyncRequest: (m.SyncOk, m.SyncEnd),
}


class LeafKeys(NamedTuple):
    """All keys of a leaf that differs."""

    keys: tuple[m.SyncDiff, ...]
    end: m.SyncEnd


class Response(NamedTuple):
    """`message`: an `Answer`, `TopologyChanged`, `Replicated`, `SyncOk`, `SyncEnd` or `LeafKeys`."""

    correlation_id: int
    message: Any


class ServingConnection(PeerConnection):
    """The end that answers."""

    def __init__(self, sender: bytes) -> None:
        super().__init__(m.ASKED)
        self._sender = sender
        self.frame_bytes_max = max(m.BY_NUMBER[number].bytes_max for number in m.ASKED)

    def respond(self, _: Frame | Refused, answer: m.Message | None) -> bytes:
        return b"" if answer is None else write(self._sender, answer)

    def turn_away(self, reason: str) -> Refused:
        """Nodes send no error to clients that are not admitted."""
        self._close()
        return Refused(ProtocolError(reason), None, close=True)


class RequestingConnection(PeerConnection):
    """The end that requests."""

    def __init__(self, sender: bytes) -> None:
        super().__init__(m.ANSWERED)
        self._sender = sender
        self._last = 0
        self._asked: dict[int, type[m.Message]] = {}
        self._syncs: dict[tuple[int, ...], int] = {}
        self._keys: dict[int, list[m.SyncDiff]] = {}
        """Log → keys received so far of the requested leaf."""
        self._told_bytes = 0

    @property
    def next_id(self) -> int:
        """Return an id without an open request."""
        number = self._last % U32_MAX + 1
        while number in self._asked:
            number = number % U32_MAX + 1
        return number

    def request(self, message: m.Forward | m.Replicate | m.SyncRequest) -> bytes:
        number = self._last = self.next_id
        if isinstance(message, m.SyncRequest):
            place = _range(message)
            self._asked.pop(self._syncs.get(place, 0), None)
            self._syncs[place] = number
            if message.next_leaf - message.first_leaf == 1:
                self._keys[message.log] = []
        else:
            message = msgspec.structs.replace(message, request=number)
        frame = write(self._sender, message)
        self._asked[number] = type(message)
        return frame

    def receive_buffer(self) -> memoryview | None:
        return None

    def filled(self, size: int) -> None:
        raise NotImplementedError

    def next_event(self) -> Response | Refused | NeedData:  # type: ignore[override]  # answers, with what they answer
        while True:
            event = super().next_event()
            if not isinstance(event, Frame):
                return event
            try:
                response = self._matched(event.message)
            except ProtocolError as error:
                self._close()
                return Refused(error, None, close=True)
            if response is not None:
                return response

    def _matched(self, message: m.Message) -> Response | None:
        if isinstance(message, m.SyncDiff):
            self._collect(message)
            return None
        found: Any = message
        if isinstance(message, m.SyncOk | m.SyncEnd):
            number = self._syncs.pop(_range(message), 0)
            if isinstance(message, m.SyncEnd) and message.verdict is m.Verdict.TOLD:
                found = self._leaf_keys(message)
        else:
            assert isinstance(message, m.Answer | m.TopologyChanged | m.Replicated), "no other message is accepted here"
            number = message.request
        if type(message) not in _ANSWERS.get(self._asked.pop(number, m.Message), ()):
            raise ProtocolError(f"a node answers with {type(message).__name__} without a request")
        return Response(number, found)

    def _collect(self, diff: m.SyncDiff) -> None:
        received = self._keys.get(diff.log)
        self._told_bytes += len(diff.value)
        if received is None or self._told_bytes > LEAF_BYTES_MAX:
            raise ProtocolError(f"received more keys of log {diff.log} than requested, or than the limit")
        received.append(diff)

    def _leaf_keys(self, end: m.SyncEnd) -> LeafKeys:
        keys = tuple(self._keys.pop(end.log, ()))
        self._told_bytes -= sum(len(each.value) for each in keys)
        if len(keys) != end.keys or any(each.offset != end.offset for each in keys):
            raise ProtocolError(f"received {len(keys)} keys of a leaf, {end.keys} were announced")
        return LeafKeys(keys, end)


def _range(message: m.SyncRequest | m.SyncOk | m.SyncEnd) -> tuple[int, ...]:
    return message.log, message.epoch, message.first_leaf, message.next_leaf
