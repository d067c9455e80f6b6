"""What the crash, fault and damage tests do to a log: each one short, together crossing every path that writes."""

from random import Random

from tests.storage.crashing import Runtime, open_transactions


def appends(runtime: Runtime) -> None:
    """Single and multi batch appends, several partitions, group commit, rolls."""
    runtime.open()
    runtime.create("t", partitions=2)
    for _ in range(3):
        runtime.append("t", 0)
        runtime.append("t", 1, count=3)
    runtime.append("t", 0, batches=3, count=2)
    runtime.append("t", 0, size=700, sync=False)
    runtime.append("t", 0, size=900, sync=False)
    runtime.append("t", 1, size=1400, sync=False)
    runtime.append("t", 0, size=50)
    runtime.sync("t", 1)
    runtime.append("t", 0, size=1500, sync=False)
    runtime.append("t", 0, size=1500, sync=False)  # rolls with a tail that is not synced
    runtime.append("t", 0, size=100)
    runtime.append("t", 1, size=2000)
    runtime.append("t", 1, size=2000, batches=2)
    runtime.close()
    runtime.open()
    runtime.append("t", 0)
    runtime.append("t", 1)
    runtime.close()


def acknowledged(runtime: Runtime) -> None:
    """Small syncs in a row: zeros ahead of the end are written over, used up, and given back where a segment or a file ends."""
    runtime.open()
    runtime.create("t")
    for size in (40, 40, 40, 40, 40, 500, 900):
        runtime.append("t", size=size)
    runtime.append("t", size=100, sync=False)
    runtime.append("t", size=600, sync=False)
    runtime.append("t", size=20)  # all three over zeros that are on the disk
    runtime.append("t", size=1500, sync=False)  # rolls
    runtime.append("t", size=10)
    for _ in range(4):
        runtime.append("t", size=10)
    runtime.rest("t")
    for _ in range(5):
        runtime.append("t", size=10)
    runtime.truncate("t", runtime.at("t")[1].end - 2)
    for _ in range(5):
        runtime.append("t", size=10)
    runtime.close()
    runtime.open()
    runtime.append("t")
    runtime.close()


def few_files(runtime: Runtime) -> None:
    """More partitions than files that may be open: each append takes the file for writing from another partition."""
    runtime.open(open_files_max=1)
    runtime.create("t", partitions=3)
    runtime.create("os", flush="os", flush_window_bytes=1 << 20)
    for _ in range(2):
        for number in range(3):
            runtime.append("t", number, size=60)
            runtime.append("os", size=1100, pid=9)  # not synced when the next one wants to open its file
    runtime.append("t", 1, size=1500, sync=False)
    runtime.append("t", 1, size=2500, sync=False)  # rolls; the next append syncs both segments of another partition
    runtime.append("t", 2)
    runtime.sync("t", 1)
    runtime.close()
    runtime.open()
    runtime.append("t", 0)
    runtime.append("os")
    runtime.close()


def idle(runtime: Runtime) -> None:
    """Partitions that are closed while others are used, opened again by an append, and closed again."""
    runtime.open()
    runtime.create("t", partitions=2)
    runtime.create("os", flush="os", flush_window_bytes=1 << 20)
    runtime.append("t", 0, pid=9)
    runtime.rest("t", 0)
    runtime.append("t", 1, size=1500)
    runtime.append("t", 0, size=1500, pid=9)
    runtime.append("os", size=1500)
    runtime.rest("os")
    runtime.append("t", 0, size=1500)
    runtime.append("t", 0, size=1500, sync=False)  # in a second segment
    runtime.rest("t", 0)
    runtime.rest("t", 1)
    runtime.epoch("t", 2)
    runtime.append("t", 0, pid=9)
    runtime.append("os", size=2800)
    runtime.rest("t", 0)
    runtime.rest("os")
    runtime.append("t", 0)
    runtime.close()


def lazy(runtime: Runtime) -> None:
    """A topic whose appends are not synced: two rolls go by before the first sync."""
    runtime.open()
    runtime.create("t", flush="os", flush_window_bytes=1 << 20)
    for size in (300, 1200, 1500, 1700, 1100, 400):
        runtime.append("t", size=size, pid=9)
    runtime.sync("t")
    for size in (100, 2500, 1500):
        runtime.append("t", size=size, count=2)
    runtime.sync("t")
    runtime.append("t", size=3000)
    runtime.close()


