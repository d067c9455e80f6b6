"""The commands of the key-value store: the message of each, and the result of its answer.

Defines which commands may be sent twice. Does not handle: connections, event loops.
A missing key is not an error: `get` returns None, `delete` False, `lrange` an empty list. Other refusals are raised.
Keys, fields and values are bytes; text is sent as UTF-8, and returned as bytes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from braidlog.client.errors import Refusal, RefusedError, SignInError
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.messages import Status

T = TypeVar("T")
Text = str | bytes

REFUSALS: Final[dict[Status, Refusal]] = {
    Status.NOT_FOUND: Refusal.INVALID,
    Status.UNKNOWN_CMD: Refusal.INVALID,
    Status.BAD_PAYLOAD: Refusal.INVALID,
    Status.KEY_TOO_LONG: Refusal.TOO_LARGE,
    Status.VALUE_TOO_LARGE: Refusal.TOO_LARGE,
    Status.SERVER_ERROR: Refusal.FAILED,
    Status.AUTH_REQUIRED: Refusal.NOT_ALLOWED,
    Status.AUTH_FAILED: Refusal.NOT_ALLOWED,
    Status.WRONG_TYPE: Refusal.INVALID,
    Status.OUT_OF_MEMORY: Refusal.BUSY,
    Status.TIMEOUT: Refusal.TIMED_OUT,
    Status.UNSUPPORTED_VERSION: Refusal.INVALID,
    Status.MOVED: Refusal.NOT_LEADER,
    Status.TOPOLOGY_CHANGED: Refusal.NOT_LEADER,
}


class Command(msgspec.Struct, Generic[T], frozen=True):
    """One command. `give` extracts the result from the answer; `missing` is the result if the key does not exist."""

    message: m.Message
    give: Callable[[Any], T]
    missing: Any = None
    has_missing: bool = False
    reads: bool = False
    """The command changes nothing: it may be retried whenever the answer was lost."""
    settles: bool = False
    """Sending it twice has the same effect as sending it once: a client with at-least-once retries may repeat it."""

    def result(self, answer: m.Message) -> T:
        """Return the answer's result, or raise `RefusedError`."""
        if isinstance(answer, m.Failure):
            if answer.status is Status.NOT_FOUND and self.has_missing:
                return self.missing  # type: ignore[no-any-return]
            if answer.status is Status.AUTH_FAILED:
                raise SignInError("mayfly", answer.status.name, answer.message)
            raise RefusedError(REFUSALS[answer.status], "mayfly", answer.status.name, answer.message)
        if isinstance(answer, m.Moved | m.TopologyChanged):
            raise RefusedError(Refusal.NOT_LEADER, "mayfly", type(answer).__name__, "the key is on another node")
        return self.give(answer)


