"""Transactions: records of several partitions, and the offsets of what they were made of, that count together or not at all.

Knows: who writes under a transactional id, what was written since it began, when it is over. Refuses to know: dialects, batches.
Invariants: a transaction is committed only if every record sent in it is stored, and every offset of its consumer was read in the
generation under which it is committed. Whatever failed, or was aborted, is left behind by a new epoch: the server aborts it then,
and refuses what is still on its way. After an abort its consumer reads again from where its group has committed.
"""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from braidlog.client.drivers.contract import Driver
from braidlog.client.drivers.transactions import GroupOffsets, TransactionalProducer
from braidlog.client.engine.delivery import Delivery, leaves_doubt
from braidlog.client.engine.options import ProducerOptions
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.errors import (
    AbortedError,
    ClientError,
    ClosedError,
    ConnectError,
    NoAnswerError,
    Refusal,
    RefusedError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    from braidlog.client.engine.consumer import Consumer
    from braidlog.client.engine.producer import Producer

Place = tuple[str, int]


class NamedProducer:
    """A transactional id, and the epoch under which it writes now."""

    def __init__(self, driver: Driver, policy: Policy, options: ProducerOptions) -> None:
        assert options.transactional_id is not None
        self.name = options.transactional_id
        self._driver = driver
        self._policy = policy
        self._timeout_ms = int(options.transaction_timeout * 1000)
        self._last: TransactionalProducer | None = None
        self._is_sound = False
        self._fenced: RefusedError | None = None

    async def ready(self) -> TransactionalProducer:
        """As whom to write. After something failed, under a new epoch. Fenced once, fenced for ever: another has the name."""
        if self._fenced is not None:
            raise self._fenced
        if self._last is None or not self._is_sound:
            last = self._last
            try:
                self._last = await retry(
                    self._policy, lambda: self._driver.begin_producer(self.name, self._timeout_ms, last)
                )
            except RefusedError as error:
                if error.reason is Refusal.FENCED:
                    self._fenced = error
                raise
            self._is_sound = True
        return self._last

    def leave_epoch(self) -> None:
        self._is_sound = False


class Transaction:
    """Made by `producer.transaction()`, used in `async with`: committed at its end, aborted if that is left by an exception."""

    def __init__(
        self,
        owner: "Producer",
        driver: Driver,
        policy: Policy,
        named: NamedProducer,
        reader: "Consumer | None",
    ) -> None:
        self._owner = owner
        self._driver = driver
        self._policy = policy
        self._named = named
        self._reader = reader
        self._producer: TransactionalProducer | None = None
        self._places: set[Place] = set()
        self._has_begun = False
        self._failure: BaseException | None = None
        self._is_over = False
        self.is_ending = False
        """No record is taken any more: all that was taken is stored before it is committed."""

    def __repr__(self) -> str:
        state = "over" if self._is_over else "not begun" if self._producer is None else "open"
        return f"<Transaction of {self._named.name!r}, {state}>"

    async def __aenter__(self) -> Self:
        if self._producer is not None:
            raise ValueError("a transaction is used once: call producer.transaction() for the next one")
        if self._reader is not None:
            self._reader.check_transactional()
        self._producer = await self._named.ready()
        self._owner.transaction_begun(self, self._producer)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_over:
            return
        if kind is None:
            await self.commit()
        else:
            await self.abort()

    # -- told by the producer ----------------------------------------------------------------------------------

    async def enroll(self, place: Place) -> None:
        """The server knows that the transaction writes there, before it does. Nothing was sent yet if this fails."""
        assert self._producer is not None
        if place not in self._places:
            self._has_begun = True
            try:
                await self._driver.add_to_transaction(self._producer, place)
            except NoAnswerError as error:
                raise ConnectError(f"not sent: {error}") from error
            self._places.add(place)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        if self._failure is None:
            self._failure = next((each.failure for each in deliveries if each.failure is not None), None)

    # -- its end -----------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """All of it counts, or this raises and nothing does. Only after `UnknownOutcomeError` nobody knows."""
        self._check_open()
        self.is_ending = True
        try:
            await self._owner.flush()
            self._check_stored()
            read = await self._add_offsets()
            self._close()
            if self._has_begun:
                await self._ask_for_commit()
        except BaseException:
            await self.abort()
            raise
        if self._reader is not None and read is not None:
            self._reader.committed_with(read)

    def _check_stored(self) -> None:
        if self._failure is not None:  # also one that somebody has looked at: a record is missing
            raise self._failure

    async def _add_offsets(self) -> GroupOffsets | None:
        read = None if self._reader is None else self._reader.uncommitted()
        if self._reader is None or read is None:
            return None
        assert self._producer is not None
        producer, self._has_begun = self._producer, True
        try:
            await retry(self._policy, lambda: self._driver.add_offsets(producer, read))
        except RefusedError as error:
            if error.reason is Refusal.REJOIN:
                self._reader.rejoin()
            raise
        return read

    async def _ask_for_commit(self) -> None:
        assert self._producer is not None
        producer, in_doubt = self._producer, False

        async def attempt() -> None:
            nonlocal in_doubt
            try:
                await self._driver.commit_transaction(producer)
            except ClientError as error:
                in_doubt |= leaves_doubt(error)
                raise

        try:
            await retry(self._policy, attempt)
        except ClientError as error:
            if not in_doubt:
                raise
            raise UnknownOutcomeError(f"the transaction may be committed, or not at all: {error}") from error

    async def abort(self) -> None:
        """Nothing of it counts. If the server cannot be told, it aborts by itself when the transaction's time is over."""
        self.is_ending = True
        self._close()
        self._owner.drop_unsettled(AbortedError("the transaction was aborted"))
        if self._reader is not None:
            self._reader.go_back()
        if self._has_begun:
            self._named.leave_epoch()
            with contextlib.suppress(ClientError):
                await self._named.ready()

    def _check_open(self) -> None:
        if self._is_over or self._producer is None:
            raise ClosedError("the transaction is over" if self._is_over else "the transaction has not begun")

    def _close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._owner.transaction_over()
