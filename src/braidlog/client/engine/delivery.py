"""The delivery of one record from `send` to its acknowledgement, and the rule for retries.

A record counts as acknowledged only by an answer with its offset. A record that may be stored is retried only under
an identity that lets the server recognize it, or if the caller chose at-least-once. Otherwise the caller gets
`UnknownOutcomeError`. Once an attempt of a batch is in doubt, a later refusal does not remove the doubt.

| outcome of an attempt | with identity | exactly once or error (default) | at-least-once |
|---|---|---|---|
| not sent | retry | retry | retry |
| refused, not stored, retriable | retry | retry | retry |
| refused, not stored, final | error | error | error |
| refused, maybe stored | retry | `UnknownOutcomeError` | retry if retriable, else `UnknownOutcomeError` |
| sent, no answer | retry | `UnknownOutcomeError` | retry |
"""

import asyncio
from collections.abc import Generator
from enum import StrEnum
from typing import Any

from braidlog.client.drivers.contract import Acks, Placed
from braidlog.client.errors import ClientError, NoAnswerError, Refusal, RefusedError, Stored, UnknownOutcomeError
from braidlog.model.record import NewRecord


class Retries(StrEnum):
    """How a producer handles a lost answer if the dialect cannot recognize a retry."""

    SAFE = "safe"
    """Raise an error: the record is stored once or not at all."""
    AT_LEAST_ONCE = "at-least-once"
    """Retry: the record is stored once or more often."""


class Delivery:
    """A record that was sent. Await it for its partition and offset, or for its error."""

    __slots__ = ("_future", "_seen", "deadline", "error", "in_doubt", "record", "size")

    def __init__(self, record: NewRecord, size: int, seconds_max: float) -> None:
        loop = asyncio.get_running_loop()
        self.record = record
        self.size = size
        self.deadline = loop.time() + seconds_max
        self.error: ClientError | None = None
        """The error of the last attempt."""
        self.in_doubt = False
        """Whether an attempt may have stored the record."""
        self._future: asyncio.Future[Placed] = loop.create_future()
        self._seen = False

    def __repr__(self) -> str:
        if not self._future.done():
            return "<Delivery: in flight>"
        error = self._future.exception()
        return f"<Delivery: {self._future.result() if error is None else repr(error)}>"

    def __await__(self) -> Generator[Any, None, Placed]:
        self._seen = True
        # Shielded: cancelling the waiter must not cancel the delivery.
        return asyncio.shield(self._future).__await__()

    def done(self) -> bool:
        return self._future.done()

    @property
    def is_stored(self) -> bool:
        return self._future.done() and self._future.exception() is None

    def result(self) -> Placed:
        """Return partition and offset of a finished delivery, or raise its error."""
        self._seen = True
        return self._future.result()

    @property
    def unseen_failure(self) -> BaseException | None:
        """The error, if no caller has seen it."""
        return None if self._seen else self.failure

    @property
    def failure(self) -> BaseException | None:
        """The error, if the delivery failed, whether or not a caller has seen it."""
        return self._future.exception() if self._future.done() else None

    def stored(self, placed: Placed) -> None:
        self._future.set_result(placed)

    def failed(self, error: ClientError) -> None:
        self._future.set_exception(error)
        self._future.exception()  # an unseen error is raised by flush, not logged by the event loop


def leaves_doubt(error: ClientError, acks: Acks = Acks.LEADER) -> bool:
    """Return whether the request may have taken effect although the attempt failed."""
    if isinstance(error, NoAnswerError):
        return True
    if not isinstance(error, RefusedError):
        return False
    if error.reason is Refusal.NOT_LEADER and acks is Acks.ALL:
        return True  # a leader that lost leadership while it waited for replicas answers this too, and has stored the record
    return error.reason.stored is Stored.MAYBE


def judge(
    error: ClientError, *, in_doubt: bool, doubtful: bool, identified: bool, retries: Retries
) -> ClientError | None:
    """Return the error for the caller, or None to retry.

    `doubtful`: this attempt may have stored the record; `in_doubt`: any attempt may have.
    """
    if doubtful and not identified and (retries is Retries.SAFE or not error.retriable):
        return unknown(error)
    if error.retriable or (doubtful and identified):
        return None
    return unknown(error) if in_doubt else error


def unknown(error: ClientError) -> UnknownOutcomeError:
    outcome = UnknownOutcomeError(f"the record may be stored, once, or not at all: {error}")
    outcome.__cause__ = error
    return outcome
