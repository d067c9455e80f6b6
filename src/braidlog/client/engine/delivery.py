"""One record's way from `send` to its acknowledgement, and the rule that decides whether it is sent again.

Knows: what each outcome of an attempt allows. Refuses to know: dialects, buffers, time.
Invariants: a record is acknowledged only by an answer that says where it is. What may be stored is sent again only under an
identity by which the server recognises it, or by who asked for at-least-once; else its sender is told that nobody knows. Once an
attempt of a batch is in doubt, no later refusal can take the doubt away.

| outcome of an attempt | with identity | exactly as said (default) | at-least-once |
|---|---|---|---|
| not sent | again | again | again |
| refused, not stored, may succeed later | again | again | again |
| refused, not stored, for good | told | told | told |
| refused, maybe stored | again | `UnknownOutcomeError` | again if it may succeed later, else `UnknownOutcomeError` |
| sent, no answer | again | `UnknownOutcomeError` | again |
"""

import asyncio
from collections.abc import Generator
from enum import StrEnum
from typing import Any

from braidlog.client.drivers.contract import Acks, Placed
from braidlog.client.errors import ClientError, NoAnswerError, Refusal, RefusedError, Stored, UnknownOutcomeError
from braidlog.model.record import NewRecord


class Retries(StrEnum):
    """What a producer does when a dialect cannot recognise a retry and an answer was lost."""

    SAFE = "safe"
    """Tell the sender: the record is stored once or not at all."""
    AT_LEAST_ONCE = "at-least-once"
    """Send it again: the record is stored once or more often."""


class Delivery:
    """A record on its way. Await it for where it is, or for why it is not."""

    __slots__ = ("_future", "_seen", "deadline", "error", "in_doubt", "record", "size")

    def __init__(self, record: NewRecord, size: int, seconds_max: float) -> None:
        loop = asyncio.get_running_loop()
        self.record = record
        self.size = size
        self.deadline = loop.time() + seconds_max
        self.error: ClientError | None = None
        """Of the last attempt."""
        self.in_doubt = False
        """Whether some attempt may have stored it."""
        self._future: asyncio.Future[Placed] = loop.create_future()
        self._seen = False

    def __repr__(self) -> str:
        if not self._future.done():
            return "<Delivery: on its way>"
        error = self._future.exception()
        return f"<Delivery: {self._future.result() if error is None else repr(error)}>"

    def __await__(self) -> Generator[Any, None, Placed]:
        self._seen = True
        # Shielded: who stops waiting does not take back what was sent.
        return asyncio.shield(self._future).__await__()

    def done(self) -> bool:
        return self._future.done()

    @property
    def is_stored(self) -> bool:
        return self._future.done() and self._future.exception() is None

    def result(self) -> Placed:
        """Where it is, once it is done; raises why it is not."""
        self._seen = True
        return self._future.result()

    @property
    def unseen_failure(self) -> BaseException | None:
        """Why it failed, if nobody has looked."""
        return None if self._seen else self.failure

    @property
    def failure(self) -> BaseException | None:
        """Why it failed, if it did; whoever was told of it."""
        return self._future.exception() if self._future.done() else None

    def stored(self, placed: Placed) -> None:
        self._future.set_result(placed)

    def failed(self, error: ClientError) -> None:
        self._future.set_exception(error)
        self._future.exception()  # whoever does not look learns of it from flush, not from the loop's log


def leaves_doubt(error: ClientError, acks: Acks = Acks.LEADER) -> bool:
    """Whether what was asked may be done although the attempt failed."""
    if isinstance(error, NoAnswerError):
        return True
    if not isinstance(error, RefusedError):
        return False
    if error.reason is Refusal.NOT_LEADER and acks is Acks.ALL:
        return True  # a leader that lost its office while it waited for replicas says so too, and has the record
    return error.reason.stored is Stored.MAYBE


def judge(
    error: ClientError, *, in_doubt: bool, doubtful: bool, identified: bool, retries: Retries
) -> ClientError | None:
    """What the sender is told, or None to send it again.

    `doubtful` is this attempt, `in_doubt` any attempt, this one included.
    """
    if doubtful and not identified and (retries is Retries.SAFE or not error.retriable):
        return unknown(error)
    if error.retriable or (doubtful and identified):
        return None
    return unknown(error) if in_doubt else error


def unknown(error: ClientError) -> UnknownOutcomeError:
    told = UnknownOutcomeError(f"the record may be stored, once, or not at all: {error}")
    told.__cause__ = error
    return told
