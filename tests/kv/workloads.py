"""What the crash and fault tests do to a store."""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.kv.crashing import KEYS, World

from braidlog.kv.engine import operations as o

Workload = Callable[[World], None]


def strings(world: World) -> None:
    world.open()
    for number in range(18):
        world.do(o.Set(b"key%d" % (number % 5), b"%d" % number * (number * 37 % 400)))
    world.do(o.Delete(b"key1"))
    world.do(o.Set(b"key1", b"again", 100))


def groups(world: World) -> None:
    """Several mutations share a sync; values are larger than a sector."""
    world.open()
    for number in range(12):
        world.do(o.Set(b"key%d" % (number % 3), bytes([number]) * 900), sync=number % 4 == 3)


def counters(world: World) -> None:
    world.open()
    for number in range(16):
        world.do(o.Increment(b"count", number - 5), sync=number % 3 != 1)
        if number % 6 == 5:
            world.snapshot()


def collections(world: World) -> None:
    world.open()
    for number in range(8):
        world.do(o.Push(b"list", o.End.LEFT if number % 2 else o.End.RIGHT, (b"%d" % number, b"x" * 100)))
        world.do(o.HashSet(b"hash", ((b"f%d" % (number % 3), b"%d" % number),)))
    world.snapshot()
    for _ in range(5):
        world.do(o.Pop(b"list", o.End.LEFT), sync=False)
    world.do(o.HashDelete(b"hash", (b"f0", b"f1")))
    world.do(o.HashDelete(b"hash", (b"f2",)))
    world.snapshot()


def expiry(world: World) -> None:
    world.open()
    for number in range(6):
        world.do(o.Set(b"key%d" % number, b"v", 1 + number % 3))
    world.do(o.Expire(b"key0", 0))
    world.clock.advance(1000)
    world.model.expire(world.clock.now_ms())
    world.do(o.Set(b"key3", b"again"))
    world.expire()
    world.snapshot()
    world.do(o.Push(b"list", o.End.LEFT, (b"x",)))
    world.do(o.Expire(b"list", 1))
    world.clock.advance(3000)
    world.model.expire(world.clock.now_ms())
    world.expire(sync=False)
    world.do(o.Increment(b"key1"))


def snapshots(world: World) -> None:
    world.open()
    for turn in range(4):
        for number in range(3):
            world.do(o.Set(b"key%d" % number, b"%d-%d" % (turn, number) * 60))
        world.do(o.Increment(b"count"))
        world.snapshot()
    world.close()
    world.open()
    world.do(o.Increment(b"count"))


def restarts(world: World) -> None:
    world.open()
    for turn in range(4):
        world.do(o.Increment(b"count"))
        world.do(o.Set(b"key", b"v" * 600), sync=False)
        world.close()
        world.open()
        if turn == 1:
            world.snapshot()


def bursts(world: World) -> None:
    """Many at once, plain and not, in one write to the disk."""
    world.open()
    kinds = bytes((o.Kind.SET, o.Kind.INCREMENT, o.Kind.DELETE, o.Kind.SET, o.Kind.DECREMENT, o.Kind.SET))
    for turn in range(5):
        world.do(o.Push(b"list", o.End.LEFT, (b"x",)), sync=False)
        keys = [b"key%d" % turn, b"count", b"key%d" % (turn - 1), b"list" if turn % 2 else b"a", b"count", b"t"]
        values = [b"%d" % turn * 90, b"", b"", b"w" * 300, b"", b"v"]
        world.do_all(o.Columns(True, kinds, keys, values, [0, 0, 0, 0, 0, turn % 2]), sync=turn % 2 == 0)
        world.clock.advance(400)
        if turn == 3:
            world.snapshot()


def reserved(world: World) -> None:
    """Acknowledged one by one, over zeros: within them, across their end, many in one write, before a roll and a stop."""
    world.open()
    for number in range(9):
        world.do(o.Set(b"key%d" % (number % 3), b"%d" % number * 700))
    world.do(o.Increment(b"count"), sync=False)
    world.do(o.Set(b"key1", b"w" * 4500), sync=False)
    world.do(o.Increment(b"count"))
    world.snapshot()
    for _ in range(4):
        world.do(o.Increment(b"count"))
    with world.store.wal.held_still():  # as for a back-up
        pass
    world.do(o.Increment(b"count"))
    world.close()
    world.open()
    for _ in range(6):
        world.do(o.Increment(b"count"))


class Mixed:
    """A seeded mix of everything."""

    def __init__(self, seed: int, steps: int = 40) -> None:
        self.random = Random(seed)
        self.steps = steps

    def __call__(self, world: World) -> None:
        world.open()
        for _ in range(self.steps):
            drawn = self.random.random()
            if drawn < 0.05:
                world.snapshot()
            elif drawn < 0.08:
                world.close()
                world.open()
            elif drawn < 0.16:
                world.clock.advance(self.random.randrange(1500))
                world.model.expire(world.clock.now_ms())
                world.expire(sync=self.random.random() < 0.5)
            else:
                world.do(self.operation(), sync=self.random.random() < 0.6)

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
