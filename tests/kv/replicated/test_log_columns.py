# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, var-annotated"
"""Many operations and many records at once: both twins do exactly what `LogKeyspace.execute` and `LogKeyspace.apply`
do with each of them."""

import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.codec.twins import load_plain, require_compiled
from tests.kv.replicated.test_log_keyspace import NODES, ListLog, lost, number

from braidlog.codec.batch.header import read_header
from braidlog.codec.batch.records import encode_batch
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.operations import Columns, Kind, Level
from braidlog.kv.engine.settings import Eviction, KeyValueSettings
from braidlog.kv.engine.values import HashValue, ListValue
from braidlog.kv.replicated import checkpoints, log_columns, salvage
from braidlog.kv.replicated import log_kernel as built
from braidlog.kv.replicated.checkpoints import Checkpoint, Part
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.slots import SLOTS, log_of, slot_of
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import BrokerError, Reason

PLAIN = load_plain("kv/replicated/log_kernel")
TWINS = [pytest.param(built, id="built"), pytest.param(PLAIN, id="plain")]
KERNEL = ("apply_records", "change_rows", "read_rows")
SHORT_MS = 400
"""For which gone keys keep their stamps: some are forgotten within a run."""
SETTINGS = [
    KeyValueSettings(memory_bytes_max=0, feed=False),
    KeyValueSettings(memory_bytes_max=1_500, feed=False),
    KeyValueSettings(memory_bytes_max=1_500, eviction=Eviction.LRU, feed=False),
]
COUNTS = ("operations", "hits", "misses", "mutations", "expired", "evicted", "refused_for_memory", "peak_bytes")
keys = st.sampled_from([b"a", b"b", b"c", b"d", b"k" * 256, b"", b"k" * 257])
values = st.sampled_from([b"", b"v", b"7", b"x" * 200, b"9223372036854775807", b"x" * 65_536, b"x" * 65_537])
numbers = st.sampled_from([b"5", b"9223372036854775806", b"-9223372036854775807", b"007"])


@st.composite
def columns(draw):
    if draw(st.integers(0, 3)) == 0:
        asked = draw(st.lists(keys, max_size=8))
        return Columns(mutates=False, kinds=bytes(len(asked)), keys=asked, values=[])
    kinds = st.sampled_from([Kind.SET, Kind.SET, Kind.DELETE, Kind.INCREMENT, Kind.DECREMENT])
    rows = draw(st.lists(st.tuples(kinds, keys, values), max_size=12))
    ttls = draw(st.none() | st.lists(st.sampled_from([0, 0, 0, 1, 50]), min_size=len(rows), max_size=len(rows)))
    return Columns(True, bytes(row[0] for row in rows), [row[1] for row in rows], [row[2] for row in rows], ttls)


alone = st.one_of(
    st.builds(o.Push, keys, st.sampled_from(o.End), st.just((b"x", b"y"))),
    st.builds(o.HashSet, keys, st.just(((b"f", b"v"),))),
    st.builds(o.Set, keys, numbers, st.sampled_from([0, 1])),
    st.builds(o.Increment, keys, st.sampled_from([0, 2**63 - 2, -(2**63) + 1])),
    st.builds(o.Pop, keys, st.just(o.End.LEFT)),
)
salvaged = st.builds(
    lambda op, key, offset: lost(op, number(1) if op is Op.INCRBY else b"s", at_ms=1_010, key=key, offset=offset),
    st.sampled_from([Op.SET, Op.DEL, Op.INCRBY]),
    keys.filter(bool),
    st.integers(0, 99),
)
steps = st.lists(columns() | alone | salvaged | st.sampled_from([1, 100, 1_000, "checkpoint", "write"]), max_size=12)


