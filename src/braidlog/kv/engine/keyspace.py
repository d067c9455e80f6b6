"""The keys of a store, in memory: values, expiries, memory use, and the effect of each mutation.

Does not handle: clocks (time is an argument), files, whether a mutation is allowed (store.py decides that before
it is logged).
Invariants: only `apply` changes keys, and the result depends only on the mutations before it: the same log gives
the same keyspace. `used_bytes` is the sum of the memory of all keys.

An image is the dict itself: while it is in use, changes are stored in a layer above it (copy_on_write.py), which
`settle` merges afterwards in small steps. Strings never change; a list or hash that changes while an image is in
use is copied first.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from braidlog.kv.engine.copy_on_write import Overlay, merged, released
from braidlog.kv.engine.values import (
    DEADLINE_COST,
    KEY_COST,
    LENGTH_BYTES,
    RECENCY_COST,
    STRING_COST,
    HashValue,
    ListValue,
    Value,
    cost_of,
    pairs_of,
    quoted,
    strings_in,
)
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import StorageFault

_HEAP_SLACK = 64
_C = TypeVar("_C", ListValue, HashValue)
_Apply: TypeAlias = Callable[[bytes, bytes, int, int], None]


class Image(NamedTuple):
    """The keyspace at one point in time. It never changes, and must be given back."""

    data: MutableMapping[bytes, Value]
    deadlines: MutableMapping[bytes, int]


class Keyspace:
    """Keys and values. With `recency`, the keys are also kept in the order of their last use."""

    def __init__(self, *, recency: bool = False) -> None:
        self.data: MutableMapping[bytes, Value] = {}
        self.deadlines: MutableMapping[bytes, int] = {}
        self.recency: OrderedDict[bytes, None] | None = OrderedDict() if recency else None
        self.used_bytes = 0
        self.lists = 0
        self.hashes = 0
        self._heap: list[tuple[int, bytes]] = []
        self._era = 0
        self._images = 0
        self.key_cost = KEY_COST + (RECENCY_COST if recency else 0)
        self._appliers: dict[int, _Apply] = {
            Op.SET: self._set,
            Op.DEL: self._remove,
            Op.LPUSH: partial(self._push, left=True),
            Op.RPUSH: partial(self._push, left=False),
            Op.LPOP: partial(self._pop, left=True),
            Op.RPOP: partial(self._pop, left=False),
            Op.INCRBY: self._increment,
            Op.HSET: self._hash_set,
            Op.HDEL: self._hash_delete,
            Op.EXPIRE: self._expire,
            Op.EXPIRED: self._remove,
            Op.EVICTED: self._remove,
        }

    def __len__(self) -> int:
        return len(self.data)

    # -- reading ---------------------------------------------------------------------------------------------

    def find(self, key: bytes, now_ms: int) -> Value | None:
        """Return the value of a key; None if it does not exist or has expired."""
        value = self.data.get(key)
        if value is not None and self.deadlines and self.deadlines.get(key, now_ms + 1) <= now_ms:
            return None
        return value

    def touch(self, key: bytes) -> None:
        """Record a use of the key."""
        if self.recency is not None:
            self.recency.move_to_end(key)

    def is_due(self, key: bytes, now_ms: int) -> bool:
        """Return whether the key exists and has expired."""
        deadline = self.deadlines.get(key)
        return deadline is not None and deadline <= now_ms

    def due(self, now_ms: int) -> bytes | None:
        """Return an expired key."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            deadline, key = heap[0]
            if self.deadlines.get(key) == deadline:
                return key
            heapq.heappop(heap)
        return None

    def oldest(self) -> Iterator[bytes]:
        """Yield keys by their last use, the oldest first. The keyspace must not change during the iteration."""
        return iter(self.recency if self.recency is not None else self.data)

    def cost(self, key: bytes) -> int:
        """Return the memory of a key, its value and its expiry."""
        value = self.data[key]
        return self.cost_new(key) + cost_of(value) + (DEADLINE_COST if key in self.deadlines else 0)

    def cost_new(self, key: bytes) -> int:
        """Return the memory of a new key without its value."""
        return self.key_cost + len(key)

    # -- images ----------------------------------------------------------------------------------------------

    def take_image(self) -> Image:
        """Return an image of the current keyspace, without copying. The caller must give it back."""
        self._images += 1
        self._era += 1
        image = Image(self.data, self.deadlines)
        self.data, self.deadlines = Overlay(self.data), Overlay(self.deadlines)
        return image

    def give_back(self, image: Image) -> None:
        self._images -= 1
        released(self.data, image.data)
        released(self.deadlines, image.deadlines)

    def settle(self, count_max: int) -> bool:
        """Merge up to `count_max` changes after images; return whether more are left."""
        self.data, more_keys = merged(self.data, count_max)
        self.deadlines, more_deadlines = merged(self.deadlines, count_max)
        return more_keys or more_deadlines

    # -- changing --------------------------------------------------------------------------------------------

    def apply(self, op: int, key: bytes, value: bytes, ttl_seconds: int, wall_ms: int) -> None:
        """Apply a log entry. Raise `StorageFault` for one that cannot follow this state."""
        self._appliers[op](key, value, ttl_seconds, wall_ms)

    def put(self, key: bytes, value: Value, deadline_ms: int) -> None:
        """Restore a key from a snapshot."""
        self._store(key, value)
        if deadline_ms:
            self._set_deadline(key, deadline_ms)

    def remove(self, key: bytes) -> None:
        """Remove an existing key without a log entry."""
        self._remove(key, b"", 0, 0)

    def _store(self, key: bytes, value: Value) -> None:
        """Set the value of a key."""
        old = self.data.get(key)
        if old is None:
            self.used_bytes += self.key_cost + len(key)
            if self.recency is not None:
                self.recency[key] = None
        else:
            self.used_bytes -= cost_of(old)
            self._count(old, -1)
            if self.recency is not None:
                self.recency.move_to_end(key)
        self.data[key] = value
        self.used_bytes += cost_of(value)
        self._count(value, 1)

    def _count(self, value: Value, by: int) -> None:
        if type(value) is ListValue:
            self.lists += by
        elif type(value) is HashValue:
            self.hashes += by

    def _set(self, key: bytes, value: bytes, ttl_seconds: int, wall_ms: int) -> None:
        old = self.data.get(key)
        if type(old) is bytes and self.recency is None:
            self.used_bytes += len(value) - len(old)
            self.data[key] = value
        elif old is None and self.recency is None:
            self.used_bytes += self.key_cost + len(key) + STRING_COST + len(value)
            self.data[key] = value
        else:
            self._store(key, value)
        if ttl_seconds:
            self._set_deadline(key, wall_ms + ttl_seconds * 1000)
        elif self.deadlines:
            self._drop_deadline(key)

    def _remove(self, key: bytes, _value: bytes, _ttl_seconds: int, _wall_ms: int) -> None:
        value = self.data.pop(key, None)
        if value is None:
            raise _senseless("the removal of a key that does not exist", key)
        self.used_bytes -= self.key_cost + len(key) + cost_of(value)
        self._count(value, -1)
        self._drop_deadline(key)
        if self.recency is not None:
            del self.recency[key]

    def _expire(self, key: bytes, _value: bytes, ttl_seconds: int, wall_ms: int) -> None:
        if key not in self.data:
            raise _senseless("an expiry for a key that does not exist", key)
        if ttl_seconds:
            self._set_deadline(key, wall_ms + ttl_seconds * 1000)
        else:
            self._drop_deadline(key)
        self.touch(key)

    def _increment(self, key: bytes, value: bytes, _ttl_seconds: int, _wall_ms: int) -> None:
        old = self.data.get(key, 0)
        amount = int.from_bytes(value, "big", signed=True)
        if type(old) is int and key in self.data:
            self.data[key] = old + amount
            self.touch(key)
        elif isinstance(old, int | bytes):
            self._store(key, int(old) + amount)
        else:
            raise _senseless("an increment of a collection", key)

    def _push(self, key: bytes, value: bytes, _ttl_seconds: int, _wall_ms: int, *, left: bool) -> None:
        held = self._own(key, ListValue)
        before = held.cost()
        for item in strings_in(value):
            if left:
                held.items.appendleft(item)
            else:
                held.items.append(item)
            held.size += LENGTH_BYTES + len(item)
        self.used_bytes += held.cost() - before

    def _pop(self, key: bytes, _value: bytes, _ttl_seconds: int, _wall_ms: int, *, left: bool) -> None:
        if key not in self.data:
            raise _senseless("a pop from a list that does not exist", key)
        held = self._own(key, ListValue)
        before = held.cost()
        item = held.items.popleft() if left else held.items.pop()
        held.size -= LENGTH_BYTES + len(item)
        self.used_bytes += held.cost() - before
        if not held.items:
            self._remove(key, b"", 0, 0)

    def _hash_set(self, key: bytes, value: bytes, _ttl_seconds: int, _wall_ms: int) -> None:
        held = self._own(key, HashValue)
        before = held.cost()
        for field, new in pairs_of(list(strings_in(value))):
            old = held.fields.get(field)
            held.fields[field] = new
            held.size += 2 * LENGTH_BYTES + len(field) + len(new) if old is None else len(new) - len(old)
        self.used_bytes += held.cost() - before

    def _hash_delete(self, key: bytes, value: bytes, _ttl_seconds: int, _wall_ms: int) -> None:
        if key not in self.data:
            raise _senseless("a field removed from a hash that does not exist", key)
        held = self._own(key, HashValue)
        before = held.cost()
        for field in strings_in(value):
            held.size -= 2 * LENGTH_BYTES + len(field) + len(held.fields.pop(field))
        self.used_bytes += held.cost() - before
        if not held.fields:
            self._remove(key, b"", 0, 0)

    def _own(self, key: bytes, kind: type[_C]) -> _C:
        """Return the collection of a key for a change: created if missing, copied if an image uses it."""
        held = self.data.get(key)
        if held is None:
            held = kind((), self._era)
            self._store(key, held)
        elif not isinstance(held, kind):
            raise _senseless(f"a change of a {kind.__name__}", key)
        elif self._images and held.era < self._era:
            held = self.data[key] = held.copy(self._era)
        self.touch(key)
        return held

    def _set_deadline(self, key: bytes, deadline_ms: int) -> None:
        if key not in self.deadlines:
            self.used_bytes += DEADLINE_COST
        self.deadlines[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, key))
        if len(self._heap) > 2 * len(self.deadlines) + _HEAP_SLACK:
            self._heap = [(deadline, key) for key, deadline in self.deadlines.items()]
            heapq.heapify(self._heap)

    def _drop_deadline(self, key: bytes) -> None:
        if self.deadlines.pop(key, None) is not None:
            self.used_bytes -= DEADLINE_COST


def _senseless(what: str, key: bytes) -> StorageFault:
    return StorageFault(f"the log holds {what}, {quoted(key)}: it does not belong to this store's past")
