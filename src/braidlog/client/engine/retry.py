"""Retries: exponential backoff with jitter, within a time limit.

Nothing is retried after its time limit. Jitter keeps clients that lost the same server from reconnecting in step.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from braidlog.client.errors import ClientError

T = TypeVar("T")


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retry settings, all in seconds. `retry_timeout`: how long an operation is tried, from its first attempt on."""

    request_timeout: float = 30.0
    connect_timeout: float = 10.0
    retry_timeout: float = 60.0
    backoff_min: float = 0.02
    backoff_max: float = 2.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) < 1e9:
                raise ValueError(f"{name} must be a number of seconds, not {getattr(self, name)!r}")


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event; return whether it was set in time. None: wait without limit."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Backoff:
    """The delays between the attempts of one operation."""

    def __init__(self, policy: Policy, seconds: float | None = None) -> None:
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + (policy.retry_timeout if seconds is None else seconds)
        self._tries = 0

    async def pause(self) -> bool:
        """Wait before the next attempt; return False if no time is left."""
        ceiling = min(self._policy.backoff_min * 2**self._tries, self._policy.backoff_max)
        seconds = random.uniform(ceiling / 2, ceiling)  # noqa: S311 - it keeps clients apart, it hides nothing
        self._tries = min(self._tries + 1, 32)
        if self._loop.time() + seconds >= self._deadline:
            return False
        await asyncio.sleep(seconds)
        return True


def _is_retriable(error: ClientError) -> bool:
    return error.retriable


async def retry(
    policy: Policy, call: Callable[[], Awaitable[T]], again: Callable[[ClientError], bool] = _is_retriable
) -> T:
    """Return the result of an idempotent call, retried for as long as the policy allows."""
    backoff = Backoff(policy)
    while True:
        try:
            return await call()
        except ClientError as error:
            if not again(error) or not await backoff.pause():
                raise
