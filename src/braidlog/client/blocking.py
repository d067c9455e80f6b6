"""The same client for programs without an event loop: one thread with a loop behind each connection, and calls that wait.

Knows: threads. Refuses to know: anything the asyncio client does.
Invariants: any thread may call anything at any time. `close`, and leaving `with`, flush; the thread ends with the client, also
when that is interrupted. A program that ends without closing is flushed for a while, and told if records were still on their way.
"""

import asyncio
import atexit
import ssl
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from braidlog.client import session
from braidlog.client.drivers.contract import Capabilities, ConsumedRecord, GroupInfo, Placed, Setting
from braidlog.client.engine import admin as aio_admin
from braidlog.client.engine import consumer as aio_consumer
from braidlog.client.engine import delivery as aio_delivery
from braidlog.client.engine import producer as aio_producer
from braidlog.client.engine.admin import PartitionLag, TopicInfo
from braidlog.client.engine.member import Place, Rebalanced, Start
from braidlog.client.errors import ClientError, ClosedError
from braidlog.model.record import Header, NewRecord

T = TypeVar("T")

EXIT_FLUSH_SECONDS_MAX = 5.0
_ITERATE_SECONDS = 1.0


class _Call(Generic[T]):
    """Work that one thread waits for and the loop's thread does.

    The wait is one call into C, a lock that the loop's thread opens. `concurrent.futures` and `threading.Condition` wait in
    Python: a KeyboardInterrupt that lands as they leave (`Condition.__exit__`) keeps their lock closed for ever, and the
    loop's thread waits for it too.
    """

    __slots__ = ("_ended", "_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self._ended.release())

    def cancel(self) -> None:
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def result(self, timeout: float | None) -> T:
        if not self._ended.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), threading.TIMEOUT_MAX)):
            raise TimeoutError
        assert self._task is not None
        return self._task.result()


class LoopThread:
    """A loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.at_end: Callable[[], object] = lambda: None
        """Called in the thread, last of all: also when whoever should have closed was interrupted before it could."""
        # A daemon, so that a forgotten client does not keep a program from ending; `_at_exit` looks after its records.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(0))  # calls that were handed over last become tasks
        while left := asyncio.all_tasks(self._loop):  # of a close that was interrupted
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.at_end()
        self._loop.run_until_complete(asyncio.sleep(0))  # connections that were given up end in the next round
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Do it there, wait here. An interrupt, or the timeout, ends the work too."""
        if self._loop.is_closed() or threading.current_thread() is self._thread:
            work.close()
            raise (
                ClosedError("the client is closed")
                if self._loop.is_closed()
                else RuntimeError("a callback of the client cannot wait for the client")
            )
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            return call.result(timeout)
        except BaseException:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call.cancel)
            raise

    def make(self, factory: Callable[[], T]) -> T:
        """Call something that must be called inside the loop."""

        async def inside() -> T:
            return factory()

        return self.run(inside())

    def stop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class Delivery:
    """A record on its way: `result()` waits for where it is, and raises why it is not."""

    __slots__ = ("_delivery", "_thread")

    def __init__(self, thread: LoopThread, delivery: aio_delivery.Delivery) -> None:
        self._thread = thread
        self._delivery = delivery

    def __repr__(self) -> str:
        return repr(self._delivery)

    def done(self) -> bool:
        return self._delivery.done()

    def result(self, timeout: float | None = None) -> Placed:
        """TimeoutError: it is still on its way, and stays so."""
        if self._delivery.done():
            return self._delivery.result()

        async def wait() -> Placed:
            return await self._delivery

        return self._thread.run(wait(), timeout)


