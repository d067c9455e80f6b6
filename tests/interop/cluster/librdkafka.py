# mypy: disable-error-code="no-untyped-call"
"""librdkafka writes and reads while nodes come and go: an idempotent producer and a member of a group, a thread each."""

import threading
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from tests.interop.kafka.test_kill import IN_FLIGHT_MAX, QUIET

SECONDS_MAX = 120


class LibrdkafkaProgram:
    """The same as the other clients' programs are, from outside."""

    def __init__(self, address: str, topic: str, partitions: str, group: str) -> None:
        self.acked = 0
        self.refused: list[str] = []
        self._seen: set[bytes] = set()
        self._sent = -1
        self._enough = threading.Event()
        self._topic, self._partitions = topic, int(partitions)
        shared = {"bootstrap.servers": address, **QUIET}
        self._producer = Producer({**shared, "enable.idempotence": True, "acks": "all", "linger.ms": 2})
        self._consumer = Consumer({**shared, "group.id": group, "auto.offset.reset": "earliest"})
        self._consumer.subscribe([topic])
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is None:
            self.acked += 1
        else:
            self.refused.append(str(error))

    def _write(self) -> None:
        sent = 0
        while not self._enough.is_set():
            if sent - self.acked - len(self.refused) < IN_FLIGHT_MAX:
                partition = sent % self._partitions
                self._producer.produce(self._topic, b"%d" % sent, partition=partition, on_delivery=self._delivered)
                sent += 1
            self._producer.poll(0.001)
        self._producer.flush(SECONDS_MAX)
        self._sent = sent

    def _read(self) -> None:
        while len(self._seen) != self._sent:
            for message in self._consumer.consume(200, 0.1):
                value = message.value()
                if message.error() is None and value is not None:
                    self._seen.add(value)
        try:
            self._consumer.close()
        except KafkaException as error:
            self.refused.append(str(error))

    def finish(self) -> tuple[int, int]:
        self._enough.set()
        for thread in self._threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        assert (self.refused, self.acked) == ([], self._sent)
        return self._sent, len(self._seen)

    def close(self) -> None:
        self._enough.set()
