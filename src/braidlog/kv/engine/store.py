"""The store: executes operations as mutations, which it logs, stamps and applies.

Does not handle: waiting (the owner waits), threads, topics, the location of its log (mutation_log.py).
Invariants: a mutation is checked before it is logged, and logged before it is applied. Only logged mutations
change keys, including expiry and eviction. With a limit, `used_bytes` does not exceed it.

`execute` does not wait. The owner waits until a mutation is durable.
"""

import contextlib
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

import msgspec

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.keyspace import Keyspace
from braidlog.kv.engine.mutation_log import MutationLog
from braidlog.kv.engine.settings import Eviction, KeyValueSettings
from braidlog.kv.engine.values import (
    COUNTER_COST,
    DEADLINE_COST,
    ELEMENT_COST,
    FIELD_COST,
    HASH_COST,
    LENGTH_BYTES,
    LIST_COST,
    STRING_COST,
    HashValue,
    ListValue,
    Value,
    cost_of,
    pack_pairs,
    pack_strings,
    quoted,
)
from braidlog.kv.wal.damage import Doubt
from braidlog.kv.wal.wal_entries import Op
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import (
    KV_COLLECTION_BYTES_MAX,
    KV_COLLECTION_ITEMS_MAX,
    KV_KEY_BYTES_MAX,
    KV_VALUE_BYTES_MAX,
)

R = TypeVar("R")
TTL_SECONDS_MAX = 2**32 - 1
_C = TypeVar("_C", ListValue, HashValue)
_COMMANDS_MAX = 0x6F
REPAIR = "stop the node and see `braid kv repair --dry-run`"
_PUSHES = {o.End.LEFT: Op.LPUSH, o.End.RIGHT: Op.RPUSH}
_POPS = {o.End.LEFT: Op.LPOP, o.End.RIGHT: Op.RPOP}


class Mutation(msgspec.Struct, frozen=True, gc=False):
    """A change that was applied, as reported to the feed."""

    sequence: int
    wall_ms: int
    counter: int
    op: int
    key: bytes
    argument: bytes
    """The value of the log entry."""
    value: Value | None
    """The key's value after the change: exact for strings and counters; a collection may change later. None:
    deleted."""
    deadline_ms: int


class Listener(Protocol):
    def __call__(self, mutation: Mutation) -> None: ...


