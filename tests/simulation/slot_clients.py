"""Clients of simulated slots: strong ones, whose calls must have an order that explains all answers, and weak ones, whose writes
must all be there in the end.

Knows: what a client asks for, and what it was told. Refuses to know: how nodes work.
"""

from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.histories.history import Action, Call, Outcome, Value
from tests.simulation.virtual_time import US_PER_MS

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.operations import Level
from braidlog.model.errors import BrokerError, Reason

if TYPE_CHECKING:
    from tests.simulation.slots import SlotUniverse

TIMEOUT_US = 700 * US_PER_MS
LEASE_RATE = 0.1
KINDS = (b"list", b"hash", b"sum")
HASH_EVERY = 3
"""By the number of an operation, and not drawn."""
WINDOW_US = 400 * US_PER_MS
"""For so long one register is used; then another: each unknown outcome makes the search for an order longer."""


class Ask(NamedTuple):
    name: str
    client: int
    number: int
    operation: o.Operation[Any]
    level: Level
    is_forwarded: bool = False


class Answer(NamedTuple):
    """`result` is a `BrokerError` if the operation was refused."""

    number: int
    result: Any
    stamp: Stamp | None = None


class KeyClient:
    """One operation at a time, never twice."""

    def __init__(self, universe: "SlotUniverse", number: int, name: str) -> None:
        self.universe = universe
        self.number = number
        self.name = name
        self.draw: Random = universe.stream(f"keys {number}")
        self._asked = 0
        self._believed = 1 + self.draw.randrange(len(universe.nodes))
        self.is_done = False

    def start(self) -> None:
        self.universe.time.after(self.draw.randrange(200 * US_PER_MS), self._next)

    def _next(self) -> None:
        if self.universe.is_healing:
            self.is_done = True
            return
        self._asked += 1
        number = self._asked
        operation, level = self.choose(number)
        self.universe.network.send(self.number, self._believed, Ask(self.name, self.number, number, operation, level))
        self.universe.time.after(TIMEOUT_US, lambda: self._timed_out(number))

    def _timed_out(self, number: int) -> None:
        if number == self._asked:
            self._go_on(elsewhere=True)

    def _go_on(self, *, elsewhere: bool) -> None:
        self._asked += 1  # an answer that comes later is not waited for
        if elsewhere:
            self._believed = self.universe.leader_as_seen(self.draw, self.name)
        self.universe.time.after(int(self.draw.expovariate(1 / self.universe.mix.think_us)), self._next)

    def receive(self, _: int, message: object) -> None:
        if not isinstance(message, Answer) or message.number != self._asked:
            return
        result = message.result
        is_elsewhere = isinstance(result, BrokerError) and result.reason is not Reason.KEY_NOT_FOUND
        if is_elsewhere:
            self.refused()
        else:
            self.answered(None if isinstance(result, BrokerError) else result, message.stamp)
            self.universe.count("answered")
        self._go_on(elsewhere=is_elsewhere)

    def choose(self, number: int) -> tuple[o.Operation[Any], Level]:
        raise NotImplementedError

    def answered(self, result: object, stamp: Stamp | None) -> None:
        """None: there is no such key."""
        raise NotImplementedError

    def refused(self) -> None:
        """Certainly not done."""
        raise NotImplementedError


