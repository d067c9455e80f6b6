"""The schema registry: what the log of schemas says, read up to its end, and changes appended there.

Knows: the log's place, who waits. Refuses to know: HTTP, rules of schemas (`braidlog.registry`).
Invariants: a change is decided on a state that ends where it is appended, and decided again where somebody else was quicker; an
answer knows all that was committed when it was asked for, but for what an id stands for, which never changes. The node's worker
reads large schemas and compares schemas, outside of the turn: no other call waits for that.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from braidlog.console.node_client import Node, NodeError, SlowNodeError
from braidlog.registry.changes import Change
from braidlog.registry.compatibility import Reading, Task
from braidlog.registry.errors import SIMPLIFY, Code, RegistryError, invalid
from braidlog.registry.registry_state import State

T = TypeVar("T")

TURN_SECONDS_MAX: Final = 30.0
COMPUTED_SECONDS_MAX: Final = 60.0
"""Of one request: all that the worker computes for it."""
TRIES_MAX: Final = 100
TASK_BYTES_MAX: Final = 8 * 1024 * 1024
RESULTS_MAX: Final = 100
_AGAIN: Final = "VERSION_CONFLICT"
_UNKNOWN: Final = frozenset({"TIMED_OUT", "ACKS_TIMED_OUT"})
_ELSEWHERE: Final = frozenset({"NOT_LEADER", "NOT_ENOUGH_REPLICAS", "UNAVAILABLE"})


class _UncomputedError(Exception):
    """A decision needs the result of a task first."""

    def __init__(self, task: bytes) -> None:
        super().__init__()
        self.task = task


class Registry:
    """One for this process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._state = State(self._result)
        self._results: dict[bytes, list[str]] = {}
        """Of tasks, by their digests."""
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

        return await self._computed(ask)

    async def change(self, decide: Callable[[State], Change]) -> tuple[Any, bool]:
        """Append what `decide` says of the newest state; what it answers, once that is kept, and whether there was anything to
        append: it may have been so before."""

        async def work() -> tuple[Any, bool]:
            for _ in range(TRIES_MAX):
                change = await asyncio.to_thread(decide, await self._catch_up())
                if not change.entries or await self._append(change):
                    return change.answer, bool(change.entries)
            raise RegistryError(Code.TIMED_OUT, "others write schemas all the time; nothing was done, try again")

        return await self._computed(work)

    async def _computed(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` in turn, as often as it needs the result of another task: the worker computes between the turns."""
        deadline = asyncio.get_running_loop().time() + COMPUTED_SECONDS_MAX
        while asyncio.get_running_loop().time() < deadline:
            try:
                return await self._in_turn(work)
            except _UncomputedError as needed:
                task = needed.task
            result = await self._refused(self._node.compare_schemas(task))
            if len(self._results) >= RESULTS_MAX:
                self._results.clear()
            self._results[_digest(task)] = result
        raise RegistryError(
            Code.TIMED_OUT,
            f"the versions of the subject are not read and compared within {COMPUTED_SECONDS_MAX:g} s; nothing was done, "
            "try again",
        )

    def _result(self, task: Task) -> list[str]:
        encoded = msgspec.msgpack.encode(task)
        if len(encoded) > TASK_BYTES_MAX:
            raise invalid(f"the versions take more than {TASK_BYTES_MAX} bytes; {SIMPLIFY}")
        found = self._results.get(_digest(encoded))
        if found is None:
            raise _UncomputedError(encoded)
        if isinstance(task, Reading):
            self._results.pop(_digest(encoded), None)  # the state remembers it
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
                self._state = State(self._result)
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


def _digest(task: bytes) -> bytes:
    return hashlib.sha256(task).digest()


def _refusal_of(error: NodeError) -> RegistryError:
    if error.reason == "INVALID_SETTING":
        return RegistryError(Code.INVALID_SCHEMA, str(error))
    if isinstance(error, SlowNodeError) or error.reason in _UNKNOWN:
        return RegistryError(Code.TIMED_OUT, f"{error}; it may be done all the same, look again")
    code = Code.NOT_FORWARDED if error.reason in _ELSEWHERE else Code.STORE_FAILED
    return RegistryError(code, str(error))
