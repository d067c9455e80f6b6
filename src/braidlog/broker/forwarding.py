"""Forwards requests that this node cannot serve to the node that can, for clients that cannot connect to it
themselves.

Does not handle: the content of requests (bytes), connections.
Invariants: only the node that the client reached forwards a request, and only once. A request that may have
changed something is retried only if it is known that nothing was done.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from braidlog.broker.routing import Routing
from braidlog.coordinator.state_limits import NODE
from braidlog.model.errors import (
    BrokerError,
    ElsewhereError,
    NotCoordinatorError,
    NothingDoneError,
    NotLeaderError,
    Reason,
    is_elsewhere,
)
from braidlog.model.runtime.runtime import Runtime

T = TypeVar("T")

HOLD_SECONDS: Final = 2.0
"""How long a request waits for a node that serves it: most fail-overs finish within this time."""
LOOK_SECONDS: Final = 0.02
"""First pause between attempts; it doubles up to LOOK_SECONDS_MAX."""
LOOK_SECONDS_MAX: Final = 0.2
ANSWER_SECONDS_MAX: Final = 10.0
"""Added to the waiting time that the request itself allows."""


_ASK_AGAIN: Final = frozenset(
    {
        Reason.NOT_LEADER,
        Reason.NOT_COORDINATOR,
        Reason.COORDINATOR_LOADING,
        Reason.TOPIC_NOT_FOUND,
        Reason.PARTITION_NOT_FOUND,
        Reason.UNAVAILABLE,
    }
)
"""Retriable reasons: the node, or another one, may serve the request soon."""
_ABSENT: Final = (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)


Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Call(NamedTuple):
    """A request to another node."""

    name: str
    principal: str
    body: bytes
    wait_seconds: float = 0.0
    """Waiting time that the request itself allows."""
    changes: bool = True
    """Whether it may change something: if so, it is not retried after a timeout."""
    topic: str | None = None
    """The topic named in the request, if any."""


def read_asked(body: bytes, kind: type[T]) -> T:
    """Decode the body of another node's call; raise INVALID_RECORD if it does not fit."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BrokerError(Reason.INVALID_RECORD, f"another node asks what this one does not know: {error}") from None


class Calls(Protocol):
    """The port that sends calls to other nodes."""

    def call(self, node: int, call: Call, seconds: float) -> Awaitable[bytes]:
        """Return the node's answer. Raise `NothingDoneError` if it was not reached or refused; `BrokerError`
        TIMED_OUT if the outcome is unknown."""
        ...


