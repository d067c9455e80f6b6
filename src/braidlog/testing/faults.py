"""Injects failures into a simulated disk: numbered calls, stop points, errors.

Every mutating call has a number, counted from 1, including failed calls. After a crash no call has an effect. Does
not handle: the effects of calls.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from braidlog.model.errors import StorageFault


class Crash(BaseException):
    """The process died here. Not an `Exception`, so that handlers of the code under test do not catch it."""


class Operation(NamedTuple):
    """One mutating call. `bytes` is the length of a write or the size of a truncate."""

    number: int
    kind: str
    path: str
    bytes: int


class Faults:
    """A test's settings that make calls fail, and the log of calls.

    `stop_at`, `stop_when`: the mutating call at which the process dies, and whether it still takes effect.
    `fail_at`: errno by the number of the mutating call that raises it as a `StorageFault`.
    `short`: how many bytes a failing write still writes.
    `on_operation`: called before each mutating call takes effect; use it to try every crash in one run.
    """

    def __init__(self) -> None:
        self.stop_at: int | None = None
        self.stop_when: Literal["before", "after"] = "before"
        self.fail_at: dict[int, int] = {}
        self.short = 0
        self.on_operation: Callable[[Operation], None] | None = None
        self.operations: list[Operation] = []
        self.crashed = False

    @contextlib.contextmanager
    def mutation(
        self, kind: str, path: str, size: int = 0, *, on_failure: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Number a call around its effect. `on_failure` is the effect of an injected failure on the disk."""
        self.check_alive()
        operation = Operation(len(self.operations) + 1, kind, path, size)
        self.operations.append(operation)
        if self.on_operation is not None:
            self.on_operation(operation)
        stopping = operation.number == self.stop_at
        if stopping and self.stop_when == "before":
            self._die(operation)
        try:
            code = self.fail_at.get(operation.number)
            if code is not None:
                if on_failure is not None:
                    on_failure()
                raise fault(code, kind.replace("_", " "), path)
            yield
        finally:
            # Even if the call raised: a loop over stop points must not mistake a refused call for the end.
            if stopping:
                self._die(operation)

    def check_alive(self) -> None:
        if self.crashed:
            raise Crash("the process is dead")

    def _die(self, operation: Operation) -> None:
        self.crashed = True
        raise Crash(f"{self.stop_when} operation {operation.number}: {operation.kind} {operation.path}")


def fault(code: int, doing: str, path: str) -> StorageFault:
    """Return the fault that the real disk raises for this errno, with the same cause."""
    made = StorageFault(f"cannot {doing}: {os.strerror(code)}", path)
    made.__cause__ = OSError(code, os.strerror(code))
    return made