class Producer:
    """Made by `client.producer()`; usable from several threads."""

    def __init__(self, thread: LoopThread, producer: aio_producer.Producer) -> None:
        self._thread = thread
        self._producer = producer

    def __repr__(self) -> str:
        return repr(self._producer)

    @property
    def unflushed(self) -> int:
        return self._producer.unflushed

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Hand a record over; waits only while the buffer is full."""
        record = NewRecord(value, key, tuple(headers), timestamp_ms)
        return Delivery(self._thread, self._thread.run(self._producer.send_record(topic, record, partition)))

    def send_many(
        self, topic: str, records: Iterable[NewRecord | bytes], *, partition: int | None = None
    ) -> list[Delivery]:
        """Several records, in order; much faster than one by one."""
        sent = self._thread.run(self._producer.send_many(topic, list(records), partition=partition))
        return [Delivery(self._thread, delivery) for delivery in sent]

    def send_and_wait(
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
        work = self._producer.send_and_wait(
            topic, value, key=key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
        )
        return self._thread.run(work)

    def flush(self) -> None:
        self._thread.run(self._producer.flush())

    def close(self) -> None:
        self._thread.run(self._producer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Consumer:
    """Made by `client.consumer()`. Then `assign` or `subscribe`, and `poll` or `for`."""

    def __init__(self, thread: LoopThread, consumer: aio_consumer.Consumer) -> None:
        self._thread = thread
        self._consumer = consumer

    def __repr__(self) -> str:
        return repr(self._consumer)

    def assign(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: Start = "earliest",
        group: str | None = None,
    ) -> None:
        self._thread.run(self._consumer.assign(topic, partitions, start=start, group=group))

    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        member: str | None = None,
        start: Start = "earliest",
        on_rebalance: Rebalanced | None = None,
    ) -> None:
        """`on_rebalance` is called in the client's own thread: it must not call the client."""
        self._thread.run(
            self._consumer.subscribe(topic, group=group, member=member, start=start, on_rebalance=on_rebalance)
        )

    @property
    def assignment(self) -> frozenset[Place]:
        return self._consumer.assignment

    def position(self, topic: str, partition: int) -> int:
        return self._consumer.position(topic, partition)

    def reached(self, topic: str, partition: int) -> int:
        return self._consumer.reached(topic, partition)

    def seek(self, topic: str, partition: int, start: Start) -> None:
        self._thread.run(self._consumer.seek(topic, partition, start))

    def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[ConsumedRecord]:
        return self._thread.run(self._consumer.poll(max_records, timeout))

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Records, one by one, for ever. A record is worked on when the next one is asked for."""
        while True:
            if found := self._thread.run(self._consumer.poll(1, _ITERATE_SECONDS)):
                yield found[0]

    def commit(self, offsets: Mapping[Place, int] | None = None) -> None:
        self._thread.run(self._consumer.commit(offsets))

    def committed(self, topic: str, partition: int) -> int | None:
        return self._thread.run(self._consumer.committed(topic, partition))

    def close(self, *, commit: bool = True) -> None:
        self._thread.run(self._consumer.close(commit=commit))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(commit=kind is None)


class Admin:
    """`client.admin`."""

    def __init__(self, thread: LoopThread, admin: aio_admin.Admin) -> None:
        self._thread = thread
        self._admin = admin

    def __repr__(self) -> str:
        return repr(self._admin)

    def create_topic(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self._thread.run(self._admin.create_topic(topic, partitions, settings))

    def ensure_topic(self, topic: str, partitions: int = 1) -> bool:
        return self._thread.run(self._admin.ensure_topic(topic, partitions))

    def delete_topic(self, topic: str) -> None:
        self._thread.run(self._admin.delete_topic(topic))

    def list_topics(self) -> list[str]:
        return self._thread.run(self._admin.list_topics())

    def describe_topic(self, topic: str) -> TopicInfo:
        return self._thread.run(self._admin.describe_topic(topic))

    def topic_settings(self, topic: str) -> list[Setting]:
        return self._thread.run(self._admin.topic_settings(topic))

    def alter_topic(
        self, topic: str, settings: Mapping[str, str | None] | None = None, *, partitions: int | None = None
    ) -> None:
        self._thread.run(self._admin.alter_topic(topic, settings, partitions=partitions))

    def trim(self, topic: str, partition: int, before: int) -> int:
        return self._thread.run(self._admin.trim(topic, partition, before))

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        return self._thread.run(self._admin.offset_at(topic, partition, timestamp_ms))

    def list_groups(self) -> list[str]:
        return self._thread.run(self._admin.list_groups())

    def describe_group(self, group: str) -> GroupInfo:
        return self._thread.run(self._admin.describe_group(group))

    def delete_group(self, group: str) -> None:
        self._thread.run(self._admin.delete_group(group))

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        return self._thread.run(self._admin.group_offsets(group))

    def reset_group(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self._thread.run(self._admin.reset_group(group, topic, offsets))

    def lag(self, group: str, topic: str) -> list[PartitionLag]:
        return self._thread.run(self._admin.lag(group, topic))


class Client:
    """A connection to one server or cluster. Made by `braidlog.connect`."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None, **policy: float) -> None:
        self._thread = LoopThread("braidlog client")
        try:
            self._client = self._thread.make(lambda: session.Client(url, tls=tls, **policy))
            self._thread.at_end = self._client.abandon
            self._thread.run(self._client.open())
        except BaseException:
            self._thread.stop()
            raise
        self._closing = threading.Lock()
        self._closed = False
        self.admin = Admin(self._thread, self._client.admin)
        _open_clients.add(self)

    def __repr__(self) -> str:
        return repr(self._client)

    @property
    def dialect(self) -> str:
        return self._client.dialect

    @property
    def capabilities(self) -> Capabilities:
        return self._client.capabilities

    def require(self, capability: str) -> None:
        self._client.require(capability)

    @property
    def unflushed(self) -> int:
        return self._client.unflushed

    def asked_for(self) -> list[str]:
        return self._thread.run(self._client.asked_for())

    def producer(self, **options: Any) -> Producer:  # noqa: ANN401 - the fields of ProducerOptions
        return Producer(self._thread, self._thread.make(lambda: self._client.producer(**options)))

    def consumer(self, **options: Any) -> Consumer:  # noqa: ANN401 - the fields of ConsumerOptions
        return Consumer(self._thread, self._thread.make(lambda: self._client.consumer(**options)))

    def close(self, timeout: float | None = None) -> None:
        """Flush, close everything, end the thread: also when it is interrupted, or takes longer than `timeout` seconds."""
        with self._closing:  # who closes second waits for the first: when close returns, it is closed
            if self._closed:
                return
            try:
                self._thread.run(self._client.close(), timeout)
            finally:
                self._thread.stop()
                self._closed = True
                _open_clients.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(url: str, *, tls: ssl.SSLContext | None = None, **policy: float) -> Client:
    """Connect to `mlog://`, `flux://`, `cursus://`, `rustlog://` or `kafka://`; `policy`: the fields of `Policy`, in seconds.

    with connect("rustlog://127.0.0.1:9096") as client:
        client.producer().send_and_wait("orders", b"one")
    """
    return Client(url, tls=tls, **policy)


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
                f"{client!r} was not closed and {waiting} records were still on their way; {fate}. "
                "Use it in a with statement, or call close().",
                RuntimeWarning,
                stacklevel=1,
            )