def retention(runtime: Runtime) -> None:
    runtime.open()
    runtime.create("t", retention_bytes=6000, retention_ms=100_000)
    for _ in range(6):
        runtime.clock.advance(10_000)
        runtime.append("t", size=1300)
    runtime.retain("t")
    runtime.append("t", size=100, pid=5)
    runtime.clock.advance(95_000)
    runtime.retain("t")
    runtime.clock.advance(200_000)
    runtime.retain("t")
    runtime.append("t", size=100, pid=5)
    runtime.close()
    runtime.open()
    runtime.append("t")
    runtime.close()


def deletion(runtime: Runtime) -> None:
    """Records deleted in the middle of a batch, of a segment, at a segment's start, and all of them."""
    runtime.open()
    runtime.create("t")
    for _ in range(3):
        runtime.append("t", count=5, size=60)
    runtime.delete_before("t", 7)
    runtime.append("t", size=1500)
    runtime.append("t", size=1500)
    runtime.append("t", size=1500)
    runtime.delete_before("t", 16)
    runtime.append("t", count=2, pid=3)
    runtime.delete_before("t", 18)
    runtime.append("t", count=2, pid=3)
    end = runtime.at("t")[1].end
    runtime.delete_before("t", end)
    runtime.append("t", count=2, pid=3)
    runtime.retry("t", 3)
    runtime.close()
    runtime.open()
    runtime.append("t")
    runtime.close()


def truncation(runtime: Runtime) -> None:
    """A follower that drops its tail: within a segment, at a batch, at a segment's start, over segments, to nothing."""
    runtime.open()
    runtime.create("t")
    for number in range(6):
        runtime.append("t", count=2, size=100 + number, pid=4)
    runtime.truncate("t", 7)
    runtime.append("t", count=2, size=120, pid=4)
    runtime.epoch("t", 2)
    for _ in range(3):
        runtime.append("t", size=1500)
    runtime.epoch("t", 5)
    for _ in range(3):
        runtime.append("t", size=1500)
    end = runtime.at("t")[1].end
    runtime.truncate("t", end - 1)
    runtime.append("t", size=700)
    runtime.truncate("t", 9)
    runtime.epoch("t", 6)
    runtime.append("t", size=700, sync=False)
    runtime.truncate("t", 9)
    runtime.append("t", size=800, count=3)
    runtime.append("t", size=800, count=3)
    runtime.reopen()
    runtime.truncate("t", 0)
    runtime.append("t", size=333)
    runtime.close()


def transactions(runtime: Runtime) -> None:
    runtime.open()
    runtime.create("t")
    runtime.append("t", pid=1, transactional=True, count=2)
    runtime.append("t", pid=2, transactional=True, count=2)
    runtime.append("t", count=1)
    runtime.mark("t", 2, commit=False)
    runtime.append("t", pid=2, transactional=True, size=900)
    runtime.append("t", pid=3)
    runtime.mark("t", 1, commit=True)
    runtime.append("t", pid=1, transactional=True, size=1500)
    runtime.mark("t", 2, commit=True)
    runtime.append("t", pid=3, size=1500)
    runtime.append("t", pid=1, transactional=True, size=1500)
    runtime.mark("t", 1, commit=False)
    runtime.append("t", pid=1, pepoch=0, transactional=True, size=100)
    runtime.retry("t", 3)
    runtime.reopen()
    runtime.retry("t", 3)
    runtime.append("t", pid=3, size=1500)
    runtime.mark("t", 1, commit=True)
    runtime.close()


def idempotence(runtime: Runtime) -> None:
    """More producers and batches than one checkpoint covers."""
    runtime.open()
    runtime.create("t")
    for turn in range(7):
        for pid in (11, 12):
            runtime.append("t", pid=pid, count=1 + turn % 3, size=150)
        runtime.retry("t", 11)
    runtime.reopen()
    runtime.retry("t", 11)
    runtime.retry("t", 12)
    for _ in range(4):
        runtime.append("t", pid=11, size=900)
    runtime.close()


