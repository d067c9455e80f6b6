"""Keys with their values and times to live, copied into a store through its door.

Knows: what of a key is there already, what is to be sent so that it is there whole. Refuses to know: where keys come from.
Invariants: a key counts as copied when it was read back and is what it is to be. A key that holds something else is left alone,
unless it may be overwritten. What was interrupted is completed by copying again: of a list its first values may be there, of a
hash some fields, of any key the value without its time to live. A command whose outcome is unknown ends the copy: nothing is sent
twice.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from braidlog.client.errors import RefusedError
from braidlog.client.kv import commands as c
from braidlog.client.kv.blocking import KeyValue
from braidlog.client.kv.commands import Command
from braidlog.model.clock import Clock
from braidlog.wire.mayfly.messages import MANY_BYTES_MAX, Condition, Status

KEYS_AT_ONCE: Final = 256
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
TTL_SECONDS_APART: Final = 60
"""Times to live that end within so many seconds of each other are the same one, copied a moment later."""
READING: Final[dict[str, Callable[[bytes], Command[Any]]]] = {
    "string": c.get,
    "counter": c.get,
    "list": c.lrange,
    "hash": c.hgetall,
}
T = TypeVar("T")


class Held(msgspec.Struct, frozen=True):
    """What a key holds: `kind` as `kv/values.py` names it, a counter's value in digits."""

    key: bytes
    kind: str
    value: bytes | list[bytes] | dict[bytes, bytes]
    deadline_ms: int = 0
    """When it goes by itself; 0: never."""

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.deadline_ms <= now_ms

    def ttl_seconds(self, now_ms: int) -> int:
        """Begun seconds count; 0: it stays."""
        return max(1, -(-(self.deadline_ms - now_ms) // 1000)) if self.deadline_ms else 0


class State(Enum):
    """How a key of the target is to the same key of the source."""

    ABSENT = "absent"
    PARTLY = "partly"
    LACKS_TTL = "lacks its time to live"
    SAME = "same"
    DIFFERS = "differs"


class Copied(msgspec.Struct):
    """Counts of a copy."""

    keys: int = 0
    """Of the source, without those whose time was over."""
    copied: int = 0
    same: int = 0
    """They were there already."""
    differing: list[bytes] = []


def read_all(store: KeyValue, commands: Sequence[Command[Any]]) -> list[Any]:
    """A result for each; a key that is of another kind is an error in its place, anything else that fails is raised."""
    answers = store.run(commands)
    for answer in answers:
        if isinstance(answer, Exception) and not _is_other_kind(answer):
            raise answer
    return answers


def _is_other_kind(answer: object) -> bool:
    return isinstance(answer, RefusedError) and answer.code == Status.WRONG_TYPE.name


def read_states(store: KeyValue, held: Sequence[Held], now_ms: int) -> list[State]:
    """What the store has of each."""
    answers = read_all(store, [command for each in held for command in (READING[each.kind](each.key), c.ttl(each.key))])
    found = zip(held, answers[::2], answers[1::2], strict=True)
    return [_state(each, value, ttl, now_ms) for each, value, ttl in found]


def _state(held: Held, value: Any, ttl_seconds: int | None, now_ms: int) -> State:  # noqa: ANN401 - as its kind says, or an error
    if _is_other_kind(value):
        return State.DIFFERS
    if value is None or ttl_seconds is None or (not value and held.kind in ("list", "hash")):
        return State.SAME if held.is_over(now_ms) else State.ABSENT
    if value != held.value:
        return State.PARTLY if _is_part(held.value, value) else State.DIFFERS
    wanted = held.ttl_seconds(now_ms)
    if wanted and not ttl_seconds:
        return State.LACKS_TTL
    is_near = bool(wanted) == bool(ttl_seconds) and abs(wanted - ttl_seconds) <= TTL_SECONDS_APART
    return State.SAME if is_near else State.DIFFERS


def _is_part(whole: object, value: object) -> bool:
    if isinstance(whole, list) and isinstance(value, list):
        return whole[: len(value)] == value
    return isinstance(whole, dict) and isinstance(value, dict) and value.items() <= whole.items()


def copy_keys(store: KeyValue, source: Iterable[Held], clock: Clock, *, overwrite: bool = False) -> Iterator[Copied]:
    """Copy keys, and tell the counts now and then, the last time at the end."""
    counts = Copied()
    for piece in _pieces(source):
        held = [each for each in piece if not each.is_over(clock.now_ms())]
        counts.keys += len(held)
        before = list(zip(held, read_states(store, held, clock.now_ms()), strict=True))
        wanted = [(each, state) for each, state in before if state is not State.SAME]
        counts.same += len(held) - len(wanted)
        if not overwrite:
            counts.differing += [each.key for each, state in wanted if state is State.DIFFERS]
            wanted = [(each, state) for each, state in wanted if state is not State.DIFFERS]
        _write(store, wanted, clock.now_ms())
        written = [each for each, _ in wanted]
        for each, state in zip(written, read_states(store, written, clock.now_ms()), strict=True):
            if state is State.SAME:
                counts.copied += 1
            else:
                counts.differing.append(each.key)
        yield counts
    yield counts


def _write(store: KeyValue, wanted: Sequence[tuple[Held, State]], now_ms: int) -> None:
    """One command of each key at a time: what follows one that failed is not sent."""
    for row in itertools.zip_longest(*(_commands(store, held, state, now_ms) for held, state in wanted)):
        for answer in store.run([command for command in row if command is not None]):
            if isinstance(answer, Exception):
                raise answer


def _commands(store: KeyValue, held: Held, state: State, now_ms: int) -> list[Command[Any]]:
    """What makes a key whole."""
    ttl = held.ttl_seconds(now_ms)
    expiry: list[Command[Any]] = [c.expire(held.key, ttl)] if ttl else []
    if state is State.LACKS_TTL:
        return expiry
    clearing: list[Command[Any]] = [c.delete(held.key)] if state is State.DIFFERS else []
    is_partly = state is State.PARTLY
    match held.value:
        case list() as values:
            left = values[store.llen(held.key) :] if is_partly else values
            return [*clearing, *(c.rpush(held.key, *piece) for piece in _fitting(left, len)), *expiry]
        case dict() as fields:
            there = store.hgetall(held.key) if is_partly else {}
            missing = [pair for pair in fields.items() if pair[0] not in there]
            pieces = _fitting(missing, lambda pair: len(pair[0]) + len(pair[1]))
            return [*clearing, *(c.hset(held.key, dict(piece)) for piece in pieces), *expiry]
        case value if held.kind == "counter":
            return [*clearing, c.incr(held.key, int(value)), *expiry]
        case value:
            only_if = Condition.ALWAYS if clearing else Condition.IF_ABSENT
            return [c.set_(held.key, value, ttl_seconds=ttl, only_if=only_if)]


def _fitting(values: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Pieces that fit in a command with room to spare."""
    yield from _cut(values, lambda value: size(value) + 16, MANY_BYTES_MAX // 2, len(values))


def _pieces(source: Iterable[Held]) -> Iterator[list[Held]]:
    yield from _cut(source, lambda held: _weight(held.value), BYTES_AT_ONCE, KEYS_AT_ONCE)


def _cut(values: Iterable[T], size: Callable[[T], int], bytes_max: int, count_max: int) -> Iterator[list[T]]:
    piece: list[T] = []
    used = 0
    for value in values:
        if piece and (used + size(value) > bytes_max or len(piece) >= count_max):
            yield piece
            piece, used = [], 0
        piece.append(value)
        used += size(value)
    if piece:
        yield piece


def _weight(value: bytes | list[bytes] | dict[bytes, bytes]) -> int:
    if isinstance(value, dict):
        return sum(len(field) + len(held) for field, held in value.items())
    return len(value) if isinstance(value, bytes) else sum(map(len, value))
