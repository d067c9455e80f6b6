"""kill -9 under pipelined load: every acknowledged mutation is there, and no counter has counted anything twice.

Writers with hundreds of requests in flight, each on keys of its own, work on a real node until it is killed at a random moment;
it is started again over the same folder, everything promised in all its lives is checked, and the next life begins. Snapshots
are taken meanwhile. `KILL_ROUNDS=100` does it for longer; `KILL_SEED` repeats a run.
"""

import contextlib
import os
import random
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tests.adapters.hostility import check_running
from tests.adapters.mayfly.client import Client
from tests.waiting import until

from braidlog.testing.server import ServerProcess
from braidlog.wire.mayfly import messages as m

ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
WINDOW = 300
GONE = (ConnectionError, EOFError, OSError)


class Writer:
    """One connection's mutations in their order: those below `acknowledged` are promised, those up to `sent` may be there."""

    def __init__(self, number: int) -> None:
        self.name = b"w%d" % number
        self.sent = 0
        self.acknowledged = 0
        self.failure: BaseException | None = None

    def message(self, at: int) -> m.Message:
        raise NotImplementedError

    def check_answer(self, at: int, answer: m.Message) -> None:
        raise NotImplementedError

    def found(self, client: Client) -> int:
        """How many of its mutations the store holds, after checking that it holds them rightly."""
        raise NotImplementedError

    def run(self, server: ServerProcess) -> None:
        try:
            with Client(server) as client:
                self._drive(client)
        except GONE:
            return  # as it has to come
        except BaseException as error:  # noqa: BLE001 - raised again by who waits for the end
            self.failure = error

    def _drive(self, client: Client) -> None:
        """Answers may overtake each other: what is promised is what was answered without a gap."""
        waiting: deque[tuple[int, int]] = deque()
        answered: dict[int, m.Message] = {}
        while True:
            with contextlib.suppress(*GONE):  # a node that takes no more may still have answers
                frames = []
                while len(waiting) < WINDOW:
                    frames.append(client.written(self.message(self.sent)))
                    waiting.append((client.connection._last_id, self.sent))
                    self.sent += 1
                client.socket.sendall(b"".join(frames))
            response = client.receive()
            answered[response.id] = response.message
            while waiting and waiting[0][0] in answered:
                request_id, at = waiting.popleft()
                self.check_answer(at, answered.pop(request_id))
                self.acknowledged = at + 1


class Counting(Writer):
    """INCR: the answer to the n-th is n, and after a crash the counter is as high as what was done."""

    def message(self, at: int) -> m.Message:
        return m.Incr(self.name)

    def check_answer(self, at: int, answer: m.Message) -> None:
        assert answer == m.Number(at + 1)

    def found(self, client: Client) -> int:
        answer = client.ask(m.Get(self.name))
        return 0 if answer == m.MISSING else int(answer.value)


class Setting(Writer):
    """SET of ever new keys."""

    def message(self, at: int) -> m.Message:
        return m.Set(b"%s-%d" % (self.name, at), b"%d" % at)

    def check_answer(self, at: int, answer: m.Message) -> None:
        assert answer == m.Stored()

    def found(self, client: Client) -> int:
        """The keys that are there must be the first ones: they were done in order."""
        count = 0
        for start in range(0, self.sent, 1000):
            numbers = range(start, min(start + 1000, self.sent))
            answers = client.ask_all(*[m.Get(b"%s-%d" % (self.name, at)) for at in numbers])
            for at, answer in zip(numbers, answers, strict=True):
                if answer != m.MISSING:
                    assert answer == m.Value(b"%d" % at)
                    assert at == count, f"key {count} is missing, {at} is there"
                    count += 1
        return count


class Pushing(Writer):
    """RPUSH, of numbers in their order."""

    def message(self, at: int) -> m.Message:
        return m.RPush(self.name, (b"%d" % at,))

    def check_answer(self, at: int, answer: m.Message) -> None:
        assert answer == m.Length(at + 1)

    def found(self, client: Client) -> int:
        answer = client.ask(m.LRange(self.name, 0, -1))
        values = () if answer == m.MISSING else answer.values
        assert values == tuple(b"%d" % at for at in range(len(values)))
        return len(values)


class Hashing(Writer):
    """HSET of ever new fields."""

    def message(self, at: int) -> m.Message:
        return m.HSet(self.name, ((b"%d" % at, b"%d" % at),))

    def check_answer(self, at: int, answer: m.Message) -> None:
        assert answer == m.Count(1)

    def found(self, client: Client) -> int:
        answer = client.ask(m.HGetAll(self.name))
        pairs = () if answer == m.MISSING else answer.pairs
        assert pairs == tuple((b"%d" % at, b"%d" % at) for at in range(len(pairs)))
        return len(pairs)


KINDS: tuple[Callable[[int], Writer], ...] = (Counting, Setting, Pushing, Hashing, Counting)


def snapshots(server: ServerProcess) -> None:
    """One after the other, until the node is gone."""
    with contextlib.suppress(*GONE), Client(server) as client:
        while True:
            assert client.ask(m.Snapshot()).keys is not None


def test_acknowledged_mutations_survive_kill_9_and_none_is_done_twice(tmp_path: Path) -> None:
    seed = int(os.environ.get("KILL_SEED", random.randrange(2**32)))
    print(f"KILL_SEED={seed}")
    rng = random.Random(seed)
    writers = [kind(number) for number, kind in enumerate(KINDS)]
    with ServerProcess(tmp_path / "data") as server:
        for life in range(ROUNDS):
            threads = [threading.Thread(target=writer.run, args=(server,)) for writer in writers]
            if life % 2:
                threads.append(threading.Thread(target=snapshots, args=(server,)))
            for thread in threads:
                thread.start()
            wanted = sum(writer.acknowledged for writer in writers) + rng.randrange(500, 6000)

            def is_reached(wanted: int = wanted) -> bool:
                for writer in writers:
                    if writer.failure is not None:
                        raise writer.failure
                return sum(writer.acknowledged for writer in writers) >= wanted

            until(is_reached)
            threading.Event().wait(rng.random() * 0.02)
            server.kill()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            assert not any(writer.failure for writer in writers)
            server.restart()
            with Client(server) as client:
                for writer in writers:
                    found = writer.found(client)
                    assert writer.acknowledged <= found <= writer.sent, type(writer).__name__
                    writer.sent = writer.acknowledged = found  # what is there now stays there
        check_running(server)
    kept = sum(writer.acknowledged for writer in writers)
    print(f"{kept} mutations kept over {ROUNDS} kills")
    assert kept > 500 * ROUNDS
