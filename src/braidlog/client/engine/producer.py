"""The producer: accepts records and returns acknowledgements.

Does not handle: dialects; batches and attempts (`partition_sender.py`); retry rules (`delivery.py`). The buffer holds
at most `buffer_bytes_max`: `send` waits for room. Every accepted record gets an outcome, and `flush` raises a failure
that no caller has seen.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from braidlog.client.drivers.contract import Acks, Driver, Headers, Placed
from braidlog.client.drivers.transactions import TransactionalProducer
from braidlog.client.engine.byte_budget import ByteBudget
from braidlog.client.engine.closing import AsyncClosing
from braidlog.client.engine.delivery import Delivery
from braidlog.client.engine.metrics import ProducerMetrics
from braidlog.client.engine.options import ProducerOptions
from braidlog.client.engine.partition_sender import RECORD_OVERHEAD_BYTES, PartitionSender
from braidlog.client.engine.record_types import check_types
from braidlog.client.engine.retry import Policy, retry
from braidlog.client.engine.transaction import NamedProducer, Transaction
from braidlog.client.errors import (
    AbortedError,
    BufferFullError,
    ClientError,
    ClosedError,
    Refusal,
    RefusedError,
    UnsupportedError,
)
from braidlog.client.tracing import check_installed, with_context
from braidlog.codec.murmur import partition_for_key
from braidlog.model.clock import Clock, SystemClock
from braidlog.model.record import Header, NewRecord
from braidlog.tasks import Tasks

if TYPE_CHECKING:
    from braidlog.client.engine.consumer import Consumer

SERVER_CHOOSES = -1
_METADATA_SECONDS = 300.0
"""How long a topic's partition count is cached."""
_UNSEEN_MAX = 1000
"""The number of failures kept for `flush` to raise; later ones are dropped."""


class _Topic:
    """Cached state of a topic: its partition count, and the current partition of keyless records."""

    __slots__ = ("_learned_at", "partitions", "sticky")

    def __init__(self) -> None:
        self.partitions = 1
        self.sticky = 0
        self._learned_at = 0.0

    def learned(self, partitions: int, now: float) -> None:
        self.partitions = partitions
        self.sticky %= partitions
        self._learned_at = now

    def is_old(self, now: float) -> bool:
        return now - self._learned_at > _METADATA_SECONDS


