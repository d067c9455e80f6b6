"""kill -9 under load, on every door: what was acknowledged is there, where it was said to be, and nothing is there twice.

Writers with many requests in flight, a committer, a maker of topics and members that join work on a real node until it is killed
at a random moment; it is started again over the same folder, everything promised in all its lives is checked, and the next life
begins. `make kill KILL_ROUNDS=100` does it for longer. A SIGTERM under the same load has to answer everything it took.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.adapters.cursus.drive import Client as CursusClient
from tests.adapters.cursus.drive import batch
from tests.adapters.doors import DOORS, GONE, Door, last_offset
from tests.adapters.hostility import check_running
from tests.waiting import until

from braidlog.testing.server import ServerProcess
from braidlog.wire.dialect import dialects

ROUNDS = int(os.environ.get("KILL_ROUNDS", "1"))
DIALECTS = sorted(set(dialects()) - {"mayfly"})  # a store has keys, not topics: tests/adapters/mayfly/test_kill.py
TOPICS = ("load-0", "load-1")
WRITERS = 4
WINDOW = 16
"""Produces of one writer that are not acknowledged yet."""
IDEMPOTENT_WINDOW = 5
"""Batches of a producer that the log remembers: what it has in flight, and sends again, must not be more."""


class Promises:
    """Everything that the node has acknowledged, in all its lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: dict[str, set[str]] = {topic: set() for topic in TOPICS}
        self.records: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
        self.committed = self.committing = 0
        self.generation = 0
        self.topics: set[str] = set(TOPICS)
        self.life = 0
        self.acknowledged = 0

    def record(self, topic: str, offset: int, value: str) -> None:
        with self._lock:
            known = self.records[topic].setdefault(offset, value)
            assert known == value, f"offset {offset} of {topic} was given to {known} and to {value}"
            self.acknowledged += 1


Work = Callable[[Door, Promises, threading.Event], None]


def write(number: int) -> Work:
    """Keep a window of produces in flight, over two topics."""

    def run(door: Door, promises: Promises, done: threading.Event) -> None:
        sent = 0
        where: dict[str, str] = {}
        while True:
            # A node that takes no more may still have answers: they are read to their end.
            with contextlib.suppress(*GONE):
                while len(where) < WINDOW and not done.is_set():
                    value, topic = f"{promises.life}-{number}-{sent}", TOPICS[sent % len(TOPICS)]
                    where[value] = topic
                    sent += 1
                    promises.sent[topic].add(value)
                    door.send(topic, value)
            value, offset = door.acknowledged()
            promises.record(where.pop(value), offset, value)

    return run


def commit(door: Door, promises: Promises, done: threading.Event) -> None:
    while not done.is_set():
        promises.committing += 1
        door.commit("committers", TOPICS[0], promises.committing)
        promises.committed = promises.committing


def join(door: Door, promises: Promises, done: threading.Event) -> None:
    number = 0
    while not done.is_set():
        generation = door.join("members", TOPICS[0], f"m-{promises.life}-{number}")
        if generation is None:
            return
        assert generation > promises.generation
        promises.generation = generation
        number += 1


def create(door: Door, promises: Promises, done: threading.Event) -> None:
    number = 0
    while not done.is_set():
        name = f"made-{promises.life}-{number}"
        door.create(name)
        promises.topics.add(name)
        number += 1


WORK: dict[str, Work] = {
    **{f"writer {number}": write(number) for number in range(WRITERS)},
    "committer": commit,
    "joiner": join,
    "creator": create,
}


