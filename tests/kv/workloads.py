"""What the crash and fault tests do to a store."""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.kv.crashing import KEYS, Runtime

from braidlog.kv.engine import operations as o

Workload = Callable[[Runtime], None]


def strings(runtime: Runtime) -> None:
    runtime.open()
    for number in range(18):
        runtime.do(o.Set(b"key%d" % (number % 5), b"%d" % number * (number * 37 % 400)))
    runtime.do(o.Delete(b"key1"))
    runtime.do(o.Set(b"key1", b"again", 100))


def groups(runtime: Runtime) -> None:
    """Several mutations share a sync; values are larger than a sector."""
    runtime.open()
    for number in range(12):
        runtime.do(o.Set(b"key%d" % (number % 3), bytes([number]) * 900), sync=number % 4 == 3)


def counters(runtime: Runtime) -> None:
    runtime.open()
    for number in range(16):
        runtime.do(o.Increment(b"count", number - 5), sync=number % 3 != 1)
        if number % 6 == 5:
            runtime.snapshot()


def collections(runtime: Runtime) -> None:
    runtime.open()
    for number in range(8):
        runtime.do(o.Push(b"list", o.End.LEFT if number % 2 else o.End.RIGHT, (b"%d" % number, b"x" * 100)))
        runtime.do(o.HashSet(b"hash", ((b"f%d" % (number % 3), b"%d" % number),)))
    runtime.snapshot()
    for _ in range(5):
        runtime.do(o.Pop(b"list", o.End.LEFT), sync=False)
    runtime.do(o.HashDelete(b"hash", (b"f0", b"f1")))
    runtime.do(o.HashDelete(b"hash", (b"f2",)))
    runtime.snapshot()


def expiry(runtime: Runtime) -> None:
    runtime.open()
    for number in range(6):
        runtime.do(o.Set(b"key%d" % number, b"v", 1 + number % 3))
    runtime.do(o.Expire(b"key0", 0))
    runtime.clock.advance(1000)
    runtime.model.expire(runtime.clock.now_ms())
    runtime.do(o.Set(b"key3", b"again"))
    runtime.expire()
    runtime.snapshot()
    runtime.do(o.Push(b"list", o.End.LEFT, (b"x",)))
    runtime.do(o.Expire(b"list", 1))
    runtime.clock.advance(3000)
    runtime.model.expire(runtime.clock.now_ms())
    runtime.expire(sync=False)
    runtime.do(o.Increment(b"key1"))


def snapshots(runtime: Runtime) -> None:
    runtime.open()
    for turn in range(4):
        for number in range(3):
            runtime.do(o.Set(b"key%d" % number, b"%d-%d" % (turn, number) * 60))
        runtime.do(o.Increment(b"count"))
        runtime.snapshot()
    runtime.close()
    runtime.open()
    runtime.do(o.Increment(b"count"))


def restarts(runtime: Runtime) -> None:
    runtime.open()
    for turn in range(4):
        runtime.do(o.Increment(b"count"))
        runtime.do(o.Set(b"key", b"v" * 600), sync=False)
        runtime.close()
        runtime.open()
        if turn == 1:
            runtime.snapshot()


def bursts(runtime: Runtime) -> None:
    """Many at once, plain and not, in one write to the disk."""
    runtime.open()
    kinds = bytes((o.Kind.SET, o.Kind.INCREMENT, o.Kind.DELETE, o.Kind.SET, o.Kind.DECREMENT, o.Kind.SET))
    for turn in range(5):
        runtime.do(o.Push(b"list", o.End.LEFT, (b"x",)), sync=False)
        keys = [b"key%d" % turn, b"count", b"key%d" % (turn - 1), b"list" if turn % 2 else b"a", b"count", b"t"]
        values = [b"%d" % turn * 90, b"", b"", b"w" * 300, b"", b"v"]
        runtime.do_all(o.Columns(True, kinds, keys, values, [0, 0, 0, 0, 0, turn % 2]), sync=turn % 2 == 0)
        runtime.clock.advance(400)
        if turn == 3:
            runtime.snapshot()


def reserved(runtime: Runtime) -> None:
    """Acknowledged one by one, over zeros: within them, across their end, many in one write, before a roll and a stop."""
    runtime.open()
    for number in range(9):
        runtime.do(o.Set(b"key%d" % (number % 3), b"%d" % number * 700))
    runtime.do(o.Increment(b"count"), sync=False)
    runtime.do(o.Set(b"key1", b"w" * 4500), sync=False)
    runtime.do(o.Increment(b"count"))
    runtime.snapshot()
    for _ in range(4):
        runtime.do(o.Increment(b"count"))
    with runtime.store.wal.held_still():  # as for a back-up
        pass
    runtime.do(o.Increment(b"count"))
    runtime.close()
    runtime.open()
    for _ in range(6):
        runtime.do(o.Increment(b"count"))


class Mixed:
    """A seeded mix of everything."""

    def __init__(self, seed: int, steps: int = 40) -> None:
        self.random = Random(seed)
        self.steps = steps

    def __call__(self, runtime: Runtime) -> None:
        runtime.open()
        for _ in range(self.steps):
            drawn = self.random.random()
            if drawn < 0.05:
                runtime.snapshot()
            elif drawn < 0.08:
                runtime.close()
                runtime.open()
            elif drawn < 0.16:
                runtime.clock.advance(self.random.randrange(1500))
                runtime.model.expire(runtime.clock.now_ms())
                runtime.expire(sync=self.random.random() < 0.5)
            else:
                runtime.do(self.operation(), sync=self.random.random() < 0.6)

    def operation(self) -> o.Operation[Any]:
        random = self.random
        key, value = random.choice(KEYS), b"%d" % random.randrange(1000) * random.choice([1, 1, 40, 200])
        end = random.choice(list(o.End))
        field = random.choice([b"f", b"g", b"h"])
        makers: list[Callable[[], o.Operation[Any]]] = [
            lambda: o.Set(key, value, random.choice([0, 0, 1, 2]), random.choice(list(o.Only))),
            lambda: o.Set(b"count", b"%d" % random.randrange(50)),
            lambda: o.Increment(random.choice([key, b"count"]), random.randrange(-9, 9)),
            lambda: o.Increment(b"count"),
            lambda: o.Push(random.choice([key, b"list"]), end, (value, b"y")[: random.randrange(1, 3)]),
            lambda: o.Pop(b"list", end),
            lambda: o.HashSet(random.choice([key, b"hash"]), ((field, value), (b"z", b"1"))),
            lambda: o.HashDelete(b"hash", (field, b"z")),
            lambda: o.Expire(key, random.choice([0, 1, 3])),
            lambda: o.Delete(key),
        ]
        return random.choice(makers)()


ALL: dict[str, Workload] = {
    work.__name__: work
    for work in (strings, groups, counters, collections, expiry, snapshots, restarts, bursts, reserved)
}
