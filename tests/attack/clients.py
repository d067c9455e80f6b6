"""Clients made of the tests' own connections, on all six doors; each works in a thread and writes down what it was told.

A client whose connection ends, or that is told anything it does not expect, leaves what is in flight in doubt and connects again.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import ClassVar

from tests.adapters.doors import DOORS, Door
from tests.adapters.mayfly.client import Client as MayflyClient
from tests.histories.history import Append, History, Increment, Lease, Looked, Outcome, Read, Seen, Written

from braidlog.codec.errors import ProtocolError
from braidlog.testing.server import ServerProcess
from braidlog.wire.mayfly import messages as mayfly

TROUBLE = (OSError, EOFError, AssertionError, AttributeError, KeyError, ValueError, IndexError, ProtocolError)
"""The connection is gone; or the answer was not the one that was wanted, which the doors of the tests assert."""
WINDOW = 4
PAUSE_SECONDS = 0.01
AGAIN_SECONDS = 0.05
LOOK_EVERY = 25
READ_EVERY_SECONDS = 2
LEASE_SECONDS = 20


class Client(threading.Thread):
    """`work` is one connection's life: it returns when `stop` is set, or raises."""

    def __init__(self, node: ServerProcess, history: History, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.node = node
        self.history = history
        self.stop = threading.Event()
        self.acknowledged = 0
        self.troubles: deque[str] = deque(maxlen=3)
        self.troubled = 0
        """How often its connection ended, or it was told something else than it wanted."""
        self.failure: BaseException | None = None

    def run(self) -> None:
        while not self.stop.is_set() and self.failure is None:
            try:
                self.work()
            except TROUBLE as error:
                self.troubles.append(f"{type(error).__name__}: {error}"[:200])
                self.troubled += 1
            except BaseException as error:  # noqa: BLE001 - raised again by who waits for the end
                self.failure = error
            self.stop.wait(AGAIN_SECONDS)

    def work(self) -> None:
        raise NotImplementedError

    def finish(self, seconds: float) -> list[str]:
        """Wait for its end; what is wrong with it."""
        self.join(seconds)
        if self.failure is not None:
            return [f"{self.name} failed: {self.failure!r}"]
        return [f"{self.name} does not end: {list(self.troubles)}"] if self.is_alive() and seconds > 0 else []


class Writer(Client):
    """Appends to a topic through one door, a few in flight; what is in doubt is never sent again."""

    doors: ClassVar[Mapping[str, type[Door]]] = DOORS
    pause_seconds = PAUSE_SECONDS

    def __init__(self, node: ServerProcess, history: History, dialect: str, topic: str, name: str) -> None:
        super().__init__(node, history, name)
        self._dialect = dialect
        self._topic = topic
        self._number = 0

    def work(self) -> None:
        door = self.doors[self._dialect](self.node)
        waiting: dict[str, Append] = {}
        try:
            while waiting or not self.stop.is_set():
                while len(waiting) < WINDOW and not self.stop.is_set():
                    append = Append(self.name, self._number, self._topic, time.monotonic())
                    self._number += 1
                    self.history.add(append)
                    waiting[append.value] = append
                    door.send(self._topic, append.value)
                value, offset = door.acknowledged()
                append = waiting.pop(value)
                append.offset, append.end, append.outcome = offset, time.monotonic(), Outcome.ACKNOWLEDGED
                self.acknowledged += 1
                self.stop.wait(self.pause_seconds)
        finally:
            door.close()


class Reader(Client):
    """Reads a topic from its beginning, through one door after the other."""

    def __init__(self, node: ServerProcess, history: History, topic: str, name: str) -> None:
        super().__init__(node, history, name)
        self._topic = topic
        self._doors = itertools.cycle(sorted(DOORS))

    def work(self) -> None:
        while not self.stop.is_set():
            self.history.add(read_whole(self.node, next(self._doors), self._topic))
            self.acknowledged += 1
            self.stop.wait(READ_EVERY_SECONDS)


class Committer(Client):
    """One group on one door: its commits go up by one, and are looked at now and then and after each new connection."""

    def __init__(self, node: ServerProcess, history: History, dialect: str, topic: str, group: str) -> None:
        super().__init__(node, history, group)
        self.dialect = dialect
        self._topic = topic
        self._value = 0

    def work(self) -> None:
        door = DOORS[self.dialect](self.node)
        try:
            while not self.stop.is_set():
                if self._value:
                    self.history.add(look_at_commit(self.node, self.dialect, self.name, self._topic))
                for _ in range(LOOK_EVERY):
                    self._value += 1
                    commit = Written(self.name, self._value, time.monotonic())
                    self.history.add(commit)
                    door.commit(self.name, self._topic, self._value)
                    commit.end, commit.outcome = time.monotonic(), Outcome.ACKNOWLEDGED
                    self.acknowledged += 1
                    if self.stop.wait(PAUSE_SECONDS):
                        return
        finally:
            door.close()


class Counter(Client):
    """Counts a key of the key-value store up."""

    def work(self) -> None:
        with MayflyClient(self.node) as client:
            while not self.stop.is_set():
                self.history.add(look_at_counter(self.node, self.name))
                for _ in range(LOOK_EVERY):
                    increment = Increment(self.name, time.monotonic())
                    self.history.add(increment)
                    answer = client.ask(mayfly.Incr(self.name.encode()))
                    assert isinstance(answer, mayfly.Number), answer
                    increment.value, increment.end = answer.number, time.monotonic()
                    increment.outcome = Outcome.ACKNOWLEDGED
                    self.acknowledged += 1
                    if self.stop.wait(PAUSE_SECONDS):
                        return


class Leaser(Client):
    """Sets keys that live for a while, and looks whether they do."""

    def __init__(self, node: ServerProcess, history: History, name: str) -> None:
        super().__init__(node, history, name)
        self._keys: deque[str] = deque(maxlen=200)
        self._number = 0

    def work(self) -> None:
        with MayflyClient(self.node) as client:
            while not self.stop.is_set():
                lease = Lease(f"{self.name}-{self._number}", LEASE_SECONDS, time.monotonic())
                self._number += 1
                self.history.add(lease)
                answer = client.ask(mayfly.Set(lease.name.encode(), b"here", ttl_seconds=LEASE_SECONDS))
                assert answer == mayfly.Stored(), answer
                lease.end, lease.outcome = time.monotonic(), Outcome.ACKNOWLEDGED
                self._keys.append(lease.name)
                self.acknowledged += 1
                for key in list(self._keys)[:: max(len(self._keys) // 4, 1)]:
                    start = time.monotonic()
                    answer = client.ask(mayfly.Get(key.encode()))
                    assert isinstance(answer, mayfly.Value) or answer == mayfly.MISSING, answer
                    self.history.add(Looked(key, answer != mayfly.MISSING, start, time.monotonic()))
                self.stop.wait(5 * PAUSE_SECONDS)


def read_whole(
    node: ServerProcess, dialect: str, topic: str, *, last: bool = False, doors: Mapping[str, type[Door]] = DOORS
) -> Read:
    """Everything there is of a topic."""
    start = time.monotonic()
    door = doors[dialect](node)
    try:
        records = door.read(topic)
    finally:
        door.close()
    end = max(records, default=-1) + 1
    return Read(f"a {dialect} reader", topic, records, 0, end, start, time.monotonic(), last=last)


def look_at_commit(node: ServerProcess, dialect: str, group: str, topic: str) -> Seen:
    start = time.monotonic()
    door = DOORS[dialect](node)
    try:
        return Seen(group, door.committed(group, topic), start, time.monotonic())
    finally:
        door.close()


def look_at_counter(node: ServerProcess, name: str) -> Seen:
    start = time.monotonic()
    with MayflyClient(node) as client:
        answer = client.ask(mayfly.Get(name.encode()))
        assert isinstance(answer, mayfly.Value) or answer == mayfly.MISSING, answer
    value = 0 if answer == mayfly.MISSING else int(answer.value)
    return Seen(name, value, start, time.monotonic())