class Marked:
    """A `KeyListener`: when keys had changed as the log reached each mark."""

    def __init__(self, slot, every):
        self.slot = slot
        self.every = every
        self.next_mark = every
        self.keys = set()
        self.seen = []

    def changed(self, keys):
        self.keys.update(keys)
        if self.slot.applied >= self.next_mark:
            stamps, before = dict(self.slot.stamps), self.seen[-1][1] if self.seen else {}
            assert self.keys >= {key for key, each in stamps.items() if before.get(key) != each}
            self.keys.clear()
            self.seen.append((self.slot.applied, stamps))
            self.next_mark = self.slot.applied + self.every


class Told:
    """A `Watcher`."""

    def __init__(self):
        self.all = []

    def changed(self, mutation, node):
        value = mutation.value if isinstance(mutation.value, int | bytes | None) else "a collection"
        self.all.append(
            (
                mutation.sequence,
                mutation.wall_ms,
                mutation.counter,
                node,
                mutation.op,
                mutation.key,
                value,
                mutation.deadline_ms,
            )
        )

    def changed_together(self, told, node):
        for each in told.mutations():
            self.changed(each, node)

    def restarted(self):
        raise AssertionError


class Leader:
    """A slot that leads, and all that it can be asked."""

    def __init__(self, settings, every, *, in_columns):
        self.log = ListLog()
        self.slot = LogKeyspace(HybridClock(NODES[0]), self.log, settings, delete_retention_ms=SHORT_MS)
        self.in_columns = in_columns
        self.marked = Marked(self.slot, every)
        self.slot.listeners.append(self.marked)
        self.told = self.slot.watcher = Told()
        self.answers = []
        self.checkpoint = None
        self.now_ms = 1_000

    def take(self, step):
        slot = self.slot
        if isinstance(step, int):
            self.now_ms += step
        elif step == "checkpoint":
            self.checkpoint = Checkpoint(slot)
        elif step == "write":
            if self.checkpoint is not None and self.checkpoint.is_under_way and not self.checkpoint.write_some():
                self.checkpoint.end()
        elif isinstance(step, Columns) and self.in_columns:
            self.log.is_gathering = True
            results: list[Any] = [None] * len(step.keys)
            refused = log_columns.execute_rows(
                slot, step, list(range(len(step.keys))), Level.QUORUM, self.now_ms, results
            )
            self.log.write_gathered()
            assert refused == [row for row, each in enumerate(results) if isinstance(each, BrokerError)]
            self.answers += [each.reason if isinstance(each, BrokerError) else each for each in results]
        elif isinstance(step, Columns):
            self.answers += [self.one_by_one(step.operation(row)) for row in range(len(step.keys))]
        elif isinstance(step, o.Operation):
            self.answers.append(self.one_by_one(step))
        else:
            self.answers.append(salvage.salvage(slot, step, self.now_ms))

    def one_by_one(self, operation):
        return executed(self.slot, operation, self.now_ms)


def executed(slot, operation, now_ms):
    try:
        result = slot.execute(operation, Level.QUORUM, now_ms)
    except BrokerError as error:
        return None if error.reason is Reason.KEY_NOT_FOUND else error.reason
    return True if result is None else result


def state(slot):
    keyspace = slot.keyspace
    held = {
        key: list(value.items)
        if isinstance(value, ListValue)
        else value.fields
        if isinstance(value, HashValue)
        else value
        for key, value in keyspace.data.items()
    }
    kinds = {key: type(value) for key, value in keyspace.data.items()}
    recency = None if keyspace.recency is None else list(keyspace.recency)
    clock = slot.clock.wall_ms, slot.clock.counter
    gone = sorted((wall_ms, key) for wall_ms, key in slot._gone_by_time if slot.gone.get(key) == wall_ms)
    return (
        held, kinds, keyspace.deadlines, recency, keyspace.used_bytes, slot.stamps, slot.gone, gone, slot.origins, clock,
        slot.latest_ms, slot.applied, slot.is_complete,
    )  # fmt: skip


def kept(log):
    """Without the order in which keys are written before their changes."""
    return [row for row in log.rows if not isinstance(row, Part)]


