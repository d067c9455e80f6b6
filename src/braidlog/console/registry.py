"""The schema registry: what the log of schemas says, read up to its end, and changes appended there.

Knows: the log's place, who waits. Refuses to know: HTTP, rules of schemas (`braidlog.registry`).
Invariants: a change is decided on a state that ends where it is appended, and decided again where somebody else was quicker; an
answer knows all that was committed when it was asked for, but for what an id stands for, which never changes; schemas are
compared by the node's worker, outside of the turn: no other call waits for a comparison.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from braidlog.console.node import Node, NodeError, SlowNodeError
from braidlog.registry.changes import Change
from braidlog.registry.compatibility import Comparison
from braidlog.registry.errors import SIMPLIFY, Code, RegistryError, invalid
from braidlog.registry.state import State

T = TypeVar("T")

TURN_SECONDS_MAX: Final = 30.0
TRIES_MAX: Final = 100
COMPARED_BYTES_MAX: Final = 8 * 1024 * 1024
VERDICTS_MAX: Final = 100
_AGAIN: Final = "VERSION_CONFLICT"
_UNKNOWN: Final = frozenset({"TIMED_OUT", "ACKS_TIMED_OUT"})
_ELSEWHERE: Final = frozenset({"NOT_LEADER", "NOT_ENOUGH_REPLICAS", "UNAVAILABLE"})


class _UncomparedError(Exception):
    """A decision needs a comparison first."""

    def __init__(self, comparison: bytes) -> None:
        super().__init__()
        self.comparison = comparison


class Registry:
    """One for this process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._state = State(self._verdict)
        self._verdicts: dict[bytes, list[str]] = {}
        """Of comparisons, by their digests; the oldest goes first."""
        self._topic_id = ""
        self._offset = 0
        self._turn = asyncio.Lock()

    @property
    def known(self) -> State:
        """As it was when somebody last asked."""
        return self._state

    async def fresh(self) -> State:
        """All that is committed now."""
        return await self._in_turn(self._catch_up)

    async def look(self, question: Callable[[State], T]) -> T:
        """The answer to a question that takes a while: on a thread, while nothing changes."""

        async def ask() -> T:
            state = await self._catch_up()
            return await asyncio.to_thread(question, state)

        return await self._compared(ask)

    async def change(self, decide: Callable[[State], Change]) -> tuple[Any, bool]:
        """Append what `decide` says of the newest state; what it answers, once that is kept, and whether there was anything to
        append: it may have been so before."""

        async def work() -> tuple[Any, bool]:
            for _ in range(TRIES_MAX):
                change = await asyncio.to_thread(decide, await self._catch_up())
                if not change.entries or await self._append(change):
                    return change.answer, bool(change.entries)
            raise RegistryError(Code.TIMED_OUT, "others write schemas all the time; nothing was done, try again")

        return await self._compared(work)

    async def _compared(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it in turn, as often as it needs another comparison: those are done between the turns."""
        for _ in range(TRIES_MAX):
            try:
                return await self._in_turn(work)
            except _UncomparedError as needed:
                comparison = needed.comparison
            verdict = await self._refused(self._node.compare_schemas(comparison))
            if len(self._verdicts) >= VERDICTS_MAX:
                del self._verdicts[next(iter(self._verdicts))]
            self._verdicts[_digest(comparison)] = verdict
        raise RegistryError(Code.TIMED_OUT, "earlier versions change all the time; nothing was done, try again")

    def _verdict(self, comparison: Comparison) -> list[str]:
        encoded = msgspec.msgpack.encode(comparison)
        if len(encoded) > COMPARED_BYTES_MAX:
            raise invalid(f"the compared versions take more than {COMPARED_BYTES_MAX} bytes; {SIMPLIFY}")
        found = self._verdicts.get(_digest(encoded))
        if found is None:
            raise _UncomparedError(encoded)
        return found

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(TURN_SECONDS_MAX), self._turn:
                return await self._refused(work())
        except TimeoutError:
            raise RegistryError(Code.TIMED_OUT, "not done in time; it may be done all the same, look again") from None

    async def _refused(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except NodeError as error:
            raise _refusal_of(error) from error

    async def _catch_up(self) -> State:
        while True:
            page = await self._node.schemas(self._topic_id, self._offset)
            if page.topic_id != self._topic_id or page.begin != self._offset:
                self._state = State(self._verdict)
            self._state.apply(page.entries)
            self._topic_id, self._offset = page.topic_id, page.next_offset
            if page.next_offset >= page.end:
                return self._state

    async def _append(self, change: Change) -> bool:
        """Whether it was the next one; if not, somebody else's was."""
        try:
            page = await self._node.append_schemas(self._topic_id, self._offset, change.entries)
        except NodeError as error:
            if error.reason == _AGAIN:
                return False
            raise
        self._state.apply(change.entries)
        self._topic_id, self._offset = page.topic_id, page.next_offset
        return True


def _digest(comparison: bytes) -> bytes:
    return hashlib.sha256(comparison).digest()


def _refusal_of(error: NodeError) -> RegistryError:
    if error.reason == "INVALID_SETTING":
        return RegistryError(Code.INVALID_SCHEMA, str(error))
    if isinstance(error, SlowNodeError) or error.reason in _UNKNOWN:
        return RegistryError(Code.TIMED_OUT, f"{error}; it may be done all the same, look again")
    code = Code.NOT_FORWARDED if error.reason in _ELSEWHERE else Code.STORE_FAILED
    return RegistryError(code, str(error))