class StrongClient(KeyClient):
    """QUORUM, now and then ALL: registers and counters that many use."""

    def choose(self, number: int) -> tuple[o.Operation[Any], Level]:
        draw = self.draw
        if draw.random() < LEASE_RATE:
            self._call = Call("nobody", "lease", Action.GET)
            key = b"lease-%d" % draw.randrange(3)
            return (o.Set(key, b"held", 1) if draw.random() < 0.5 else o.Get(key)), Level.QUORUM
        window = self.universe.time.now_us // WINDOW_US
        is_counter = draw.random() < 0.5
        text = f"{'counter' if is_counter else 'register'}-{window}"
        key, kind = text.encode(), draw.random()
        operation: o.Operation[Any]
        action, argument = Action.GET, None
        if kind < 0.5:
            operation = o.Get(key)
        elif is_counter:
            operation, action, argument = o.Increment(key), Action.INCREMENT, 1
        elif kind < 0.9:
            value = f"{self.number}.{number}"
            operation, action, argument = o.Set(key, value.encode()), Action.SET, value  # type: ignore[assignment]
        else:
            operation, action = o.Delete(key), Action.DELETE
        self._call = Call(f"client {self.number}", text, action, argument, start=self.universe.seconds)
        self.universe.history.add(self._call)
        return operation, Level.ALL if draw.random() < 0.1 else Level.QUORUM

    def answered(self, result: object, stamp: Stamp | None) -> None:
        call = self._call
        answer: Value = None
        match call.action:
            case Action.GET if isinstance(result, bytes):
                answer = int(result) if call.key.startswith("counter") else result.decode()
            case Action.INCREMENT:
                assert isinstance(result, int)
                answer = result
            case Action.DELETE:
                answer = stamp is not None
        call.end, call.outcome, call.answer = self.universe.seconds, Outcome.ACKNOWLEDGED, answer

    def refused(self) -> None:
        self._call.outcome = Outcome.REFUSED


class WeakClient(KeyClient):
    """ONE: a list, a hash and a counter of its own, and registers that it shares."""

    _operation: o.Operation[Any]

    def __init__(self, universe: "SlotUniverse", number: int, name: str) -> None:
        super().__init__(universe, number, name)
        self.list_key, self.hash_key, self.counter_key = (b"%s-%d" % (kind, number) for kind in KINDS)

    def choose(self, number: int) -> tuple[o.Operation[Any], Level]:
        shared = b"%s-shared-%d" % (self.name.encode(), self.draw.randrange(3))
        unique = b"%d.%d" % (self.number, number)
        match self.draw.randrange(6):
            case 0 | 1 if number % HASH_EVERY == 0:
                self._operation = o.HashSet(self.hash_key, ((unique, b""),))
                self.universe.pushed[self.hash_key][unique] = Outcome.UNKNOWN
            case 0 | 1:
                self._operation = o.Push(self.list_key, o.End.RIGHT, (unique,))
                self.universe.pushed[self.list_key][unique] = Outcome.UNKNOWN
            case 2:
                self._operation = o.Increment(self.counter_key)
                self.universe.counted[self.counter_key][unique] = Outcome.UNKNOWN
            case 3 | 4:
                self._operation = o.Set(shared, unique)
                self.universe.shared[shared].append(self._note(unique))
            case _:
                self._operation = o.Delete(shared)
                self.universe.shared[shared].append(self._note(None))
        self._unique = unique
        return self._operation, Level.ONE

    def _note(self, value: bytes | None) -> "SharedWrite":
        self._write = SharedWrite(value)
        return self._write

    def _told(self, outcome: Outcome, stamp: Stamp | None) -> None:
        match self._operation:
            case o.Push(key) | o.HashSet(key):
                self.universe.pushed[key][self._unique] = outcome
            case o.Increment(key):
                self.universe.counted[key][self._unique] = outcome
            case _:
                self._write.outcome, self._write.stamp = outcome, stamp

    def answered(self, result: object, stamp: Stamp | None) -> None:
        nothing_to_delete = isinstance(self._operation, o.Delete) and stamp is None
        self._told(Outcome.REFUSED if nothing_to_delete else Outcome.ACKNOWLEDGED, stamp)

    def refused(self) -> None:
        self._told(Outcome.REFUSED, None)


class SharedWrite:
    """Of a key that several set and delete at level ONE; None: deleted."""

    def __init__(self, value: bytes | None) -> None:
        self.value = value
        self.outcome = Outcome.UNKNOWN
        self.stamp: Stamp | None = None
