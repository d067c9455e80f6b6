"""What the crash, fault and damage tests do to a log: each one short, together crossing every path that writes."""

from random import Random

from tests.storage.crashing import World, open_transactions


def appends(world: World) -> None:
    """Single and multi batch appends, several partitions, group commit, rolls."""
    world.open()
    world.create("t", partitions=2)
    for _ in range(3):
        world.append("t", 0)
        world.append("t", 1, count=3)
    world.append("t", 0, batches=3, count=2)
    world.append("t", 0, size=700, sync=False)
    world.append("t", 0, size=900, sync=False)
    world.append("t", 1, size=1400, sync=False)
    world.append("t", 0, size=50)
    world.sync("t", 1)
    world.append("t", 0, size=1500, sync=False)
    world.append("t", 0, size=1500, sync=False)  # rolls with a tail that is not synced
    world.append("t", 0, size=100)
    world.append("t", 1, size=2000)
    world.append("t", 1, size=2000, batches=2)
    world.close()
    world.open()
    world.append("t", 0)
    world.append("t", 1)
    world.close()


def acknowledged(world: World) -> None:
    """Small syncs in a row: zeros ahead of the end are written over, used up, and given back where a segment or a file ends."""
    world.open()
    world.create("t")
    for size in (40, 40, 40, 40, 40, 500, 900):
        world.append("t", size=size)
    world.append("t", size=100, sync=False)
    world.append("t", size=600, sync=False)
    world.append("t", size=20)  # all three over zeros that are on the disk
    world.append("t", size=1500, sync=False)  # rolls
    world.append("t", size=10)
    for _ in range(4):
        world.append("t", size=10)
    world.rest("t")
    for _ in range(5):
        world.append("t", size=10)
    world.truncate("t", world.at("t")[1].end - 2)
    for _ in range(5):
        world.append("t", size=10)
    world.close()
    world.open()
    world.append("t")
    world.close()


def few_files(world: World) -> None:
    """More partitions than files that may be open: each append takes the file for writing from another partition."""
    world.open(open_files_max=1)
    world.create("t", partitions=3)
    world.create("os", flush="os", flush_window_bytes=1 << 20)
    for _ in range(2):
        for number in range(3):
            world.append("t", number, size=60)
            world.append("os", size=1100, pid=9)  # not synced when the next one wants to open its file
    world.append("t", 1, size=1500, sync=False)
    world.append("t", 1, size=2500, sync=False)  # rolls; the next append syncs both segments of another partition
    world.append("t", 2)
    world.sync("t", 1)
    world.close()
    world.open()
    world.append("t", 0)
    world.append("os")
    world.close()


def idle(world: World) -> None:
    """Partitions that are closed while others are used, opened again by an append, and closed again."""
    world.open()
    world.create("t", partitions=2)
    world.create("os", flush="os", flush_window_bytes=1 << 20)
    world.append("t", 0, pid=9)
    world.rest("t", 0)
    world.append("t", 1, size=1500)
    world.append("t", 0, size=1500, pid=9)
    world.append("os", size=1500)
    world.rest("os")
    world.append("t", 0, size=1500)
    world.append("t", 0, size=1500, sync=False)  # in a second segment
    world.rest("t", 0)
    world.rest("t", 1)
    world.epoch("t", 2)
    world.append("t", 0, pid=9)
    world.append("os", size=2800)
    world.rest("t", 0)
    world.rest("os")
    world.append("t", 0)
    world.close()


def lazy(world: World) -> None:
    """A topic whose appends are not synced: two rolls go by before the first sync."""
    world.open()
    world.create("t", flush="os", flush_window_bytes=1 << 20)
    for size in (300, 1200, 1500, 1700, 1100, 400):
        world.append("t", size=size, pid=9)
    world.sync("t")
    for size in (100, 2500, 1500):
        world.append("t", size=size, count=2)
    world.sync("t")
    world.append("t", size=3000)
    world.close()


