"""A node whose syncs a test holds back: what is written stays undurable for as long as the test wants, and the node serves.

Run as a program, it is `braid serve`; a sync takes a shared lock of a file, which the test has for itself meanwhile.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from braidlog.cli import main
from braidlog.model.runtime.runtime import Syncable
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.testing.server import ServerProcess

_FILE = "HELD_SYNCS_FILE"


class HoldingNode(ServerProcess):
    """A node in a process of its own, over a folder `data` in this one."""

    module = "tests.adapters.cursus.held_syncs"

    def __init__(self, folder: Path) -> None:
        self._lock = folder / "lock"
        self._lock.touch()
        super().__init__(folder / "data", environment={_FILE: str(self._lock)})

    @contextmanager
    def syncs_held(self) -> Iterator[None]:
        """From here on no sync begins until this ends; those that run are waited for."""
        with self._lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _hold(path: str) -> None:
    sync, is_quick = PartitionLog.sync, EventLoopRuntime._is_quick

    def sync_later(self: PartitionLog, upto: int | None = None) -> int:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return sync(self, upto)

    def is_quick_now(self: EventLoopRuntime, log: Syncable) -> bool:
        """A disk that is held is slow: nothing is synced on the loop, which serves others."""
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return is_quick(self, log)

    PartitionLog.sync = sync_later  # type: ignore[method-assign]
    EventLoopRuntime._is_quick = is_quick_now  # type: ignore[method-assign]


if __name__ == "__main__":
    _hold(os.environ[_FILE])
    main(prog_name="braid")
