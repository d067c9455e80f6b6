"""The client for programs without an event loop: `with braidlog.connect("rustlog://127.0.0.1:9096") as client: ...`

Every method is derived from the asyncio client's (`facade.py`). Each connection has one thread that runs its event
loop. Any thread may call any method at any time. `close`, and leaving `with`, flush; the thread ends with the client,
even if closing is interrupted. If a program exits without closing, its records are flushed for a limited time, and
unacknowledged records are reported.
"""

import atexit
import warnings
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, Unpack

from braidlog.client import session
from braidlog.client.drivers.contract import ConsumedRecord, Placed
from braidlog.client.engine import admin as aio_admin
from braidlog.client.engine import consumer as aio_consumer
from braidlog.client.engine import delivery as aio_delivery
from braidlog.client.engine import producer as aio_producer
from braidlog.client.engine import transaction as aio_transaction
from braidlog.client.engine.options import ConsumerKeywords, ProducerKeywords
from braidlog.client.errors import ClientError
from braidlog.client.facade import ConnectionFacade, ContextFacade, Facade, blocking, connected, view
from braidlog.client.loop_thread import LoopThread

EXIT_FLUSH_SECONDS_MAX = 5.0
_ITERATE_SECONDS = 1.0


class Delivery(Facade[aio_delivery.Delivery]):
    """A record that was sent: `result()` waits for its partition and offset, or raises the error."""

    __slots__ = ()

    done = blocking(aio_delivery.Delivery.done)

    def result(self, timeout: float | None = None) -> Placed:
        """Raise TimeoutError if the record is not acknowledged in time; the record stays in flight."""
        if self.done():
            return self._inner.result()

        async def wait() -> Placed:
            return await self._inner

        return self._thread.run(wait(), timeout)


def deliveries(thread: LoopThread, sent: Sequence[aio_delivery.Delivery]) -> list[Delivery]:
    return [Delivery(thread, delivery) for delivery in sent]


class Transaction(Facade[aio_transaction.Transaction]):
    """Made by `producer.transaction()`, used in `with`: commits at the end of the block, aborts on an exception."""

    commit = blocking(aio_transaction.Transaction.commit)
    abort = blocking(aio_transaction.Transaction.abort)

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._inner.__aexit__(kind, error, trace))


class Producer(ContextFacade[aio_producer.Producer]):
    """Made by `client.producer()`; usable from several threads."""

    unflushed = view(aio_producer.Producer.unflushed)
    buffered_bytes = view(aio_producer.Producer.buffered_bytes)
    retrying = view(aio_producer.Producer.retrying)
    metrics = view(aio_producer.Producer.metrics)
    send = blocking(aio_producer.Producer.send, Delivery)
    send_record = blocking(aio_producer.Producer.send_record, Delivery)
    send_many = blocking(aio_producer.Producer.send_many, deliveries)
    send_and_wait = blocking(aio_producer.Producer.send_and_wait)
    flush = blocking(aio_producer.Producer.flush)
    close = blocking(aio_producer.Producer.close)

    def transaction(self, consumer: "Consumer | None" = None) -> Transaction:
        """Return a transaction: records sent inside `with producer.transaction():` are committed when the block ends.

        An exception aborts it. With a `consumer`, the offsets of all records that it returned are committed in the
        same transaction. After an abort the consumer reads those records again."""
        return Transaction(self._thread, self._inner.transaction(None if consumer is None else consumer._inner))  # noqa: SLF001