def compaction(runtime: Runtime) -> None:
    """Keys overwritten, a tombstone, an aborted and a committed transaction; segments merge; then once more."""
    runtime.open()
    runtime.create("t", compact=True, delete_retention_ms=1000)
    keys = [b"a", b"b", b"c"]
    for _ in range(3):
        runtime.append("t", count=6, keys=keys, size=200)
    runtime.append("t", pid=1, transactional=True, keys=[b"a"], size=300)
    runtime.append("t", pid=2, transactional=True, keys=[b"b"], size=300)
    runtime.mark("t", 1, commit=False)
    runtime.mark("t", 2, commit=True)
    runtime.append("t", keys=[b"c"], tombstone=True)
    runtime.append("t", count=5, keys=[*keys, b"d"], size=250)
    runtime.append("t", count=1, size=50)
    runtime.append("t", pid=7, keys=[b"e"], size=1800)
    runtime.append("t", pid=7, keys=[b"e"], size=1800)
    runtime.append("t", pid=7, keys=[b"f"], size=1800)
    runtime.compact("t")
    runtime.append("t", count=2, keys=keys, size=900)
    runtime.append("t", pid=7, keys=[b"e"], size=1800)
    runtime.clock.advance(5000)
    runtime.append("t", keys=[b"c"], size=1800)
    runtime.compact("t")
    runtime.reopen()
    runtime.retry("t", 7)
    runtime.append("t", keys=[b"a"], size=100)
    runtime.close()


def epochs(runtime: Runtime) -> None:
    """Leaders come and go, some without writing; the last epoch is cut off with its records."""
    runtime.open()
    runtime.create("t")
    runtime.append("t", count=2)
    runtime.epoch("t", 3)
    runtime.epoch("t", 4)
    runtime.append("t", size=1500)
    runtime.append("t", size=1500)
    runtime.epoch("t", 5)
    runtime.append("t", size=1500, sync=False)
    runtime.at("t")[1].epoch = 7  # the first append of epoch 7 announces it
    runtime.append("t", size=1500, sync=False)
    runtime.append("t", size=10)
    runtime.delete_before("t", 3)
    runtime.append("t", size=10)
    runtime.truncate("t", 5)
    runtime.at("t")[1].epoch = 8
    runtime.append("t", size=10)
    runtime.close()
    runtime.open()
    runtime.append("t", size=10)
    runtime.close()


def replica(runtime: Runtime) -> None:
    """A follower: told what is committed, cut to it, behind its leader's compaction, begun anew above, inside and below."""
    runtime.open()
    runtime.create("t", compact=True, delete_retention_ms=0)
    runtime.commit("t", 0)
    model = runtime.at("t")[1]
    model.epoch = 2
    for number in range(6):
        runtime.append("t", count=2, size=500, keys=[b"k1", b"k2"], replicated=True)
        runtime.commit("t", 2 * number)
    model.epoch = 4
    runtime.append("t", count=2, size=900, keys=[b"k1", b"k2"], replicated=True, sync=False)
    runtime.append("t", count=2, size=900, keys=[b"k1", b"k3"], replicated=True, sync=False)
    runtime.compact("t")
    runtime.append("t", size=900, pid=4, replicated=True)
    runtime.truncate("t", 12)
    model.epoch = 5
    runtime.append("t", count=3, size=60, pid=4, replicated=True, sync=False)
    runtime.gap("t", 3, 4)
    runtime.append("t", count=2, size=60, replicated=True)
    runtime.commit("t", 17)
    runtime.reopen()
    runtime.epoch("t", 6)
    runtime.truncate("t", model.end)  # forgets that epoch: nothing was written in it
    runtime.append("t", size=1500, replicated=True)
    runtime.append("t", size=1500, replicated=True, sync=False)
    runtime.append("t", size=1500, replicated=True, sync=False)
    runtime.restart_at("t", 40)
    model.epoch = 7
    runtime.begin_inside("t", 3, 5)
    runtime.append("t", size=1500, pid=5, replicated=True)
    runtime.append("t", size=2500, pid=5, replicated=True)
    runtime.commit("t", 43)
    runtime.restart_at("t", 10)
    model.epoch = 8
    runtime.append("t", size=100, replicated=True)
    runtime.reopen()
    runtime.append("t", size=100, replicated=True)
    runtime.close()


def takeover(runtime: Runtime) -> None:
    """Epochs begun for several partitions at once, before and after each partition's own checkpoints, and taken back."""
    runtime.open()
    runtime.create("t", partitions=2)
    runtime.append("t", 0)
    runtime.take_over("t", 2)
    runtime.append("t", 0, size=900)
    runtime.append("t", 1, size=900, sync=False)
    runtime.take_over("t", 4)
    runtime.append("t", 1, size=900, sync=False)
    runtime.append("t", 1, size=1900)
    runtime.reopen()
    runtime.append("t", 0)
    runtime.take_over("t", 6)
    runtime.truncate("t", runtime.at("t")[1].end)  # epoch 6 wrote nothing here
    runtime.at("t")[1].epoch = 5
    runtime.append("t", 0, replicated=True)
    runtime.truncate("t", 1, number=1)
    runtime.append("t", 1, replicated=True)
    runtime.take_over("t", 8)
    runtime.append("t", 0)
    runtime.append("t", 1, sync=False)
    runtime.close()
    runtime.open()
    runtime.append("t", 0)
    runtime.close()