class Store:
    """One open store. Not thread-safe: one thread uses it."""

    def __init__(
        self,
        log: MutationLog,
        keyspace: Keyspace,
        clock: HybridClock,
        settings: KeyValueSettings,
        *,
        sequence: int,
        listener: Listener | None = None,
    ) -> None:
        self.log = log
        self.keyspace = keyspace
        self.clock = clock
        self.settings = settings
        self.sequence = sequence
        """Mutations since the store was created."""
        self._listener = listener
        self._limit = settings.memory_bytes_max
        self._stopped: StorageFault | None = None
        self.doubt: Doubt | None = None
        """Keys whose last change may be lost in the damaged log."""
        self.peak_bytes = self.keyspace.used_bytes
        self.hits = self.misses = self.operations = self.mutations = 0
        self.expired = self.evicted = self.refused_for_memory = 0
        self._handlers: dict[type, Callable[[Any, int], Any]] = {
            o.Get: self._get,
            o.Set: self._set,
            o.Delete: self._delete,
            o.Exists: self._exists,
            o.Expire: self._expire,
            o.TimeToLive: self._time_to_live,
            o.Increment: self._increment,
            o.Push: self._push,
            o.Pop: self._pop,
            o.ListRange: self._list_range,
            o.ListLength: self._list_length,
            o.HashSet: self._hash_set,
            o.HashGet: self._hash_get,
            o.HashDelete: self._hash_delete,
            o.HashGetAll: self._hash_get_all,
        }

    def limit_to(self, memory_bytes_max: int) -> None:
        """Set the memory limit of the keys, where several stores share the memory."""
        self._limit = memory_bytes_max

    @property
    def limit(self) -> int:
        """The memory limit of the keys; 0 means no limit."""
        return self._limit

    def stop(self, fault: StorageFault) -> None:
        """Refuse mutations, because their observer cannot take them. Reads continue."""
        self._stopped = fault

    def resume_writes(self) -> None:
        """Accept mutations again."""
        self._stopped = None

    @property
    def fault(self) -> StorageFault | None:
        """Why mutations are refused, if they are."""
        return self._stopped or self.log.fault

    def execute(self, operation: o.Operation[R], now_ms: int) -> R:
        """Execute an operation without waiting, or raise a `BrokerError`."""
        key = operation.key
        if not key or len(key) > KV_KEY_BYTES_MAX:
            raise _bad_key(key)
        if self.log.fault is not None:
            raise self.log.fault.again()
        if self.doubt is not None:
            self._check_doubt(operation, self.doubt)
        self.operations += 1
        # Never before the last stamp: after the clock was set back, an expired key must not reappear.
        if now_ms < self.clock.wall_ms:  # noqa: PLR1730 - on every operation; `max` is three times as slow
            now_ms = self.clock.wall_ms
        return cast("R", self._handlers[type(operation)](operation, now_ms))

    def _check_doubt(self, operation: o.Operation[Any], doubt: Doubt) -> None:
        """Refuse operations that depend on an unknown value: all except an unconditional `Set`."""
        is_set = isinstance(operation, o.Set) and operation.only is o.Only.ALWAYS
        if not is_set and doubt.holds(operation.key):
            what = f"key {quoted(operation.key)} is in doubt: the log that may have changed it is damaged"
            raise BrokerError(Reason.UNAVAILABLE, f"{what}; set it, or {REPAIR}")

    def read(self, operation: o.Operation[R], now_ms: int) -> R:
        """Execute a read as of `now_ms`, even before the last stamp. It changes nothing."""
        return cast("R", self._handlers[type(operation)](operation, now_ms))

    def expire_if_due(self, key: bytes, now_ms: int) -> None:
        """Delete the key by a mutation if it has expired."""
        if self.keyspace.deadlines:
            self._current(key, max(now_ms, self.clock.wall_ms))

    # -- any key ---------------------------------------------------------------------------------------------

    def _find(self, key: bytes, now_ms: int) -> Value:
        value = self.keyspace.find(key, now_ms)
        if value is None:
            self.misses += 1
            raise _not_found(key)
        self.hits += 1
        self.keyspace.touch(key)
        return value

    def _delete(self, operation: o.Delete, now_ms: int) -> None:
        if self._current(operation.key, now_ms) is None:
            raise _not_found(operation.key)
        self._commit(Op.DEL, operation.key, b"", 0, now_ms)

    def _exists(self, operation: o.Exists, now_ms: int) -> bool:
        return self.keyspace.find(operation.key, now_ms) is not None

    def _expire(self, operation: o.Expire, now_ms: int) -> None:
        _check_ttl(operation.ttl_seconds)
        if self._current(operation.key, now_ms) is None:
            raise _not_found(operation.key)
        if operation.ttl_seconds and operation.key not in self.keyspace.deadlines:
            self._make_room(operation.key, DEADLINE_COST, now_ms)
        self._commit(Op.EXPIRE, operation.key, b"", operation.ttl_seconds, now_ms)

    def _time_to_live(self, operation: o.TimeToLive, now_ms: int) -> int:
        self._find(operation.key, now_ms)
        deadline_ms = self.keyspace.deadlines.get(operation.key)
        return 0 if deadline_ms is None else (deadline_ms - now_ms + 999) // 1000

    # -- strings and counters --------------------------------------------------------------------------------

    def _get(self, operation: o.Get, now_ms: int) -> bytes:
        value = self._find(operation.key, now_ms)
        if type(value) is bytes:
            return value
        if type(value) is int:
            return b"%d" % value
        raise _wrong_type(operation.key, value, "a string")

    def _set(self, operation: o.Set, now_ms: int) -> bool:
        key, value, ttl_seconds = operation.key, operation.value, operation.ttl_seconds
        if len(value) > KV_VALUE_BYTES_MAX:
            raise _too_large(len(value), KV_VALUE_BYTES_MAX)
        if ttl_seconds:
            _check_ttl(ttl_seconds)
        old = self._current(key, now_ms)
        if operation.only is not o.Only.ALWAYS and (old is None) != (operation.only is o.Only.IF_ABSENT):
            return False
        if self._limit:
            needed = STRING_COST + len(value) - (cost_of(old) if old is not None else -self.keyspace.cost_new(key))
            if ttl_seconds and key not in self.keyspace.deadlines:
                needed += DEADLINE_COST
            if needed > 0 and self.keyspace.used_bytes + needed > self._limit:
                self._make_room(key, needed, now_ms)
        self._commit(Op.SET, key, value, ttl_seconds, now_ms)
        return True

    def _increment(self, operation: o.Increment, now_ms: int) -> int:
        key = operation.key
        held = self._current(key, now_ms)
        value = 0 if held is None else _number(key, held)
        new = value + operation.amount
        if not o.INTEGER_MIN <= new <= o.INTEGER_MAX or not o.INTEGER_MIN <= operation.amount <= o.INTEGER_MAX:
            raise BrokerError(
                Reason.NUMBER_OVERFLOW, f"key {quoted(key)}: {value} + {operation.amount} does not fit 64 bits"
            )
        needed = COUNTER_COST - (cost_of(held) if held is not None else -self.keyspace.cost_new(key))
        self._make_room(key, needed, now_ms)
        self._commit(Op.INCRBY, key, operation.amount.to_bytes(8, "big", signed=True), 0, now_ms)
        return new

    # -- lists -----------------------------------------------------------------------------------------------

    def _push(self, operation: o.Push, now_ms: int) -> int:
        key, values = operation.key, operation.values
        held = self._collection(key, ListValue, "a list", now_ms)
        if not values:
            raise BrokerError(Reason.INVALID_RECORD, "a push needs a value")
        _check_values(values)
        packed = pack_strings(values)
        _check_collection(held, len(packed), (0 if held is None else len(held.items)) + len(values))
        needed = len(packed) + (ELEMENT_COST - LENGTH_BYTES) * len(values)
        if held is None:
            needed += self.keyspace.cost_new(key) + LIST_COST + LENGTH_BYTES
        self._make_room(key, needed, now_ms)
        self._commit(_PUSHES[operation.end], key, packed, 0, now_ms)
        return len(cast("ListValue", self.keyspace.data[key]).items)

    def _pop(self, operation: o.Pop, now_ms: int) -> bytes:
        held = self._collection(operation.key, ListValue, "a list", now_ms)
        if held is None:
            raise _not_found(operation.key)
        value = held.items[0 if operation.end is o.End.LEFT else -1]
        self._commit(_POPS[operation.end], operation.key, b"", 0, now_ms)
        return value

    def _list_range(self, operation: o.ListRange, now_ms: int) -> list[bytes]:
        items = self._existing(operation.key, ListValue, "a list", now_ms).items
        first, last = operation.first, operation.last
        first = max(first + len(items), 0) if first < 0 else first
        last = last + len(items) if last < 0 else last
        found = list(islice(items, min(first, len(items)), min(max(last + 1, 0), len(items))))
        if sum(map(len, found)) > operation.bytes_max:
            raise _too_large(sum(map(len, found)), operation.bytes_max)
        return found

    def _list_length(self, operation: o.ListLength, now_ms: int) -> int:
        return len(self._existing(operation.key, ListValue, "a list", now_ms).items)

    # -- hashes ----------------------------------------------------------------------------------------------

    def _hash_set(self, operation: o.HashSet, now_ms: int) -> int:
        key, fields = operation.key, dict(operation.fields)
        held = self._collection(key, HashValue, "a hash", now_ms)
        if not fields:
            raise BrokerError(Reason.INVALID_RECORD, "a hash is set by at least one field")
        for field in fields:
            if not field or len(field) > KV_KEY_BYTES_MAX:
                raise _bad_key(field)
        _check_values(fields.values())
        known = {} if held is None else held.fields
        new = [field for field in fields if field not in known]
        packed = pack_pairs(fields.items())
        replaced = sum(2 * LENGTH_BYTES + len(field) + len(known[field]) for field in fields if field in known)
        _check_collection(held, len(packed) - replaced, len(known) + len(new))
        needed = len(packed) - replaced + (FIELD_COST - 2 * LENGTH_BYTES) * len(new)
        if held is None:
            needed += self.keyspace.cost_new(key) + HASH_COST + LENGTH_BYTES
        self._make_room(key, needed, now_ms)
        self._commit(Op.HSET, key, packed, 0, now_ms)
        return len(new)

    def _hash_get(self, operation: o.HashGet, now_ms: int) -> bytes:
        value = self._existing(operation.key, HashValue, "a hash", now_ms).fields.get(operation.field)
        if value is None:
            raise BrokerError(
                Reason.KEY_NOT_FOUND, f"hash {quoted(operation.key)} has no field {quoted(operation.field)}"
            )
        return value

    def _hash_delete(self, operation: o.HashDelete, now_ms: int) -> int:
        held = self._collection(operation.key, HashValue, "a hash", now_ms)
        fields = [] if held is None else [field for field in dict.fromkeys(operation.fields) if field in held.fields]
        if not fields:
            raise _not_found(operation.key)
        self._commit(Op.HDEL, operation.key, pack_strings(fields), 0, now_ms)
        return len(fields)

    def _hash_get_all(self, operation: o.HashGetAll, now_ms: int) -> dict[bytes, bytes]:
        held = self._existing(operation.key, HashValue, "a hash", now_ms)
        if held.size > operation.bytes_max:
            raise _too_large(held.size, operation.bytes_max)
        return held.fields.copy()

    # -- common parts ----------------------------------------------------------------------------------------

    def _current(self, key: bytes, now_ms: int) -> Value | None:
        """Return the value of a key that is about to change. An expired key is deleted first, by a separate
        mutation."""
        value = self.keyspace.data.get(key)
        if value is not None and self.keyspace.deadlines and self.keyspace.is_due(key, now_ms):
            self._commit(Op.EXPIRED, key, b"", 0, now_ms)
            return None
        return value

    def _collection(self, key: bytes, kind: type[_C], called: str, now_ms: int) -> _C | None:
        held = self._current(key, now_ms)
        if held is not None and not isinstance(held, kind):
            raise _wrong_type(key, held, called)
        return held

    def _existing(self, key: bytes, kind: type[_C], called: str, now_ms: int) -> _C:
        held = self._find(key, now_ms)
        if not isinstance(held, kind):
            raise _wrong_type(key, held, called)
        return held

    def _commit(self, op: int, key: bytes, argument: bytes, ttl_seconds: int, now_ms: int) -> None:
        """Log a mutation and apply it. If it is refused, nothing changes, not even the clock: a replay counts its
        ticks."""
        if self._stopped is not None:
            raise self._stopped.again()
        clock, keyspace = self.clock, self.keyspace
        before = clock.wall_ms, clock.counter
        wall_ms = clock.tick(now_ms)
        try:
            sequence = self.log.append(op, key, argument, ttl_seconds, (wall_ms, clock.counter))
        except (StorageFault, BrokerError):
            clock.wall_ms, clock.counter = before
            raise
        self.sequence = sequence
        keyspace.apply(op, key, argument, ttl_seconds, wall_ms)
        self.mutations += 1
        if self.doubt is not None:
            self.doubt.settled(key)
            self.doubt = self.doubt or None
        if op > _COMMANDS_MAX:
            self.expired += op == Op.EXPIRED
            self.evicted += op == Op.EVICTED
        if keyspace.used_bytes > self.peak_bytes:  # noqa: PLR1730 - as above
            self.peak_bytes = keyspace.used_bytes
        if self._listener is not None:
            deadline_ms = keyspace.deadlines.get(key, 0) if keyspace.deadlines else 0
            self._listener(
                Mutation(sequence, wall_ms, clock.counter, op, key, argument, keyspace.data.get(key), deadline_ms)
            )

    # -- memory and time -------------------------------------------------------------------------------------

    def _make_room(self, key: bytes, needed: int, now_ms: int) -> None:
        """Evict keys until `needed` more bytes fit, never `key` itself. If they cannot fit, raise without an
        eviction."""
        keyspace, limit = self.keyspace, self._limit
        if not limit or needed <= 0 or keyspace.used_bytes + needed <= limit:
            return
        while keyspace.used_bytes + needed > limit and (due := keyspace.due(now_ms)) is not None:
            self._commit(Op.EXPIRED, due, b"", 0, now_ms)
        victims, freed = [], 0
        if self.settings.eviction is Eviction.LRU:
            for victim in keyspace.oldest():
                if keyspace.used_bytes + needed - freed <= limit:
                    break
                if victim != key:
                    victims.append(victim)
                    freed += keyspace.cost(victim)
        if keyspace.used_bytes + needed - freed > limit:
            self.refused_for_memory += 1
            raise BrokerError(
                Reason.OUT_OF_MEMORY,
                f"{needed} more bytes do not fit: {keyspace.used_bytes} of {limit} are in use; "
                "delete keys, or raise memory_bytes_max of [kv]",
            )
        for victim in victims:
            self._commit(Op.EVICTED, victim, b"", 0, now_ms)

    def expire(self, now_ms: int, count_max: int) -> int:
        """Delete up to `count_max` expired keys; return their count."""
        now_ms = max(now_ms, self.clock.wall_ms)
        count = 0
        while count < count_max and (key := self.keyspace.due(now_ms)) is not None:
            self._commit(Op.EXPIRED, key, b"", 0, now_ms)
            count += 1
        return count


