"""Fetch.

docs/dialects/kafka.md lists what consumers rely on.
Invariants: batches are sent as the log stores them, in slices of its files, unless the request accepts columns
(`bare`). Every partition of a request has its own result. `fetch_sessions.py` completes a session's request before,
and narrows its answer after.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.coordination.offsets_topic import OFFSETS_TOPIC
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.routes import Route, on_topics, resolved
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import DOOR, add_to_fetch, named
from braidlog.adapters.routing import Denied
from braidlog.codec.batch.header import Buffer
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.cooperative import YieldCounter, yield_to_loop
from braidlog.partition.fetch.column_reader import columns_of
from braidlog.partition.fetch.fetch import Outcome, Wanted
from braidlog.partition.fetch.record_reader import Fetched
from braidlog.security.authorization import Operation
from braidlog.wire.contract import Slice
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import data as d
from braidlog.wire.kafka.rows import NO_UUID

RESPONSE_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of records in one response, regardless of the request, except for a larger first batch."""
WANTED_BYTES = 576
"""Memory of a waiting request per partition, beside its fixed part."""
READ_COMMITTED = 1
FOLLOWERS_SINCE = 11
"""The first version whose clients read from followers, and return to the leader when redirected."""

BARE_WITH_KEYS, BARE = 1, 2

_TIMED_OUT = (E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class _Asked(NamedTuple):
    """One partition of a request: the read, or its error."""

    number: int
    wanted: Wanted | None
    code: E


async def fetch(request: Request, services: Services, conversation: Conversation, denied: Denied) -> d.FetchResponse:
    message: d.FetchRequest = request.message
    # A replica's fetch offset counts as replicated: only a node may send it, on the nodes' port.
    is_replica = max(message.replica_id, message.replica_state.replica_id) >= 0
    nearer = None
    if request.version >= FOLLOWERS_SINCE:
        nearer = services.routing.nodes_in(message.rack_id, DOOR) if message.rack_id else ()
    pace = YieldCounter()
    asked = []
    for topic in message.topics:
        asked.append(_asked(topic, services, denied, nearer, is_replica=is_replica))
        if pace.is_due(len(topic.partitions)):
            await yield_to_loop()
    wanted = [each.wanted for topic in asked for each in topic if each.wanted is not None]
    refused = any(each.wanted is None for topic in asked for each in topic)
    held_bytes = len(wanted) * WANTED_BYTES
    conversation.hold(held_bytes)
    try:
        found = await services.fetch.fetch_each(
            wanted,
            bytes_max=min(max(message.max_bytes, 0), RESPONSE_BYTES_MAX),
            bytes_min=message.min_bytes,
            wait_ms=0 if refused or not wanted else max(message.max_wait_ms, 0),
            committed_only=message.isolation_level == READ_COMMITTED,
            leader_only=True,
        )
    finally:
        conversation.hold(-held_bytes)
    records: Sequence[Buffer | Slice | None]
    if message.bare in (BARE_WITH_KEYS, BARE):
        records = await _bare(found, conversation, keys=message.bare == BARE_WITH_KEYS)
    else:
        records = [outcome.slice if isinstance(outcome, Fetched) else None for outcome in found]
    outcomes = zip(found, records, strict=True)
    committed_only = message.isolation_level == READ_COMMITTED
    responses = []
    for topic, partitions in zip(message.topics, asked, strict=True):
        told = [
            _failed(each.number, each.code)
            if each.wanted is None
            else _to_message(each, *next(outcomes), committed_only=committed_only)
            for each in partitions
        ]
        responses.append(d.FetchResponseTopic(topic.topic, topic.topic_id, told))
        if pace.is_due(len(partitions)):
            await yield_to_loop()
    return add_to_fetch(d.FetchResponse(responses=responses), services, conversation)


def _asked(
    topic: d.FetchRequestTopic, services: Services, denied: Denied, nearer: tuple[int, ...] | None, *, is_replica: bool
) -> list[_Asked]:
    name = named(services, topic.topic, topic.topic_id)
    if name is None:
        return [_Asked(each.partition, None, E.UNKNOWN_TOPIC_ID) for each in topic.partitions]
    if is_replica or name in denied or name == OFFSETS_TOPIC:
        return [_Asked(each.partition, None, E.TOPIC_AUTHORIZATION_FAILED) for each in topic.partitions]
    topic_id = None if topic.topic_id == NO_UUID else topic.topic_id.hex()
    return [
        _Asked(
            each.partition,
            Wanted(
                name,
                each.partition,
                each.fetch_offset,
                max(each.partition_max_bytes, 0),
                topic_id,
                None if each.current_leader_epoch < 0 else each.current_leader_epoch,
                in_sync=nearer is not None,
                nearer=nearer or (),
            ),
            E.NONE,
        )
        for each in topic.partitions
    ]


async def _bare(found: Sequence[Outcome], conversation: Conversation, *, keys: bool) -> list[Buffer | Slice]:
    """Return, for each partition, its slice reduced to what the reader requests."""
    slices = [outcome.slice if isinstance(outcome, Fetched) else None for outcome in found]
    held_bytes = sum(each.size for each in slices if each is not None)
    conversation.hold(held_bytes)
    try:
        return [b"" if each is None else await columns_of(each, keys=keys) for each in slices]
    finally:
        conversation.hold(-held_bytes)


def _to_message(
    asked: _Asked, outcome: Outcome, records: Buffer | Slice | None, *, committed_only: bool
) -> d.FetchResponsePartition:
    if not isinstance(outcome, Fetched):
        return _failed(asked.number, _code(asked, outcome))
    aborted = [d.FetchResponseAborted(each.producer_id, each.first_offset) for each in outcome.aborted]
    return d.FetchResponsePartition(
        asked.number,
        E.NONE,
        outcome.high_watermark,
        outcome.last_stable_offset,
        outcome.start_offset,
        aborted_transactions=aborted if committed_only else None,
        preferred_read_replica=-1 if outcome.preferred_replica is None else outcome.preferred_replica,
        records=records or b"",
    )


def _code(asked: _Asked, error: Exception) -> E:
    assert asked.wanted is not None
    if isinstance(error, BrokerError) and error.reason is Reason.TOPIC_NOT_FOUND and asked.wanted.topic_id is not None:
        return E.UNKNOWN_TOPIC_ID
    return code_of(error)


def _failed(number: int, code: E) -> d.FetchResponsePartition:
    return d.FetchResponsePartition(number, code, -1, -1, -1, aborted_transactions=None)


def refuse_fetch(request: Request, code: E, _: str) -> d.FetchResponse:
    """Java's consumer treats some codes as its own bug (redpanda#11941): they are replaced by one that it retries."""
    said = E.UNKNOWN_SERVER_ERROR if code in _TIMED_OUT else code
    return d.FetchResponse(
        error_code=said,
        responses=[
            d.FetchResponseTopic(
                topic.topic, topic.topic_id, [_failed(each.partition, said) for each in topic.partitions]
            )
            for topic in request.message.topics
        ],
    )


def _topics(request: Request, services: Services) -> Iterable[str]:
    return resolved(services, ((topic.topic, topic.topic_id) for topic in request.message.topics))


ROUTES: dict[Key, Route] = {Key.FETCH: on_topics(fetch, Operation.READ, refuse_fetch, _topics)}
