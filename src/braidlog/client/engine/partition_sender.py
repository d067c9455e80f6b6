"""Sends the records of one partition in batches, and retries each batch until its outcome is known.

Does not handle: dialects, which outcome allows a retry (`delivery.py`). One batch is in flight at a time, so
acknowledged records are stored in the order they were sent. A retry under an identity carries the same bytes. A
sequence number that may have been used is never used for another record: after a batch that ended in doubt the sender
continues under a new producer name.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from braidlog.client.drivers.contract import Batch, Driver, Identity, Placed
from braidlog.client.drivers.transactions import TransactionalProducer
from braidlog.client.engine.delivery import Delivery, judge, leaves_doubt, unknown
from braidlog.client.engine.options import ProducerOptions
from braidlog.client.engine.retry import Backoff, Policy, wait_at_most
from braidlog.client.errors import AbortedError, ClientError, ClosedError, ConnectError, Refusal, RefusedError

if TYPE_CHECKING:
    from braidlog.client.engine.producer import Producer

RECORD_OVERHEAD_BYTES = 256
"""Memory cost of a record beyond its bytes: `Delivery.size` is the record's wire weight plus this."""


class PartitionSender:
    """Sends one partition of a topic, or the whole topic if the server chooses partitions."""

    def __init__(
        self, owner: "Producer", driver: Driver, policy: Policy, options: ProducerOptions, topic: str, partition: int
    ) -> None:
        self._owner = owner
        self._driver = driver
        self._policy = policy
        self._options = options
        self._topic = topic
        self._partition = partition
        limits = driver.limits(topic)
        self._bytes_max = min(options.batch_bytes_max, limits.bytes_max)
        self._records_max = min(options.batch_records_max, limits.records_max)
        self._acks = options.acks_of(driver.capabilities)
        self._identity = _new_identity() if options.is_idempotent(driver.capabilities) else None
        self._waiting: deque[Delivery] = deque()
        self._waiting_bytes = 0
        self._flying: list[Delivery] = []
        self._some, self._full = asyncio.Event(), asyncio.Event()
        self._put_count = self._done_count = 0
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._last_error: ClientError | None = None
        self._crash = ""

    @property
    def unsettled(self) -> int:
        return self._put_count - self._done_count

    @property
    def retrying(self) -> ClientError | None:
        """Why the batch in flight is being retried, or None."""
        return next((each.error for each in self._flying if each.error is not None and not each.done()), None)

    def begin(self, producer: TransactionalProducer) -> None:
        """Begin a transaction. Sequence numbers continue within an epoch, and restart with the next one."""
        if self._identity is None or self._identity.transaction != producer:
            self._identity = Identity(producer.transactional_id, 1, producer)

    # -- queueing --------------------------------------------------------------------------------------------

    def put(self, delivery: Delivery) -> None:
        """Queue a record; `ClosedError` if the sender has crashed or closed."""
        if self._crash:
            raise ClosedError(self._crash)
        self._waiting.append(delivery)
        self._waiting_bytes += delivery.size - RECORD_OVERHEAD_BYTES
        self._put_count += 1
        self._some.set()
        if self._waiting_bytes >= self._bytes_max or len(self._waiting) >= self._records_max:
            self._full.set()

    async def flush(self) -> None:
        """Wait until every queued record has its outcome."""
        if self.unsettled:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushing.append((self._put_count, done))
            self._full.set()
            await done

    # -- sending ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self._some.wait()
            if self._options.linger_ms and not self._flushing:
                await wait_at_most(self._full, self._options.linger_ms / 1000)
            await self._deliver(self._take())

    def crashed(self, error: BaseException) -> None:
        """Called when `run` failed by a defect: fail all records, now and later, so that no caller waits forever."""
        self._crash = f"the producer of {self._topic} crashed; create a new one: {error!r}"
        self.abandon(ClosedError(self._crash))

    def _take(self) -> list[Delivery]:
        """Return the next batch: as many records as fit, at least one."""
        batch: list[Delivery] = []
        size = 0
        while self._waiting and len(batch) < self._records_max:
            grown = size + self._waiting[0].size - RECORD_OVERHEAD_BYTES
            if batch and grown > self._bytes_max:
                break
            size = grown
            batch.append(self._waiting.popleft())
        self._waiting_bytes -= size
        if not self._waiting:
            self._some.clear()
        if self._waiting_bytes < self._bytes_max and len(self._waiting) < self._records_max:
            self._full.clear()
        self._flying = batch
        self._owner.batch_taken(self._topic, self._partition)
        return batch

    async def _deliver(self, batch: list[Delivery]) -> None:
        left = batch[0].deadline - asyncio.get_running_loop().time()
        if left <= 0 and self._last_error is not None:
            # The previous batch was given up, and this one has waited as long: it is not attempted.
            self._tell_all(batch, ConnectError(f"not sent in time: {self._last_error}"))
        backoff = Backoff(self._policy, left)
        pending = [delivery for delivery in batch if not delivery.done()]
        while pending:
            pending = self._settle(pending, await self._attempt(pending))
            if pending and not await backoff.pause():
                self._give_up(pending)
                pending = []
        self._finish(batch)

    async def _attempt(self, pending: Sequence[Delivery]) -> Sequence[Placed | ClientError]:
        records = [delivery.record for delivery in pending]
        batch = Batch(self._topic, self._partition, records, self._acks, self._identity)
        try:
            await self._owner.enroll(self._topic, self._partition)
            return await self._driver.produce(batch)
        except ClientError as error:
            if isinstance(error, RefusedError) and error.reason is Refusal.TOPIC_NOT_FOUND:
                self._owner.forget(self._topic)
            return [error] * len(records)

    def _settle(self, pending: Sequence[Delivery], outcomes: Sequence[Placed | ClientError]) -> list[Delivery]:
        """Complete the records with a final outcome; return those to retry, in order.

        Only dialects that acknowledge records one by one can store some records of a batch and not others. A record
        is not retried once a later record with its key is stored, because it would overwrite that one.
        """
        last_stored = {
            delivery.record.key: at
            for at, (delivery, outcome) in enumerate(zip(pending, outcomes, strict=True))
            if isinstance(outcome, Placed)
        }
        again: list[Delivery] = []
        for at, (delivery, outcome) in enumerate(zip(pending, outcomes, strict=True)):
            if isinstance(outcome, Placed):
                delivery.stored(outcome)
                continue
            final_error = self._verdict(delivery, outcome)
            if final_error is None and at < last_stored.get(delivery.record.key, -1):
                final_error = unknown(outcome) if delivery.in_doubt else outcome
            if final_error is None:
                again.append(delivery)
            else:
                self._tell(delivery, final_error)
        return again

    def _verdict(self, delivery: Delivery, error: ClientError) -> ClientError | None:
        doubtful = leaves_doubt(error, self._acks)
        delivery.in_doubt |= doubtful
        delivery.error = error
        return judge(
            error,
            in_doubt=delivery.in_doubt,
            doubtful=doubtful,
            identified=self._identity is not None,
            retries=self._options.retries,
        )

    def _give_up(self, pending: Sequence[Delivery]) -> None:
        for delivery in pending:
            assert delivery.error is not None
            self._tell(delivery, unknown(delivery.error) if delivery.in_doubt else delivery.error)

    def _tell_all(self, deliveries: Sequence[Delivery], error: ClientError) -> None:
        for delivery in deliveries:
            self._tell(delivery, error)

    def _tell(self, delivery: Delivery, error: ClientError) -> None:
        self._last_error = error
        delivery.failed(error)

    def _finish(self, batch: Sequence[Delivery]) -> None:
        self._flying = []
        self._done_count += len(batch)
        if batch[-1].is_stored:
            self._last_error = None
        if self._identity is not None:
            self._identity = _next_identity(self._identity, batch)
        self._owner.settled(batch)
        for entry in [entry for entry in self._flushing if entry[0] <= self._done_count]:
            self._flushing.remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)

    def abandon(self, why: ClientError) -> None:
        """Stop sending; fail the records that still wait."""
        left = [*self._flying, *self._waiting]
        for at, delivery in enumerate(left):
            if not delivery.done():
                # A batch in flight may have been stored, which does not matter if its transaction was aborted.
                is_unknown = at < len(self._flying) and not isinstance(why, AbortedError)
                self._tell(delivery, unknown(why) if is_unknown else why)
        self._waiting.clear()
        self._waiting_bytes = 0
        if left:
            self._finish(left)


def _new_identity() -> Identity:
    return Identity(f"braidlog-{uuid.uuid4().hex}", 1)


def _next_identity(identity: Identity, batch: Sequence[Delivery]) -> Identity:
    """Return the identity of the next batch. Batches are stored whole: the first record's outcome is that of all."""
    first = batch[0]
    if first.is_stored:
        return Identity(identity.producer, identity.sequence + len(batch), identity.transaction)
    if identity.transaction is not None:
        return identity  # the transaction fails, and the next one has its own epoch
    fenced = isinstance(first.error, RefusedError) and first.error.reason is Refusal.FENCED
    return _new_identity() if first.in_doubt or fenced else identity