def retention(world: World) -> None:
    world.open()
    world.create("t", retention_bytes=6000, retention_ms=100_000)
    for _ in range(6):
        world.clock.advance(10_000)
        world.append("t", size=1300)
    world.retain("t")
    world.append("t", size=100, pid=5)
    world.clock.advance(95_000)
    world.retain("t")
    world.clock.advance(200_000)
    world.retain("t")
    world.append("t", size=100, pid=5)
    world.close()
    world.open()
    world.append("t")
    world.close()


def deletion(world: World) -> None:
    """Records deleted in the middle of a batch, of a segment, at a segment's start, and all of them."""
    world.open()
    world.create("t")
    for _ in range(3):
        world.append("t", count=5, size=60)
    world.delete_before("t", 7)
    world.append("t", size=1500)
    world.append("t", size=1500)
    world.append("t", size=1500)
    world.delete_before("t", 16)
    world.append("t", count=2, pid=3)
    world.delete_before("t", 18)
    world.append("t", count=2, pid=3)
    end = world.at("t")[1].end
    world.delete_before("t", end)
    world.append("t", count=2, pid=3)
    world.retry("t", 3)
    world.close()
    world.open()
    world.append("t")
    world.close()


def truncation(world: World) -> None:
    """A follower that drops its tail: within a segment, at a batch, at a segment's start, over segments, to nothing."""
    world.open()
    world.create("t")
    for number in range(6):
        world.append("t", count=2, size=100 + number, pid=4)
    world.truncate("t", 7)
    world.append("t", count=2, size=120, pid=4)
    world.epoch("t", 2)
    for _ in range(3):
        world.append("t", size=1500)
    world.epoch("t", 5)
    for _ in range(3):
        world.append("t", size=1500)
    end = world.at("t")[1].end
    world.truncate("t", end - 1)
    world.append("t", size=700)
    world.truncate("t", 9)
    world.epoch("t", 6)
    world.append("t", size=700, sync=False)
    world.truncate("t", 9)
    world.append("t", size=800, count=3)
    world.append("t", size=800, count=3)
    world.reopen()
    world.truncate("t", 0)
    world.append("t", size=333)
    world.close()


def transactions(world: World) -> None:
    world.open()
    world.create("t")
    world.append("t", pid=1, transactional=True, count=2)
    world.append("t", pid=2, transactional=True, count=2)
    world.append("t", count=1)
    world.mark("t", 2, commit=False)
    world.append("t", pid=2, transactional=True, size=900)
    world.append("t", pid=3)
    world.mark("t", 1, commit=True)
    world.append("t", pid=1, transactional=True, size=1500)
    world.mark("t", 2, commit=True)
    world.append("t", pid=3, size=1500)
    world.append("t", pid=1, transactional=True, size=1500)
    world.mark("t", 1, commit=False)
    world.append("t", pid=1, pepoch=0, transactional=True, size=100)
    world.retry("t", 3)
    world.reopen()
    world.retry("t", 3)
    world.append("t", pid=3, size=1500)
    world.mark("t", 1, commit=True)
    world.close()


def idempotence(world: World) -> None:
    """More producers and batches than one checkpoint covers."""
    world.open()
    world.create("t")
    for turn in range(7):
        for pid in (11, 12):
            world.append("t", pid=pid, count=1 + turn % 3, size=150)
        world.retry("t", 11)
    world.reopen()
    world.retry("t", 11)
    world.retry("t", 12)
    for _ in range(4):
        world.append("t", pid=11, size=900)
    world.close()


def compaction(world: World) -> None:
    """Keys overwritten, a tombstone, an aborted and a committed transaction; segments merge; then once more."""
    world.open()
    world.create("t", compact=True, delete_retention_ms=1000)
    keys = [b"a", b"b", b"c"]
    for _ in range(3):
        world.append("t", count=6, keys=keys, size=200)
    world.append("t", pid=1, transactional=True, keys=[b"a"], size=300)
    world.append("t", pid=2, transactional=True, keys=[b"b"], size=300)
    world.mark("t", 1, commit=False)
    world.mark("t", 2, commit=True)
    world.append("t", keys=[b"c"], tombstone=True)
    world.append("t", count=5, keys=[*keys, b"d"], size=250)
    world.append("t", count=1, size=50)
    world.append("t", pid=7, keys=[b"e"], size=1800)
    world.append("t", pid=7, keys=[b"e"], size=1800)
    world.append("t", pid=7, keys=[b"f"], size=1800)
    world.compact("t")
    world.append("t", count=2, keys=keys, size=900)
    world.append("t", pid=7, keys=[b"e"], size=1800)
    world.clock.advance(5000)
    world.append("t", keys=[b"c"], size=1800)
    world.compact("t")
    world.reopen()
    world.retry("t", 7)
    world.append("t", keys=[b"a"], size=100)
    world.close()


