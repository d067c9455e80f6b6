"""Pooled connections to the Kafka listener for blocking code: borrowed for a task, then kept idle for the next one.

Does not handle: request contents. A connection has one user at a time; it is closed if its user failed. Python
workers live on between tasks, and so do idle connections, so that a stream of small batches does not reconnect for
each. A forked process shares no connection with its parent.
"""

import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import msgspec

from braidlog.client.drivers.kafka.bulk import BulkReader
from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.errors import ClientError
from braidlog.client.loop_thread import LoopThread
from braidlog.client.schemes import make_driver, parse_url

T = TypeVar("T")
_Key = tuple[int, str, bool]

FIRST_ANSWER_SECONDS_MAX = 5.0
"""If no server has ever answered, a wrong address is more likely than a slow server."""
_IDLE_MAX = 4
_ISOLATION = {True: "read_committed", False: "read_uncommitted"}


class Connection:
    """A driver, and an event loop in its own thread."""

    def __init__(self, url: str, *, committed_only: bool = True, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.url = url
        target = parse_url(url)
        target = msgspec.structs.replace(target, options={**target.options, "isolation": _ISOLATION[committed_only]})
        driver = make_driver(target, self.policy)
        assert isinstance(driver, KafkaDriver), "the options have refused every other scheme"
        self.driver = driver
        self.reader = BulkReader(driver)
        self._thread = LoopThread("braidlog spark")
        self._thread.at_end = driver.close

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def make(self, factory: Callable[[], T]) -> T:
        """Call a function that must be called inside the loop."""
        return self._thread.make(factory)

    def close(self) -> None:
        self._thread.stop()

    def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an idempotent call, with retries."""
        return self.run(retry(self.policy, call))

    def reach(self) -> None:
        """Wait for a first answer, with a short limit; return immediately if this process has had one."""
        if (os.getpid(), self.url) not in _reached:
            self.run(self._first_answer())
            _reached.add((os.getpid(), self.url))

    async def _first_answer(self) -> None:
        """Retry a refused connection for a limited time; wait for a server that accepts it and answers slowly."""
        policy = msgspec.structs.replace(self.policy, retry_timeout=FIRST_ANSWER_SECONDS_MAX)
        try:
            await retry(policy, lambda: self.driver.metadata([]))
        except ClientError as error:
            if not error.is_unreached:
                raise
            raise UnreachedError(
                f"no server answers at {parse_url(self.url)}, tried for {FIRST_ANSWER_SECONDS_MAX:g} s: {error}. "
                "Is the node running, and is this its Kafka port?"
            ) from error


class UnreachedError(ClientError):
    """No server has answered yet: the address may be wrong."""

    is_unreached = True


_reached: set[tuple[int, str]] = set()
_idle: dict[_Key, list[Connection]] = {}
_idle_lock = threading.Lock()


@contextlib.contextmanager
def borrowed(url: str, *, committed_only: bool = True) -> Iterator[Connection]:
    """Provide an idle connection or a new one, for exclusive use."""
    key = os.getpid(), url, committed_only
    with _idle_lock:
        kept = _idle.get(key)
        idle = kept.pop() if kept else None
    connection = idle or Connection(url, committed_only=committed_only)
    try:
        yield connection
    except (ClientError, OSError):
        connection.close()
        raise
    except BaseException:
        _keep(key, connection)  # the task failed or was cancelled; the connection is still good
        raise
    _keep(key, connection)


def _keep(key: _Key, connection: Connection) -> None:
    with _idle_lock:
        kept = _idle.setdefault(key, [])
        if len(kept) < _IDLE_MAX:
            kept.append(connection)
            return
    connection.close()


def close_idle() -> None:
    """Close this process's idle connections; for tests."""
    with _idle_lock:
        every = [each for key in list(_idle) if key[0] == os.getpid() for each in _idle.pop(key)]
    for each in every:
        each.close()
