"""Batches and PUBLISH: translate, append, acknowledge.

Chooses a partition where the client did not, and maps sequences that begin at 1 to the log's.
"""

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.adapters.cursus.cluster import leader_of
from braidlog.adapters.cursus.errors import AnsweredError, failure_of
from braidlog.adapters.cursus.forwarding import forward, is_led_here
from braidlog.adapters.cursus.records import encode_batches, encode_whole
from braidlog.adapters.cursus.services import Services
from braidlog.codec.batch.header import read_header
from braidlog.coordinator.transactions.named_producers import NamedProducer
from braidlog.model.errors import BrokerError, NotLeaderError, Reason
from braidlog.model.runtime.cooperative import YieldCounter, yield_to_loop
from braidlog.partition.produce.append import SEQUENCES, Acks, Appended, Written
from braidlog.wire.cursus import answers as a
from braidlog.wire.cursus import requests as r
from braidlog.wire.cursus.batch import OBJECTS_MAX, Batch, BatchRecord
from braidlog.wire.cursus.failures import failure_line, parse_failure_line
from braidlog.wire.cursus.messages import Request

ANY_PARTITION = -1
KEY_BYTES_HASHED_MAX = 512 * 1024
"""Maximum bytes of keys hashed for one batch."""
KEY_BYTES_SLICE = 64 * 1024
"""Maximum key bytes per slice of the event loop: hashing a megabyte blocks other clients as long as is tolerable."""
PARTITIONS_SLICE = 64
"""Partitions written per slice of the event loop."""

_ACKS = {r.Acks.NONE: Acks.NONE, r.Acks.LEADER: Acks.LEADER, r.Acks.ALL: Acks.ALL, r.Acks.ALL_WORD: Acks.ALL}
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_rounds: Iterator[int] = count()

Place = tuple[int, Sequence[BatchRecord]]
"""A partition, and its records."""


def hash_key(key: bytes) -> int:
    """FNV-1a with 64 bits: `partitioner=hash_key` of the published brokers."""
    value = _FNV_OFFSET
    for byte in key:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value


def choose_partition(services: Services, topic: str, key: bytes) -> int:
    """Return a key's partition; without a key, partitions in rotation."""
    partitions = services.hosting.meta(topic).partitions
    return (hash_key(key) if key else next(_rounds)) % partitions


async def produce(request: Request, services: Services, conversation: Conversation) -> a.Ack:
    batch: Batch = request.message
    acks = _ACKS[r.Acks(batch.acks)]
    places = await _divide(services, batch, conversation)
    leader = leader_of(batch.topic, places[0][0] if places else 0, services, conversation)[0]
    if batch.idempotent:
        by = conversation.principal
        stored = [(await _append_once(services, batch.topic, *place, acks, by)).last_offset for place in places]
        return _ack(batch, leader, "OK", max(stored, default=-1))
    stored, error = await _append_everywhere(request, services, places, acks, conversation)
    if error is None:
        return _ack(batch, leader, "OK", max(stored, default=-1))
    if not stored:
        # No single node can be named for several partitions.
        raise error if len(places) == 1 else BrokerError(error.reason, str(error))
    # Stored records stay: the protocol document has a status for that.
    return _ack(batch, leader, "PARTIAL", max(stored), failure_line(failure_of(request, error)))


async def _append_everywhere(
    request: Request, services: Services, places: Sequence[Place], acks: Acks, conversation: Conversation
) -> tuple[list[int], BrokerError | None]:
    """Append to partitions led by this node, and forward the rest to their leaders. See `_append_each`."""
    topic = request.message.topic
    away = [place for place in places if not is_led_here(services, topic, place[0])] if len(places) > 1 else []
    if not away or conversation.is_forwarded:
        return await _append_each(services, topic, places, acks, conversation)
    here = [place for place in places if is_led_here(services, topic, place[0])]
    with conversation.alone():  # the client's next request must not be written first
        stored, error = await _append_each(services, topic, here, acks, conversation)
        for start in range(0, len(away), PARTITIONS_SLICE):
            asked = [_append_away(request, services, place, conversation) for place in away[start:][:PARTITIONS_SLICE]]
            for each in await services.forwarding.together(asked):
                if isinstance(each, BrokerError):
                    error = error or each
                else:
                    stored.append(each)
    return stored, error


