"""What the store does with memory and time, and what an image shows."""

import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.kv.crashing import Runtime, check_figures, lost, new_disk, open_store, plain, see
from tests.kv.snapshots import write_snapshot

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.settings import Eviction, KeyValueSettings
from braidlog.kv.engine.values import ListValue
from braidlog.kv.wal import snapshot as snapshots
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import KV_COLLECTION_BYTES_MAX

LRU = KeyValueSettings(memory_bytes_max=20_000, eviction=Eviction.LRU)
REFUSE = KeyValueSettings(memory_bytes_max=20_000)


def refusal(store: LocalStore, operation: o.Operation[Any], now_ms: int = 0) -> Reason:
    with pytest.raises(BrokerError) as refused:
        store.execute(operation, now_ms)
    return refused.value.reason


# -- memory ------------------------------------------------------------------------------------------------------


def test_the_longest_unused_key_goes_first() -> None:
    store = open_store(new_disk(), LRU)
    for number in range(20):
        store.execute(o.Set(b"key%d" % number, b"x" * 100), 0)
    store.execute(o.Get(b"key0"), 0)
    store.execute(o.Expire(b"key1", 50), 0)
    store.execute(o.Set(b"big", b"x" * 15_500), 0)
    there = set(store.keyspace.data)
    assert {b"key0", b"key1", b"big"} <= there
    gone = 20 - (len(there) - 1)
    assert gone > 5
    assert there == {b"key0", b"key1", b"big"} | {b"key%d" % number for number in range(2 + gone, 20)}
    assert store.evicted == gone
    check_figures(store)


def test_lru_against_a_list_of_uses() -> None:
    """Whatever is done, the keys that are there are those used last."""
    random = Random(11)
    store = open_store(new_disk(), LRU)
    used: list[bytes] = []
    for _ in range(3_000):
        key = b"key%d" % random.randrange(100)
        makers: list[Callable[[], o.Operation[Any]]] = [
            lambda: o.Set(key, b"x" * random.randrange(400)),  # noqa: B023
            lambda: o.Get(key),  # noqa: B023
            lambda: o.Exists(key),  # noqa: B023
        ]
        operation = random.choice(makers)()
        try:
            store.execute(operation, 0)
        except BrokerError:
            continue
        if not isinstance(operation, o.Exists):
            used = [other for other in used if other != key] + [key]
        there = len(store.keyspace)
        assert set(used[-there:]) == set(store.keyspace.data)
        assert store.keyspace.used_bytes <= 20_000
    assert store.evicted > 300
    check_figures(store)


def test_evicted_keys_stay_away() -> None:
    disk = new_disk()
    store = open_store(disk, LRU)
    for number in range(200):
        store.execute(o.Set(b"key%d" % number, b"x" * 300), 0)
        if number == 100:
            write_snapshot(store, 0)
    store.wal.sync()
    assert store.evicted > 100
    assert see(open_store(lost(disk), LRU)) == see(store)
    assert see(open_store(lost(disk), KeyValueSettings())) == see(store), "with another limit too"


def test_a_store_that_refuses_changes_nothing() -> None:
    store = open_store(new_disk(), REFUSE)
    store.execute(o.Set(b"a", b"x" * 19_000), 0)
    before = see(store)
    for operation in (
        o.Set(b"b", b"x" * 1_000),
        o.Push(b"l", o.End.LEFT, (b"x" * 900,)),
        o.HashSet(b"h", ((b"f", b"x" * 900),)),
        o.Increment(b"n" * 255),
        o.Set(b"a", b"x" * 20_000),
    ):
        if not isinstance(operation, o.Increment):
            assert refusal(store, operation) is Reason.OUT_OF_MEMORY
    assert see(store) == before
    assert store.execute(o.Set(b"a", b"small"), 0) is True, "what needs less than before is never refused"
    check_figures(store)


def test_one_key_larger_than_the_limit_evicts_nobody() -> None:
    store = open_store(new_disk(), LRU)
    store.execute(o.Set(b"a", b"1"), 0)
    assert refusal(store, o.Set(b"b", b"x" * 30_000)) is Reason.OUT_OF_MEMORY
    assert plain(store) == {b"a": (b"1", 0)}