@pytest.fixture(autouse=True, scope="module")
def _both_twins():
    require_compiled()
    assert built.COMPILED
    assert not PLAIN.COMPILED


@pytest.fixture(params=TWINS)
def twin(request, monkeypatch):
    for name in KERNEL:
        monkeypatch.setattr(log_columns, name, getattr(request.param, name))
    return request.param


def patched(patch, twin):
    for name in KERNEL:
        patch.setattr(log_columns, name, getattr(twin, name))


@pytest.mark.parametrize("twin", TWINS)
@given(steps=steps, settings=st.sampled_from(SETTINGS), every=st.sampled_from([1, 2, 5, 1_000]))
@example(
    steps=[o.Set(b"a", b"v", 1), 2_000, Columns(True, b"\1\2\3", [b"a", b"a", b"a"], [b"w", b"", b""])],
    settings=SETTINGS[0],
    every=3,
)
@example(
    steps=[
        o.Set(b"a", b"v"),
        Columns(True, b"\2", [b"a"], [b""]),
        1_000,
        Columns(True, b"\3\3", [b"b", b"a"], [b"", b""]),
    ],
    settings=SETTINGS[0],
    every=1_000,
)
def test_columns_are_the_same_as_one_by_one(twin, steps, settings, every):
    with pytest.MonkeyPatch.context() as patch:
        patched(patch, twin)
        definition, leader = (Leader(settings, every, in_columns=each) for each in (False, True))
        for step in steps:
            definition.take(step)
            leader.take(step)
    assert leader.answers == definition.answers
    if not any(step == "checkpoint" for step in steps):
        assert leader.log.rows == definition.log.rows
        assert state(leader.slot) == state(definition.slot)
        assert leader.marked.seen == definition.marked.seen
        assert leader.told.all == definition.told.all
        counts = [[getattr(each.slot.store, name) for name in COUNTS] for each in (leader, definition)]
        assert counts[0] == counts[1]
    assert kept(leader.log) == kept(definition.log)
    replayed, led = (state(slot)[:9] for slot in (applied_one_by_one(leader.log, 0, settings), leader.slot))
    assert replayed[:3] + replayed[4:] == led[:3] + led[4:], "all but the order of use, which reads change, too"


def applied_one_by_one(log, start, settings=SETTINGS[0]):
    slot = LogKeyspace(HybridClock(NODES[1]), ListLog(), settings, begins_at=start, delete_retention_ms=SHORT_MS)
    for at in range(start, len(log.rows)):
        checkpoints.apply(slot, at, log.rows[at])
    return slot


def test_a_full_batch_before_a_row_that_is_not_plain():
    """The log returns a batch with room; a full one would be asked for in an endless loop."""
    asked = Columns(
        True, bytes([Kind.SET] * 5), [b"k%d" % each for each in range(5)], [b"x" * 65_536] * 5, [0, 0, 0, 0, 9]
    )
    leader = Leader(SETTINGS[0], 1_000, in_columns=True)
    leader.take(asked)
    assert leader.answers == [True] * 5
    assert [row.key for row in leader.log.rows] == asked.keys