async def _append_away(request: Request, services: Services, place: Place, conversation: Conversation) -> int:
    batch = msgspec.structs.replace(request.message, partition=place[0], records=place[1])
    refusal = NotLeaderError(batch.topic, batch.partition, "another node leads it")
    part = msgspec.structs.replace(request, message=batch)
    ack: a.Ack = await forward(batch, refusal, services, conversation, lambda: produce(part, services, conversation))
    if ack.status != "OK":
        raise AnsweredError(parse_failure_line(ack.error))
    return ack.last_offset


async def _append_each(
    services: Services, topic: str, places: Sequence[Place], acks: Acks, conversation: Conversation
) -> tuple[list[int], BrokerError | None]:
    """Write to the partitions one by one, then wait for all of them together.

    Returns the last offset of each partition that was written, and the error of the first that was not.
    """
    stored: list[int] = []
    written: list[Written] = []
    error = None
    if len(places) <= PARTITIONS_SLICE:
        error = await _write_each(services, topic, places, acks, written)
    else:
        with conversation.alone():  # the client's next request must not be written first
            for start in range(0, len(places), PARTITIONS_SLICE):
                part = places[start : start + PARTITIONS_SLICE]
                error = await _write_each(services, topic, part, acks, written)
                if error is not None:
                    break
                await yield_to_loop()
    if len(written) > 1:
        services.append.sync_together(written)
    for each in written:
        try:
            stored.append((await services.append.acknowledge(each, acks=acks)).last_offset)
        except BrokerError as refused:
            error = error or refused
    return stored, error


async def _write_each(
    services: Services, topic: str, places: Sequence[Place], acks: Acks, written: list[Written]
) -> BrokerError | None:
    """Write to the partitions one by one; return the error of one that failed."""
    await services.append.ready(topic, *(partition for partition, _ in places))
    try:
        for partition, records in places:
            data = encode_batches(records, services.runtime.now_ms())
            written.append(services.append.write(topic, partition, data, acks=acks))
    except BrokerError as refused:
        return refused
    return None


async def _divide(services: Services, batch: Batch, conversation: Conversation) -> list[Place]:
    """Split a batch by partition. A batch with sequences is not split: a retry would look like a gap."""
    if batch.partition != ANY_PARTITION:
        services.hosting.partition(batch.topic, batch.partition)
        return [(batch.partition, batch.records)] if batch.records else []
    if batch.idempotent and batch.records:
        return [(choose_partition(services, batch.topic, batch.records[0].producer_id.encode()), batch.records)]
    keyless = choose_partition(services, batch.topic, b"")
    size = _check_keys(batch.records)
    if size <= KEY_BYTES_SLICE:
        return sorted(_places(services, batch, batch.records, keyless, {}).items())
    places: dict[int, list[BatchRecord]] = {}
    with conversation.alone():  # the client's next request must not be written first
        for part in _slices(batch.records):
            _places(services, batch, part, keyless, places)
            await yield_to_loop()
    return sorted(places.items())


def _places(
    services: Services, batch: Batch, records: Sequence[BatchRecord], keyless: int, places: dict[int, list[BatchRecord]]
) -> dict[int, list[BatchRecord]]:
    for record in records:
        place = choose_partition(services, batch.topic, record.key) if record.key else keyless
        places.setdefault(place, []).append(record)
    return places


def _slices(records: Sequence[BatchRecord]) -> Iterator[Sequence[BatchRecord]]:
    """Yield slices of records whose keys have about `KEY_BYTES_SLICE` bytes."""
    pace, start = YieldCounter(KEY_BYTES_SLICE), 0
    for number, record in enumerate(records, 1):
        if pace.is_due(len(record.key)):
            yield records[start:number]
            start = number
    yield records[start:]


