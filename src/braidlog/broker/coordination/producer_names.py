"""Resolves producer names to producer ids in a cluster: the coordinator of a name assigns the id, partition leaders
ask it.

Does not handle: assigning and storing ids (`coordinator/transactions/named_producers.py`).
Invariants: a name has one id on all nodes, so that the next leader recognizes a retry. While a name is being
resolved, further callers wait in order. A cached id may be of an old epoch; the log itself rejects it.
"""

from typing import Final, NamedTuple

import msgspec

from braidlog.broker.coordination.coordinators import Coordinators
from braidlog.broker.forwarding import Call, Forwarding, read_asked
from braidlog.coordinator.state_limits import NODE
from braidlog.coordinator.transactions.named_producers import NamedProducer, current
from braidlog.model.errors import BrokerError, NotCoordinatorError, Reason
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime

CALL: Final = "named-producer"
REMEMBERED_SECONDS: Final = 3600.0
"""Lifetime of a cached id. The coordinator forgets an unused name after days."""
REMEMBERED_MAX: Final = 20_000


class _Remembered(NamedTuple):
    producer: NamedProducer
    at: float


class ProducerNames:
    """Resolves and caches producer names."""

    def __init__(self, coordinators: Coordinators, forwarding: Forwarding, runtime: Runtime) -> None:
        self._coordinators = coordinators
        self._forwarding = forwarding
        self._runtime = runtime
        forwarding.client_answers[CALL] = self.handle_call
        self._turns = KeyedLock(runtime)
        self._remembered: dict[str, _Remembered] = {}

    async def resolve(self, name: str, foreign_epoch: int, *, by: str = NODE) -> NamedProducer:
        """Return the id and epoch to write with, for the principal `by`. Raise if a newer producer of the same name
        is known."""
        try:
            return await self._resolve_here(name, foreign_epoch, by)
        except NotCoordinatorError as error:
            refusal = error.with_traceback(None)
        known = self._current(name, foreign_epoch)
        if known is not None and not self._turns.is_held(name):
            return known  # the usual case does not wait, so that requests keep their order
        async with self._turns.acquire(name):
            return self._current(name, foreign_epoch) or await self._ask(name, foreign_epoch, by, refusal)

    async def _resolve_here(self, name: str, foreign_epoch: int, by: str) -> NamedProducer:
        async with self._coordinators.settled_after(name) as coordinator:
            return await coordinator.named_producers.resolve(name, foreign_epoch, by=by)

    async def handle_call(self, body: bytes, by: str) -> bytes:
        """Resolve a name for another node."""
        name, foreign_epoch = read_asked(body, tuple[str, int])
        return msgspec.msgpack.encode(await self._resolve_here(name, foreign_epoch, by))

    def _current(self, name: str, foreign_epoch: int) -> NamedProducer | None:
        known = self._remembered.get(name)
        found = None if known is None else current(known.producer, name, foreign_epoch)
        is_fresh = known is not None and self._runtime.monotonic() - known.at < REMEMBERED_SECONDS
        return found if is_fresh else None

    async def _ask(self, name: str, foreign_epoch: int, by: str, refusal: NotCoordinatorError) -> NamedProducer:
        # Resolving twice gives the same id: retry after a timeout.
        call = Call(CALL, by, msgspec.msgpack.encode((name, foreign_epoch)), changes=False)
        try:
            answer = await self._forwarding.forward(call, refusal, lambda: self._resolve_here(name, foreign_epoch, by))
        except BrokerError as error:
            known = self._remembered.get(name)
            if (
                error.reason is not Reason.NOT_COORDINATOR
                or known is None
                or known.producer.foreign_epoch != foreign_epoch
            ):
                raise
            return known.producer  # expired, but still valid while the coordinator is unreachable
        found = answer if isinstance(answer, NamedProducer) else msgspec.msgpack.decode(answer, type=NamedProducer)
        self._remembered.pop(name, None)
        self._remembered[name] = _Remembered(found, self._runtime.monotonic())
        if len(self._remembered) > REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        return found