class Producer(AsyncClosing):
    """Made by `client.producer()`. `await send(...)` returns a `Delivery`; await that for the acknowledgement."""

    def __init__(self, driver: Driver, policy: Policy, options: ProducerOptions, clock: Clock | None = None) -> None:
        if options.acks_of(driver.capabilities) not in driver.capabilities.acks:
            able = ", ".join(driver.capabilities.acks)
            raise UnsupportedError(f"{driver.name} does not support acks={options.acks}; supported: {able}")
        if options.idempotent:
            driver.require("idempotence")
        self._named: NamedProducer | None = None
        self._transaction: Transaction | None = None
        self._writes_as: TransactionalProducer | None = None
        if options.transactional_id is not None:
            driver.require("transactions")
            if options.idempotent is False or options.acks_of(driver.capabilities) is not Acks.ALL:
                raise ValueError("transactions need an idempotent producer with acks=all")
            self._named = NamedProducer(driver, policy, options)
        if options.trace_context:
            check_installed()
            if driver.capabilities.headers is not Headers.ANY:
                raise UnsupportedError(
                    f"{driver.name} does not support trace_context: it cannot carry arbitrary headers"
                )
        self._driver = driver
        self._policy = policy
        self._options = options
        self._clock = clock or SystemClock()
        self._stamps = driver.capabilities.stamps
        self._budget = ByteBudget(options.buffer_bytes_max)
        self._topics: dict[str, _Topic] = {}
        self._senders: dict[tuple[str, int], PartitionSender] = {}
        self._tasks = Tasks()
        self._unseen: list[Delivery] = []
        self._settled_count = self._stored_count = self._stored_bytes = self._batches = self._attempts = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.unflushed} unflushed"
        return f"<Producer {self._driver!r} {state}>"

    @property
    def unflushed(self) -> int:
        """The number of records without an outcome."""
        return sum(sender.unsettled for sender in self._senders.values())

    @property
    def retrying(self) -> ClientError | None:
        """Why records are being retried, or None."""
        return next((error for error in (sender.retrying for sender in self._senders.values()) if error), None)

    @property
    def metrics(self) -> ProducerMetrics:
        """The producer's counters."""
        return ProducerMetrics(
            self._settled_count + self.unflushed,
            self._stored_count,
            self._settled_count - self._stored_count,
            self._stored_bytes,
            self._batches,
            self._attempts,
        )

    @property
    def buffered_bytes(self) -> int:
        return self._budget.taken

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Queue a record; waits only while the buffer is full. Await the result for the acknowledgement."""
        return await self.send_record(topic, NewRecord(value, key, tuple(headers), timestamp_ms), partition)

    async def send_record(self, topic: str, record: NewRecord, partition: int | None = None) -> Delivery:
        """Queue a record object; see `send`."""
        self._check_open()
        self._check_transaction()
        within = self._transaction
        check_types(topic, record)
        if self._options.trace_context:
            record = msgspec.structs.replace(record, headers=with_context(record.headers))
        if self._stamps and record.timestamp_ms is None:
            # Once, here: a retried batch must carry the same bytes.
            record = NewRecord(record.value, record.key, record.headers, self._clock.now_ms())
        size = self._driver.check(topic, record) + RECORD_OVERHEAD_BYTES
        if not self._budget.take_now(size):
            await self._wait_for_budget(size)
        try:
            place = await self._place(topic, record, partition)
            self._check_open()
            self._check_same(within)
            delivery = Delivery(record, size, self._options.delivery_timeout)
            self._sender(topic, place).put(delivery)
        except BaseException:
            self._budget.give(size)
            raise
        return delivery

    async def send_many(
        self, topic: str, records: Iterable[NewRecord | bytes], *, partition: int | None = None
    ) -> list[Delivery]:
        """Queue several records, in order."""
        return [
            await self.send_record(topic, record if isinstance(record, NewRecord) else NewRecord(record), partition)
            for record in records
        ]

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
    ) -> Placed:
        """Send one record and wait until it is acknowledged."""
        record = NewRecord(value, key, tuple(headers), timestamp_ms)
        return await (await self.send_record(topic, record, partition))

    async def _wait_for_budget(self, size: int) -> None:
        try:
            await self._budget.take(size, self._options.send_timeout)
        except TimeoutError:
            held = f"{self._budget.taken} of {self._budget.bytes_max} bytes wait to be acknowledged"
            raise BufferFullError(f"the buffer stayed full for {self._options.send_timeout:g} s: {held}") from None

    async def _place(self, topic: str, record: NewRecord, partition: int | None) -> int:
        if not self._driver.capabilities.places:
            if partition is not None:
                self._driver.require("places")
            return SERVER_CHOOSES
        known = self._topics.get(topic)
        if known is None or known.is_old(asyncio.get_running_loop().time()):
            known = await self._learn(topic)
        if partition is not None:
            if not 0 <= partition < known.partitions:
                words = f"topic {topic!r} has no partition {partition}; it has {known.partitions}, from 0 on"
                raise RefusedError(Refusal.TOPIC_NOT_FOUND, self._driver.name, "", words)
            return partition
        return known.sticky if record.key is None else partition_for_key(record.key, known.partitions)

    async def _learn(self, topic: str) -> _Topic:
        partitions = await retry(self._policy, lambda: self._driver.partition_count(topic))
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic()
        known.learned(partitions, asyncio.get_running_loop().time())
        return known

    def _sender(self, topic: str, partition: int) -> PartitionSender:
        sender = self._senders.get((topic, partition))
        if sender is None:
            sender = PartitionSender(self, self._driver, self._policy, self._options, topic, partition)
            if self._writes_as is not None:
                sender.begin(self._writes_as)
            self._senders[topic, partition] = sender
            self._tasks.spawn(sender.run(), f"producer {topic}/{partition}", sender.crashed)
        return sender

    # -- transactions ------------------------------------------------------------------------------------------

    def transaction(self, consumer: "Consumer | None" = None) -> Transaction:
        """Return a transaction: records sent inside `async with producer.transaction():` are committed when the block
        ends.

        An exception aborts it. With a `consumer`, the offsets of all records that it returned are committed in the
        same transaction. After an abort the consumer reads those records again.
        """
        self._check_open()
        if self._named is None:
            raise ValueError("transactions need a name: client.producer(transactional_id=...)")
        return Transaction(self, self._driver, self._policy, self._named, consumer)

    def _check_transaction(self) -> None:
        if self._named is not None and (self._transaction is None or self._transaction.is_ending):
            raise ValueError(f"{self._named.name!r} writes in transactions only: async with producer.transaction()")

    def _check_same(self, within: Transaction | None) -> None:
        if within is not None and within.is_ending:
            raise AbortedError("the transaction was over before the record could be sent")

    def transaction_begun(self, transaction: Transaction, producer: TransactionalProducer) -> None:
        if self._transaction is not None:
            raise ValueError("the producer's last transaction is still open: a producer has one at a time")
        self._transaction, self._writes_as = transaction, producer
        for sender in self._senders.values():
            sender.begin(producer)

    def transaction_over(self) -> None:
        """Called at the end of a transaction: nothing can be sent until the next one begins."""
        self._transaction = None

    def drop_unsettled(self, why: ClientError) -> None:
        """Fail all queued and unacknowledged records. The next transaction has new senders."""
        self._tasks.cancel()
        for sender in self._senders.values():
            sender.abandon(why)
        self._senders.clear()
        self._unseen.clear()

    async def enroll(self, topic: str, partition: int) -> None:
        """Called before an attempt: in a transaction, adds the partition to it."""
        self._attempts += 1
        if self._transaction is not None:
            await self._transaction.enroll((topic, partition))

    # -- outcomes, reported by senders -------------------------------------------------------------------------

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Called when these records have their outcome."""
        self._budget.give(sum(delivery.size for delivery in deliveries))
        stored = [delivery.size - RECORD_OVERHEAD_BYTES for delivery in deliveries if delivery.is_stored]
        self._settled_count += len(deliveries)
        self._stored_count += len(stored)
        self._stored_bytes += sum(stored)
        if self._transaction is not None:
            self._transaction.settled(deliveries)
        failed = [delivery for delivery in deliveries if delivery.unseen_failure is not None]
        self._unseen += failed[: _UNSEEN_MAX - len(self._unseen)]

    def batch_taken(self, topic: str, partition: int) -> None:
        """Move keyless records to the next partition: batches stay large, and all partitions get some."""
        self._batches += 1
        known = self._topics.get(topic)
        if known is not None and known.sticky == partition:
            known.sticky = (partition + 1) % known.partitions

    def forget(self, topic: str) -> None:
        """Drop the cached state of a topic after an answer disproved it."""
        self._topics.pop(topic, None)

    # -- closing ---------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until every record sent so far has its outcome. Raises the first failure that no caller has seen."""
        await asyncio.gather(*(sender.flush() for sender in self._senders.values()))
        failures, self._unseen = self._unseen, []
        unseen = [failure for failure in (delivery.unseen_failure for delivery in failures) if failure is not None]
        if unseen:
            first = unseen[0]
            if len(unseen) > 1:
                first.add_note(f"and {len(unseen) - 1} more records were not acknowledged")
            raise first

    async def _finish(self) -> None:
        if self._transaction is not None:
            await self._transaction.abort()
        await self.flush()
        await self._tasks.stop()

    def abandon(self) -> None:
        """Stop immediately: what is not acknowledged fails, as closed or as unknown."""
        self._closed = True
        self._tasks.cancel()
        for sender in self._senders.values():
            sender.abandon(ClosedError("the producer was closed before the record was acknowledged"))
