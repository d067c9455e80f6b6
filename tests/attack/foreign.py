# mypy: disable-error-code="no-untyped-call"
"""Clients of others at work on the node: librdkafka, kafka-python, aiokafka, kcat, and the published client of Cursus.

They resend by themselves what they are in doubt about, as idempotent producers do: each record must be there once, in order.
"""

import asyncio
import shutil
import subprocess
import threading
import time
from collections import deque
from functools import partial
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from cursus.config import ProducerConfig
from cursus.producer import Producer as CursusProducer
from cursus.types import Acks
from kafka import KafkaProducer
from kafka.errors import KafkaError
from tests.adapters.kafka.client import Client as KafkaConnection
from tests.attack.clients import PAUSE_SECONDS, Client
from tests.histories.history import Append, History, Outcome, Read, Resends, Transaction

from braidlog.testing.server import ServerProcess

SECONDS_MAX = 100
IN_FLIGHT_MAX = 50
LATEST = -1
"""ListOffsets: the end of a topic."""
TRANSACTION_RECORDS = 5
RDKAFKA = {
    "log_level": 0,
    "broker.address.family": "v4",
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
}


class IdempotentProducer(Client):
    """Numbers its records; `completed` is called in any thread when the outcome of one is known."""

    counts_records = True

    def __init__(self, node: ServerProcess, history: History, topic: str, name: str) -> None:
        super().__init__(node, history, name)
        history.resends[name] = Resends.ONCE
        self._topic = topic
        self._number = 0
        self._open = 0
        self._has_failed = False
        self._counting = threading.Lock()

    def next_append(self) -> Append:
        append = Append(self.name, self._number, self._topic, time.monotonic())
        self._number += 1
        self.history.add(append)
        with self._counting:
            self._open += 1
        return append

    def completed(self, append: Append, offset: int | None) -> None:
        """-1: it was given up, and may be there. The producer has lost count then, and another takes its place.

        None: it is there, and the client did not keep where, because the answer to a retry told it.
        """
        if offset is None or offset >= 0:
            append.offset = -1 if offset is None else offset
            append.end, append.outcome = time.monotonic(), Outcome.ACKNOWLEDGED
            self.acknowledged += self.counts_records
        else:
            self._has_failed = True
        with self._counting:
            self._open -= 1

    def check(self) -> None:
        if self._has_failed:
            raise ConnectionError("a record was given up")

    def work(self) -> None:
        self._has_failed = False
        self._open = 0
        self.produce()

    def produce(self) -> None:
        raise NotImplementedError


class ConfluentProducer(IdempotentProducer):
    def produce(self) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": SECONDS_MAX * 1000}
        producer = Producer({"bootstrap.servers": self.node.bootstrap(), **RDKAFKA, **settings})
        while not self.stop.is_set():
            if self._open < IN_FLIGHT_MAX:
                append = self.next_append()
                producer.produce(
                    self._topic, append.value.encode(), partition=0, on_delivery=partial(self._delivered, append)
                )
            producer.poll(PAUSE_SECONDS)
            self.check()
        producer.flush(SECONDS_MAX)

    def _delivered(self, append: Append, error: object, message: Any) -> None:
        self.completed(append, -1 if error is not None else message.offset())


class KafkaPythonProducer(IdempotentProducer):
    def produce(self) -> None:
        try:
            producer = KafkaProducer(
                bootstrap_servers=self.node.bootstrap(),
                enable_idempotence=True,
                linger_ms=2,
                retry_backoff_ms=50,
                delivery_timeout_ms=SECONDS_MAX * 1000,
            )
        except KafkaError as error:
            raise ConnectionError(str(error)) from error
        try:
            self._produce(producer)
            producer.flush(SECONDS_MAX)
        except KafkaError as error:
            raise ConnectionError(str(error)) from error
        finally:
            producer.close(timeout=5)

    def _produce(self, producer: Any) -> None:
        while not self.stop.wait(PAUSE_SECONDS):
            self.check()
            if self._open < IN_FLIGHT_MAX:
                append = self.next_append()
                future = producer.send(self._topic, append.value.encode(), partition=0)
                future.add_callback(lambda placed, append=append: self.completed(append, placed.offset))
                future.add_errback(lambda _, append=append: self.completed(append, -1))