def _check_keys(records: Sequence[BatchRecord]) -> int:
    """Return the bytes of the keys."""
    if len(records) > OBJECTS_MAX:
        text = f"{len(records)} records without a partition; the broker chooses for {OBJECTS_MAX} of a batch"
        raise BrokerError(Reason.RECORD_TOO_LARGE, f"{text}: set the partition, or send fewer records")
    size = sum(len(record.key) for record in records)
    if size > KEY_BYTES_HASHED_MAX:
        text = f"keys of {size} bytes without a partition; the broker chooses by {KEY_BYTES_HASHED_MAX} of a batch"
        raise BrokerError(Reason.RECORD_TOO_LARGE, f"{text}: set the partition, or send fewer records")
    return size


def _ack(batch: Batch, leader: str, status: str, last_offset: int, error: str = "") -> a.Ack:
    first = batch.records[0] if batch.records else BatchRecord(b"")
    return a.Ack(
        status=status,
        last_offset=last_offset,
        producer_epoch=first.epoch,
        producer_id=first.producer_id,
        seq_start=batch.sequence_start,
        seq_end=batch.sequence_end,
        leader=leader,
        error=error,
    )


def record_of(message: r.Publish | r.TxnPublish) -> BatchRecord:
    return BatchRecord(
        message.message,
        message.key,
        sequence=message.sequence,
        producer_id=message.producer_id,
        epoch=message.epoch,
    )


async def publish(request: Request, services: Services, conversation: Conversation) -> a.Ack | a.Ok:
    message: r.Publish = request.message
    partition = ANY_PARTITION if message.partition is None else message.partition
    batch = Batch(
        message.topic,
        partition,
        (record_of(message),),
        message.acks,
        message.idempotent,
        message.sequence,
        message.sequence,
    )
    ack = await produce(Request(request.operation, batch, request.spelling), services, conversation)
    return a.Ok() if message.acks is r.Acks.NONE else ack


async def _append_once(
    services: Services, topic: str, partition: int, records: Sequence[BatchRecord], acks: Acks, by: str
) -> Appended:
    """Append a batch with sequences; records that the log already has are omitted."""
    services.hosting.partition(topic, partition).require_leader()
    first = check_sequences(records)
    producer = await services.producer_names.resolve(first.producer_id, first.epoch, by=by)
    now_ms = services.runtime.now_ms()
    data = _encode(records, producer, now_ms)
    header = read_header(data)
    await services.append.ready(topic, partition)
    if (written := services.append.written_before(topic, partition, header)) is not None:
        return await services.append.acknowledge(written, acks=acks)
    if known := services.append.stored_before(topic, partition, header):
        data = _encode(records[known:], producer, now_ms)
    return await services.append.acknowledge(services.append.write(topic, partition, data, acks=acks), acks=acks)


def _encode(records: Sequence[BatchRecord], producer: NamedProducer, now_ms: int) -> bytes:
    return encode_whole(
        records,
        now_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=(records[0].sequence - 1) % SEQUENCES,
    )


def check_sequences(records: Sequence[BatchRecord]) -> BatchRecord:
    """Return the first record, if all records have one producer and consecutive sequences."""
    first = records[0]
    if first.sequence < 1 or not first.producer_id:
        raise BrokerError(
            Reason.INVALID_RECORD, "an idempotent record needs a producer id and a sequence number of at least 1"
        )
    for place, record in enumerate(records):
        if record.producer_id != first.producer_id or record.epoch != first.epoch:
            raise BrokerError(Reason.INVALID_RECORD, "an idempotent batch must have one producer and one epoch")
        if record.sequence != first.sequence + place:
            raise BrokerError(
                Reason.OUT_OF_ORDER_SEQUENCE,
                f"expected sequence {first.sequence + place} in the batch, received {record.sequence}",
            )
    return first
