"""A network between numbered places on virtual time: late, lost, doubled, out of order, cut one way, reset.

Knows: when a message arrives, and whether. Refuses to know: what it says.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from tests.simulation.virtual_time import VirtualTime


class Conditions(NamedTuple):
    """How a run's network is. Rates are of messages."""

    delay_us: int = 500
    """The usual way; each message takes half to twice of it."""
    slow_rate: float = 0.0
    slow_us: int = 50_000
    """So much longer for a slow one: that is how messages overtake each other."""
    loss_rate: float = 0.0
    twice_rate: float = 0.0


class Codec(Protocol):
    """What is sent for a message, and what the receiver makes of it."""

    def encode(self, message: object) -> object: ...

    def decode(self, message: object, receiver: int) -> object: ...


class Network:
    """`deliver(to, sender, message)` is called when a message arrives."""

    def __init__(
        self,
        time: VirtualTime,
        random: Random,
        conditions: Conditions,
        deliver: Callable[[int, int, object], None],
        codec: Codec | None = None,
    ) -> None:
        self._time = time
        self._random = random
        self.conditions = conditions
        self._deliver = deliver
        self._codec = codec
        self._cut: dict[tuple[int, int], bool] = {}
        self._lives: dict[tuple[int, int], int] = {}

    def send(self, sender: int, to: int, message: object) -> None:
        """It arrives once, twice, late or never."""
        if self.is_cut(sender, to):
            return
        random, conditions = self._random, self.conditions
        copies = 1
        if conditions.loss_rate and random.random() < conditions.loss_rate:
            copies = 0
        elif conditions.twice_rate and random.random() < conditions.twice_rate:
            copies = 2
        life = self._lives.get((sender, to), 0)
        if self._codec is not None:
            message = self._codec.encode(message)
        for _ in range(copies):
            delay = conditions.delay_us * (0.5 + 1.5 * random.random())
            if conditions.slow_rate and random.random() < conditions.slow_rate:
                delay += conditions.slow_us * random.random() * 2
            self._time.after(int(delay), lambda: self._arrive(sender, to, message, life))

    def _arrive(self, sender: int, to: int, message: object, life: int) -> None:
        if not self.is_cut(sender, to) and self._lives.get((sender, to), 0) == life:
            self._deliver(to, sender, message if self._codec is None else self._codec.decode(message, to))

    def is_cut(self, sender: int, to: int) -> bool:
        return (sender, to) in self._cut

    def cut(self, sender: int, to: int) -> None:
        """Nothing gets through in this direction."""
        self._cut[sender, to] = True

    def heal(self, sender: int, to: int) -> None:
        self._cut.pop((sender, to), None)

    def heal_around(self, place: int) -> None:
        """Every link from and to this one."""
        for link in [each for each in self._cut if place in each]:
            del self._cut[link]

    def heal_all(self) -> None:
        self._cut.clear()

    def reset(self, one: int, other: int) -> None:
        """The connection breaks: what was under way between the two is lost."""
        for link in ((one, other), (other, one)):
            self._lives[link] = self._lives.get(link, 0) + 1