class AioKafkaProducer(IdempotentProducer):
    def produce(self) -> None:
        try:
            asyncio.run(self._work())
        except AioKafkaError as error:
            raise ConnectionError(str(error)) from error

    async def _work(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.node.bootstrap(), enable_idempotence=True, linger_ms=2, retry_backoff_ms=50
        )
        try:
            await producer.start()
            waiting: deque[asyncio.Task[None]] = deque()
            while not self.stop.is_set():
                self.check()
                append = self.next_append()
                future = await producer.send(self._topic, append.value.encode(), partition=0)
                waiting.append(asyncio.ensure_future(self._wait(append, future)))
                while len(waiting) >= IN_FLIGHT_MAX:
                    await waiting.popleft()
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.gather(*waiting)
        finally:
            await producer.stop()

    async def _wait(self, append: Append, future: Any) -> None:
        try:
            self.completed(append, (await future).offset)
        except AioKafkaError:
            self.completed(append, -1)


class PublishedCursusProducer(IdempotentProducer):
    """It says how many were acknowledged, and not which nor where: known only when all were."""

    def produce(self) -> None:
        config = ProducerConfig(
            topic=self._topic,
            brokers=[self.node.bootstrap("cursus")],
            partitions=1,
            linger_ms=5,
            acks=Acks.ALL,
            idempotent=True,
            batch_size=5,
        )
        sent: list[Append] = []
        with CursusProducer(config) as producer:
            while not self.stop.wait(2 * PAUSE_SECONDS):
                if len(sent) - producer.unique_ack_count < IN_FLIGHT_MAX:
                    sent.append(self.next_append())
                    producer.send(sent[-1].value, key="k")
                self.acknowledged = producer.unique_ack_count
            producer.flush()
            deadline = time.monotonic() + SECONDS_MAX
            while producer.unique_ack_count < len(sent) and time.monotonic() < deadline:
                threading.Event().wait(PAUSE_SECONDS)
            if producer.unique_ack_count == len(sent):
                for append in sent:
                    append.end, append.outcome = time.monotonic(), Outcome.ACKNOWLEDGED


class TransactionalProducer(IdempotentProducer):
    """librdkafka: every third transaction is aborted, the others committed. It counts as served when one was aborted: whoever
    waits for it knows that readers have something not to see.

    A hasty one aborts while records are in flight. When an answer to them was lost, librdkafka (2.16) drops them, keeps its epoch
    and gives their sequence numbers to the next transaction: the node takes its records for a retry of the aborted ones, answers
    with the old offsets, and the commit that follows commits nothing. The checker finds it, in one round of several.
    """

    counts_records = False

    def __init__(self, node: ServerProcess, history: History, topic: str, name: str, *, hasty: bool) -> None:
        super().__init__(node, history, topic, name)
        self._transactions = 0
        self._hasty = hasty

    def produce(self) -> None:
        settings = {"transactional.id": self.name, "linger.ms": 2, "transaction.timeout.ms": 30_000}
        producer = Producer({"bootstrap.servers": self.node.bootstrap(), **RDKAFKA, **settings})
        try:
            producer.init_transactions(SECONDS_MAX)
            while not self.stop.is_set():
                self._transact(producer)
                self.stop.wait(PAUSE_SECONDS)
        except KafkaException as error:
            raise ConnectionError(str(error)) from error

    def _transact(self, producer: Any) -> None:
        commit = self._transactions % 3 != 2
        transaction = Transaction(f"{self.name}-{self._transactions}", commit)
        self._transactions += 1
        self.history.add(transaction)
        producer.begin_transaction()
        for _ in range(TRANSACTION_RECORDS):
            append = self.next_append()
            append.transaction = transaction.name
            producer.produce(
                self._topic, append.value.encode(), partition=0, on_delivery=partial(self._delivered, append)
            )
        # Records are written before it is decided: an abort has something to take back.
        producer.flush(1 if self._hasty and not commit else SECONDS_MAX)
        transaction.start = time.monotonic()
        try:
            if commit:
                self._again_while_retriable(producer.commit_transaction)
            else:
                self._again_while_retriable(producer.abort_transaction)
        except KafkaException as error:
            if not commit or not error.args[0].txn_requires_abort():
                raise
            # The node refused to commit; what follows is an abort, and nothing of it may ever be seen.
            self._again_while_retriable(producer.abort_transaction)
            transaction.commit = False
        transaction.end, transaction.outcome = time.monotonic(), Outcome.ACKNOWLEDGED
        self.acknowledged += not transaction.commit

    def _again_while_retriable(self, end: Any) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                end(10)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _delivered(self, append: Append, error: object, message: Any) -> None:
        self.completed(append, -1 if error is not None else message.offset())


