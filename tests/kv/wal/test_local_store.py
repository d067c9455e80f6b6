# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type, var-annotated"
"""Many operations in columns: both twins do exactly what `Store.execute` does with each of them."""

import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.codec.twins import load_plain, require_compiled
from tests.kv.crashing import FOLDER, NODE, EachChange, lost, new_disk, open_store, see

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.operations import Columns, Kind
from braidlog.kv.engine.settings import Eviction, KeyValueSettings
from braidlog.kv.replicated import log_columns
from braidlog.kv.replicated import log_kernel as built
from braidlog.kv.wal import local_store
from braidlog.kv.wal.local_store import LocalStore
from braidlog.kv.wal.wal import DATA_START
from braidlog.model.errors import BrokerError, Reason, StorageFault

PLAIN = load_plain("kv/replicated/log_kernel")
TWINS = [pytest.param(built, id="built"), pytest.param(PLAIN, id="plain")]
SETTINGS = [
    KeyValueSettings(),
    KeyValueSettings(memory_bytes_max=1_500),
    KeyValueSettings(memory_bytes_max=1_500, eviction=Eviction.LRU),
]
COUNTS = (
    "operations",
    "hits",
    "misses",
    "mutations",
    "expired",
    "evicted",
    "refused_for_memory",
    "peak_bytes",
    "sequence",
)
keys = st.sampled_from([b"a", b"b", b"c", b"d", b"k" * 256, b"", b"k" * 257])
values = st.sampled_from([b"", b"v", b"7", b"x" * 200, b"9223372036854775807", b"x" * 65_536, b"x" * 65_537])
numbers = st.sampled_from([b"5", b"9223372036854775806", b"-9223372036854775807", b"007"])


@st.composite
def columns(draw):
    if draw(st.integers(0, 3)) == 0:
        asked = draw(st.lists(keys, max_size=8))
        return Columns(False, bytes(len(asked)), asked, [])
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
steps = st.lists(columns() | alone | st.sampled_from([1, 1_000, "image", "settle"]), max_size=12)


class Follower:
    """A store, and all that can be told of what was done to it."""

    def __init__(self, settings, twin=None):
        self.told = []
        self.twin = twin
        self.disk = new_disk()
        self.store = LocalStore(self.disk, FOLDER, NODE, settings, now_ms=0, watcher=EachChange(self.told.append))
        self.answers = []
        self.image = None
        self.now_ms = 1

    def take(self, step):
        if step == "image":
            self.image = self.image or self.store.keyspace.take_image()
        elif step == "settle":
            self.settle()
        elif isinstance(step, int):
            self.now_ms += step
        elif isinstance(step, Columns) and self.twin is not None:
            results = self.store.execute_columns(step, self.now_ms)
            self.answers += [each.reason if isinstance(each, BrokerError) else each for each in results.found]
            assert results.refused == [row for row, each in enumerate(results.found) if isinstance(each, BrokerError)]
        else:
            for each in [step.operation(row) for row in range(len(step.keys))] if isinstance(step, Columns) else [step]:
                self.answers.append(self.one_by_one(each))

    def one_by_one(self, operation):
        try:
            result = self.store.execute(operation, self.now_ms)
        except BrokerError as error:
            return None if error.reason is Reason.KEY_NOT_FOUND else error.reason
        return True if result is None else result

    def settle(self):
        if self.image is not None:
            self.store.keyspace.give_back(self.image)
        self.image = None
        while self.store.keyspace.settle(1):
            pass

    def everything(self):
        store = self.store
        self.settle()
        store.wal.sync()
        log = self.disk.open(f"{FOLDER}/{1:020d}.wal", writable=False).read_at(1 << 24, DATA_START)
        recency = None if store.keyspace.recency is None else list(store.keyspace.recency)
        counts = {name: getattr(store, name) for name in COUNTS}
        kinds = {key: type(value) for key, value in store.keyspace.data.items()}
        told = [(each.sequence, each.wall_ms, each.counter, each.op, each.key, each.deadline_ms) for each in self.told]
        held = [each.value for each in self.told if isinstance(each.value, int | bytes | None)]
        return see(store), log, recency, counts, kinds, store.keyspace.used_bytes, told, held, self.answers


@pytest.fixture(autouse=True, scope="module")
def _both_twins():
    require_compiled()
    assert built.COMPILED
    assert not PLAIN.COMPILED


@pytest.mark.parametrize("twin", TWINS)
@given(steps=steps, settings=st.sampled_from(SETTINGS))
@example(
    steps=[o.Set(b"a", b"v", 1), 2_000, Columns(True, b"\1\2\3", [b"a", b"a", b"a"], [b"w", b"", b""])],
    settings=SETTINGS[0],
)
def test_columns_are_the_same_as_one_by_one(twin, steps, settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_store, "change_rows", twin.change_rows)
        patch.setattr(log_columns, "read_rows", twin.read_rows)
        definition, follower = Follower(settings), Follower(settings, twin)
        for step in steps:
            definition.take(step)
            follower.take(step)
        wanted = definition.everything()
        for found, due in zip(follower.everything(), wanted, strict=True):
            assert found == due
    assert see(open_store(lost(follower.disk), settings, follower.now_ms)) == wanted[0]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("size", [*range(40), 4_000, 65_536])
def test_an_entrys_checksum_is_zlibs(twin, size):
    value = bytes(byte * 37 & 0xFF for byte in range(size))
    entries, most, head = bytearray(), 1 << 40, bytes(36)
    keyspace = ({}, {}, None, None, None, None)
    twin.change_rows(
        keyspace, b"\1", [b"key"], [value], None, None, 0, most, 0, most, 80, entries, 0, most, head, 0, [None]
    )
    assert int.from_bytes(entries[:4], "big") == zlib.crc32(entries[4:])


def test_a_log_that_takes_nothing_changes_nothing():
    store = open_store(new_disk())
    changes = Columns(True, bytes((Kind.SET, Kind.DELETE)), [b"k", b"k"], [b"v", b""])
    assert store.execute_columns(changes, 0).found == [True, True]
    store.stop(StorageFault("the feed has stopped"))
    before = see(store)
    with pytest.raises(StorageFault):
        store.execute_columns(changes, 0)
    store.resume_writes()
    store.close()
    assert [type(each) for each in store.execute_columns(changes, 0).found] == [BrokerError, type(None)]
    assert see(store) == before


def test_the_last_stamps_of_a_millisecond_are_given_one_by_one():
    store = open_store(new_disk())
    store.clock.wall_ms, store.clock.counter = 5, 2**32 - 3
    changes = Columns(True, bytes((Kind.SET,)) * 4, [b"k"] * 4, [b"v"] * 4)
    store.execute_columns(changes, 0)
    assert (store.clock.wall_ms, store.clock.counter) == (6, 1)