@pytest.mark.parametrize("twin", TWINS)
@given(steps=steps, settings=st.sampled_from(SETTINGS[::2]), data=st.data())
def test_batches_are_applied_as_their_records_are(twin, steps, settings, data):
    """From the beginning, and from every checkpoint; cut into batches, and applied up to any offset."""
    leader = Leader(settings, 1_000, in_columns=True)
    for step in steps:
        leader.take(step)
    rows = leader.log.rows
    begins = [
        0,
        *(at for at, row in enumerate(rows) if isinstance(row, Part) and row.value[1] == checkpoints.What.BEGIN),
    ]
    start, every = data.draw(st.sampled_from(begins)), data.draw(st.sampled_from([1, 2, 5, 1_000]))
    if start == len(rows):
        return
    wanted = applied_one_by_one(leader.log, start)
    slot = LogKeyspace(HybridClock(NODES[1]), ListLog(), SETTINGS[0], begins_at=start, delete_retention_ms=SHORT_MS)
    marked = Marked(slot, every)
    marked.next_mark = start + every
    if not start:  # what a checkpoint restores, a listener does not hear of
        slot.listeners.append(marked)
    cuts = sorted({start, len(rows), *data.draw(st.lists(st.integers(start, len(rows)), max_size=4))})
    ends = sorted({len(rows), *data.draw(st.lists(st.integers(start, len(rows)), max_size=4))})
    with pytest.MonkeyPatch.context() as patch:
        patched(patch, twin)
        for end in ends:
            for first, after in pairwise(cuts):
                batch = [
                    (row.key, row.value) if isinstance(row, Part) else (row.key, row.pack())
                    for row in rows[first:after]
                ]
                encoded = encode_batch(
                    [value for _, value in batch], keys=[key for key, _ in batch], base_timestamp=1, base_offset=first
                )
                while slot.applied < min(end, after):
                    before = slot.applied
                    log_columns.apply_batch(slot, encoded, 0, read_header(encoded), end, 3)
                    assert before < slot.applied <= end
    assert state(slot) == state(wanted)


def test_a_checkpoint_is_restored_as_its_records_are(twin, monkeypatch):
    settings = KeyValueSettings(memory_bytes_max=0, eviction=Eviction.LRU, feed=False)
    leader, singly = Leader(settings, 1_000, in_columns=True), 0
    sets = Columns(True, b"\1" * 40, [b"key %d" % at for at in range(40)], [b"v" * at for at in range(40)])
    leader.take(sets)
    for step in (
        o.Push(b"list", o.End.LEFT, (b"x",)),
        o.Set(b"key 3", b"w", 50),
        Columns(True, b"\3\2\2", [b"counter", b"key 5", b"key 6"], [b"", b"", b""]),
        "checkpoint",
        Columns(True, b"\1\2\1\1", [b"key 7", b"key 8", b"key 9", b"list"], [b"new", b"", b"newer", b"a string"]),
        "write",
        Columns(True, b"\3\1", [b"counter", b"key 10"], [b"", b"newest"]),
    ):
        leader.take(step)
    rows, starts = leader.log.rows, [0]
    starts += [at for at, row in enumerate(rows) if isinstance(row, Part) and row.value[1] == checkpoints.What.BEGIN]
    single = checkpoints.apply

    def apply(*what):
        nonlocal singly
        singly += 1
        single(*what)

    for start in starts:
        wanted = applied_one_by_one(leader.log, start, settings)
        slot = LogKeyspace(HybridClock(NODES[1]), ListLog(), settings, begins_at=start, delete_retention_ms=SHORT_MS)
        batch = [(row.key, row.value) if isinstance(row, Part) else (row.key, row.pack()) for row in rows[start:]]
        encoded = encode_batch(
            [value for _, value in batch], keys=[key for key, _ in batch], base_timestamp=1, base_offset=start
        )
        monkeypatch.setattr(checkpoints, "apply", apply)
        while slot.applied < len(rows):
            log_columns.apply_batch(slot, encoded, 0, read_header(encoded), len(rows), 1_000)
        monkeypatch.setattr(checkpoints, "apply", single)
        assert state(slot) == state(wanted)
    assert 0 < singly < len(rows), "most were taken together"