class CommittedReader(Client):
    """librdkafka, `read_committed`, from the beginning on and then as records come."""

    def __init__(self, node: ServerProcess, history: History, topic: str, name: str) -> None:
        super().__init__(node, history, name)
        self._topic = topic
        self._next = 0

    def work(self) -> None:
        consumer = committed_consumer(self.node, self._topic, self._next)
        try:
            while not self.stop.is_set():
                start = time.monotonic()
                found = {
                    each.offset(): each.value().decode() for each in consumer.consume(500, 0.2) if not each.error()
                }
                if found:
                    end = max(found) + 1
                    self.history.add(
                        Read(self.name, self._topic, found, self._next, end, start, time.monotonic(), committed=True)
                    )
                    self._next = end
                    self.acknowledged += len(found)
        finally:
            consumer.close()


def committed_consumer(node: ServerProcess, topic: str, offset: int) -> Any:
    settings = {"isolation.level": "read_committed", "enable.auto.commit": False, "enable.partition.eof": True}
    settings |= {"group.id": "readers", "fetch.wait.max.ms": 100, "check.crcs": True}
    consumer = Consumer({"bootstrap.servers": node.bootstrap(), **RDKAFKA, **settings})
    consumer.assign([TopicPartition(topic, 0, offset)])
    return consumer


def wait_for_transactions(node: ServerProcess, topic: str) -> None:
    """Until none is open in the topic; one whose producer failed runs into its time-out."""
    deadline = time.monotonic() + SECONDS_MAX
    with KafkaConnection(node) as client:
        while True:
            ends = [client.list_offset(topic, LATEST, isolation_level=level).offset for level in (0, 1)]
            if ends[0] == ends[1]:
                return
            assert time.monotonic() < deadline, f"committed readers of {topic} stand at {ends[1]}, it ends at {ends[0]}"
            threading.Event().wait(10 * PAUSE_SECONDS)


def read_committed(node: ServerProcess, topic: str) -> Read:
    """Everything that is committed, to the end of the topic."""
    wait_for_transactions(node, topic)
    return read_to_end(node, topic, committed=True)


def read_to_end(node: ServerProcess, topic: str, *, committed: bool) -> Read:
    """`committed`: there are transactions in it, of which only those are read."""
    start = time.monotonic()
    consumer = committed_consumer(node, topic, 0)
    found: dict[int, str] = {}
    try:
        while time.monotonic() < start + SECONDS_MAX:
            for message in consumer.consume(500, 0.5):
                if message.error() is None:
                    found[message.offset()] = message.value().decode()
                elif message.error().name() == "_PARTITION_EOF":
                    end = max(message.offset(), max(found, default=-1) + 1)
                    return Read(
                        "librdkafka", topic, found, 0, end, start, time.monotonic(), committed=committed, last=True
                    )
    finally:
        consumer.close()
    raise TimeoutError(f"{topic} has no end after {len(found)} records")


def read_with_kcat(node: ServerProcess, topic: str) -> Read | None:
    """None where it is not installed."""
    if shutil.which("kcat") is None:
        return None
    start = time.monotonic()
    words = ["-X", "log_level=0", "-X", "broker.address.family=v4", "-X", "check.crcs=true"]
    command = [
        "kcat",
        "-b",
        node.bootstrap(),
        *words,
        "-C",
        "-t",
        topic,
        "-p",
        "0",
        "-o",
        "0",
        "-e",
        "-q",
        "-f",
        "%o %s\n",
    ]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=False)
    if done.returncode != 0:
        raise ConnectionError(done.stderr.decode(errors="replace"))
    pairs = (line.split(" ", 1) for line in done.stdout.decode().splitlines())
    found = {int(offset): value for offset, value in pairs}
    return Read("kcat", topic, found, 0, max(found, default=-1) + 1, start, time.monotonic(), last=True)
