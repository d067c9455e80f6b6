"""A blocking Kafka client for tests: typed questions in any version, and raw frames for what no client would send."""

from collections.abc import Sequence
from typing import Any

from tests.adapters.connected import Connected

from braidlog.codec.batch.header import read_header
from braidlog.codec.batch.records import decode_batch, encode_batch
from braidlog.codec.compression import Compression
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.connection import ClientConnection, Response
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.rows import NO_UUID, Message

TIME_MS = 1_700_000_000_000


def batch_of(
    *values: bytes,
    compression: Compression = Compression.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamps: Sequence[int] | None = None,
    keys: Sequence[bytes | None] | None = None,
    transactional: bool = False,
) -> bytes:
    producer_id, epoch, sequence = producer
    return encode_batch(
        list(values),
        keys=keys,
        timestamps=timestamps,
        base_timestamp=TIME_MS if timestamps is None else timestamps[0],
        compression=compression,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def values_of(records: Any) -> list[tuple[int, bytes | None]]:
    """Offsets and values of a partition's records."""
    found = []
    position = 0
    while position < len(records):
        rows = decode_batch(records, position, decompressed_bytes_max=1 << 24)
        found += [(row[0], row[3]) for row in rows]
        position += read_header(records, position).size_bytes
    return found


def produce_of(
    *parts: tuple[str, int, bytes | None],
    acks: int = -1,
    topic_ids: dict[str, bytes] | None = None,
    transactional_id: str | None = None,
) -> d.ProduceRequest:
    return d.ProduceRequest(
        transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            d.ProduceRequestTopic(
                name, (topic_ids or {}).get(name, NO_UUID), [d.ProduceRequestPartition(number, records)]
            )
            for name, number, records in parts
        ],
    )


def fetch_of(
    *parts: tuple[str, int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    topic_ids: dict[str, bytes] | None = None,
    current_leader_epoch: int = -1,
    **more: Any,
) -> d.FetchRequest:
    return d.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[
            d.FetchRequestTopic(
                name,
                (topic_ids or {}).get(name, NO_UUID),
                [
                    d.FetchRequestPartition(
                        number,
                        current_leader_epoch,
                        offset,
                        partition_max_bytes=partition_max_bytes,
                    )
                ],
            )
            for name, number, offset in parts
        ],
        **more,
    )


class Client(Connected):
    """One connection. `ask` is typed; without a version it speaks the highest of both sides."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(server.address("kafka"))
        self.connection = ClientConnection("test")

    def send(self, *messages: Message, version: int | None = None) -> None:
        self.socket.sendall(b"".join(self.connection.request(message, version) for message in messages))

    def receive(self) -> Any:
        event = self.next_event()
        assert isinstance(event, Response), event
        return event.message

    def ask(self, message: Message, version: int | None = None) -> Any:
        self.send(message, version=version)
        return self.receive()

    # -- short words for long calls ----------------------------------------------------------------------------

    def topic_id(self, topic: str) -> bytes:
        """The topic's id; the topic is made if it is not there."""
        answer = self.ask(c.MetadataRequest([c.MetadataRequestTopic(name=topic)]), 12)
        assert answer.topics[0].error_code == 0, answer
        identity: bytes = answer.topics[0].topic_id
        return identity

    def produce(
        self, topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, version: int = 12
    ) -> d.ProduceResponsePartition:
        answer = self.ask(produce_of((topic, partition, records), acks=acks), version)
        found: d.ProduceResponsePartition = answer.responses[0].partition_responses[0]
        return found

    def fetch(
        self, topic: str, offset: int = 0, *, partition: int = 0, version: int = 12, **more: Any
    ) -> d.FetchResponsePartition:
        answer = self.ask(fetch_of((topic, partition, offset), **more), version)
        assert answer.error_code == 0
        found: d.FetchResponsePartition = answer.responses[0].partitions[0]
        return found

    def values(self, topic: str, offset: int = 0, **more: Any) -> list[bytes | None]:
        return [value for at, value in values_of(self.fetch(topic, offset, **more).records) if at >= offset]

    def list_offset(
        self, topic: str, timestamp: int, *, partition: int = 0, version: int = 11, isolation_level: int = 0
    ) -> d.ListOffsetsResponsePartition:
        asked = d.ListOffsetsRequestPartition(partition, timestamp=timestamp)
        answer = self.ask(
            d.ListOffsetsRequest(-1, isolation_level, [d.ListOffsetsRequestTopic(topic, [asked])]), version
        )
        found: d.ListOffsetsResponsePartition = answer.topics[0].partitions[0]
        return found

    is_closed = Connected.is_closed_silently
