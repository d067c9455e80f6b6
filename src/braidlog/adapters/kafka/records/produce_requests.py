"""Produce.

docs/dialects/kafka.md lists which batches are accepted, and the errors of others.
Invariant: a batch is written to the log unchanged. Every partition of a request has its own result. `acks` 0 has no
answer: if such a request fails the connection closes, so that the client notices.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.errors import Refusal, code_of
from braidlog.adapters.kafka.records.refused_batches import RefusedBatches
from braidlog.adapters.kafka.routes import Route, on_topics, on_transactional_id, refused, resolved
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import add_to_produce, named, unknown
from braidlog.adapters.routing import Denied, Need
from braidlog.codec.batch.header import COMPRESSION_MASK, MAGIC, TRANSACTIONAL, BatchHeader, Buffer, read_header
from braidlog.codec.compression import Compression
from braidlog.model.errors import BrokerError, ProtocolError, StorageFault
from braidlog.model.runtime.cooperative import SLICE, YieldCounter, yield_to_loop
from braidlog.partition.produce.append import Acks, Allowance, Written
from braidlog.partition.produce.schema_check import heads_of_batches
from braidlog.security.authorization import Kind, Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import data as d

ZSTD_SINCE = 7
"""The first version of Produce with zstd: older clients could not read it back."""
ADDS_SINCE = 12
"""From this version on a batch adds its partition to the transaction (KIP-890): clients do not send
AddPartitionsToTxn.
"""
_MAGIC_AT = 16
_PRODUCER_AT = slice(43, 51)
_COMPRESSION_MAX = max(Compression)
_LOOKED_INTO = COMPRESSION_MASK | TRANSACTIONAL
"""Batch attributes that need a check with the coordinator."""

_UNVERIFIED = {
    E.NOT_COORDINATOR: E.NOT_ENOUGH_REPLICAS,
    E.COORDINATOR_NOT_AVAILABLE: E.NOT_ENOUGH_REPLICAS,
    E.COORDINATOR_LOAD_IN_PROGRESS: E.NOT_ENOUGH_REPLICAS,
    E.CONCURRENT_TRANSACTIONS: E.NOT_ENOUGH_REPLICAS,
}
"""Transaction errors that producers do not expect here: they retry after the replacement (KIP-890)."""
_TRIED_AGAIN = frozenset(
    {
        E.NOT_LEADER_OR_FOLLOWER,
        E.NOT_ENOUGH_REPLICAS,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.UNKNOWN_TOPIC_ID,
        E.COORDINATOR_NOT_AVAILABLE,
        E.REQUEST_TIMED_OUT,
        E.KAFKA_STORAGE_ERROR,
    }
)
"""Codes of a batch that was not written, after which its producer sends it again unchanged."""
_ACKS = {each.value: each for each in Acks}
REFUSE = refused(
    d.ProduceResponse, {"responses": "topic_data", "partition_responses": "partition_data"}, {"base_offset": -1}
)
Partition = d.ProduceRequestPartition


class _Attempt(NamedTuple):
    """The progress of one partition."""

    number: int
    written: Written | None
    code: E
    text: str | None
    is_dropped: bool = False
    """The disk write failed, and nothing was kept."""


def produce(
    refused: RefusedBatches, request: Request, services: Services, conversation: Conversation, denied: Denied
) -> Any:  # noqa: ANN401 - an answer, or a coroutine
    """Write one batch that needs no check immediately, as most do, and answer if nothing must be awaited."""
    message: d.ProduceRequest = request.message
    topics, acks = message.topic_data, _ACKS.get(message.acks)
    is_one = len(topics) == 1 and len(topics[0].partition_data) == 1
    if is_one and acks is not None and not denied and services.intake.is_idle(conversation):
        topic = topics[0]
        attempt = _attempt_at_once(refused, request, topic, topic.partition_data[0], services)
        if attempt is not None:
            answer = _settled(attempt, acks, services)
            if answer is None:
                return _produced_one(attempt, topic, acks, message.timeout_ms, services, conversation)
            return _answer([d.ProduceResponseTopic(topic.name, topic.topic_id, [answer])], acks, services, conversation)
    return _produce(refused, request, services, conversation, denied)


async def _produced_one(
    attempt: _Attempt,
    topic: d.ProduceRequestTopic,
    acks: Acks,
    timeout_ms: int,
    services: Services,
    conversation: Conversation,
) -> d.ProduceResponse | None:
    settled = [await _settle(attempt, acks, timeout_ms, services)]
    return _answer([d.ProduceResponseTopic(topic.name, topic.topic_id, settled)], acks, services, conversation)


async def _produce(
    refused: RefusedBatches, request: Request, services: Services, conversation: Conversation, denied: Denied
) -> d.ProduceResponse | None:
    message: d.ProduceRequest = request.message
    acks = _ACKS.get(message.acks)
    if acks is None:
        return REFUSE(
            request,
            E.INVALID_REQUIRED_ACKS,
            f"kafka does not support acks={message.acks}; supported: -1 (all), 0 (none), 1 (leader)",
        )
    intake = services.intake
    if not intake.begin_batch(conversation):
        await intake.wait(conversation, _size(message))
    allowance = intake.allowance()
    attempts: list[list[_Attempt]] = []
    pace = YieldCounter() if request.parts > SLICE else None
    try:
        for topic in message.topic_data:
            attempts.append([])
            for each in topic.partition_data:
                if pace is not None and pace.is_due():
                    await yield_to_loop()
                attempts[-1].append(await _attempt(refused, request, topic, each, services, denied, allowance))
    finally:
        intake.end_batch(conversation)
    if len(attempts) > 1 or (attempts and len(attempts[0]) > 1):
        _sync_together(attempts, services)
    responses = []
    for topic, tried in zip(message.topic_data, attempts, strict=True):
        settled: list[d.ProduceResponsePartition] = []
        for attempt in tried:
            if pace is not None and pace.is_due():
                await yield_to_loop()
            answer = _settled(attempt, acks, services)
            settled.append(answer or await _settle(attempt, acks, message.timeout_ms, services))
        responses.append(d.ProduceResponseTopic(topic.name, topic.topic_id, settled))
    return _answer(responses, acks, services, conversation)


def _answer(
    responses: list[d.ProduceResponseTopic], acks: Acks, services: Services, conversation: Conversation
) -> d.ProduceResponse | None:
    if acks is Acks.NONE:
        # Its client reads no answer: closing the connection reports the failure.
        if any(each.error_code for topic in responses for each in topic.partition_responses):
            conversation.close()
        return None
    return add_to_produce(d.ProduceResponse(responses), services, conversation)


def _sync_together(attempts: list[list[_Attempt]], services: Services) -> None:
    written = [each.written for tried in attempts for each in tried if each.written is not None]
    services.append.sync_together(written)


def _attempt_at_once(
    refused: RefusedBatches,
    request: Request,
    topic: d.ProduceRequestTopic,
    partition: Partition,
    services: Services,
) -> _Attempt | None:
    """Write an authorized batch if nothing must be awaited; None: nothing was done."""
    append, records = services.append, partition.records
    name = named(services, topic.name, topic.topic_id)
    if name is None or not records:
        return None
    try:
        header = _checked_header(records, request.version)
    except (BrokerError, ProtocolError):
        return None  # `_attempt` reports the error
    if header.attributes & _LOOKED_INTO or append.checks_schemas(name) or not append.is_ready(name, partition.index):
        return None
    try:
        return _write(refused, request, topic, partition, name, header, services)
    except (BrokerError, ProtocolError, StorageFault) as error:
        return _failed(error, refused, topic, partition)


async def _attempt(
    refused: RefusedBatches,
    request: Request,
    topic: d.ProduceRequestTopic,
    partition: Partition,
    services: Services,
    denied: Denied,
    allowance: Allowance,
) -> _Attempt:
    """Write one batch, if it is permitted."""
    name = named(services, topic.name, topic.topic_id)
    if name is None:
        code, text = unknown(topic.topic_id), "unknown topic id"
        return _not_written(_Attempt(partition.index, None, code, text), refused, topic, partition)
    try:
        denied.check(name)
        records = partition.records or b""
        header = _checked_header(records, request.version)
        compressed, schemas_checked = header.compression != Compression.NONE, services.append.checks_schemas(name)
        if compressed or schemas_checked:
            await _look_into(name, partition.index, records, header, services, allowance)
        if not services.append.is_ready(name, partition.index):
            await services.append.ready(name, partition.index)
        transactional_id = request.message.transactional_id or ""
        is_verified = header.attributes & TRANSACTIONAL == 0 or services.append.is_verified(
            name, partition.index, header
        )
        if transactional_id and not is_verified:
            adds = request.version >= ADDS_SINCE
            await services.append.verify(name, partition.index, header, transactional_id, adds=adds)
        return _write(
            refused, request, topic, partition, name, header, services, compressed=compressed, checked=schemas_checked
        )
    except (BrokerError, ProtocolError, StorageFault) as error:
        return _failed(error, refused, topic, partition)


def _write(  # noqa: PLR0913 - results of the checks, each by its name
    refused: RefusedBatches,
    request: Request,
    topic: d.ProduceRequestTopic,
    partition: Partition,
    name: str,
    header: BatchHeader,
    services: Services,
    *,
    compressed: bool = False,
    checked: bool = False,
) -> _Attempt:
    """`compressed`: the compressed records were checked. `checked`: the schemas were checked."""
    if refused.following:
        refused.check(topic, partition.index, header)
    written = services.append.write(
        name,
        partition.index,
        partition.records or b"",
        acks=_ACKS[request.message.acks],
        records_checked=compressed,
        headers=[header],
        schemas_checked=checked,
    )
    if refused.following:
        refused.forget(topic, partition.index, header)
    return _Attempt(partition.index, written, E.NONE, None)


def _failed(
    error: BrokerError | ProtocolError | StorageFault,
    refused: RefusedBatches,
    topic: d.ProduceRequestTopic,
    partition: Partition,
) -> _Attempt:
    code = code_of(error)
    if isinstance(error, StorageFault):
        attempt = _Attempt(partition.index, None, code, text_of(error), is_dropped=not error.left_remains)
    else:
        attempt = _Attempt(partition.index, None, _UNVERIFIED.get(code, code), text_of(error))
    return _not_written(attempt, refused, topic, partition)


def _not_written(
    attempt: _Attempt, refused: RefusedBatches, topic: d.ProduceRequestTopic, partition: Partition
) -> _Attempt:
    """Return the attempt; remember a batch that will be sent again."""
    if attempt.code in _TRIED_AGAIN:
        with suppress(ProtocolError):  # an unknown topic fails before its batches are checked
            refused.remember(topic, partition.index, read_header(partition.records or b""))
    return attempt


async def _look_into(
    name: str, number: int, records: Buffer, header: BatchHeader, services: Services, allowance: Allowance
) -> None:
    """Decompress a compressed batch and check its records, or check the schema ids of its values."""
    heads = None
    if header.compression != Compression.NONE:
        heads = await services.intake.check(name, number, records, header, allowance)
    if services.append.checks_schemas(name):
        await services.append.check_schemas(name, heads or heads_of_batches(records, [header]))


def _checked_header(records: Buffer, version: int) -> BatchHeader:
    """Raise if the header is invalid: exactly one batch, with a compression that the version supports."""
    if len(records) <= _MAGIC_AT:
        raise Refusal(E.INVALID_RECORD, "a partition needs exactly one batch")
    if records[_MAGIC_AT] != MAGIC:
        raise Refusal(E.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"batches must have format {MAGIC}, not {records[_MAGIC_AT]}")
    header = read_header(records)
    if header.size_bytes < len(records):
        raise Refusal(E.INVALID_RECORD, "a partition needs exactly one batch")
    if header.record_count != header.last_offset_delta + 1:
        text = f"{header.record_count} records do not fill {header.last_offset_delta + 1} offsets"
        raise Refusal(E.INVALID_RECORD, text)
    if header.compression > _COMPRESSION_MAX:
        raise Refusal(E.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression {header.compression}")
    if header.compression == Compression.ZSTD and version < ZSTD_SINCE:
        raise Refusal(E.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {ZSTD_SINCE} of Produce")
    return header


def _size(message: d.ProduceRequest) -> int:
    return sum(len(each.records or b"") for topic in message.topic_data for each in topic.partition_data)


def _settled(attempt: _Attempt, acks: Acks, services: Services) -> d.ProduceResponsePartition | None:
    """Return the result of one partition, if nothing must be awaited."""
    if attempt.written is None:
        # The code reports a disk fault, but not whether the batch is in the log; a named record means that it is not.
        dropped = [d.ProduceResponseRecordError(0, attempt.text)] if attempt.is_dropped else []
        return d.ProduceResponsePartition(
            attempt.number, attempt.code, -1, record_errors=dropped, error_message=attempt.text
        )
    try:
        if not services.append.is_acknowledged(attempt.written, acks=acks):
            return None
    except (BrokerError, StorageFault) as error:
        return d.ProduceResponsePartition(attempt.number, code_of(error), -1, error_message=text_of(error))
    return _taken(attempt.number, attempt.written)


async def _settle(attempt: _Attempt, acks: Acks, timeout_ms: int, services: Services) -> d.ProduceResponsePartition:
    """Return the result of one partition, after its records have the durability that the producer requested."""
    assert attempt.written is not None
    try:
        await services.append.wait_until_acknowledged(attempt.written, acks=acks, timeout_ms=max(timeout_ms, 0))
    except (BrokerError, StorageFault) as error:
        return d.ProduceResponsePartition(attempt.number, code_of(error), -1, error_message=text_of(error))
    return _taken(attempt.number, attempt.written)


def _taken(number: int, written: Written) -> d.ProduceResponsePartition:
    stamp = written.append_time_ms
    return d.ProduceResponsePartition(
        number,
        E.NONE,
        written.appended.base_offset,
        log_append_time_ms=-1 if stamp is None else stamp,
        log_start_offset=written.hosted.start_offset,
    )


def _topics(request: Request, services: Services) -> Iterable[str]:
    return resolved(services, ((topic.name, topic.topic_id) for topic in request.message.topic_data))


def _ids_of_producers(request: Request, services: Services) -> Iterable[str]:
    """Return the transactional ids of the producers in the batches: the request's own field need not match."""
    records = (each.records or b"" for topic in request.message.topic_data for each in topic.partition_data)
    producers = {int.from_bytes(each[_PRODUCER_AT], "big", signed=True) for each in records}
    return [name for each in producers if (name := services.coordinators.id_of(each)) is not None]


def routes() -> dict[Key, Route]:
    needs = (on_transactional_id(Operation.WRITE), Need(Operation.WRITE, _ids_of_producers, Kind.TRANSACTIONAL_ID))
    handler = partial(produce, RefusedBatches())
    return {Key.PRODUCE: on_topics(handler, Operation.WRITE, REFUSE, _topics, needs=needs)}
