"""CountRecords: braidlog's own request on Kafka's port for the number of records.

Invariant: every requested partition gets at least one slice, so a client that repeats the request from the last
offset makes progress.
"""

from braidlog.adapters.contract import Conversation
from braidlog.adapters.kafka.errors import code_of
from braidlog.adapters.kafka.records.list_offsets import READ_COMMITTED
from braidlog.adapters.kafka.routes import Route, on_topics, refused
from braidlog.adapters.kafka.services import Services
from braidlog.adapters.routing import Denied
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.cooperative import YieldCounter
from braidlog.security.authorization import Operation
from braidlog.wire.kafka.apis import Key
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.connection import Request
from braidlog.wire.kafka.messages import counting as m

PIECES_MAX = 64
"""Slices of the event loop per request, each of at most a thousand batches."""


async def count_records(
    request: Request, services: Services, _: Conversation, denied: Denied
) -> m.CountRecordsResponse:
    message: m.CountRecordsRequest = request.message
    each_max = max(PIECES_MAX // max(sum(len(topic.partitions) for topic in message.topics), 1), 1)
    committed_only = message.isolation_level == READ_COMMITTED
    pace = YieldCounter()
    topics = []
    for topic in message.topics:
        topics.append(m.CountRecordsResponseTopic(topic.name, []))
        for each in topic.partitions:
            await pace.step()
            try:
                denied.check(topic.name)
                found = await services.fetch.count(
                    topic.name,
                    each.partition_index,
                    each.start_offset,
                    each.end_offset,
                    committed_only=committed_only,
                    pieces_max=each_max,
                )
                told = m.CountRecordsResponsePartition(each.partition_index, E.NONE, *found)
            except (BrokerError, StorageFault) as error:
                told = m.CountRecordsResponsePartition(each.partition_index, code_of(error))
            topics[-1].partitions.append(told)
    return m.CountRecordsResponse(topics)


ROUTES: dict[Key, Route] = {
    Key.COUNT_RECORDS: on_topics(count_records, Operation.READ, refused(m.CountRecordsResponse))
}