def epochs(world: World) -> None:
    """Leaders come and go, some without writing; the last epoch is cut off with its records."""
    world.open()
    world.create("t")
    world.append("t", count=2)
    world.epoch("t", 3)
    world.epoch("t", 4)
    world.append("t", size=1500)
    world.append("t", size=1500)
    world.epoch("t", 5)
    world.append("t", size=1500, sync=False)
    world.at("t")[1].epoch = 7  # the first append of epoch 7 announces it
    world.append("t", size=1500, sync=False)
    world.append("t", size=10)
    world.delete_before("t", 3)
    world.append("t", size=10)
    world.truncate("t", 5)
    world.at("t")[1].epoch = 8
    world.append("t", size=10)
    world.close()
    world.open()
    world.append("t", size=10)
    world.close()


def replica(world: World) -> None:
    """A follower: told what is committed, cut to it, behind its leader's compaction, begun anew above, inside and below."""
    world.open()
    world.create("t", compact=True, delete_retention_ms=0)
    world.commit("t", 0)
    model = world.at("t")[1]
    model.epoch = 2
    for number in range(6):
        world.append("t", count=2, size=500, keys=[b"k1", b"k2"], replicated=True)
        world.commit("t", 2 * number)
    model.epoch = 4
    world.append("t", count=2, size=900, keys=[b"k1", b"k2"], replicated=True, sync=False)
    world.append("t", count=2, size=900, keys=[b"k1", b"k3"], replicated=True, sync=False)
    world.compact("t")
    world.append("t", size=900, pid=4, replicated=True)
    world.truncate("t", 12)
    model.epoch = 5
    world.append("t", count=3, size=60, pid=4, replicated=True, sync=False)
    world.gap("t", 3, 4)
    world.append("t", count=2, size=60, replicated=True)
    world.commit("t", 17)
    world.reopen()
    world.epoch("t", 6)
    world.truncate("t", model.end)  # forgets that epoch: nothing was written in it
    world.append("t", size=1500, replicated=True)
    world.append("t", size=1500, replicated=True, sync=False)
    world.append("t", size=1500, replicated=True, sync=False)
    world.restart_at("t", 40)
    model.epoch = 7
    world.begin_inside("t", 3, 5)
    world.append("t", size=1500, pid=5, replicated=True)
    world.append("t", size=2500, pid=5, replicated=True)
    world.commit("t", 43)
    world.restart_at("t", 10)
    model.epoch = 8
    world.append("t", size=100, replicated=True)
    world.reopen()
    world.append("t", size=100, replicated=True)
    world.close()


def takeover(world: World) -> None:
    """Epochs begun for several partitions at once, before and after each partition's own checkpoints, and taken back."""
    world.open()
    world.create("t", partitions=2)
    world.append("t", 0)
    world.take_over("t", 2)
    world.append("t", 0, size=900)
    world.append("t", 1, size=900, sync=False)
    world.take_over("t", 4)
    world.append("t", 1, size=900, sync=False)
    world.append("t", 1, size=1900)
    world.reopen()
    world.append("t", 0)
    world.take_over("t", 6)
    world.truncate("t", world.at("t")[1].end)  # epoch 6 wrote nothing here
    world.at("t")[1].epoch = 5
    world.append("t", 0, replicated=True)
    world.truncate("t", 1, number=1)
    world.append("t", 1, replicated=True)
    world.take_over("t", 8)
    world.append("t", 0)
    world.append("t", 1, sync=False)
    world.close()
    world.open()
    world.append("t", 0)
    world.close()