class Consumer(ContextFacade[aio_consumer.Consumer]):
    """Made by `client.consumer()`. Then call `assign` or `subscribe`, and `poll` or iterate with `for`."""

    assign = blocking(aio_consumer.Consumer.assign)
    subscribe = blocking(aio_consumer.Consumer.subscribe)
    assignment = view(aio_consumer.Consumer.assignment)
    position = blocking(aio_consumer.Consumer.position)
    reached = blocking(aio_consumer.Consumer.reached)
    seek = blocking(aio_consumer.Consumer.seek)
    pause = blocking(aio_consumer.Consumer.pause)
    resume = blocking(aio_consumer.Consumer.resume)
    paused = view(aio_consumer.Consumer.paused)
    lag = blocking(aio_consumer.Consumer.lag)
    metrics = view(aio_consumer.Consumer.metrics)
    poll = blocking(aio_consumer.Consumer.poll)
    commit = blocking(aio_consumer.Consumer.commit)
    committed = blocking(aio_consumer.Consumer.committed)
    close = blocking(aio_consumer.Consumer.close)

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Yield records without end. A record counts as processed when the next one is requested."""
        while True:
            yield from self.poll(1, _ITERATE_SECONDS)


class Admin(Facade[aio_admin.Admin]):
    """`client.admin`."""

    create_topic = blocking(aio_admin.Admin.create_topic)
    ensure_topic = blocking(aio_admin.Admin.ensure_topic)

    delete_topic = blocking(aio_admin.Admin.delete_topic)
    list_topics = blocking(aio_admin.Admin.list_topics)
    partition_count = blocking(aio_admin.Admin.partition_count)
    span = blocking(aio_admin.Admin.span)
    describe_topic = blocking(aio_admin.Admin.describe_topic)
    describe_topics = blocking(aio_admin.Admin.describe_topics)
    topic_settings = blocking(aio_admin.Admin.topic_settings)
    alter_topic = blocking(aio_admin.Admin.alter_topic)
    trim = blocking(aio_admin.Admin.trim)
    offset_at = blocking(aio_admin.Admin.offset_at)
    list_groups = blocking(aio_admin.Admin.list_groups)
    describe_group = blocking(aio_admin.Admin.describe_group)
    delete_group = blocking(aio_admin.Admin.delete_group)
    list_rules = blocking(aio_admin.Admin.list_rules)
    add_rule = blocking(aio_admin.Admin.add_rule)
    delete_rule = blocking(aio_admin.Admin.delete_rule)
    list_users = blocking(aio_admin.Admin.list_users)
    set_password = blocking(aio_admin.Admin.set_password)
    delete_user = blocking(aio_admin.Admin.delete_user)
    list_quotas = blocking(aio_admin.Admin.list_quotas)
    set_quota = blocking(aio_admin.Admin.set_quota)
    remove_quota = blocking(aio_admin.Admin.remove_quota)
    list_transactions = blocking(aio_admin.Admin.list_transactions)
    describe_transaction = blocking(aio_admin.Admin.describe_transaction)
    list_producers = blocking(aio_admin.Admin.list_producers)
    abort_transaction = blocking(aio_admin.Admin.abort_transaction)
    group_offsets = blocking(aio_admin.Admin.group_offsets)
    describe_cluster = blocking(aio_admin.Admin.describe_cluster)
    elect_preferred = blocking(aio_admin.Admin.elect_preferred)
    move_partitions = blocking(aio_admin.Admin.move_partitions)
    list_moves = blocking(aio_admin.Admin.list_moves)
    remove_node = blocking(aio_admin.Admin.remove_node)
    cluster_events = blocking(aio_admin.Admin.cluster_events)
    drain_node = blocking(aio_admin.Admin.drain_node)
    delete_offsets = blocking(aio_admin.Admin.delete_offsets)
    log_folders = blocking(aio_admin.Admin.log_folders)
    describe_node = blocking(aio_admin.Admin.describe_node)
    create_snapshot = blocking(aio_admin.Admin.create_snapshot)
    drop_snapshot = blocking(aio_admin.Admin.drop_snapshot)
    reset_group = blocking(aio_admin.Admin.reset_group)
    lag = blocking(aio_admin.Admin.lag)


class Client(ConnectionFacade[session.Client]):
    """A connection to one server or cluster. Made by `braidlog.connect`."""

    def __init__(self, thread: LoopThread, inner: session.Client) -> None:
        super().__init__(thread, inner)
        self.admin = Admin(thread, inner.admin)
        _open_clients.add(self)

    dialect = view(session.Client.dialect)
    capabilities = view(session.Client.capabilities)
    require = blocking(session.Client.require)
    unflushed = view(session.Client.unflushed)
    asked_for = blocking(session.Client.asked_for)

    def producer(self, **options: Unpack[ProducerKeywords]) -> Producer:
        """A new producer; see `ProducerOptions` for what can be set."""
        return Producer(self._thread, self._thread.make(lambda: self._inner.producer(**options)))

    def consumer(self, **options: Unpack[ConsumerKeywords]) -> Consumer:
        """A new consumer; see `ConsumerOptions` for what can be set."""
        return Consumer(self._thread, self._thread.make(lambda: self._inner.consumer(**options)))


connect = connected(session.Client, Client)


# -- programs that end without closing -----------------------------------------------------------------------------

_open_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for client in list(_open_clients):
        waiting = client.unflushed
        failure: Exception | None = None
        try:
            client.close(EXIT_FLUSH_SECONDS_MAX)
        except (ClientError, TimeoutError) as error:
            failure = error
        if waiting:
            fate = "they were flushed now" if failure is None else f"not all of them are acknowledged: {failure!r}"
            warnings.warn(
                f"{client!r} was not closed and {waiting} records were still in flight; {fate}. "
                "Use it in a with statement, or call close().",
                RuntimeWarning,
                stacklevel=1,
            )
