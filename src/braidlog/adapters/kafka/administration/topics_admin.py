"""Administration of topics: create, delete, add partitions, delete records, describe sizes.

Does not handle: files.
Invariant: every topic, partition and folder of a request has its own result. Validate-only requests change nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from braidlog.adapters.contract import Conversation
from braidlog.adapters.errors import text_of
from braidlog.adapters.kafka.administration import config_table
from braidlog.adapters.kafka.errors import Refusal, code_of, outcome_of
from braidlog.adapters.kafka.metadata import AutoCreation
from braidlog.adapters.kafka.routes import Route, of_cluster, on_topics, refused, resolved, whole
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.kafka.topic_entries import id_of, is_allowed, named, unknown
from braidlog.adapters.routing import Deadline, Denied, Need
from braidlog.broker.topic_settings import MIN_IN_SYNC, NOTED
from braidlog.broker.topics import Placed
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.security.authorization import Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import topics as m

AS_DEFAULT = -1


# -- create ------------------------------------------------------------------------------------------------------


async def create_topics(
    request: Request, services: Services, conversation: Conversation, denied: Denied, *, creating: AutoCreation
) -> m.CreateTopicsResponse:
    message: m.CreateTopicsRequest = request.message
    asked = Counter(topic.name for topic in message.topics)
    results, deadline = [], Deadline(services.runtime, message.timeout_ms)
    pace = YieldCounter()
    for topic in message.topics:
        await pace.step()
        try:
            _refuse_twice(topic.name, asked[topic.name])
            denied.check(topic.name)
            result = await deadline.of(
                _create(topic, services, creating, validate_only=message.validate_only, by=conversation.principal)
            )
        except (BrokerError, StorageFault) as error:
            result = m.CreateTopicsResponseTopic(topic.name, error_code=code_of(error), error_message=text_of(error))
        results.append(result)
    return m.CreateTopicsResponse(topics=results)


def _refuse_twice(name: str, count: int) -> None:
    if count > 1:
        raise Refusal(E.INVALID_REQUEST, f"topic {name[:60]!r} is requested more than once")


async def _create(
    topic: m.CreateTopicsRequestTopic,
    services: Services,
    creating: AutoCreation,
    *,
    validate_only: bool,
    by: str,
) -> m.CreateTopicsResponseTopic:
    services.topics.check_new_name(topic.name)
    partitions = _partitions(topic, services, creating)
    changes, _ = config_table.parse((each.name, each.value) for each in topic.configs)
    services.configs.check_new(changes)
    if not validate_only:
        changes[NOTED] = services.configs.noted({}, changes)
        min_in_sync = changes.pop(MIN_IN_SYNC, None)
        placed = _placed(topic)
        try:
            await services.topics.create(
                topic.name, partitions, settings=changes, min_in_sync=min_in_sync, placed=placed, by=by
            )
        except BrokerError as error:
            if error.reason is Reason.NOT_ENOUGH_REPLICAS:  # clients would retry the code that a producer gets
                code = E.INVALID_REPLICA_ASSIGNMENT if topic.assignments else E.INVALID_REPLICATION_FACTOR
                raise Refusal(code, str(error)) from error
            raise
    shown = config_table.show(services.configs.describe(topic.name)) if not validate_only else []
    return m.CreateTopicsResponseTopic(
        topic.name,
        id_of(services, topic.name),
        num_partitions=partitions,
        replication_factor=1 if validate_only else services.hosting.meta(topic.name).desired_replicas,
        configs=[
            m.CreateTopicsResponseConfig(each.row.name, each.value, each.row.is_fixed, each.source) for each in shown
        ],
    )


def _partitions(topic: m.CreateTopicsRequestTopic, services: Services, creating: AutoCreation) -> int:
    """Return the requested number of partitions."""
    if topic.assignments:
        if topic.num_partitions != AS_DEFAULT or topic.replication_factor != AS_DEFAULT:
            raise Refusal(E.INVALID_REQUEST, "give either a replication factor or an assignment, not both")
        numbers = sorted(each.partition_index for each in topic.assignments)
        if numbers != list(range(len(numbers))):
            raise Refusal(E.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0")
        _check_nodes([each.broker_ids for each in topic.assignments], services)
        return len(topic.assignments)
    there = len(services.routing.numbers)
    if topic.replication_factor != AS_DEFAULT and not 1 <= topic.replication_factor <= there:
        raise Refusal(
            E.INVALID_REPLICATION_FACTOR,
            f"{topic.replication_factor} replicas need as many nodes; there {'is' if there == 1 else 'are'} {there}",
        )
    count = creating.partitions if topic.num_partitions == AS_DEFAULT else topic.num_partitions
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise BrokerError(
            Reason.INVALID_PARTITION_COUNT, f"a topic must have 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}"
        )
    return count


def _placed(topic: m.CreateTopicsRequestTopic) -> Placed:
    ordered = sorted(topic.assignments, key=lambda each: each.partition_index)
    nodes = tuple(tuple(each.broker_ids) for each in ordered)
    return Placed(None if topic.replication_factor == AS_DEFAULT else topic.replication_factor, nodes)


def _check_nodes(places: Iterable[Sequence[int]], services: Services) -> None:
    """Check that each partition's nodes are distinct existing nodes, and equally many for every partition."""
    there = services.routing.numbers
    sizes = set()
    for nodes in places:
        sizes.add(len(nodes))
        if not nodes or len(set(nodes)) != len(nodes) or not set(nodes) <= set(there):
            raise Refusal(E.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(nodes)} must be distinct nodes of {there}")
    if len(sizes) > 1:
        raise Refusal(E.INVALID_REPLICA_ASSIGNMENT, "partitions have different numbers of replicas")