def test_keys_whose_time_has_come_make_room_first() -> None:
    store = open_store(new_disk(), REFUSE)
    store.execute(o.Set(b"a", b"x" * 15_000, 1), 0)
    assert refusal(store, o.Set(b"b", b"x" * 15_000), 999) is Reason.OUT_OF_MEMORY
    assert store.execute(o.Set(b"b", b"x" * 15_000), 1_000) is True
    assert store.expired == 1


def test_a_collection_has_an_end() -> None:
    store = open_store(new_disk())
    value = b"x" * 65_536
    for _ in range(KV_COLLECTION_BYTES_MAX // (len(value) + 4)):
        store.execute(o.Push(b"l", o.End.RIGHT, (value,)), 0)
    assert refusal(store, o.Push(b"l", o.End.RIGHT, (value,))) is Reason.VALUE_TOO_LARGE
    assert refusal(store, o.ListRange(b"l", 0, -1, bytes_max=1_000)) is Reason.VALUE_TOO_LARGE
    assert len(store.execute(o.ListRange(b"l", -2, -1), 0)) == 2


KINDS: dict[str, Callable[[bytes], o.Operation[Any]]] = {
    "strings": lambda key: o.Set(key, key * 3),
    "counters": lambda key: o.Increment(key, 1 << 40),
    "expiring": lambda key: o.Set(key, key * 3, 1000),
    "lists": lambda key: o.Push(key, o.End.LEFT, (key, key)),
    "hashes": lambda key: o.HashSet(key, ((key, key), (b"g", key))),
    "large": lambda key: o.Set(key, key * 150),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recency", [False, True])
def test_what_is_accounted_is_what_is_taken(kind: str, recency: bool) -> None:
    """Within a third, over a growing dict: the limit is meant for the machine's memory, not for itself."""
    settings = KeyValueSettings(eviction=Eviction.LRU if recency else Eviction.REFUSE)
    store = open_store(new_disk(), settings)
    numbers = [b"key:%07d" % number for number in range(20_000)]
    tracemalloc.start()
    try:
        for number in numbers:
            store.execute(KINDS[kind](bytes(bytearray(number))), 0)  # an object of its own, as one from a socket is
            store.wal._parts.clear()  # the log is not the keyspace
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    ratio = store.keyspace.used_bytes / taken
    print(f"{kind}, recency {recency}: {store.keyspace.used_bytes} accounted, {taken} taken, {ratio:.2f}")
    assert 0.75 < ratio < 1.34


# -- time --------------------------------------------------------------------------------------------------------


def test_a_clock_set_back_brings_nothing_back() -> None:
    store = open_store(new_disk())
    store.execute(o.Set(b"a", b"1", 10), 100_000)
    store.execute(o.Set(b"b", b"1"), 110_000)
    assert refusal(store, o.Get(b"a"), 110_000) is Reason.KEY_NOT_FOUND
    assert refusal(store, o.Get(b"a"), 100_001) is Reason.KEY_NOT_FOUND
    assert store.execute(o.Set(b"a", b"2", 10), 100_001) is True
    assert store.execute(o.TimeToLive(b"a"), 100_001) == 10, "ten seconds are ten seconds, whatever the clock says"


def test_an_expired_key_is_gone_in_the_log_before_it_is_made_anew() -> None:
    runtime = Runtime()
    runtime.open()
    runtime.do(o.Push(b"a", o.End.LEFT, (b"x",)))
    runtime.do(o.Expire(b"a", 1))
    runtime.clock.advance(1_000)
    runtime.do(o.Increment(b"a"))
    assert (runtime.store.sequence, runtime.store.expired) == (4, 1)
    runtime.compare(open_store(lost(runtime.disk), now_ms=0))


def test_a_restart_does_not_revive_what_has_expired() -> None:
    runtime = Runtime()
    runtime.open()
    runtime.do(o.Set(b"a", b"1", 1))
    runtime.clock.advance(5_000)
    runtime.model.expire(runtime.clock.now_ms())
    runtime.expire()
    again = open_store(lost(runtime.disk), now_ms=0)
    assert again.keyspace.data == {}
    assert refusal(again, o.Get(b"a"), 0) is Reason.KEY_NOT_FOUND


def test_deadlines_that_are_changed_often_do_not_pile_up() -> None:
    store = open_store(new_disk())
    for number in range(5_000):
        store.execute(o.Set(b"a", b"1", 1 + number % 100), number)
    assert len(store.keyspace._heap) < 200
    assert store.expire(10**9, 10) == 1


# -- images ------------------------------------------------------------------------------------------------------


def test_an_image_stands_still() -> None:
    store = open_store(new_disk())
    store.execute(o.Set(b"s", b"1"), 0)
    store.execute(o.Push(b"l", o.End.LEFT, (b"1",)), 0)
    store.execute(o.HashSet(b"h", ((b"f", b"1"),)), 0)
    taking = store.begin_snapshot(0)
    before = b"".join(snapshots.slices(taking.image))
    kept = store.keyspace.data[b"l"]
    store.execute(o.Push(b"l", o.End.LEFT, (b"2",)), 0)
    moved = store.keyspace.data[b"l"]
    store.execute(o.Push(b"l", o.End.LEFT, (b"3",)), 0)
    store.execute(o.HashDelete(b"h", (b"f",)), 0)
    store.execute(o.Set(b"s", b"2"), 0)
    assert b"".join(snapshots.slices(taking.image)) == before
    assert moved is not kept
    assert store.keyspace.data[b"l"] is moved, "one copy is enough"
    store.end_snapshot(taking, None)
    second = store.keyspace.data[b"l"]
    store.execute(o.Push(b"l", o.End.LEFT, (b"4",)), 0)
    assert store.keyspace.data[b"l"] is second, "nobody looks any more"
    assert isinstance(second, ListValue)
    check_figures(store)


def test_a_full_snapshot_of_many_blocks() -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(2_000):
        store.execute(o.Set(b"key%d" % number, b"x" * (number % 700), number % 3), 1_000)
    write_snapshot(store, 1_000)
    again = open_store(lost(disk))
    assert see(again) == see(store)
    assert again.snapshot_bytes > 2 * snapshots.BLOCK_BYTES


def test_a_snapshot_that_was_published_is_durable() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.execute(o.Set(b"a", b"1"), 0)
    store.wal.sync()
    taking = store.begin_snapshot(0)
    writer = store.writer(taking.head)
    for block in snapshots.slices(taking.image):
        writer.write(block)
    writer.seal()
    writer.publish()
    assert open_store(lost(disk)).snapshot == taking.head


def test_numbers() -> None:
    store = open_store(new_disk())
    for text in (b"", b"x", b"007", b"-0", b"+1", b" 1", b"1 ", b"1_0", b"9223372036854775808", b"1" * 30):
        store.execute(o.Set(b"n", text), 0)
        assert refusal(store, o.Increment(b"n")) is Reason.NOT_A_NUMBER
        assert store.execute(o.Get(b"n"), 0) == text
    store.execute(o.Set(b"n", b"-9223372036854775808"), 0)
    assert refusal(store, o.Increment(b"n", -1)) is Reason.NUMBER_OVERFLOW
    assert store.execute(o.Increment(b"n", 2**63 - 1), 0) == -1
    assert refusal(store, o.Increment(b"n", 2**63)) is Reason.NUMBER_OVERFLOW
    assert store.execute(o.Get(b"n"), 0) == b"-1"


def test_settings_out_of_bounds() -> None:
    for values in ({"memory_bytes_max": -1}, {"snapshot_wal_bytes": 0}, {"flush_interval_ms": 0}):
        with pytest.raises(BrokerError):
            KeyValueSettings(**values)  # type: ignore[arg-type]


def test_a_closed_store_takes_nothing() -> None:
    store = open_store(new_disk())
    store.close()
    store.close()
    assert refusal(store, o.Set(b"a", b"1")) is Reason.LOG_CLOSED
    store = open_store(new_disk())
    store.stop(StorageFault("nobody listens"))
    with pytest.raises(StorageFault, match="nobody listens"):
        store.execute(o.Set(b"a", b"1"), 0)
    assert store.execute(o.Exists(b"a"), 0) is False