def _number(key: bytes, held: Value) -> int:
    if type(held) is int:
        return held
    if type(held) is not bytes:
        raise _wrong_type(key, held, "a counter")
    # Only digits as a counter writes them: else a counter would read back as a different string.
    if len(held) <= 20:
        with contextlib.suppress(ValueError):
            number = int(held)
            if o.INTEGER_MIN <= number <= o.INTEGER_MAX and b"%d" % number == held:
                return number
    raise BrokerError(Reason.NOT_A_NUMBER, f"key {quoted(key)} does not hold a 64-bit number")


def _check_ttl(ttl_seconds: int) -> None:
    if not 0 <= ttl_seconds <= TTL_SECONDS_MAX:
        raise BrokerError(Reason.INVALID_SETTING, f"a time to live is 0 to {TTL_SECONDS_MAX} seconds")


def _check_values(values: Any) -> None:  # noqa: ANN401 - any iterable of bytes
    for value in values:
        if len(value) > KV_VALUE_BYTES_MAX:
            raise _too_large(len(value), KV_VALUE_BYTES_MAX)


def _check_collection(held: ListValue | HashValue | None, more_bytes: int, items: int) -> None:
    if items > KV_COLLECTION_ITEMS_MAX:
        text = f"a list or hash of {items} items; at most {KV_COLLECTION_ITEMS_MAX} are allowed"
        raise BrokerError(Reason.VALUE_TOO_LARGE, text)
    size = (LENGTH_BYTES if held is None else held.size) + more_bytes
    if size > KV_COLLECTION_BYTES_MAX:
        raise _too_large(size, KV_COLLECTION_BYTES_MAX)


def _bad_key(key: bytes) -> BrokerError:
    if not key:
        return BrokerError(Reason.INVALID_KEY, "a key or field has at least one byte")
    return BrokerError(Reason.KEY_TOO_LONG, f"a key or field has at most {KV_KEY_BYTES_MAX} bytes, not {len(key)}")


def _not_found(key: bytes) -> BrokerError:
    return BrokerError(Reason.KEY_NOT_FOUND, f"no key {quoted(key)}")


def _wrong_type(key: bytes, held: Value, wanted: str) -> BrokerError:
    kinds = {ListValue: "a list", HashValue: "a hash"}
    return BrokerError(Reason.WRONG_TYPE, f"key {quoted(key)} holds {kinds.get(type(held), 'a string')}, not {wanted}")


def _too_large(size: int, most: int) -> BrokerError:
    return BrokerError(Reason.VALUE_TOO_LARGE, f"a value of {size} bytes; at most {most} are allowed")
