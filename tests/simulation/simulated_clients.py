"""Clients of a simulated cluster: idempotent producers that never give up, readers at leaders and at followers,
and those who delete.

Knows: what a client sends, and what it does with an answer or without one. Refuses to know: how nodes work.
"""

from typing import TYPE_CHECKING

from tests.histories import history
from tests.simulation.partition_promises import WEAK, BrokenPromise
from tests.simulation.sent_records import BASE_MS, Sent
from tests.simulation.simulated_messages import Delete, Produce, Produced, Read, ReadAnswer
from tests.simulation.virtual_time import US_PER_MS

from braidlog.codec.batch.records import BatchFields

if TYPE_CHECKING:
    from tests.simulation.universe import Universe

FIRST_CLIENT = 100
TIMEOUT_US = 700 * US_PER_MS
BACKOFF_US = 30 * US_PER_MS
RECORDS_MAX = 3
KEYS = 5
TOMBSTONE_RATE = 0.2


class Producer:
    """One batch at a time. If all are to have it (`needs_all`): with its number, again and again until it is acknowledged."""

    def __init__(self, universe: "Universe", number: int, name: str, *, needs_all: bool) -> None:
        self.universe = universe
        self.partition = name
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
        self.last_offset = 0
        """Where its last acknowledged batch begins."""
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
            history.Append(self._name, self._sequence + at, self.partition, self.universe.seconds)
            for at in range(count)
        ]
        self.universe.history.add(*self._appends)
        fields = BatchFields(producer_id=self.number, producer_epoch=0, base_sequence=self._sequence)
        records = [self._record(each) for each in self._appends]
        now_ms = BASE_MS + self.universe.time.now_us // US_PER_MS
        data = self.universe.records.encode(records, now_ms, fields if self.needs_all else {})
        self._sequence += count
        self._asked = Produce(self.partition, self.number, 0, data, self.needs_all)
        self._send()

    def _record(self, append: history.Append) -> Sent:
        value = append.value.encode()
        if not self.universe.mix.settings.compact:
            return Sent(value)
        append.key = f"key {self._draw.randrange(KEYS)}"
        append.removes = self.needs_all and self._draw.random() < TOMBSTONE_RATE
        return Sent(value, append.key.encode(), append.removes)

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
        self._believed = self.universe.leader_as_seen(self._draw, self.partition)
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
        self.last_offset = end - len(self._appends)
        for offset, each in enumerate(self._appends, end - len(self._appends)):
            each.offset, each.end, each.outcome = offset, self.universe.seconds, history.Outcome.ACKNOWLEDGED


class Reader:
    """Reads on from where it is, at a node of its choice, and changes it now and then."""

    def __init__(self, universe: "Universe", number: int, name: str, *, at_leader: bool) -> None:
        self.universe = universe
        self.partition = name
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
        node = self.universe.leader_as_seen(self._draw, self.partition)
        if not self._at_leader:
            node = 1 + self._draw.randrange(len(self.universe.nodes))
        self.universe.network.send(self.number, node, Read(self.partition, self.number, self._asked, self.offset))
        self.universe.time.after(int(self.universe.mix.think_us * (0.5 + self._draw.random())), self._ask)

    def receive(self, node: int, message: object) -> None:
        if not isinstance(message, ReadAnswer) or message.number != self._asked:
            return
        self._asked += 1  # the same answer twice counts once
        records = message.records
        if message.start > self.offset:
            self.universe.count("reader led to the start")
        self.offset = max(self.offset, message.start)
        if records and records[0][0] != self.offset and not self.universe.mix.settings.compact:
            raise BrokenPromise(f"reader {self.number} asks node {node} from {self.offset} and gets {records[0][0]}")
        first = self.offset
        if records:
            self.offset = records[-1][0] + 1
        client = f"reader {self.number} at node {node}.{message.copy}"
        self.universe.history.add(
            history.Read(
                client,
                self.partition,
                {offset: value.decode() for offset, value in records},
                first,
                self.offset,
                self._asked_seconds,
                self.universe.seconds,
                watermark=message.watermark,
            )
        )


class Deleter:
    """Lets the log begin later, now and then: as late as may be, or somewhere before."""

    def __init__(self, universe: "Universe", number: int, name: str) -> None:
        self.universe = universe
        self.number = number
        self.partition = name
        self._draw = universe.stream(f"deleter {number}")
        self._asked = 0

    def start(self) -> None:
        self._again()

    def _again(self) -> None:
        if self.universe.is_healing:
            return
        self.universe.time.after(int(self._draw.expovariate(1 / self.universe.mix.delete_every_us)), self._ask)

    def _ask(self) -> None:
        self._asked += 1
        end = self.universe.deletable_end(self.partition)
        offset = end if self._draw.random() < 0.5 else self._draw.randrange(end + 1)
        node = self.universe.leader_as_seen(self._draw, self.partition)
        self.universe.network.send(self.number, node, Delete(self.partition, self.number, self._asked, offset))
        self._again()

    def receive(self, _: int, message: object) -> None:
        """What was answered is promised: `PartitionPromises.deleted_below`."""