def topics(world: World) -> None:
    world.open()
    world.create("a")
    world.append("a")
    world.create("b", partitions=2)
    world.append("b", 1)
    world.grow("a", 3)
    world.append("a", 2)
    world.alter("a", segment_bytes=8192)
    world.append("a", 0)
    world.delete("b")
    world.create("c")
    world.append("c")
    world.reopen()
    world.delete("a")
    world.grow("c", 2)
    world.append("c", 1)
    world.close()


ALL = {
    work.__name__: work
    for work in (
        appends,
        acknowledged,
        few_files,
        idle,
        lazy,
        retention,
        deletion,
        truncation,
        transactions,
        idempotence,
        compaction,
        epochs,
        replica,
        takeover,
        topics,
    )
}


class Mixed:
    """Anything after anything, drawn from a seed."""

    def __init__(self, seed: int, steps: int = 45) -> None:
        self._seed = seed
        self._steps = steps

    def __call__(self, world: World) -> None:
        random = Random(self._seed)
        lazy_topic = random.random() < 0.4
        compacted = random.random() < 0.4
        settings = {"flush": "os", "flush_window_bytes": 1 << 20} if lazy_topic else {}
        world.open()
        partitions = random.choice([1, 1, 2])
        world.create("t", partitions, compact=compacted, delete_retention_ms=500, retention_bytes=9000, **settings)
        steps = [step for step, weight in _STEPS for _ in range(weight)]
        for _ in range(self._steps):
            random.choice(steps)(world, random, random.randrange(partitions))
            world.clock.advance(random.choice([0, 100]))
        world.close()


def _append(world: World, random: Random, number: int) -> None:
    world.append(
        "t",
        number,
        count=random.choice([1, 1, 2, 5]),
        batches=random.choice([1, 1, 1, 2]),
        size=random.choice([10, 60, 200, 700]),
        keys=random.choice([None, [b"k1", b"k2"], [b"k2", b"k3", b"k4"]]),
    )


def _append_late(world: World, random: Random, number: int) -> None:
    world.append("t", number, size=random.choice([30, 900, 2200]), sync=False)


def _produce(world: World, random: Random, number: int) -> None:
    pid = random.choice([31, 32])
    world.append("t", number, count=random.choice([1, 3]), size=random.choice([20, 300]), pid=pid, keys=[b"p%d" % pid])
    if not world.at("t", number)[1].refolded:
        world.retry("t", pid, number)


def _transact(world: World, random: Random, number: int) -> None:
    model = world.at("t", number)[1]
    pid = random.choice([41, 42])
    if pid in open_transactions(model.batches) and random.random() < 0.6:
        world.mark("t", pid, commit=random.random() < 0.5, number=number)
    else:
        world.append("t", number, count=2, size=random.choice([20, 500]), pid=pid, transactional=True, keys=[b"k1"])


def _sync(world: World, random: Random, number: int) -> None:
    world.sync("t", number)


def _roll(world: World, random: Random, number: int) -> None:
    world.roll("t", number)


def _epoch(world: World, random: Random, number: int) -> None:
    model = world.at("t", number)[1]
    if random.random() < 0.5:
        world.epoch("t", model.epoch + random.choice([1, 2]), number)
    else:
        model.epoch += 1
        _append(world, random, number)


def _delete(world: World, random: Random, number: int) -> None:
    model = world.at("t", number)[1]
    world.delete_before("t", random.randint(model.start, model.end), number)


def _retain(world: World, random: Random, number: int) -> None:
    world.retain("t")


def _truncate(world: World, random: Random, number: int) -> None:
    model = world.at("t", number)[1]
    if not model.compacted:
        world.truncate("t", random.randint(max(model.start, model.end - 12), model.end), number)


def _compact(world: World, random: Random, number: int) -> None:
    if world.log.topic("t").settings.compact:
        world.compact("t")


def _reopen(world: World, random: Random, number: int) -> None:
    world.reopen()


_STEPS = (
    (_append, 8),
    (_append_late, 6),
    (_produce, 4),
    (_transact, 5),
    (_sync, 2),
    (_roll, 1),
    (_epoch, 1),
    (_delete, 1),
    (_retain, 1),
    (_truncate, 1),
    (_compact, 2),
    (_reopen, 1),
)