def _raw(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _yes(_: object) -> bool:
    return True


def _value(answer: m.Value) -> bytes:
    return answer.value


def _number(answer: m.Number) -> int:
    return answer.number


def _length(answer: m.Length) -> int:
    return answer.length


def _count(answer: m.Count) -> int:
    return answer.count


def _same(answer: T) -> T:
    return answer


# -- any key -------------------------------------------------------------------------------------------------------


def set_(key: Text, value: Text, *, ttl_seconds: int = 0, only_if: m.Condition = m.Condition.ALWAYS) -> Command[bool]:
    """Set a value. Return True if it was set; False if `only_if` did not hold."""
    message = m.Set(_raw(key), _raw(value), ttl_seconds, only_if)
    return Command(message, lambda answer: answer.stored, settles=only_if is m.Condition.ALWAYS)


def get(key: Text) -> Command[bytes | None]:
    return Command(m.Get(_raw(key)), _value, has_missing=True, reads=True)


def delete(key: Text) -> Command[bool]:
    """Delete a key; return whether it existed."""
    return Command(m.Del(_raw(key)), _yes, missing=False, has_missing=True, settles=True)


def exists(key: Text) -> Command[bool]:
    return Command(m.Exists(_raw(key)), _yes, missing=False, has_missing=True, reads=True)


def expire(key: Text, ttl_seconds: int) -> Command[bool]:
    """Set the seconds until a key expires, 0 for never; return whether the key existed."""
    return Command(m.Expire(_raw(key), ttl_seconds), _yes, missing=False, has_missing=True, settles=True)


def ttl(key: Text) -> Command[int | None]:
    """Return the seconds until a key expires, rounded up; 0: never; None: the key does not exist."""
    return Command(m.Ttl(_raw(key)), lambda answer: answer.ttl_seconds, has_missing=True, reads=True)


def scan(
    *, slot: int = 0, position: int = 0, after: bytes = b"", prefix: Text = b"", count: int = 1000
) -> Command[m.Names]:
    """Return some key names; `scanning.names_in` returns all of them."""
    return Command(m.Scan(slot, position, after, _raw(prefix), count), _same, reads=True)


# -- lists ---------------------------------------------------------------------------------------------------------


def lpush(key: Text, *values: Text) -> Command[int]:
    """Prepend values; return the new length."""
    return Command(m.LPush(_raw(key), tuple(map(_raw, values))), _length)


def rpush(key: Text, *values: Text) -> Command[int]:
    """Append values; return the new length."""
    return Command(m.RPush(_raw(key), tuple(map(_raw, values))), _length)


def lpop(key: Text) -> Command[bytes | None]:
    return Command(m.LPop(_raw(key)), _value, has_missing=True)


def rpop(key: Text) -> Command[bytes | None]:
    return Command(m.RPop(_raw(key)), _value, has_missing=True)


def lrange(key: Text, start: int = 0, stop: int = -1) -> Command[list[bytes]]:
    """Return a range of a list; both ends are included, negative indexes count from the end."""
    return Command(
        m.LRange(_raw(key), start, stop), lambda answer: list(answer.values), missing=[], has_missing=True, reads=True
    )


def llen(key: Text) -> Command[int]:
    return Command(m.LLen(_raw(key)), _length, missing=0, has_missing=True, reads=True)


# -- counters ------------------------------------------------------------------------------------------------------


def incr(key: Text, by: int = 1) -> Command[int]:
    """Add to a counter; return the new value."""
    raw = _raw(key)
    return Command(m.Incr(raw) if by == 1 else m.Decr(raw) if by == -1 else m.IncrBy(raw, by), _number)


# -- hashes --------------------------------------------------------------------------------------------------------


def hset(key: Text, fields: Mapping[Text, Text]) -> Command[int]:
    """Set fields; return the number of new fields."""
    pairs = tuple((_raw(field), _raw(value)) for field, value in fields.items())
    return Command(m.HSet(_raw(key), pairs), _count)


def hget(key: Text, field: Text) -> Command[bytes | None]:
    return Command(m.HGet(_raw(key), _raw(field)), _value, has_missing=True, reads=True)


def hdel(key: Text, *fields: Text) -> Command[int]:
    """Delete fields; return the number of fields that existed."""
    return Command(m.HDel(_raw(key), tuple(map(_raw, fields))), _count, missing=0, has_missing=True)


def hgetall(key: Text) -> Command[dict[bytes, bytes]]:
    return Command(m.HGetAll(_raw(key)), lambda answer: dict(answer.pairs), missing={}, has_missing=True, reads=True)


# -- the node ------------------------------------------------------------------------------------------------------


def ping() -> Command[bool]:
    return Command(m.Ping(), _yes, reads=True)


def stats() -> Command[m.Statistics]:
    return Command(m.Stats(), _same, reads=True)


def memory() -> Command[m.MemoryUse]:
    return Command(m.Memory(), _same, reads=True)


def snapshot() -> Command[m.SnapshotTaken]:
    return Command(m.Snapshot(), _same, settles=True)
