"""The schema registry: state read from the log of schemas, and changes appended to the log.

A change is decided on the state at the log end; if another writer appends first, it is decided again. An answer reflects
everything committed before the request, except lookups by id, which never change. A worker of the node parses and
compares large schemas, so that other requests do not wait.
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
"""Time limit of all computations of a request."""
TRIES_MAX: Final = 100
TASK_BYTES_MAX: Final = 8 * 1024 * 1024
RESULTS_MAX: Final = 100
_AGAIN: Final = "VERSION_CONFLICT"
_UNKNOWN: Final = frozenset({"TIMED_OUT", "ACKS_TIMED_OUT"})
_ELSEWHERE: Final = frozenset({"NOT_LEADER", "NOT_ENOUGH_REPLICAS", "UNAVAILABLE"})


class _UncomputedError(Exception):
    """A decision needs the result of a task."""

    def __init__(self, task: bytes) -> None:
        super().__init__()
        self.task = task


class Registry:
    """The schema registry of this process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._state = State(self._result)
        self._results: dict[bytes, list[str]] = {}
        """Results of tasks by digest."""
        self._topic_id = ""
        self._offset = 0
        self._turn = asyncio.Lock()

    @property
    def known(self) -> State:
        """Return the state of the last request."""
        return self._state

    async def fresh(self) -> State:
        """Return the committed state."""
        return await self._in_turn(self._catch_up)

    async def look(self, question: Callable[[State], T]) -> T:
        """Compute an expensive answer on a thread, while the state does not change."""

        async def ask() -> T:
            state = await self._catch_up()
            return await asyncio.to_thread(question, state)

        return await self._computed(ask)

    async def change(self, decide: Callable[[State], Change]) -> tuple[Any, bool]:
        """Append the change that `decide` returns for the newest state.

        Returns its answer once the change is durable, and whether anything was appended.
        """

        async def work() -> tuple[Any, bool]:
            for _ in range(TRIES_MAX):
                change = await asyncio.to_thread(decide, await self._catch_up())
                if not change.entries or await self._append(change):
                    return change.answer, bool(change.entries)
            raise RegistryError(Code.TIMED_OUT, "too many concurrent changes; nothing changed, retry")

        return await self._computed(work)

    async def _computed(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` in turn, again after each task that it needs; the worker computes tasks between the turns."""
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
            f"comparing the versions of the subject took longer than {COMPUTED_SECONDS_MAX:g} s; nothing changed, "
            "retry",
        )

    def _result(self, task: Task) -> list[str]:
        encoded = msgspec.msgpack.encode(task)
        if len(encoded) > TASK_BYTES_MAX:
            raise invalid(f"the versions exceed {TASK_BYTES_MAX} bytes; {SIMPLIFY}")
        found = self._results.get(_digest(encoded))
        if found is None:
            raise _UncomputedError(encoded)
        if isinstance(task, Reading):
            self._results.pop(_digest(encoded), None)  # the state keeps it
        return found

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(TURN_SECONDS_MAX), self._turn:
                return await self._refused(work())
        except TimeoutError:
            raise RegistryError(Code.TIMED_OUT, "timed out; the change may have been applied, check again") from None

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
        """Append a change; return whether it was appended, false if another writer was first."""
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
        return RegistryError(Code.TIMED_OUT, f"{error}; the change may have been applied, check again")
    code = Code.NOT_FORWARDED if error.reason in _ELSEWHERE else Code.STORE_FAILED
    return RegistryError(code, str(error))
