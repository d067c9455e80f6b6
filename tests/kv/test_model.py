"""The store against a dictionary: any operations in any order, time passing, restarts, kills and snapshots between them."""

from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.kv.crashing import Runtime, check_figures, lost

from braidlog.kv.engine import operations as o

keys = st.sampled_from([b"a", b"b", b"c", b"k" * 256])
values = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"0", b"7", b"-3", b"007", b"9223372036854775807", b"x" * 5000])
)
ttls = st.sampled_from([0, 0, 1, 2, 60])
ends = st.sampled_from(list(o.End))
fields = st.sampled_from([b"f", b"g", b"h"])
places = st.integers(-5, 5)
amounts = st.one_of(st.integers(-10, 10), st.sampled_from([2**63 - 1, -(2**63), 2**62]))


class StoreMachine(RuleBasedStateMachine):
    """`Runtime.do` carries each operation out on both, and compares results, refusals and everything that is held."""

    @initialize()
    def begin(self) -> None:
        self.runtime = Runtime()
        self.runtime.open()

    def do(self, operation: o.Operation[Any]) -> None:
        self.runtime.do(operation, sync=False)

    @rule(key=keys, value=values, ttl=ttls, only=st.sampled_from(list(o.Only)))
    def set(self, key: bytes, value: bytes, ttl: int, only: o.Only) -> None:
        self.do(o.Set(key, value, ttl, only))

    @rule(key=keys)
    def read(self, key: bytes) -> None:
        for kind in (o.Get, o.Exists, o.TimeToLive, o.ListLength, o.HashGetAll):
            self.do(kind(key))

    @rule(key=keys)
    def delete(self, key: bytes) -> None:
        self.do(o.Delete(key))

    @rule(key=keys, ttl=ttls)
    def expire(self, key: bytes, ttl: int) -> None:
        self.do(o.Expire(key, ttl))

    @rule(key=keys, amount=amounts)
    def increment(self, key: bytes, amount: int) -> None:
        self.do(o.Increment(key, amount))

    @rule(key=keys, end=ends, pushed=st.lists(values, min_size=1, max_size=4))
    def push(self, key: bytes, end: o.End, pushed: list[bytes]) -> None:
        self.do(o.Push(key, end, tuple(pushed)))

    @rule(key=keys, end=ends)
    def pop(self, key: bytes, end: o.End) -> None:
        self.do(o.Pop(key, end))

    @rule(key=keys, first=places, last=places)
    def look(self, key: bytes, first: int, last: int) -> None:
        self.do(o.ListRange(key, first, last))

    @rule(key=keys, pairs=st.lists(st.tuples(fields, values), min_size=1, max_size=3))
    def hash_set(self, key: bytes, pairs: list[tuple[bytes, bytes]]) -> None:
        self.do(o.HashSet(key, tuple(pairs)))

    @rule(key=keys, field=fields)
    def hash_get(self, key: bytes, field: bytes) -> None:
        self.do(o.HashGet(key, field))

    @rule(key=keys, gone=st.lists(fields, min_size=1, max_size=3))
    def hash_delete(self, key: bytes, gone: list[bytes]) -> None:
        self.do(o.HashDelete(key, tuple(gone)))

    @rule(ms=st.sampled_from([1, 500, 999, 1000, 3000]))
    def pass_time(self, ms: int) -> None:
        self.runtime.clock.advance(ms)
        self.runtime.model.expire(self.runtime.clock.now_ms())

    @rule()
    def sweep(self) -> None:
        self.runtime.expire(sync=False)

    @rule()
    def snapshot(self) -> None:
        self.runtime.snapshot()

    @rule()
    def restart(self) -> None:
        self.runtime.close()
        self.runtime.open()

    @rule()
    def kill(self) -> None:
        self.runtime.disk = self.runtime.disk.after_kill()
        self.runtime.open()

    @rule()
    def power_cut(self) -> None:
        """All is synced before, so that the dictionary needs no past."""
        self.runtime.store.wal.sync()
        self.runtime.disk = lost(self.runtime.disk)
        self.runtime.open()

    @invariant()
    def adds_up(self) -> None:
        if hasattr(self, "runtime"):
            check_figures(self.runtime.store)


TestStore = StoreMachine.TestCase
TestStore.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