@pytest.mark.parametrize("twin", TWINS)
@given(
    steps=st.lists(alone | st.builds(o.Set, keys, values, st.sampled_from([0, 0, 1, 50])), max_size=20),
    asked=st.lists(keys | st.binary(max_size=40), max_size=30),
    logs=st.sampled_from([1, 3, 8, 128]),
    closed=st.sets(st.integers(0, 127)) | st.just(set(range(128))),
    settings=st.sampled_from(SETTINGS),
    now_ms=st.sampled_from([1_000, 3_000]),
)
@example(
    steps=[o.Set(b"a", b"v"), o.Set(b"b", b"v", 1), o.Set(b"c", b"v")],
    asked=[b"a", b"b", b"c", b"a", b"none"],
    logs=1,
    closed=set(),
    settings=SETTINGS[2],
    now_ms=3_000,
)
def test_a_burst_reads_all_logs_as_each_key_is_read_by_itself(twin, steps, asked, logs, closed, settings, now_ms):
    definition, slots = (
        [LogKeyspace(HybridClock(NODES[0]), ListLog(), settings, delete_retention_ms=SHORT_MS) for _ in range(logs)]
        for _ in range(2)
    )
    for each in (definition, slots):
        for step in steps:
            executed(each[log_of(slot_of(step.key), logs)], step, 1_000)
    found: list[Any] = [None] * len(asked)
    keyspaces = [None if log in closed else slot.containers for log, slot in enumerate(slots)]
    left, hits = twin.read_rows(keyspaces, asked, None, now_ms, found)
    assert len(left) in {0, logs}
    reads = len(asked) - sum(map(len, left))
    for log, rows in enumerate(left):
        assert rows == sorted(rows)
        every = [row for row, key in enumerate(asked) if log_of(slot_of(key), logs) == log]
        assert rows == every if log in closed else set(rows) <= set(every)
        for row in rows:
            found[row] = executed(slots[log], o.Get(asked[row]), now_ms)
    assert found == [executed(definition[log_of(slot_of(key), logs)], o.Get(key), now_ms) for key in asked]
    assert [state(slot) for slot in slots] == [state(slot) for slot in definition]
    counts = [
        [sum(getattr(slot.store, name) for slot in each) for name in ("operations", "hits", "misses")]
        for each in (slots, definition)
    ]
    assert [counts[0][0] + reads, counts[0][1] + hits, counts[0][2] + reads - hits] == counts[1]


@pytest.mark.parametrize("twin", TWINS)
def test_results_that_lack_a_row_are_refused(twin):
    with pytest.raises(ValueError, match="0 results for 1 keys"):
        twin.read_rows([None], [b"key"], None, 0, [])


@pytest.mark.parametrize("twin", TWINS)
def test_a_record_that_is_none_stops_a_run(twin):
    """The definition then refuses it, with words."""
    record = lost(Op.SET, b"v", at_ms=5)._replace(origin=None)
    good = record.pack()
    bad = [b"\2" + good[1:], good[:2] + b"\4" + good[3:], good[:30], good[:1] + b"\x77" + good[2:]]
    for value in bad:
        data = encode_batch([good, value], keys=[b"k", b"k"], base_timestamp=1)
        header, slot = read_header(data), LogKeyspace(HybridClock(NODES[1]), ListLog(), SETTINGS[0])
        applied, *_ = twin.apply_records(
            slot.containers, data[61:], 2, 0, header.last_offset_delta, 1, 0, 9, 0, 80, sys.maxsize, SHORT_MS, False, []
        )
        assert applied == 1


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(("kinds", "values", "ttls"), [(b"", [b"v"], None), (b"\1", [], None), (b"\1", [b"v"], [])])
def test_columns_of_different_lengths_are_refused(twin, kinds, values, ttls):
    slot = LogKeyspace(HybridClock(NODES[0]), ListLog(), SETTINGS[0])
    with pytest.raises(ValueError, match="for 1 keys"):
        twin.change_rows(
            slot.containers,
            kinds,
            [b"key"],
            values,
            ttls,
            [0],
            0,
            9,
            0,
            1 << 40,
            80,
            bytearray(),
            0,
            9,
            bytes(36),
            0,
            [None],
        )


def test_every_slot_has_a_log():
    assert {log_of(slot, 8) for slot in range(SLOTS)} == set(range(8))
