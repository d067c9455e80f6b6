"""Keys that several clients read and change through any node: calls, of which an order has to explain every answer; lists, whose
elements stay where they were put; hashes, each field of which is a register.

A call in doubt may count at any later time, and each of them can double what a checker has to look at: clients then go on with
the next key.
"""

import json
import random
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.adapters.mayfly.client import Client as MayflyClient
from tests.attack.clients import Client
from tests.histories.history import Action, Append, Call, History, Outcome, Read, Seen, Value, Written

from braidlog.testing.server import ServerProcess
from braidlog.wire.mayfly import messages as mayfly

PORCUPINE = Path(__file__).with_name("porcupine")
CALLS_MAX = 500
"""Of one key."""
PAUSE_SECONDS = 0.03
GETS, SETS, INCREMENTS = 0.5, 0.75, 0.9
"""Shares of the calls, one after the other; what is left deletes."""
LOOK_EVERY = 25
FIELDS = 5
LIST, HASH = "list-", "hash-"
"""How their names begin."""


class Keys:
    """The key that is used now."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = self._calls = 0
        self._lock = threading.Lock()

    def next(self) -> str:
        with self._lock:
            self._calls += 1
            if self._calls > CALLS_MAX:
                self._go_on()
            return f"{self._name}.{self._number}"

    def _go_on(self) -> None:
        self._number += 1
        self._calls = 0

    def spoilt(self, key: str) -> None:
        """Nobody knows what became of a call."""
        with self._lock:
            if key == f"{self._name}.{self._number}":
                self._go_on()


class KeyCaller(Client):
    """Reads, sets, counts up and deletes the key that others use as well."""

    def __init__(self, node: ServerProcess, history: History, keys: Keys, name: str) -> None:
        super().__init__(node, history, name)
        self._keys = keys
        self._rng = random.Random(name)
        self._number = 0

    def work(self) -> None:
        with MayflyClient(self.node) as client:
            while not self.stop.is_set():
                call = self._chosen()
                try:
                    call.answer = _asked(client, call)
                except BaseException:
                    if call.action is not Action.GET:
                        self._keys.spoilt(call.key)
                    raise
                call.end, call.outcome = time.monotonic(), Outcome.ACKNOWLEDGED
                self.acknowledged += 1
                self.stop.wait(PAUSE_SECONDS)

    def _chosen(self) -> Call:
        """A value that nobody else sets; a number, so that it can be counted up."""
        self._number += 1
        kind, action, argument = self._rng.random(), Action.GET, 0
        if kind >= INCREMENTS:
            action = Action.DELETE
        elif kind >= SETS:
            action, argument = Action.INCREMENT, 1
        elif kind >= GETS:
            action, argument = Action.SET, self._rng.randrange(1 << 40)
        call = Call(self.name, self._keys.next(), action, argument or None, time.monotonic())
        self.history.add(call)
        return call


def _asked(client: MayflyClient, call: Call) -> Value:
    """AssertionError if it was refused: it may count all the same."""
    key = call.key.encode()
    match call.action:
        case Action.GET:
            found = client.ask(mayfly.Get(key))
            assert isinstance(found, mayfly.Value) or found == mayfly.MISSING, found
            return None if found == mayfly.MISSING else int(found.value)
        case Action.SET:
            stored = client.ask(mayfly.Set(key, str(call.argument).encode()))
            assert stored == mayfly.Stored(), stored
            return None
        case Action.INCREMENT:
            counted = client.ask(mayfly.Incr(key))
            assert isinstance(counted, mayfly.Number), counted
            return counted.number
        case Action.DELETE:
            deleted = client.ask(mayfly.Del(key))
            assert deleted in (mayfly.Done(), mayfly.MISSING), deleted
            return bool(deleted == mayfly.Done())
        case _:
            raise AssertionError(call)


class Pusher(Client):
    """Puts elements at the end of a list, as others do: the answer tells where, as an offset does. None is sent twice."""

    def __init__(self, node: ServerProcess, history: History, key: str, name: str) -> None:
        super().__init__(node, history, name)
        self.key = key
        self._number = 0

    def work(self) -> None:
        with MayflyClient(self.node) as client:
            while not self.stop.wait(PAUSE_SECONDS):
                append = Append(self.name, self._number, self.key, time.monotonic())
                self._number += 1
                self.history.add(append)
                pushed = client.ask(mayfly.RPush(self.key.encode(), (append.value.encode(),)))
                assert isinstance(pushed, mayfly.Length), pushed
                append.offset, append.end, append.outcome = pushed.length - 1, time.monotonic(), Outcome.ACKNOWLEDGED
                self.acknowledged += 1
                if self._number % LOOK_EVERY == 0:
                    self.history.add(look_at_list(client, self.key, max(append.offset - LOOK_EVERY, 0)))

    def look(self, client: MayflyClient) -> Iterator[Read]:
        """When all have ended."""
        yield look_at_list(client, self.key, 0, last=True)


def look_at_list(client: MayflyClient, key: str, first: int, *, last: bool = False) -> Read:
    start = time.monotonic()
    found = client.ask(mayfly.LRange(key.encode(), first, -1))
    assert isinstance(found, mayfly.Values), found
    records = {place: value.decode() for place, value in enumerate(found.values, start=first)}
    end = first + len(records)
    return Read("a reader of the list", key, records, first, end, start, time.monotonic(), last=last)


class FieldWriter(Client):
    """Sets fields of its own in a hash that others use as well, each higher than before."""

    def __init__(self, node: ServerProcess, history: History, key: str, name: str) -> None:
        super().__init__(node, history, name)
        self.key = key
        self._number = 0

    def work(self) -> None:
        with MayflyClient(self.node) as client:
            while not self.stop.wait(PAUSE_SECONDS):
                if self._number % LOOK_EVERY == 0:
                    self.history.add(*self.look(client))
                self._number += 1
                field = f"{self.name}-{self._number % FIELDS}"
                written = Written(f"{self.key}/{field}", self._number, time.monotonic())
                self.history.add(written)
                told = client.ask(mayfly.HSet(self.key.encode(), ((field.encode(), b"%d" % self._number),)))
                assert isinstance(told, mayfly.Count), told
                written.end, written.outcome = time.monotonic(), Outcome.ACKNOWLEDGED
                self.acknowledged += 1

    def look(self, client: MayflyClient) -> Iterator[Seen]:
        start = time.monotonic()
        found = client.ask(mayfly.HGetAll(self.key.encode()))
        assert isinstance(found, mayfly.Pairs) or found == mayfly.MISSING, found
        values = {} if found == mayfly.MISSING else {field.decode(): int(value) for field, value in found.pairs}
        for field in (f"{self.name}-{number}" for number in range(FIELDS)):
            yield Seen(f"{self.key}/{field}", values.get(field, 0), start, time.monotonic())


# ── A second opinion ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_calls(path: Path, calls: Iterable[Call]) -> None:
    """A line of JSON each, for `porcupine/main.go`: times in nanoseconds, no end where the outcome is not known."""
    with path.open("w", encoding="utf-8") as file:
        for each in calls:
            if each.outcome is Outcome.REFUSED:
                continue
            is_known = each.outcome is Outcome.ACKNOWLEDGED
            row = {
                "key": each.key,
                "client": each.client,
                "action": "create" if isinstance(each.argument, tuple) else each.action.value,
                "argument": each.argument[1] if isinstance(each.argument, tuple) else each.argument,
                "start": int(each.start * 1e9),
                "end": int(each.end * 1e9) if is_known else None,
                "answer": each.answer,
            }
            file.write(json.dumps(row) + "\n")


def fetch_porcupine() -> None:
    """What it is built of is fetched while there still is a network."""
    subprocess.run(["go", "mod", "download"], cwd=PORCUPINE, check=True)


def second_opinion(path: Path) -> list[str]:
    """What Porcupine finds wrong with a file of calls."""
    command = ["go", "run", ".", str(path)]
    done = subprocess.run(command, cwd=PORCUPINE, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"porcupine: {line}" for line in (done.stdout + done.stderr).splitlines()]
