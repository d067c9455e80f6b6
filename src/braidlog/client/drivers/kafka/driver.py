"""The kafka driver: whole record batches, idempotent producers, groups, offsets by time.

Maps the port's methods to Kafka's requests. The other modules of this package handle routing, groups, settings,
access rules, users, quotas, transactions, batches and error codes. A retried batch carries the same bytes under the
same sequence numbers; each partition has one batch in flight.

| URL option | values |
|---|---|
| `compression=` | `none`, `gzip`, `snappy`, `lz4`, `zstd`: codec of written batches; all codecs can be read |
| `isolation=` | `read_uncommitted`, `read_committed` |
| `sasl=` | `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`: how the principal in the URL authenticates |
| `session_timeout_ms=` | a member without a heartbeat for this long is removed from its group |
"""

import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from braidlog.client.drivers.cluster import Place
from braidlog.client.drivers.contract import (
    Acks,
    Batch,
    BatchLimits,
    Capabilities,
    Fetched,
    FetchRequest,
    Headers,
    Identity,
    Placed,
    Span,
)
from braidlog.client.drivers.kafka import records as r
from braidlog.client.drivers.kafka.access import AccessDriver
from braidlog.client.drivers.kafka.cluster import ClusterDriver
from braidlog.client.drivers.kafka.groups import GroupDriver
from braidlog.client.drivers.kafka.quotas import QuotasDriver
from braidlog.client.drivers.kafka.routing import INT_MAX, only, settings_of
from braidlog.client.drivers.kafka.settings import SettingsDriver
from braidlog.client.drivers.kafka.transactions import TransactionsDriver
from braidlog.client.drivers.kafka.users import UsersDriver
from braidlog.client.drivers.routed import CONTROL, PRODUCE, fetch_channel
from braidlog.client.engine.retry import Backoff, Policy
from braidlog.client.errors import Address, ClientError, ConnectError, NoAnswerError, RecordError, Refusal, RefusedError
from braidlog.client.schemes import Target
from braidlog.codec.batch.header import NO_PRODUCER
from braidlog.codec.batch.read_committed import AbortedRange
from braidlog.codec.errors import ProtocolError
from braidlog.model.record import NewRecord
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.messages import topics as m
from braidlog.wire.kafka.messages import transactions as t

T = TypeVar("T")

LATEST, EARLIEST = -1, -2
"""Special timestamps for the ends of a log."""
_NOBODY = (NO_PRODUCER, -1)
NOWHERE = -1
_ACKS = {Acks.LEADER: 1, Acks.ALL: -1}
_AS_DEFAULT = -1
_CONSUMER = -1
"""The replica number of a client."""
_BATCH_BYTES_MAX = 8 * 1024 * 1024
"""The largest batch that this client builds. A server may accept less (Apache Kafka: 1 MiB by default), and reports
it."""
_RECORDS_MAX = 1_000_000