# -- delete ------------------------------------------------------------------------------------------------------


async def delete_topics(
    request: Request, services: Services, _: Conversation, denied: Denied
) -> m.DeleteTopicsResponse:
    responses, deadline = [], Deadline(services.runtime, request.message.timeout_ms)
    pace = YieldCounter()
    for each in _deleted(request.message):
        await pace.step()
        responses.append(await _delete(each, services, denied, deadline))
    return m.DeleteTopicsResponse(responses=responses)


async def _delete(
    asked: m.DeleteTopicsRequestTopic, services: Services, denied: Denied, deadline: Deadline
) -> m.DeleteTopicsResponseTopic:
    name = named(services, asked.name, asked.topic_id)
    if name is None:
        return m.DeleteTopicsResponseTopic(None, asked.topic_id, unknown(asked.topic_id), "unknown topic id")
    topic_id = id_of(services, name)
    try:
        denied.check(name)
        await deadline.of(services.topics.delete(name))
    except (BrokerError, StorageFault) as error:
        shown = name if asked.name is not None else None  # a client that knows only the id does not learn the name
        return m.DeleteTopicsResponseTopic(shown, asked.topic_id, code_of(error), text_of(error))
    return m.DeleteTopicsResponseTopic(name, topic_id)


def _deleted(message: m.DeleteTopicsRequest) -> list[m.DeleteTopicsRequestTopic]:
    return message.topics or [m.DeleteTopicsRequestTopic(name) for name in message.topic_names]


def _topics_deleted(request: Request, services: Services) -> Iterable[str]:
    return resolved(services, ((topic.name, topic.topic_id) for topic in _deleted(request.message)))


# -- grow --------------------------------------------------------------------------------------------------------


async def create_partitions(
    request: Request, services: Services, _: Conversation, denied: Denied
) -> m.CreatePartitionsResponse:
    message: m.CreatePartitionsRequest = request.message
    results, deadline = [], Deadline(services.runtime, message.timeout_ms)
    pace = YieldCounter()
    for topic in message.topics:
        await pace.step()
        growing = _grow(topic, services, denied, validate_only=message.validate_only)
        outcome = await outcome_of(deadline.of(growing))
        results.append(m.CreatePartitionsResponseResult(topic.name, *outcome))
    return m.CreatePartitionsResponse(results=results)


