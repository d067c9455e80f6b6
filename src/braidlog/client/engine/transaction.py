"""Transactions: records of several partitions, and consumer offsets, that are committed together or not at all.

Does not handle: dialects, batches. A transaction is committed only if every record sent in it is stored, and every
consumer offset was read in the generation under which it is committed. After a failure or an abort the producer
requests a new epoch: the server aborts the transaction, and refuses records still in flight. After an abort the
consumer reads again from its group's committed offsets.
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
    """A transactional id, and its current epoch."""

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
        """Return the producer's identity; after a failure, under a new epoch. Once fenced it stays fenced: another
        producer has the name."""
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
    """Made by `producer.transaction()`, used in `async with`: commits at the end of the block, aborts on an
    exception."""

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
        """No further records are accepted: all accepted ones are stored before the commit."""

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

    # -- called by the producer --------------------------------------------------------------------------------

    async def enroll(self, place: Place) -> None:
        """Add a partition to the transaction on the server, before the first write. If this fails, nothing was
        sent."""
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
            self._failure = next((delivery.failure for delivery in deliveries if delivery.failure is not None), None)

    # -- commit and abort --------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit all records and offsets; if this raises, none is committed. Only after `UnknownOutcomeError` the
        result is unknown."""
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
        if self._failure is not None:  # even if the caller has seen it: a record is missing
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
        """Abort the transaction. If the server is unreachable, it aborts the transaction when its timeout expires."""
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