class KafkaDriver(
    GroupDriver, SettingsDriver, AccessDriver, UsersDriver, QuotasDriver, TransactionsDriver, ClusterDriver
):
    capabilities = Capabilities(
        keys=True,
        null_values=True,
        headers=Headers.ANY,
        timestamps=True,
        stamps=True,
        idempotence=True,
        tells_uncommitted=True,
        finds_times=True,
        groups=True,
        many_topics=True,
        static_members=True,
        group_admin=True,
        group_offsets=True,
        deletes=True,
        settings=True,
        trims=True,
        rules=True,
        users=True,
        quotas=True,
        transactions=True,
        cluster=True,
    )

    def __init__(
        self, target: Target, options: dict[str, str], policy: Policy, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(target, settings_of(options), policy, tls)
        self._producers: dict[str, tuple[int, int]] = {}
        """The producer id and epoch from the server, by producer name."""

    # -- topics ------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, partitions: int) -> None:
        await self.create_topic_with(topic, partitions, {})

    async def create_topic_with(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        timeout_ms = self._timeout_ms
        configs = [m.ConfigValue(name, value) for name, value in settings.items()]
        new_topic = m.CreateTopicsRequestTopic(topic, partitions, _AS_DEFAULT, configs=configs)
        answer: m.CreateTopicsResponse = await self.ask_controller(
            m.CreateTopicsRequest([new_topic], timeout_ms), timeout_ms
        )
        for each in answer.topics:
            self.check_code(each.error_code, each.error_message)
        await self._until(topic, there=True)

    async def delete_topic(self, topic: str) -> None:
        timeout_ms = self._timeout_ms
        # Until version 5 the request has names only, then names or ids: fields that a version lacks are not written.
        message = m.DeleteTopicsRequest([m.DeleteTopicsRequestTopic(topic)], [topic], timeout_ms)
        answer: m.DeleteTopicsResponse = await self.ask_controller(message, timeout_ms)
        for response in answer.responses:
            self.check_code(response.error_code, response.error_message)
        await self._until(topic, there=False)

    async def _until(self, topic: str, *, there: bool) -> None:
        """Wait until all brokers report a topic change: they learn of it a little later."""
        backoff = Backoff(self._policy, self._policy.request_timeout)
        while await self._exists(topic) is not there:
            if not await backoff.pause():
                raise NoAnswerError(f"topic {topic!r} was changed, but not every broker knows it yet")

    async def _exists(self, topic: str) -> bool | None:
        """Return whether the topic exists; None during a change, when some partition has no leader."""
        described = only((await self.metadata([topic])).topics, "Metadata")
        if described.error_code:
            return False if described.error_code == E.UNKNOWN_TOPIC_OR_PARTITION else None
        return (
            True
            if described.partitions and not any(partition.error_code for partition in described.partitions)
            else None
        )

    async def list_topics(self) -> list[str]:
        metadata = await self.metadata(None)
        return sorted(
            topic.name for topic in metadata.topics if topic.name and not topic.is_internal and not topic.error_code
        )

    async def partitions(self, topic: str) -> int:
        return len((await self.describe(topic)).partitions)

    async def span(self, topic: str, partition: int) -> Span:
        earliest = await self._offset(topic, partition, EARLIEST)
        return Span(earliest, max(await self._offset(topic, partition, LATEST), earliest))

    async def spans(self, topics: Sequence[str]) -> dict[str, tuple[Span, ...]]:
        """Send one Metadata for all topics, then two ListOffsets per leader."""
        described = {each.name: each for each in (await self.metadata(topics)).topics if not each.error_code}
        counts = {
            topic: len(described[topic].partitions) if topic in described else await self.partition_count(topic)
            for topic in topics
        }
        places: dict[Address, list[Place]] = {}
        for place in [(topic, number) for topic, count in counts.items() for number in range(count)]:
            places.setdefault(await self.leader_of(*place), []).append(place)
        earliest: dict[Place, int] = {}
        latest: dict[Place, int] = {}
        for leader, led in places.items():
            earliest |= await self.list_offsets(leader, dict.fromkeys(led, EARLIEST))
            latest |= await self.list_offsets(leader, dict.fromkeys(led, LATEST))
        return {
            topic: tuple(
                Span(earliest[topic, number], max(latest[topic, number], earliest[topic, number]))
                for number in range(count)
            )
            for topic, count in counts.items()
        }

    async def add_partitions(self, topic: str, partitions: int) -> None:
        timeout_ms = self._timeout_ms
        growth = m.CreatePartitionsRequestTopic(topic, partitions, None)
        message = m.CreatePartitionsRequest([growth], timeout_ms)
        answer: m.CreatePartitionsResponse = await self.ask_controller(message, timeout_ms)
        result = only(answer.results, "CreatePartitions")
        self.check_code(result.error_code, result.error_message)
        await self._until(topic, there=True)

    async def trim(self, topic: str, partition: int, offset: int) -> int:
        place = topic, partition
        asked = m.DeleteRecordsRequestTopic(topic, [m.DeleteRecordsRequestPartition(partition, offset)])
        message = m.DeleteRecordsRequest([asked], self._timeout_ms)
        answer: m.DeleteRecordsResponse = await self.ask_leader(place, message, CONTROL, self._timeout_ms)
        result = only([part for each in answer.topics for part in each.partitions], "DeleteRecords")
        self.check_code(result.error_code, place=place)
        return result.low_watermark

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        offset = await self._offset(topic, partition, max(timestamp_ms, 0))
        return None if offset == NOWHERE else offset

    async def _offset(self, topic: str, partition: int, timestamp: int) -> int:
        place = topic, partition
        offsets = await self.list_offsets(await self.leader_of(*place), {place: timestamp})
        return only(list(offsets.values()), "ListOffsets")

    async def list_offsets(self, leader: Address, timestamps: Mapping[Place, int]) -> dict[Place, int]:
        """Return the first offset at or after a time (or LATEST, EARLIEST) of partitions that a node leads; NOWHERE
        if none."""
        topics = by_topic(
            timestamps, lambda place: d.ListOffsetsRequestPartition(place[1], timestamp=timestamps[place])
        )
        asked = [d.ListOffsetsRequestTopic(topic, parts) for topic, parts in topics.items()]
        message = d.ListOffsetsRequest(_CONSUMER, self.settings.isolation, asked, self._timeout_ms)
        answer: d.ListOffsetsResponse = await self.ask(message, leader)
        offsets: dict[Place, int] = {}
        for topic in answer.topics:
            for part in topic.partitions:
                place = topic.name, part.partition_index
                self.check_code(part.error_code, place=place)
                offsets[place] = part.offset
        return offsets

    # -- records -----------------------------------------------------------------------------------------------

    def limits(self, topic: str) -> BatchLimits:  # noqa: ARG002 - every topic has the same
        return BatchLimits(_BATCH_BYTES_MAX, _RECORDS_MAX, _BATCH_BYTES_MAX)

    def weigh(self, record: NewRecord) -> int:
        return r.weigh(record)

    def check(self, topic: str, record: NewRecord) -> int:
        if record.timestamp_ms is not None and not 0 <= record.timestamp_ms < 2**63:
            raise RecordError(f"a timestamp must be a number of milliseconds since 1970, not {record.timestamp_ms}")
        return super().check(topic, record)

    async def produce(self, batch: Batch) -> Sequence[Placed | ClientError]:
        place = batch.topic, batch.partition
        producer, sequence = await _not_sent_yet(self._producer(batch.identity))
        leader = await _not_sent_yet(self.leader_of(*place))
        within = None if batch.identity is None else batch.identity.transaction
        sealed = r.batch_of(
            batch.records, self.settings.compression, producer, sequence, transactional=within is not None
        )
        timeout_ms = self._timeout_ms
        message = d.ProduceRequest(
            None if within is None else within.transactional_id,
            _ACKS[batch.acks],
            timeout_ms,
            [d.ProduceRequestTopic(batch.topic, partition_data=[d.ProduceRequestPartition(batch.partition, sealed)])],
        )
        answer: d.ProduceResponse = await self.ask(message, leader, PRODUCE, timeout_ms)
        stored = only([part for response in answer.responses for part in response.partition_responses], "Produce")
        if stored.error_code:
            error = self.refuse(stored.error_code, stored.error_message, place=place)
            if stored.record_errors and error.reason is Refusal.TIMED_OUT:
                # The answer names records only if the batch was dropped: they decide what the code leaves open.
                error = RefusedError(Refusal.BUSY, self.name, error.code, error.words)
            raise error
        if stored.base_offset < 0:
            raise NoAnswerError(f"kafka acknowledged {batch.topic}/{batch.partition} without its offset")
        return [Placed(batch.topic, batch.partition, stored.base_offset + at) for at in range(len(batch.records))]

    async def _producer(self, identity: Identity | None) -> tuple[tuple[int, int], int]:
        """Return id and epoch, and the sequence number of the first record: Kafka counts from 0."""
        if identity is None:
            return _NOBODY, -1
        if (within := identity.transaction) is not None:
            return (within.producer_id, within.epoch), (identity.sequence - 1) % r.SEQUENCES
        known = self._producers.get(identity.producer)
        if known is None:
            answer: t.InitProducerIdResponse = await self.ask_checked(t.InitProducerIdRequest(None, INT_MAX))
            known = self._producers[identity.producer] = (answer.producer_id, answer.producer_epoch)
        return known, (identity.sequence - 1) % r.SEQUENCES

    async def fetch(self, request: FetchRequest) -> Fetched:
        """Fetch without naming the member: Kafka fences commits, not fetches."""
        answer = await self.fetch_partition(request)
        data, aborted = answer.records or b"", self.aborted_in(answer)
        assert isinstance(data, bytes | bytearray | memoryview), (
            "the server sends file slices; a client never receives them"
        )
        try:
            return r.fetched(request.place, request.offset, data, high_watermark=answer.high_watermark, aborted=aborted)
        except ProtocolError as error:
            raise RefusedError(Refusal.FAILED, self.name, "", f"the records are damaged: {error}") from error

    async def fetch_partition(self, request: FetchRequest, bare: int = 0) -> d.FetchResponsePartition:
        """Return the leader's answer for one partition."""
        place = request.place
        message = self.fetch_request({place: request.offset}, request.bytes_max, request.wait_ms, bare)
        answer: d.FetchResponse = await self.ask_leader(place, message, fetch_channel(request.slot), request.wait_ms)
        self.check_code(answer.error_code, place=place)
        part = only([part for response in answer.responses for part in response.partitions], "Fetch")
        about = f"{request.topic}/{request.partition} at offset {request.offset}"
        self.check_code(part.error_code, about=about, place=place)
        return part

    def fetch_request(
        self, offsets: Mapping[Place, int], bytes_max: int, wait_ms: int, bare: int = 0
    ) -> d.FetchRequest:
        """Return a request for records from these offsets on."""
        bytes_max = min(bytes_max, INT_MAX)
        topics = by_topic(
            offsets,
            lambda place: d.FetchRequestPartition(place[1], fetch_offset=offsets[place], partition_max_bytes=bytes_max),
        )
        return d.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=bytes_max,
            isolation_level=self.settings.isolation,
            topics=[d.FetchRequestTopic(topic, partitions=parts) for topic, parts in topics.items()],
            bare=bare,
        )

    def aborted_in(self, answer: d.FetchResponsePartition) -> tuple[AbortedRange, ...]:
        """Return the aborted transactions to hide; none for `read_uncommitted`."""
        aborted = answer.aborted_transactions or [] if self.settings.committed_only else []
        return tuple(AbortedRange(each.first_offset, each.producer_id) for each in aborted)


def by_topic(places: Iterable[Place], make: Callable[[Place], T]) -> dict[str, list[T]]:
    grouped: dict[str, list[T]] = {}
    for place in places:
        grouped.setdefault(place[0], []).append(make(place))
    return grouped


async def _not_sent_yet(asked: Awaitable[T]) -> T:
    """Turn a missing answer into `ConnectError`: the batch itself was not sent, so its outcome is certain."""
    try:
        return await asked
    except NoAnswerError as error:
        raise ConnectError(f"not sent: {error}") from error
