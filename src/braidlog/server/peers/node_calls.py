"""Calls to other nodes: one connection per node, many calls in flight.

Does not handle: the content of calls.
Invariants: a call is sent once. A call that is still unsent when connecting fails, or when its caller leaves, is never
sent. Waiting callers learn of the end of their connection immediately. Calls in flight per node are bounded.
"""

import ssl
from collections.abc import Callable, Container
from typing import Any, Final

from braidlog.broker.forwarding import Call
from braidlog.model.errors import BrokerError, NothingDoneError, Reason
from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.server.peers.dialing import AddressOf, Dial
from braidlog.server.peers.peer_link import CallingConnection, PeerLink
from braidlog.tasks import Tasks
from braidlog.wire.kafka.apis import CALL_BYTES_MAX
from braidlog.wire.kafka.messages.calls import END_WAIT, CallRequest, CallResponse
from braidlog.wire.kafka.replica_fetch import caller_connection

CALLS_MAX: Final = 1_000
"""Maximum calls in flight per node, fewer than its port accepts per connection. Long polls may use half of them."""
CALLS_BYTES_MAX: Final = 64 * 1024 * 1024
BODY_BYTES_MAX: Final = CALL_BYTES_MAX - 64 * 1024
"""The frame also carries a name and a principal, which are smaller."""


class _Waiting:
    """A call until it has ended."""

    __slots__ = ("answer", "number", "polls", "request", "size", "wakeup")

    def __init__(self, request: Any, size: int, wakeup: Wakeup, *, polls: bool) -> None:  # noqa: ANN401 - of what the connection speaks
        self.request = request
        self.polls = polls
        self.size = size
        self.wakeup = wakeup
        self.number: int | None = None
        """Number that identifies the response, once the call is sent."""
        self.answer: Any = None


class _Target:
    """One other node."""

    def __init__(self, dial: Dial, tasks: Tasks, open_connection: Callable[[], CallingConnection]) -> None:
        self._dial = dial
        self._tasks = tasks
        self._open_connection = open_connection
        self._link: PeerLink | None = None
        self._is_connecting = False
        self._unsent: dict[_Waiting, None] = {}
        self._asked: dict[int, _Waiting] = {}
        self._bytes = 0

    def begin(self, waiting: _Waiting) -> None:
        calls_max = CALLS_MAX // 2 if waiting.polls else CALLS_MAX
        if len(self._unsent) + len(self._asked) >= calls_max or self._bytes + waiting.size > CALLS_BYTES_MAX:
            raise NothingDoneError(Reason.UNAVAILABLE, f"too many calls in flight to node {self._dial.peer}")
        self._bytes += waiting.size
        if self._link is not None and self._link.is_open:
            self._send(self._link, waiting)
        elif self._is_connecting or (self._link is None and self._dial.may_try()):
            self._unsent[waiting] = None
            self._connect_soon()
        else:
            waiting.wakeup.wake()

    def _connect_soon(self) -> None:
        if not self._is_connecting:
            self._is_connecting = True
            self._tasks.spawn(self._connect(), f"connect to node {self._dial.peer} for calls")

    def _send(self, link: PeerLink, waiting: _Waiting) -> None:
        waiting.number = link.send(waiting.request)
        self._asked[waiting.number] = waiting

    async def _connect(self) -> None:
        try:
            link = await self._dial.connect(lambda: PeerLink(self._open_connection(), self._answered, self._lost))
        finally:
            self._is_connecting = False
        # The connection may have ended before this point; its `_lost` callback does not repeat.
        self._link = link if link is not None and link.is_open else None
        unsent, self._unsent = self._unsent, {}
        for waiting in unsent:
            if self._link is None:
                waiting.wakeup.wake()
            else:
                self._send(self._link, waiting)

    def _answered(self, response: Any) -> None:  # noqa: ANN401 - see `CallingConnection`
        self._dial.succeeded()
        waiting = self._asked.pop(response.correlation_id, None)
        if waiting is not None:
            waiting.answer = response.message
            waiting.wakeup.wake()

    def _lost(self, link: PeerLink) -> None:
        if link is self._link:
            self._link = None
            asked, self._asked = self._asked, {}
            for waiting in asked.values():
                waiting.wakeup.wake()

    def end(self, waiting: _Waiting) -> None:
        """End a call: an unsent call is dropped, the response of a sent one is ignored."""
        self._bytes -= waiting.size
        self._unsent.pop(waiting, None)

    def end_wait(self, waiting: _Waiting) -> bool:
        """Ask the other node to answer a long poll now; False if this call is none."""
        number, link = waiting.number, self._link
        if not waiting.polls or number is None or self._asked.get(number) is not waiting:
            return False
        if link is not None and link.is_open:
            link.send(CallRequest(END_WAIT, "", number.to_bytes(4, "big")))
        return True

    def cut(self) -> None:
        if self._link is not None:
            self._link.abort()