class Load:
    """All the work at once, each on a connection of its own, until the node is gone."""

    def __init__(self, server: ServerProcess, dialect: str, promises: Promises) -> None:
        self._done = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(DOORS[dialect](server), work, promises), name=name)
            for name, work in WORK.items()
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, door: Door, work: Work, promises: Promises) -> None:
        try:
            work(door, promises, self._done)
        except GONE:
            pass  # as it has to come
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for the end
            self._failures.append(error)
        finally:
            door.close()

    def check(self) -> None:
        for failure in self._failures:
            raise failure

    def end(self) -> None:
        """The node is gone: wait until everyone has noticed."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} still waits for a node that is gone"
        self.check()


@contextlib.contextmanager
def seeded() -> Iterator[random.Random]:
    seed = int(os.environ.get("KILL_SEED", random.randrange(2**32)))
    print(f"KILL_SEED={seed}")
    yield random.Random(seed)


def wait_for_a_moment(rng: random.Random, load: Load, promises: Promises) -> None:
    """So many acknowledgements, and then a few milliseconds more."""
    wanted = promises.acknowledged + rng.randrange(100, 1500)

    def reached() -> bool:
        load.check()
        return promises.acknowledged >= wanted

    until(reached)
    threading.Event().wait(rng.random() * 0.02)


def check_promises(server: ServerProcess, dialect: str, promises: Promises) -> dict[str, dict[int, str]]:
    """Ask the node for everything it has promised; return the records it has."""
    door = DOORS[dialect](server)
    found = {topic: door.read(topic) for topic in TOPICS}
    for topic, records in found.items():
        assert list(records) == list(range(len(records))), f"{topic} has holes"
        for offset, value in promises.records[topic].items():
            assert records.get(offset) == value, (
                f"{topic} at {offset}: {value} was acknowledged, {records.get(offset)} is there"
            )
        assert len(set(records.values())) == len(records), f"{topic} holds something twice"
        assert set(records.values()) <= promises.sent[topic], f"{topic} holds what nobody sent"
        # What is there now stays there: it is read, acknowledged or not.
        promises.records[topic] = dict(records)
    committed = door.committed("committers", TOPICS[0])
    assert promises.committed <= committed <= promises.committing
    promises.committed = committed
    missing = promises.topics - door.topics()
    assert not missing
    generation = door.join("members", TOPICS[0], f"checker-{promises.life}")
    assert generation is None or generation > promises.generation
    promises.generation = generation or 0
    door.close()
    return found


def test_every_door_is_tried() -> None:
    assert set(DIALECTS) <= set(DOORS)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, dialect: str) -> None:
    promises = Promises()
    with seeded() as rng, ServerProcess(tmp_path / "data") as server:
        door = DOORS[dialect](server)
        for topic in TOPICS:
            door.create(topic)
        door.close()
        for promises.life in range(ROUNDS):
            load = Load(server, dialect, promises)
            wait_for_a_moment(rng, load, promises)
            server.kill()
            load.end()
            server.restart()
            check_promises(server, dialect, promises)
        check_running(server)
        kept = sum(map(len, promises.records.values()))
        print(f"{dialect}: {kept} records, {len(promises.topics)} topics, {promises.committed} commits, {ROUNDS} kills")
        assert kept > 100 * ROUNDS


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stop_under_load_answers_everything_it_took(tmp_path: Path, dialect: str) -> None:
    """After a SIGTERM there is no record that was stored and not acknowledged, nor the other way round."""
    promises = Promises()
    with seeded() as rng, ServerProcess(tmp_path / "data") as server:
        door = DOORS[dialect](server)
        for topic in TOPICS:
            door.create(topic)
        door.close()
        for promises.life in range(ROUNDS):
            load = Load(server, dialect, promises)
            wait_for_a_moment(rng, load, promises)
            assert server.stop() == 0
            load.end()
            acknowledged = {topic: dict(records) for topic, records in promises.records.items()}
            server.restart()
            found = check_promises(server, dialect, promises)
            for topic in TOPICS:
                untold = {offset: value for offset, value in found[topic].items() if offset not in acknowledged[topic]}
                assert not untold
        check_running(server)


# ── Producers that resend ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Producer:
    """An idempotent Cursus producer: what is not acknowledged when the node goes is sent again, with its number."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unacknowledged: dict[int, bytes] = {}
        self._number = 0
        self.offsets: dict[int, int] = {}
        self.resent = 0

    def run(self, server: ServerProcess, done: threading.Event) -> None:
        try:
            with CursusClient(server) as client:
                for number in self._unacknowledged:
                    self._send(client, number)
                    self.resent += 1
                while self._unacknowledged or not done.is_set():
                    while len(self._unacknowledged) < IDEMPOTENT_WINDOW and not done.is_set():
                        self._number += 1
                        self._unacknowledged[self._number] = f"{self._name}-{self._number}".encode()
                        self._send(client, self._number)
                    offset = last_offset(client)
                    number = next(iter(self._unacknowledged))
                    del self._unacknowledged[number]
                    self.offsets[number] = offset
        except GONE:
            return

    def _send(self, client: CursusClient, number: int) -> None:
        value = self._unacknowledged[number]
        client.send(batch(TOPICS[0], value, idempotent=True, producer=self._name, first=number))

    @property
    def values(self) -> list[str]:
        return [f"{self._name}-{number}" for number in range(1, self._number + 1)]


def test_what_is_sent_again_is_not_stored_again(tmp_path: Path) -> None:
    producers = [Producer(f"p{number}") for number in range(3)]
    with seeded() as rng, ServerProcess(tmp_path / "data") as server:
        with CursusClient(server) as client:
            client.ok(f"CREATE topic={TOPICS[0]} partitions=1")
        for life in range(ROUNDS + 1):
            done = threading.Event()
            threads = [threading.Thread(target=producer.run, args=(server, done)) for producer in producers]
            for thread in threads:
                thread.start()
            wanted = sum(len(p.offsets) for p in producers) + rng.randrange(100, 1000)
            until(lambda wanted=wanted: sum(len(p.offsets) for p in producers) >= wanted)  # type: ignore[misc]
            if life == ROUNDS:
                done.set()  # the last life ends well: everything is acknowledged
            else:
                threading.Event().wait(rng.random() * 0.02)
                server.kill()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            if life < ROUNDS:
                server.restart()
        door = DOORS["cursus"](server)
        found = door.read(TOPICS[0])
        door.close()
    print(f"{len(found)} records, {sum(p.resent for p in producers)} sent again")
    for producer in producers:
        mine = {offset: value for offset, value in found.items() if value.startswith(f"{producer._name}-")}
        assert list(mine.values()) == producer.values  # each once, in order, none missing
        assert {number: f"{producer._name}-{number}" for number in producer.offsets} == {
            number: found[offset] for number, offset in producer.offsets.items()
        }
