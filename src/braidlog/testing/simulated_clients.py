"""Clients of a simulated cluster: idempotent producers that never give up, readers at leaders and at followers.

Knows: what a client sends, and what it does with an answer or without one. Refuses to know: how nodes work.
"""

from typing import TYPE_CHECKING

from braidlog.codec.batch import NO_PRODUCER
from braidlog.codec.records import encode_batch
from braidlog.testing import history
from braidlog.testing.promises import WEAK, BrokenPromise
from braidlog.testing.simulated_messages import TOPIC, Produce, Produced, Read, ReadAnswer
from braidlog.testing.virtual_time import US_PER_MS

if TYPE_CHECKING:
    from braidlog.testing.universe import Universe

FIRST_CLIENT = 100
TIMEOUT_US = 700 * US_PER_MS
BACKOFF_US = 30 * US_PER_MS
RECORDS_MAX = 3


class Producer:
    """One batch at a time. If all are to have it (`needs_all`): with its number, again and again until it is acknowledged."""

    def __init__(self, universe: "Universe", number: int, *, needs_all: bool) -> None:
        self.universe = universe
        self.needs_all = needs_all
        self.number = number
        self._draw = universe.stream(f"producer {number}")
        self._sequence = 0
        self._believed = 1 + self._draw.randrange(len(universe.nodes))
        self._attempts = 0
        self._asked: Produce | None = None
        self._appends: list[history.Append] = []
        # What a leader alone has acknowledged may be gone, and what has no number may be there twice.
        resends = history.Resends.ONCE if needs_all else history.Resends.AT_LEAST_ONCE
        universe.history.resends[self._name] = resends
        self.acknowledged = 0
        self.is_done = False

    @property
    def _name(self) -> str:
        return f"{'' if self.needs_all else WEAK.decode()}{self.number}"

    def start(self) -> None:
        self.universe.time.after(self._draw.randrange(200 * US_PER_MS), self._next)

    def _next(self) -> None:
        if self.universe.is_healing:
            self.is_done = True
            return
        count = 1 + self._draw.randrange(RECORDS_MAX)
        self._appends = [
            history.Append(self._name, self._sequence + at, TOPIC, self.universe.seconds) for at in range(count)
        ]
        self.universe.history.add(*self._appends)
        values = [each.value.encode() for each in self._appends]
        data = encode_batch(
            values,
            base_timestamp=1_700_000_000_000,
            producer_id=self.number if self.needs_all else NO_PRODUCER,
            producer_epoch=0 if self.needs_all else -1,
            base_sequence=self._sequence if self.needs_all else -1,
        )
        self._sequence += count
        self._asked = Produce(self.number, 0, data, self.needs_all)
        self.universe.values[data] = values
        self._send()

    def _send(self) -> None:
        assert self._asked is not None
        self._attempts += 1
        attempt = self._attempts
        self._asked = self._asked._replace(number=attempt)
        self.universe.network.send(self.number, self._believed, self._asked)
        self.universe.time.after(TIMEOUT_US, lambda: self._again(attempt))

    def _again(self, attempt: int) -> None:
        if attempt != self._attempts or self._asked is None:
            return
        self._believed = self.universe.leader_as_seen(self._draw)
        if self.needs_all:
            self._send()
        else:
            self._next()  # without a number the same again could be there twice: it lets go of it

    def receive(self, _: int, message: object) -> None:
        if not isinstance(message, Produced) or message.number != self._attempts or self._asked is None:
            return
        if message.end is not None:
            self._asked = None
            self.acknowledged += 1
            if self.needs_all:
                self._note_acknowledged(message.end)
            self.universe.time.after(int(self._draw.expovariate(1 / self.universe.mix.think_us)), self._next)
            return
        # Also after a gap in its numbers: see `Promises.found_gap`.
        attempt = self._attempts
        self.universe.time.after(BACKOFF_US, lambda: self._again(attempt))

    def asks_for(self, data: bytes) -> bool:
        return self._asked is not None and self._asked.data == data

    def _note_acknowledged(self, end: int) -> None:
        for offset, each in enumerate(self._appends, end - len(self._appends)):
            each.offset, each.end, each.outcome = offset, self.universe.seconds, history.Outcome.ACKNOWLEDGED


class Reader:
    """Reads on from where it is, at a node of its choice, and changes it now and then."""

    def __init__(self, universe: "Universe", number: int, *, at_leader: bool) -> None:
        self.universe = universe
        self.number = number
        self._at_leader = at_leader
        self._draw = universe.stream(f"reader {number}")
        self._asked = 0
        self._asked_seconds = 0.0
        self.offset = 0

    def start(self) -> None:
        self.universe.time.after(self._draw.randrange(200 * US_PER_MS), self._ask)

    def _ask(self) -> None:
        self._asked += 1
        self._asked_seconds = self.universe.seconds
        node = self.universe.leader_as_seen(self._draw)
        if not self._at_leader:
            node = 1 + self._draw.randrange(len(self.universe.nodes))
        self.universe.network.send(self.number, node, Read(self.number, self._asked, self.offset))
        self.universe.time.after(int(self.universe.mix.think_us * (0.5 + self._draw.random())), self._ask)

    def receive(self, node: int, message: object) -> None:
        if not isinstance(message, ReadAnswer) or message.number != self._asked:
            return
        self._asked += 1  # the same answer twice counts once
        records = message.records
        if records and records[0][0] != self.offset:
            raise BrokenPromise(f"reader {self.number} asks node {node} from {self.offset} and gets {records[0][0]}")
        first = self.offset
        if records:
            self.offset = records[-1][0] + 1
        client = f"reader {self.number} at node {node}.{message.life}"
        self.universe.history.add(
            history.Read(
                client,
                TOPIC,
                {offset: value.decode() for offset, value in records},
                first,
                self.offset,
                self._asked_seconds,
                self.universe.seconds,
                watermark=message.watermark,
            )
        )