class Forwarding:
    """Forwards calls to other nodes, and holds the handlers of their calls."""

    def __init__(
        self, routing: Routing, runtime: Runtime, calls: Calls | None = None, spawn: Spawn | None = None
    ) -> None:
        """`calls` and `spawn` are None on a node without a cluster."""
        self._routing = routing
        self._runtime = runtime
        self.calls = calls
        self.ways: dict[str, Calls] = {}
        """Transports other than `calls`: name of the call → transport."""
        self.spawn = spawn
        self.counts: Counter[tuple[str, int]] = Counter()
        """Forwarded requests, by name of the call and node."""
        self.names: set[str] = set()
        """Further names of calls, for the report: wire protocols, consoles."""
        self.answers: dict[str, Callable[[bytes], Coroutine[Any, Any, bytes]]] = {}
        """Handlers of calls from other nodes: answer(body)."""
        self.client_answers: dict[str, Callable[[bytes, str], Coroutine[Any, Any, bytes]]] = {}
        """Handlers of calls made for a client: answer(body, principal whose quota it uses)."""

    async def at_owner(
        self,
        name: str,
        asked: object,
        kind: Any,  # noqa: ANN401 - the type of the result, which may be a union
        here: Callable[[], Awaitable[T]],
        *,
        elsewhere: type[ElsewhereError] = NotCoordinatorError,
        principal: str = NODE,
        changes: bool = False,
    ) -> T:
        """Return the result of `here`, run on this node or on the one that serves it. That node decodes `asked` with
        `read_asked`."""
        try:
            return await here()
        except elsewhere as error:
            refusal = error.with_traceback(None)
        call = Call(name, principal, msgspec.msgpack.encode(asked), changes=changes)
        answer = await self.forward(call, refusal, here)
        if not isinstance(answer, bytes):
            return answer
        found: T = msgspec.msgpack.decode(answer, type=kind)
        return found

    async def forward(self, call: Call, refusal: ElsewhereError, serve_here: Callable[[], Awaitable[T]]) -> bytes | T:
        """Return the answer of the node that serves a request refused here with `refusal`: its bytes, or the result
        of `serve_here` if this node serves it by now."""
        until = self._runtime.monotonic() + HOLD_SECONDS
        pause = LOOK_SECONDS
        while True:
            node = self.serving(refusal)
            try:
                if node == self._routing.own_number:
                    return await serve_here()
                if node is not None:
                    return await self.ask(node, call)
            except NothingDoneError as error:
                is_late = self._runtime.monotonic() >= until
                if error.reason not in _ASK_AGAIN or self._is_absent(call, refusal, error, is_late=is_late):
                    raise BrokerError(error.reason, str(error)) from None
                if is_late:
                    raise self._no_target(call, refusal, str(error)) from None
            except BrokerError as error:
                if not (is_elsewhere(error) or (error.reason is Reason.TIMED_OUT and not call.changes)):
                    raise
            if self._runtime.monotonic() >= until:
                raise self._no_target(call, refusal, "it is away")
            await self._runtime.wakeup(owed=call.changes).wait(pause)
            pause = min(2 * pause, LOOK_SECONDS_MAX)

    def _is_absent(self, call: Call, refusal: ElsewhereError, error: BrokerError, *, is_late: bool) -> bool:
        """Return whether "not found" is final: this node does not know the topic either, or time is up. A leader has
        its topic, and a call without a topic is about one led here: in both cases the other node's metadata only
        lags."""
        if error.reason not in _ABSENT or isinstance(refusal, NotLeaderError) or call.topic is None:
            return False
        return is_late or not self._routing.has_partition(call.topic, 0)

    async def ask(self, node: int, call: Call) -> bytes:
        """Send one call to a node. A fenced node is skipped: a hung node accepts connections and does not answer."""
        if self.calls is None:
            raise NothingDoneError(Reason.UNAVAILABLE, f"this node is alone: it cannot ask node {node}")
        if not self._routing.is_live(node):
            raise NothingDoneError(Reason.UNAVAILABLE, f"node {node} is not alive")
        self.counts[call.name, node] += 1
        way = self.ways.get(call.name, self.calls)
        return await way.call(node, call, call.wait_seconds + ANSWER_SECONDS_MAX)

    async def together(
        self, works: Sequence[Coroutine[Any, Any, T]], seconds: float = HOLD_SECONDS + 2 * ANSWER_SECONDS_MAX
    ) -> list[T | BrokerError]:
        """Run all concurrently, started in order; return each one's result or refusal within this time."""
        results: list[T | BrokerError | None] = [None] * len(works)
        left, done = len(works), self._runtime.wakeup(owed=True)

        async def run(at: int, work: Coroutine[Any, Any, T]) -> None:
            nonlocal left
            try:
                results[at] = await work
            except BrokerError as error:
                results[at] = error
            finally:
                left -= 1
                if not left:
                    done.wake()

        for at, work in enumerate(works):
            if self.spawn is None:
                await run(at, work)
            else:
                self.spawn(run(at, work), "forwarded")
        if left:
            await done.wait(seconds)
        late = BrokerError(
            Reason.TIMED_OUT, "another node received the request and did not answer: it may have been carried out"
        )
        return [late if each is None else each for each in results]

    def serving(self, refusal: ElsewhereError) -> int | None:
        """Return the live node that serves a refused request, by the newest metadata; None if there is none now. A
        deleted partition is answered by this node."""
        if isinstance(refusal, NotCoordinatorError):
            node = self._routing.leader_of_shard(refusal.shard)
        else:
            assert isinstance(refusal, NotLeaderError)
            known = self._routing.assignment(refusal.topic, refusal.number)
            if known is None:
                return self._routing.own_number
            node = known.leader
        return node if node is not None and self._routing.is_live(node) else None

    def _no_target(self, call: Call, refusal: ElsewhereError, why: str) -> BrokerError:
        why += "; nothing was done, try again" if call.changes else "; try again"
        if isinstance(refusal, NotCoordinatorError):
            text = f"the coordinator of shard {refusal.shard} cannot be asked: {why}"
            return NotCoordinatorError(refusal.shard, text)
        assert isinstance(refusal, NotLeaderError)
        place = f"{refusal.topic}/{refusal.number}"
        text = f"the leader of {place} cannot be asked: {why}"
        return NotLeaderError(refusal.topic, refusal.number, text)