async def _grow(
    topic: m.CreatePartitionsRequestTopic, services: Services, denied: Denied, *, validate_only: bool
) -> None:
    denied.check(topic.name)
    present = services.hosting.meta(topic.name).partitions
    if not present < topic.count <= PARTITIONS_PER_TOPIC_MAX:
        raise BrokerError(
            Reason.INVALID_PARTITION_COUNT,
            f"topic {topic.name!r} has {present} partitions; the count can only be increased, up to {PARTITIONS_PER_TOPIC_MAX}",
        )
    places = [each.broker_ids for each in topic.assignments or ()]
    if places and len(places) != topic.count - present:
        raise Refusal(E.INVALID_REPLICA_ASSIGNMENT, f"{len(places)} places for {topic.count - present} new partitions")
    _check_nodes(places, services)
    if not validate_only:
        await services.topics.grow(topic.name, topic.count, tuple(tuple(each) for each in places))


# -- trim --------------------------------------------------------------------------------------------------------


async def delete_records(
    request: Request, services: Services, _: Conversation, denied: Denied
) -> m.DeleteRecordsResponse:
    message: m.DeleteRecordsRequest = request.message
    deadline = Deadline(services.runtime, message.timeout_ms)

    async def trim(topic: str, each: m.DeleteRecordsRequestPartition) -> m.DeleteRecordsResponsePartition:
        try:
            denied.check(topic)
            start = await deadline.of(services.trim.delete_before(topic, each.partition_index, each.offset))
        except (BrokerError, StorageFault) as error:
            return m.DeleteRecordsResponsePartition(each.partition_index, -1, code_of(error))
        return m.DeleteRecordsResponsePartition(each.partition_index, start)

    pace = YieldCounter()
    topics = []
    for topic in message.topics:
        topics.append(m.DeleteRecordsResponseTopic(topic.name, []))
        for each in topic.partitions:
            await pace.step()
            topics[-1].partitions.append(await trim(topic.name, each))
    return m.DeleteRecordsResponse(topics=topics)


# -- measure -----------------------------------------------------------------------------------------------------


def describe_log_dirs(
    request: Request, services: Services, conversation: Conversation, denied: Denied
) -> m.DescribeLogDirsResponse:
    message: m.DescribeLogDirsRequest = request.message
    asked: dict[str, list[int]] = {}
    if message.topics is None:
        visible = services.authorize.visible(conversation.principal, services.hosting.names())
        asked = {name: list(range(services.hosting.partition_count(name))) for name in visible}
    else:
        for topic in message.topics:
            if topic.topic not in denied:
                asked.setdefault(topic.topic, []).extend(topic.partitions)
    topics = [m.DescribeLogDirsResponseTopic(name, _sizes(name, numbers, services)) for name, numbers in asked.items()]
    place = services.hosting.data_dir if is_allowed(services, conversation, Operation.CLUSTER, None) else "data"
    folder = m.DescribeLogDirsResponseResult(log_dir=place, topics=topics)
    return m.DescribeLogDirsResponse(results=[folder])


def _sizes(topic: str, numbers: list[int], services: Services) -> list[m.DescribeLogDirsResponsePartition]:
    """Return the sizes of online local partitions; sizes of others are unknown."""
    found = []
    for number in numbers:
        try:
            hosted = services.hosting.partition(topic, number)
        except (BrokerError, StorageFault):
            continue
        found.append(m.DescribeLogDirsResponsePartition(number, hosted.size_bytes))
    return found


def _topics_measured(request: Request, _: Services) -> Iterable[str]:
    return (topic.topic for topic in request.message.topics or ())


def routes(creating: AutoCreation) -> dict[Key, Route]:
    return {
        Key.CREATE_TOPICS: on_topics(
            partial(create_topics, creating=creating),
            Operation.CREATE,
            refused(m.CreateTopicsResponse),
        ),
        Key.DELETE_TOPICS: on_topics(
            delete_topics, Operation.DELETE, refused(m.DeleteTopicsResponse, {"responses": _deleted}), _topics_deleted
        ),
        Key.CREATE_PARTITIONS: on_topics(
            create_partitions, Operation.ALTER, refused(m.CreatePartitionsResponse, {"results": "topics"})
        ),
        Key.DELETE_RECORDS: on_topics(
            delete_records,
            Operation.DELETE,
            refused(m.DeleteRecordsResponse, others={"low_watermark": -1}),
        ),
        Key.DESCRIBE_LOG_DIRS: of_cluster(
            describe_log_dirs,
            whole(m.DescribeLogDirsResponse),
            Operation.DESCRIBE,
            each=(Need(Operation.DESCRIBE, _topics_measured),),
        ),
    }