def topics(runtime: Runtime) -> None:
    runtime.open()
    runtime.create("a")
    runtime.append("a")
    runtime.create("b", partitions=2)
    runtime.append("b", 1)
    runtime.grow("a", 3)
    runtime.append("a", 2)
    runtime.alter("a", segment_bytes=8192)
    runtime.append("a", 0)
    runtime.delete("b")
    runtime.create("c")
    runtime.append("c")
    runtime.reopen()
    runtime.delete("a")
    runtime.grow("c", 2)
    runtime.append("c", 1)
    runtime.close()


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

    def __call__(self, runtime: Runtime) -> None:
        random = Random(self._seed)
        lazy_topic = random.random() < 0.4
        compacted = random.random() < 0.4
        settings = {"flush": "os", "flush_window_bytes": 1 << 20} if lazy_topic else {}
        runtime.open()
        partitions = random.choice([1, 1, 2])
        runtime.create("t", partitions, compact=compacted, delete_retention_ms=500, retention_bytes=9000, **settings)
        steps = [step for step, weight in _STEPS for _ in range(weight)]
        for _ in range(self._steps):
            random.choice(steps)(runtime, random, random.randrange(partitions))
            runtime.clock.advance(random.choice([0, 100]))
        runtime.close()


def _append(runtime: Runtime, random: Random, number: int) -> None:
    runtime.append(
        "t",
        number,
        count=random.choice([1, 1, 2, 5]),
        batches=random.choice([1, 1, 1, 2]),
        size=random.choice([10, 60, 200, 700]),
        keys=random.choice([None, [b"k1", b"k2"], [b"k2", b"k3", b"k4"]]),
    )


def _append_late(runtime: Runtime, random: Random, number: int) -> None:
    runtime.append("t", number, size=random.choice([30, 900, 2200]), sync=False)


def _produce(runtime: Runtime, random: Random, number: int) -> None:
    pid = random.choice([31, 32])
    runtime.append(
        "t", number, count=random.choice([1, 3]), size=random.choice([20, 300]), pid=pid, keys=[b"p%d" % pid]
    )
    if not runtime.at("t", number)[1].refolded:
        runtime.retry("t", pid, number)


def _transact(runtime: Runtime, random: Random, number: int) -> None:
    model = runtime.at("t", number)[1]
    pid = random.choice([41, 42])
    if pid in open_transactions(model.batches) and random.random() < 0.6:
        runtime.mark("t", pid, commit=random.random() < 0.5, number=number)
    else:
        runtime.append("t", number, count=2, size=random.choice([20, 500]), pid=pid, transactional=True, keys=[b"k1"])


def _sync(runtime: Runtime, random: Random, number: int) -> None:
    runtime.sync("t", number)


def _roll(runtime: Runtime, random: Random, number: int) -> None:
    runtime.roll("t", number)


def _epoch(runtime: Runtime, random: Random, number: int) -> None:
    model = runtime.at("t", number)[1]
    if random.random() < 0.5:
        runtime.epoch("t", model.epoch + random.choice([1, 2]), number)
    else:
        model.epoch += 1
        _append(runtime, random, number)


def _delete(runtime: Runtime, random: Random, number: int) -> None:
    model = runtime.at("t", number)[1]
    runtime.delete_before("t", random.randint(model.start, model.end), number)


def _retain(runtime: Runtime, random: Random, number: int) -> None:
    runtime.retain("t")


def _truncate(runtime: Runtime, random: Random, number: int) -> None:
    model = runtime.at("t", number)[1]
    if not model.compacted:
        runtime.truncate("t", random.randint(max(model.start, model.end - 12), model.end), number)


def _compact(runtime: Runtime, random: Random, number: int) -> None:
    if runtime.log.topic("t").settings.compact:
        runtime.compact("t")


def _reopen(runtime: Runtime, random: Random, number: int) -> None:
    runtime.reopen()


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
