"""Trees of keys: equal keys have equal trees and no others do, whatever order they came in and whatever was there before."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kv.crashing import EachChange, new_disk, open_store, plain

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import Stamp
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.store import Mutation
from braidlog.kv.engine.values import HashValue, ListValue, Value
from braidlog.kv.replicated.merkle import FAN_OUT, LEAVES, MerkleTree, Range, leaf_of, narrowed, range_digest
from braidlog.kv.wal.local_store import LocalStore
from braidlog.model.errors import BrokerError

_KEY = st.binary(min_size=1, max_size=2)
_TEXT = st.binary(max_size=3)
VALUES: st.SearchStrategy[Value] = st.one_of(
    _TEXT,
    st.integers(0, 3),
    st.lists(_TEXT, min_size=1, max_size=3).map(ListValue),
    st.dictionaries(_KEY, _TEXT, min_size=1, max_size=3).map(lambda fields: HashValue(fields.items())),
)
HELD = st.dictionaries(_KEY, st.tuples(VALUES, st.sampled_from([0, 0, 1, 2])), max_size=6)


def keyspace(held: Sequence[tuple[bytes, tuple[Value, int]]]) -> Keyspace:
    made = Keyspace()
    for key, (value, deadline_ms) in held:
        made.put(key, value, deadline_ms)
    return made


def seen(keys: Keyspace) -> Any:
    """What a keyspace holds, for a comparison that is not the tree's."""

    def one(value: Value) -> Any:
        if isinstance(value, ListValue):
            return ("list", list(value.items))
        return ("hash", value.fields) if isinstance(value, HashValue) else (type(value), value)

    return {key: (one(value), keys.deadlines.get(key, 0)) for key, value in keys.data.items()}


def differing(ours: tuple[int, ...], theirs: tuple[int, ...], among: Range = (0, LEAVES)) -> list[int]:
    """The leaves that are not alike, found as over a wire: by digests of ranges alone."""
    if range_digest(ours, among) == range_digest(theirs, among):
        return []
    if among[1] - among[0] == 1:
        return [among[0]]
    return [leaf for each in narrowed(among) for leaf in differing(ours, theirs, each)]


@given(HELD, HELD, st.randoms(use_true_random=False))
def test_trees_are_equal_if_the_keys_are_and_only_then(
    first: dict[bytes, tuple[Value, int]], second: dict[bytes, tuple[Value, int]], random: Random
) -> None:
    shuffled = list(first.items())
    random.shuffle(shuffled)
    one, other, twin = keyspace(list(first.items())), keyspace(list(second.items())), keyspace(shuffled)
    assert MerkleTree(one).leaves() == MerkleTree(twin).leaves(), "the order does not matter"
    found = differing(MerkleTree(one).leaves(), MerkleTree(other).leaves())
    ours, theirs = seen(one), seen(other)
    wanted = {leaf_of(key) for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
    assert set(found) == wanted, "the differing leaves are those of the differing keys"


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_that_is_kept_up_is_that_of_its_keys(seed: int) -> None:
    """Every kind of change, expiry and deletes among them, with updates at any time: a tree made anew says the same."""
    random, tree = Random(seed), None

    def note(mutation: Mutation) -> None:
        if tree is not None:
            tree.note((mutation.key,))

    store = LocalStore(
        new_disk(), "/data/kv", bytes(range(16)), open_store(new_disk()).settings, now_ms=0, watcher=EachChange(note)
    )
    tree = MerkleTree(store.keyspace)
    for now_ms in range(400):
        key = b"%d" % random.randrange(30)
        operation: o.Operation[Any] = random.choice([
            o.Set(b"s" + key, b"%d" % random.randrange(3), random.choice([0, 0, 1])),
            o.Increment(b"c" + key, random.randrange(-2, 3)),
            o.Push(b"l" + key, random.choice(list(o.End)), (b"%d" % random.randrange(3),)),
            o.Pop(b"l" + key, random.choice(list(o.End))),
            o.HashSet(b"h" + key, ((b"f", b"%d" % random.randrange(3)),)),
            o.HashDelete(b"h" + key, (b"f",)),
            o.Delete(random.choice([b"s", b"c", b"l", b"h"]) + key),
            o.Expire(b"s" + key, random.randrange(2)),
        ])  # fmt: skip
        try:
            store.execute(operation, 20 * now_ms)
        except BrokerError:
            continue
        store.expire(20 * now_ms, 10)
        if random.random() < 0.3:
            tree.update(random.randrange(1, 5))
        if random.random() < 0.1:
            assert tree.leaves() == MerkleTree(store.keyspace).leaves()
    assert tree.leaves() == MerkleTree(store.keyspace).leaves()
    assert plain(store)
    store.expire(20_000, 1_000)
    for gone in list(store.keyspace.data):
        store.execute(o.Delete(gone), 20_000)
    assert tree.leaves() == (0,) * LEAVES, "nothing is left of keys that are gone"


def test_values_that_changed_places_are_seen() -> None:
    """All of them in one leaf, so that nothing but the mixing of checksums tells them apart."""
    keys = [key for key in (b"%06d" % number for number in range(200_000)) if leaf_of(key) == 7][:40]
    values = [b"%08d" % number for number in range(len(keys))]
    leaves = set()
    for turn in range(len(keys)):
        turned = values[turn:] + values[:turn]
        leaves.add(MerkleTree(keyspace([(key, (value, 0)) for key, value in zip(keys, turned, strict=True)])).leaves())
    assert len(leaves) == len(keys)


def test_stamps_count() -> None:
    keys, node = keyspace([(b"a", (b"1", 0))]), bytes(16)
    stamps: list[Stamp | None] = [None, Stamp(1, 0, node), Stamp(1, 1, node), Stamp(2, 0, node), Stamp(1, 0, b"n" * 16)]
    assert len({MerkleTree(keys, lambda _, stamp=stamp: stamp).leaves() for stamp in stamps}) == len(stamps)  # type: ignore[misc]


def test_three_questions_lead_from_the_root_to_a_leaf() -> None:
    first = list(narrowed((0, LEAVES)))
    assert len(first) == FAN_OUT
    last = [leaf for each in first for some in narrowed(each) for leaf in narrowed(some)]
    assert last == [(leaf, leaf + 1) for leaf in range(LEAVES)]
    assert list(narrowed((5, 6))) == []
    leaves = MerkleTree(keyspace([(b"%d" % number, (b"v", 0)) for number in range(500)])).leaves()
    assert range_digest(leaves, (0, LEAVES)) != range_digest(leaves, (0, 512))


def test_digests_are_the_same_on_every_node() -> None:
    """They are compared between processes, machines and versions: a change of them is a change of the protocol."""
    keys = keyspace(
        [(b"a", (b"1", 0)), (b"b", (7, 5)), (b"l", (ListValue([b"x"]), 0)), (b"h", (HashValue([(b"f", b"v")]), 0))]
    )
    stamp = Stamp(1, 2, bytes(range(16)))
    tree = MerkleTree(keys, lambda _: stamp)
    assert f"{range_digest(tree.leaves(), (0, LEAVES)):016x}" == "e196aff50c6a92f4"
    assert sorted(tree.keys_in({leaf_of(b"a"), leaf_of(b"l")})) == [b"a", b"l"]