class NodeClient:
    """Calls of one node to all others, over connections that `open_connection` creates."""

    def __init__(
        self,
        node: int,
        runtime: Runtime,
        address_of: AddressOf,
        tls: ssl.SSLContext | None,
        open_connection: Callable[[], CallingConnection],
    ) -> None:
        self._node = node
        self._runtime = runtime
        self._address_of = address_of
        self._tls = tls
        self._open_connection = open_connection
        self._tasks = Tasks()
        self._targets: dict[int, _Target] = {}

    async def ask(
        self,
        node: int,
        message: Any,  # noqa: ANN401 - of what the connection speaks
        size: int,
        seconds: float,
        *,
        changes: bool,
        polls: bool = False,
    ) -> Any:  # noqa: ANN401
        """Call a node and return its response. Raises `NothingDoneError` if it was not sent, `BrokerError` TIMED_OUT
        if the outcome is unknown.

        `size` is the payload size. `changes`: a stopping node waits for the call's end. `polls`: the call may wait
        long for records, but ends when the client disconnects.
        """
        target = self._targets.get(node)
        if target is None:
            dial = Dial(self._node, node, self._address_of, self._tls)
            target = self._targets[node] = _Target(dial, self._tasks, self._open_connection)
        waiting = _Waiting(message, size, self._runtime.wakeup(owed=changes, polling=polls), polls=polls)
        until = self._runtime.monotonic() + seconds
        target.begin(waiting)
        try:
            if waiting.answer is None and not await waiting.wakeup.wait(seconds) and target.end_wait(waiting):
                waiting.wakeup = self._runtime.wakeup()
                await waiting.wakeup.wait(max(until - self._runtime.monotonic(), 0))
        finally:
            target.end(waiting)
            target.end_wait(waiting)
        if waiting.answer is None:
            if waiting.number is None:
                raise NothingDoneError(Reason.UNAVAILABLE, f"node {node} is unreachable")
            raise BrokerError(Reason.TIMED_OUT, f"node {node} has not answered; the outcome of the request is unknown")
        return waiting.answer

    def disconnect_all_except(self, living: Container[int]) -> None:
        """Close the connections to nodes that were fenced, which fails their waiting callers."""
        for node, target in self._targets.items():
            if node not in living:
                target.cut()

    async def stop(self) -> None:
        self.disconnect_all_except(())
        await self._tasks.stop()


class NodeCalls(NodeClient):
    """Calls by the table in `adapters/peers/node_calls.py`."""

    def __init__(self, node: int, runtime: Runtime, address_of: AddressOf, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(node, runtime, address_of, tls, caller_connection)

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        """Call another node, see `broker/forwarding.py`."""
        size = len(call.body)
        if size > BODY_BYTES_MAX:
            raise BrokerError(
                Reason.RECORD_TOO_LARGE, f"request of {size} bytes cannot be forwarded; at most {BODY_BYTES_MAX} bytes"
            )
        request = CallRequest(call.name, call.principal, call.body)
        answer: CallResponse = await self.ask(
            node, request, size, seconds, changes=call.changes, polls=call.wait_seconds > 0
        )
        if answer.reason:
            raise NothingDoneError(_reason(answer.reason), answer.text)
        return bytes(answer.body)  # a bytearray for large frames


def _reason(name: str) -> Reason:
    """The reason by name; a later version may send unknown ones."""
    return Reason.__members__.get(name, Reason.UNAVAILABLE)
