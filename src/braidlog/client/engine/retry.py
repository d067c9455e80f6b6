"""How long to try again, and how long to wait in between.

Knows: exponential back-off with jitter, within a time. Refuses to know: what is tried.
Invariant: nothing is tried again after its time; many clients that lost one server do not come back in step.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from braidlog.client.errors import ClientError

T = TypeVar("T")


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds, all of them. `retry_timeout`: how long an operation is tried, from its first attempt on."""

    request_timeout: float = 30.0
    connect_timeout: float = 10.0
    retry_timeout: float = 60.0
    backoff_min: float = 0.02
    backoff_max: float = 2.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) < 1e9:
                raise ValueError(f"{name} is a number of seconds, not {getattr(self, name)!r}")


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether it was set in time; None: however long it takes."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Backoff:
    """The tries of one operation."""

    def __init__(self, policy: Policy, seconds: float | None = None) -> None:
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + (policy.retry_timeout if seconds is None else seconds)
        self._tries = 0

    async def pause(self) -> bool:
        """Wait before the next try; False if there is no time for one."""
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
    """The result of a call that does no harm when it is made twice, tried for as long as the policy says."""
    backoff = Backoff(policy)
    while True:
        try:
            return await call()
        except ClientError as error:
            if not again(error) or not await backoff.pause():
                raise
