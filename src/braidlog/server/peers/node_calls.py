"""What is asked of the other nodes: one connection to each, many questions under way.

Knows: connections, which question an answer is for. Refuses to know: what is asked. Invariants: a call is sent once;
one that was not sent when its connection could not be made, or its caller went away, is never sent; whoever waits
hears of the end of its connection at once. What is under way to one node is bounded.
"""

import ssl
from collections.abc import Callable, Container
from typing import Any, Final

from braidlog.broker.forwarding import Call
from braidlog.model.errors import BrokerError, NothingDoneError, Reason
from braidlog.model.world import Wakeup, World
from braidlog.server.peers.dialling import AddressOf, Dial
from braidlog.server.peers.peer_link import Asking, PeerLink
from braidlog.tasks import Tasks
from braidlog.wire.kafka.apis import CALL_BYTES_MAX
from braidlog.wire.kafka.messages.calls import END_WAIT, CallRequest, CallResponse
from braidlog.wire.kafka.replica_fetch import caller_connection

CALLS_MAX: Final = 1_000
"""Under way to one node: fewer than its port takes from one connection. Long polls leave half of them to other calls.
"""
CALLS_BYTES_MAX: Final = 64 * 1024 * 1024
BODY_BYTES_MAX: Final = CALL_BYTES_MAX - 64 * 1024
"""What stands around it has a name and a principal, and is less."""


class _Waiting:
    """A question, until it has ended."""

    __slots__ = ("answer", "number", "polls", "request", "size", "wakeup")

    def __init__(self, request: Any, size: int, wakeup: Wakeup, *, polls: bool) -> None:  # noqa: ANN401 - of what the connection speaks
        self.request = request
        self.polls = polls
        self.size = size
        self.wakeup = wakeup
        self.number: int | None = None
        """What its answer is known by, once it is sent."""
        self.answer: Any = None


class _Target:
    """One other node."""

    def __init__(self, dial: Dial, tasks: Tasks, open_connection: Callable[[], Asking]) -> None:
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
            raise NothingDoneError(Reason.UNAVAILABLE, f"too much is under way to node {self._dial.peer}")
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
        # It may have ended again before we heard of it, and will not say so twice.
        self._link = link if link is not None and link.is_open else None
        unsent, self._unsent = self._unsent, {}
        for waiting in unsent:
            if self._link is None:
                waiting.wakeup.wake()
            else:
                self._send(self._link, waiting)

    def _answered(self, response: Any) -> None:  # noqa: ANN401 - see `Asking`
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
        """Its caller waits no more: if it was not sent yet it is not sent; if it was, its answer is dropped when it
        comes.
        """
        self._bytes -= waiting.size
        self._unsent.pop(waiting, None)

    def end_wait(self, waiting: _Waiting) -> bool:
        """Have the other node answer a long poll now; False if it waits for none."""
        number, link = waiting.number, self._link
        if not waiting.polls or number is None or self._asked.get(number) is not waiting:
            return False
        if link is not None and link.is_open:
            link.send(CallRequest(END_WAIT, "", number.to_bytes(4, "big")))
        return True

    def cut(self) -> None:
        if self._link is not None:
            self._link.abort()


class NodeQuestions:
    """Of one node to all others, in what the connections speak that `open_connection` makes."""

    def __init__(
        self,
        node: int,
        world: World,
        address_of: AddressOf,
        tls: ssl.SSLContext | None,
        open_connection: Callable[[], Asking],
    ) -> None:
        self._node = node
        self._world = world
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
        """What that node answers. `NothingDoneError`: it was not sent; `BrokerError` TIMED_OUT: nobody knows.

        `size`: of what is in it. `changes`: a node that stops waits for its end. `polls`: it is a call that may wait
        long for
        records, and no longer once the client has closed."""
        target = self._targets.get(node)
        if target is None:
            dial = Dial(self._node, node, self._address_of, self._tls)
            target = self._targets[node] = _Target(dial, self._tasks, self._open_connection)
        waiting = _Waiting(message, size, self._world.wakeup(owed=changes, polling=polls), polls=polls)
        until = self._world.monotonic() + seconds
        target.begin(waiting)
        try:
            if waiting.answer is None and not await waiting.wakeup.wait(seconds) and target.end_wait(waiting):
                waiting.wakeup = self._world.wakeup()
                await waiting.wakeup.wait(max(until - self._world.monotonic(), 0))
        finally:
            target.end(waiting)
            target.end_wait(waiting)
        if waiting.answer is None:
            if waiting.number is None:
                raise NothingDoneError(Reason.UNAVAILABLE, f"node {node} cannot be reached")
            raise BrokerError(
                Reason.TIMED_OUT, f"node {node} was asked and has not answered: it may be done all the same"
            )
        return waiting.answer

    def cut_all_but(self, living: Container[int]) -> None:
        """Whoever waits for a node that was taken for dead hears so now."""
        for node, target in self._targets.items():
            if node not in living:
                target.cut()

    async def stop(self) -> None:
        self.cut_all_but(())
        await self._tasks.stop()


class NodeCalls(NodeQuestions):
    """Calls: what `adapters/peers/calls.py` has in its table."""

    def __init__(self, node: int, world: World, address_of: AddressOf, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(node, world, address_of, tls, caller_connection)

    async def call(self, node: int, call: Call, seconds: float) -> bytes:
        """See `broker/forwarding.py`."""
        size = len(call.body)
        if size > BODY_BYTES_MAX:
            raise BrokerError(
                Reason.RECORD_TOO_LARGE, f"{size} bytes cannot be handed to another node, {BODY_BYTES_MAX} can"
            )
        request = CallRequest(call.name, call.principal, call.body)
        answer: CallResponse = await self.ask(
            node, request, size, seconds, changes=call.changes, polls=call.wait_seconds > 0
        )
        if answer.reason:
            raise NothingDoneError(_reason(answer.reason), answer.text)
        return bytes(answer.body)  # of a large frame it is a bytearray


def _reason(name: str) -> Reason:
    """A later version may have others."""
    return Reason.__members__.get(name, Reason.UNAVAILABLE)
