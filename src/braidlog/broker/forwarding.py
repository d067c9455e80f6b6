"""What this node cannot serve is asked of the node that can, for clients that cannot ask it themselves.

Knows: which node that is, as the metadata has it; how long a request is held while nobody serves it. Refuses to know: what is
asked (it is bytes), connections.
Invariants: a request is handed on once, by the node that its client reached, and never by the next; one that may have changed
something is not asked again unless it is known that nothing was done.
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
"""How long a request waits for a node that serves it: most fail-overs are over by then."""
LOOK_SECONDS: Final = 0.02
"""Before it is tried again; twice as long each time, up to the next."""
LOOK_SECONDS_MAX: Final = 0.2
ANSWER_SECONDS_MAX: Final = 10.0
"""Beside what a request says itself that it may wait."""


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
"""Why a node refuses what it may serve a moment later, or another does."""
_ABSENT: Final = (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND)


Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Call(NamedTuple):
    """What another node is asked."""

    name: str
    principal: str
    body: bytes
    wait_seconds: float = 0.0
    """How long the answer may take by what is asked."""
    changes: bool = True
    """Whether it may change something: then it is not sent again after silence."""
    topic: str | None = None
    """The topic that it names, if it names one."""


def read_asked(body: bytes, kind: type[T]) -> T:
    """What another node asks of this one, in the body of a call."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BrokerError(Reason.INVALID_RECORD, f"another node asks what this one does not know: {error}") from None


class Calls(Protocol):
    """The way to the other nodes."""

    def call(self, node: int, call: Call, seconds: float) -> Awaitable[bytes]:
        """What that node answers. `NothingDoneError`: it was not reached, or refused; `BrokerError` TIMED_OUT: nobody knows."""
        ...


class Forwarding:
    """Of one node to the others."""

    def __init__(
        self, routing: Routing, runtime: Runtime, calls: Calls | None = None, spawn: Spawn | None = None
    ) -> None:
        """`calls` and `spawn` are None on a node that is alone."""
        self._routing = routing
        self._runtime = runtime
        self.calls = calls
        self.ways: dict[str, Calls] = {}
        """Of what travels by another way: what is called → how."""
        self.spawn = spawn
        self.counts: Counter[tuple[str, int]] = Counter()
        """Requests that were handed on, by what was called and the node."""
        self.names: set[str] = set()
        """What else may be called: dialects, consoles."""
        self.answers: dict[str, Callable[[bytes], Coroutine[Any, Any, bytes]]] = {}
        """What other nodes may ask of this node's services: answer(what is asked)."""
        self.client_answers: dict[str, Callable[[bytes, str], Coroutine[Any, Any, bytes]]] = {}
        """What they may ask for a client: answer(what is asked, the principal it is counted for)."""

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
        """The result of `here`, on this node or on the one that serves it; that one reads what is `asked` by `read_asked`."""
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
        """The answer of the node that serves what was refused here with `refusal`: its bytes, or what `serve_here` gives if that
        node is this one by now."""
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
        """Return whether a coordinator's "not found" is final: this node does not know the topic either, or time is up. A leader
        has its topic, and a call that names none is about one that this node leads: the other node only lags in the metadata."""
        if error.reason not in _ABSENT or isinstance(refusal, NotLeaderError) or call.topic is None:
            return False
        return is_late or not self._routing.has_partition(call.topic, 0)

    async def ask(self, node: int, call: Call) -> bytes:
        """Ask a node once. A fenced node is not asked: one that hangs accepts connections and does not answer."""
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
        """What each gives within this time, or is refused with: begun in their order, all under way at once."""
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
        late = BrokerError(Reason.TIMED_OUT, "another node was asked and has not answered: it may be done all the same")
        return [late if each is None else each for each in results]

    def serving(self, refusal: ElsewhereError) -> int | None:
        """Who serves what was refused, by the newest metadata; None: nobody now. Of what has gone, this node says so itself."""
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
