# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg"
"""aiokafka asks everything it can ask of a broker: an old client in its versions of every call, none of them flexible."""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    TopicPartition,
    errors,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import create_conn
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.protocol.admin import DeleteRecordsRequest
from aiokafka.protocol.fetch import FetchRequest_v11
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from tests.interop.kafka.checking import (
    RECORDS,
    START_MS,
    Wrong,
    equal,
    fresh,
    in_each_codec,
    main,
    random_bytes,
    sasl_of_python_clients,
    true,
    until_async,
    values,
    with_each_mechanism,
)
from tests.interop.kafka.servers import Servers

# -- what the checks are made of ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    """A client that stops at the end, also when it does not start: it must leave no open sockets."""
    stop = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    try:
        await client.start()
        yield client
    finally:
        await stop()


def admin(servers: Servers, **config: Any):
    return started(AIOKafkaAdminClient(**{"bootstrap_servers": servers.plain, **config}))


def producer(servers: Servers, **config: Any):
    return started(AIOKafkaProducer(**{"bootstrap_servers": servers.plain, "linger_ms": 10, **config}))


def consumer(servers: Servers, group: str | None = None, **config: Any):
    start = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 300}
    return started(AIOKafkaConsumer(**{"bootstrap_servers": servers.plain, "group_id": group, **start, **config}))


async def refused(kind: type[Exception], work: Awaitable[object]) -> None:
    try:
        answer = await work
    except kind:
        return
    raise Wrong(f"answered {answer!r} where {kind.__name__} was due")


def codes(answer: Any) -> list[int]:
    """The error code of each topic in an answer: (name, code, …)."""
    rows = getattr(answer, "topic_errors", None) or answer.topic_error_codes
    return [row[1] for row in rows]


async def topic_of(servers: Servers, partitions: int = 1, **config: str) -> str:
    name = fresh("aiokafka")
    dotted = {key.replace("_", "."): value for key, value in config.items()}
    async with admin(servers) as asked:
        equal(codes(await asked.create_topics([NewTopic(name, partitions, 1, topic_configs=dotted)])), [0])

        async def known():
            (seen,) = await asked.describe_topics([name])
            return len(seen["partitions"]) == partitions

        await until_async(known, "the topic")
    return name


async def send(into: AIOKafkaProducer, topic: str, rows: list, partition: int = 0) -> list[int]:
    """Produce (key, value, headers, timestamp) and wait for the offsets."""
    futures = [
        await into.send(topic, value, key, partition=partition, timestamp_ms=stamp, headers=headers)
        for key, value, headers, stamp in rows
    ]
    return [(await future).offset for future in futures]


async def write(servers: Servers, topic: str, *texts: str) -> None:
    async with producer(servers) as into:
        await send(into, topic, values(*texts))


async def take(source: AIOKafkaConsumer, count: int) -> list:
    found: list = []

    async def some():
        for messages in (await source.getmany(timeout_ms=200)).values():
            found.extend(messages)
        return len(found) >= count

    await until_async(some, f"{count} records")
    return found


async def read(servers: Servers, topic: str, count: int, offset: int = 0, **config: Any) -> list:
    async with consumer(servers, **config) as source:
        place = TopicPartition(topic, 0)
        source.assign([place])
        source.seek(place, offset)
        return await take(source, count)


def row(message) -> tuple:
    return message.key, message.value, list(message.headers), message.timestamp


def owned(*members: AIOKafkaConsumer) -> list[set[int]]:
    return [{each.partition for each in member.assignment()} for member in members]


async def owning(wanted: list[int], *members: AIOKafkaConsumer) -> list[set[int]]:
    """Wait until the members have that many partitions each."""

    async def settled():
        return [len(parts) for parts in owned(*members)] == wanted and owned(*members)

    return await until_async(settled, f"{wanted} partitions")


# -- topics ------------------------------------------------------------------------------------------------------


async def check_metadata(servers: Servers) -> None:
    topic = await topic_of(servers, 3)
    async with admin(servers) as asked:
        true(topic in await asked.list_topics(), "the topic among all")
        (seen,) = await asked.describe_topics([topic])
        brokers = {each["node_id"] for each in (await asked.describe_cluster())["brokers"]}
    equal(sorted(part["partition"] for part in seen["partitions"]), [0, 1, 2])
    true({part["leader"] for part in seen["partitions"]} <= brokers, "leaders are brokers")


async def check_create_topics_with_configs(servers: Servers) -> None:
    topic = await topic_of(servers, 2, retention_ms="3600000", cleanup_policy="compact")
    found = await configs(servers, topic)
    equal((found["retention.ms"], found["cleanup.policy"]), ("3600000", "compact"))


async def check_create_existing_refused(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with admin(servers) as asked:
        equal(codes(await asked.create_topics([NewTopic(topic, 1, 1)])), [errors.TopicAlreadyExistsError.errno])


async def check_create_validate_only(servers: Servers) -> None:
    topic = fresh("validate")
    async with admin(servers) as asked:
        equal(codes(await asked.create_topics([NewTopic(topic, 1, 1)], validate_only=True)), [0])
        true(topic not in await asked.list_topics(), "validated, not created")


async def check_delete_topics(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with admin(servers) as asked:
        equal(codes(await asked.delete_topics([topic])), [0])

        async def gone():
            return topic not in await asked.list_topics()

        await until_async(gone, "the topic to be gone")
        equal(codes(await asked.delete_topics([topic])), [errors.UnknownTopicOrPartitionError.errno])


async def check_create_partitions(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with admin(servers) as asked:
        await asked.create_partitions({topic: NewPartitions(3)})

        async def grown():
            (seen,) = await asked.describe_topics([topic])
            return len(seen["partitions"]) == 3

        await until_async(grown, "three partitions")
        await refused(errors.InvalidPartitionsError, asked.create_partitions({topic: NewPartitions(2)}))
    async with producer(servers) as into:
        equal(await send(into, topic, values("x"), partition=2), [0])


# -- producing ---------------------------------------------------------------------------------------------------


async def check_acks_0(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with producer(servers, acks=0) as into:
        for _, value, _, stamp in values("a", "b", "c"):
            await into.send(topic, value, partition=0, timestamp_ms=stamp)
        await into.flush()
    equal([message.value for message in await read(servers, topic, 3)], [b"a", b"b", b"c"])


async def check_acks_1(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with producer(servers, acks=1) as into:
        equal(await send(into, topic, values("a", "b")), [0, 1])


async def check_acks_all(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with producer(servers, acks="all") as into:
        equal(await send(into, topic, values("a", "b")), [0, 1])
        equal(await send(into, topic, values("c")), [2])


async def codec(servers: Servers, name: str) -> None:
    topic = await topic_of(servers)
    rows = RECORDS + [(b"%d" % n, b"again and again " * 50, [], START_MS + n) for n in range(300)]
    async with producer(servers, compression_type=None if name == "none" else name) as into:
        equal(await send(into, topic, rows), list(range(len(rows))))
    equal([row(message) for message in await read(servers, topic, len(rows), check_crcs=True)], rows)


async def check_idempotence(servers: Servers) -> None:
    topic = await topic_of(servers)
    wanted = [b"%d" % n for n in range(500)]
    async with producer(servers, enable_idempotence=True, max_batch_size=200, linger_ms=0) as into:
        equal(await send(into, topic, [(None, value, [], START_MS) for value in wanted]), list(range(500)))
    equal([message.value for message in await read(servers, topic, 500)], wanted)


async def check_headers_nulls_timestamps(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with producer(servers) as into:
        await send(into, topic, RECORDS)
    equal([row(message) for message in await read(servers, topic, len(RECORDS))], RECORDS)


async def check_append_time(servers: Servers) -> None:
    topic = await topic_of(servers, message_timestamp_type="LogAppendTime")
    async with producer(servers) as into:
        sent = await into.send_and_wait(topic, b"a", partition=0, timestamp_ms=START_MS)
    (message,) = await read(servers, topic, 1)
    equal((message.timestamp_type, message.timestamp), (1, sent.timestamp))
    true(sent.timestamp > START_MS + 1_000_000, "the log's own time")


async def check_batch_by_hand(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with producer(servers) as into:
        batch = into.create_batch()
        for number in range(10):
            batch.append(key=None, value=b"%d" % number, timestamp=START_MS)
        batch.close()
        sent = await (await into.send_batch(batch, topic, partition=0))
        equal(sent.offset, 0)
    equal([message.value for message in await read(servers, topic, 10)], [b"%d" % n for n in range(10)])


async def check_large_accepted(servers: Servers) -> None:
    topic = await topic_of(servers, max_message_bytes="3000000")
    big = random_bytes(2_500_000)
    async with producer(servers, max_request_size=3_000_000) as into:
        equal(await send(into, topic, [(None, big, [], START_MS), (None, b"small", [], START_MS)]), [0, 1])
    found = await read(servers, topic, 2, max_partition_fetch_bytes=1000)
    true([message.value for message in found] == [big, b"small"], "the large record as it was sent")


async def check_large_refused(servers: Servers) -> None:
    topic = await topic_of(servers, max_message_bytes="10000")
    async with producer(servers) as into:
        work = send(into, topic, [(None, random_bytes(50_000), [], START_MS)])
        await refused(errors.MessageSizeTooLargeError, work)
        equal(await send(into, topic, values("small")), [0])


# -- reading -----------------------------------------------------------------------------------------------------


async def check_beginning_and_end(servers: Servers) -> None:
    topic = await topic_of(servers)
    place = TopicPartition(topic, 0)
    await write(servers, topic, "a", "b", "c")
    async with consumer(servers) as source:
        equal(await source.beginning_offsets([place]), {place: 0})
        equal(await source.end_offsets([place]), {place: 3})


async def check_offsets_by_time(servers: Servers) -> None:
    topic = await topic_of(servers)
    place = TopicPartition(topic, 0)
    async with producer(servers) as into:
        for number in range(5):
            await send(into, topic, [(None, b"%d" % number, [], START_MS + number * 1000)])
    async with consumer(servers) as source:
        for ahead, wanted in ((0, 0), (1, 1), (4000, 4)):
            found = (await source.offsets_for_times({place: START_MS + ahead}))[place]
            equal((found.offset, found.timestamp), (wanted, START_MS + wanted * 1000))
        equal(await source.offsets_for_times({place: START_MS + 4001}), {place: None})


async def check_from_mid_batch(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with producer(servers, linger_ms=200) as into:
        await send(into, topic, values(*(f"{n}" for n in range(50))))
    found = await read(servers, topic, 13, offset=37)
    equal([(message.offset, message.value) for message in found], [(n, b"%d" % n) for n in range(37, 50)])


async def check_out_of_range(servers: Servers) -> None:
    topic = await topic_of(servers)
    await write(servers, topic, "a", "b")
    equal([message.value for message in await read(servers, topic, 2, offset=1000)], [b"a", b"b"], "after reset")
    await refused(errors.OffsetOutOfRangeError, read(servers, topic, 2, offset=1000, auto_offset_reset="none"))


async def check_seek(servers: Servers) -> None:
    topic = await topic_of(servers)
    place = TopicPartition(topic, 0)
    await write(servers, topic, "a", "b", "c")
    async with consumer(servers) as source:
        source.assign([place])
        await take(source, 3)
        source.seek(place, 1)
        equal([message.value for message in await take(source, 2)], [b"b", b"c"])
        await source.seek_to_beginning(place)
        equal(await source.position(place), 0)
        await source.seek_to_end(place)
        equal(await source.position(place), 3)


# -- groups ------------------------------------------------------------------------------------------------------


async def check_group_rebalance(servers: Servers) -> None:
    topic, group = await topic_of(servers, 4), fresh("group")
    async with contextlib.AsyncExitStack() as stack:
        second = await stack.enter_async_context(consumer(servers, group))
        async with consumer(servers, group) as first:
            first.subscribe([topic])
            await owning([4], first)
            second.subscribe([topic])
            parts = await owning([2, 2], first, second)
            equal(parts[0] | parts[1], {0, 1, 2, 3})
        await owning([4], second)


async def check_sticky(servers: Servers) -> None:
    topic, group = await topic_of(servers, 4), fresh("group")
    sticky = {"partition_assignment_strategy": [StickyPartitionAssignor]}
    async with consumer(servers, group, **sticky) as first, consumer(servers, group, **sticky) as second:
        first.subscribe([topic])
        await owning([4], first)
        second.subscribe([topic])
        await owning([2, 2], first, second)


async def check_static_member(servers: Servers) -> None:
    topic, group = await topic_of(servers, 2), fresh("group")
    settings = {"group_instance_id": "one", "session_timeout_ms": 30_000}
    async with consumer(servers, group) as other:
        async with consumer(servers, group, **settings) as static:
            other.subscribe([topic])
            static.subscribe([topic])
            before = await owning([1, 1], static, other)
        async with consumer(servers, group, **settings) as again:
            again.subscribe([topic])
            equal(await owning([1, 1], again, other), before)


class Watch(ConsumerRebalanceListener):  # type: ignore[misc]  # the client has no types
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    async def on_partitions_revoked(self, revoked):
        self.events.append(("revoked", len(revoked)))

    async def on_partitions_assigned(self, assigned):
        self.events.append(("assigned", len(assigned)))


async def check_rebalance_listener(servers: Servers) -> None:
    topic, watch = await topic_of(servers, 3), Watch()
    async with consumer(servers, fresh("group")) as source:
        source.subscribe([topic], listener=watch)
        await owning([3], source)

        async def told():
            return ("assigned", 3) in watch.events

        await until_async(told, f"the listener: {watch.events}")


async def check_commit_with_metadata(servers: Servers) -> None:
    topic, group = await topic_of(servers), fresh("group")
    place = TopicPartition(topic, 0)
    async with consumer(servers, group) as source:
        source.assign([place])
        equal(await source.committed(place), None)
        await source.commit({place: (7, "what I know")})
        equal(await source.committed(place), 7)
    async with admin(servers) as asked:
        found = await asked.list_consumer_group_offsets(group)
    equal(found, {place: OffsetAndMetadata(7, "what I know")})


async def check_group_goes_on(servers: Servers) -> None:
    topic, group = await topic_of(servers), fresh("group")
    await write(servers, topic, "a", "b", "c")
    async with consumer(servers, group) as source:
        source.subscribe([topic])
        await take(source, 3)
        await source.commit({TopicPartition(topic, 0): 2})
    async with consumer(servers, group) as source:
        source.subscribe([topic])
        equal([message.value for message in await take(source, 1)], [b"c"])


async def check_auto_commit(servers: Servers) -> None:
    topic, group = await topic_of(servers), fresh("group")
    await write(servers, topic, "a", "b")
    async with consumer(servers, group, enable_auto_commit=True, auto_commit_interval_ms=100) as source:
        source.subscribe([topic])
        await take(source, 2)
    async with admin(servers) as asked:
        found = await asked.list_consumer_group_offsets(group)
    equal(found[TopicPartition(topic, 0)].offset, 2)


async def check_list_and_describe_groups(servers: Servers) -> None:
    topic, group = await topic_of(servers), fresh("group")
    async with consumer(servers, group, client_id="seen") as source, admin(servers) as asked:
        source.subscribe([topic])
        await owning([1], source)
        true((group, "consumer") in await asked.list_consumer_groups(), "the group among all")
        (answer,) = await asked.describe_consumer_groups([group])
    (error, name, state, kind, protocol, members, *_) = answer.groups[0]
    equal((error, name, state, kind, protocol), (0, group, "Stable", "consumer", "roundrobin"))
    equal([member[1] for member in members], ["seen"])


# -- transactions ------------------------------------------------------------------------------------------------


def transactional(servers: Servers, name: str):
    return producer(servers, transactional_id=name, transaction_timeout_ms=60_000)


async def check_transaction_commit_and_abort(servers: Servers) -> None:
    topic = await topic_of(servers)
    async with transactional(servers, fresh("txn")) as into:
        for texts, commit in ((("a1", "a2"), False), (("c1", "c2"), True), (("a3",), False), (("c3",), True)):
            await into.begin_transaction()
            await send(into, topic, values(*texts))
            await (into.commit_transaction() if commit else into.abort_transaction())
    committed = await read(servers, topic, 3, isolation_level="read_committed")
    equal([message.value for message in committed], [b"c1", b"c2", b"c3"])
    everything = await read(servers, topic, 6, isolation_level="read_uncommitted")
    equal([message.value for message in everything], [b"a1", b"a2", b"c1", b"c2", b"a3", b"c3"])


async def check_open_transaction_is_unseen(servers: Servers) -> None:
    topic = await topic_of(servers)
    place = TopicPartition(topic, 0)
    await write(servers, topic, "before")
    async with transactional(servers, fresh("txn")) as into:
        await into.begin_transaction()
        await send(into, topic, values("open"))
        async with consumer(servers, isolation_level="read_committed") as source:
            source.assign([place])
            await take(source, 1)
            equal((source.last_stable_offset(place), source.highwater(place)), (1, 2))
            equal(await source.getmany(timeout_ms=200), {})
        await into.commit_transaction()
    found = await read(servers, topic, 2, isolation_level="read_committed")
    equal([message.value for message in found], [b"before", b"open"])


async def check_send_offsets_to_transaction(servers: Servers) -> None:
    source_topic, target, group = await topic_of(servers), await topic_of(servers), fresh("group")
    place = TopicPartition(source_topic, 0)
    async with transactional(servers, fresh("txn")) as into:
        for offset, commit in ((3, False), (2, True)):
            await into.begin_transaction()
            await send(into, target, values(f"upto {offset}"))
            await into.send_offsets_to_transaction({place: offset}, group)
            await (into.commit_transaction() if commit else into.abort_transaction())
    async with admin(servers) as asked:

        async def committed():
            found = await asked.list_consumer_group_offsets(group)
            return place in found and found[place].offset == 2

        await until_async(committed, "the committed transaction's offset")  # markers are written after the answer
    found = await read(servers, target, 1, isolation_level="read_committed")
    equal([message.value for message in found], [b"upto 2"])


async def check_zombie_is_fenced(servers: Servers) -> None:
    topic, name = await topic_of(servers), fresh("txn")
    async with contextlib.AsyncExitStack() as stack:
        zombie = await stack.enter_async_context(transactional(servers, name))
        await zombie.begin_transaction()
        await send(zombie, topic, values("from the grave"))
        async with transactional(servers, name) as successor:
            await successor.begin_transaction()
            await send(successor, topic, values("alive"))
            await successor.commit_transaction()
        await refused(errors.ProducerFenced, zombie.commit_transaction())
    found = await read(servers, topic, 1, isolation_level="read_committed")
    equal([message.value for message in found], [b"alive"])


# -- administration ----------------------------------------------------------------------------------------------


async def configs(servers: Servers, topic: str) -> dict[str, str]:
    async with admin(servers) as asked:
        answers = await asked.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    (resource,) = [resource for answer in answers for resource in answer.resources]
    equal(resource[0], 0, "error code")
    return {entry[0]: entry[1] for entry in resource[4]}


async def check_delete_records(servers: Servers) -> None:
    topic = await topic_of(servers)
    place = TopicPartition(topic, 0)
    await write(servers, topic, *"abcde")
    async with admin(servers) as asked:
        equal(await asked.delete_records({place: RecordsToDelete(before_offset=3)}), {place: 3})
    equal([message.value for message in await read(servers, topic, 2)], [b"d", b"e"])
    async with consumer(servers) as source:
        equal(await source.beginning_offsets([place]), {place: 3})


async def check_alter_configs(servers: Servers) -> None:
    """AlterConfigs, the old call: what is not named goes back to its default."""
    topic = await topic_of(servers, retention_ms="1000000")
    async with admin(servers) as asked:
        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "77777"})
        (answer,) = await asked.alter_configs([wanted])
        equal([each[0] for each in answer.resources], [0])

    async def altered():
        found = await configs(servers, topic)
        return found["max.message.bytes"] == "77777" and found["retention.ms"] != "1000000"

    await until_async(altered, "the altered setting")


async def check_describe_cluster(servers: Servers) -> None:
    async with admin(servers) as asked:
        seen = await asked.describe_cluster()
    true(seen["cluster_id"], "a cluster id")
    equal([f"{each['host']}:{each['port']}" for each in seen["brokers"]], [servers.plain])
    equal(seen["controller_id"], seen["brokers"][0]["node_id"])


# -- one connection, request behind request ----------------------------------------------------------------------


class Exactly:
    """A request in a version of ours: what aiokafka's connection asks of one is `prepare`."""

    def __init__(self, struct: Any) -> None:
        self._struct = struct

    def prepare(self, _versions: object) -> Any:
        return self._struct


@contextlib.asynccontextmanager
async def connection(servers: Servers) -> AsyncIterator[Any]:
    host, _, port = servers.plain.rpartition(":")
    made = await create_conn(host, int(port))
    try:
        yield made
    finally:
        made.close()


def one_batch(text: str) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 16)
    builder.append(0, START_MS, None, text.encode(), [])
    return bytes(builder.build())


async def check_requests_take_effect_in_order(servers: Servers) -> None:
    """Sent together: what is asked behind a Produce, and behind a DeleteRecords, sees what it did."""
    topic = await topic_of(servers)
    end, begin = OffsetRequest(-1, 0, [(topic, [(0, -1)])]), OffsetRequest(-1, 0, [(topic, [(0, -2)])])
    async with connection(servers) as asked:
        for number in range(1, 11):
            write = ProduceRequest(None, -1, 30_000, [(topic, [(0, one_batch("x"))])])
            produced, seen = await asyncio.gather(asked.send(write), asked.send(end))
            equal(produced.topics[0][1][0][1:3], (0, number - 1), "produced")
            equal(seen.topics[0][1][0][1:], (0, -1, number), "the end behind it")
        for number in range(1, 11):
            trim = DeleteRecordsRequest([(topic, [(0, number)])], 30_000)
            _, seen = await asyncio.gather(asked.send(trim), asked.send(begin))
            equal(seen.topics[0][1][0][1:], (0, -1, number), "the beginning behind it")


async def check_fetch_session(servers: Servers) -> None:
    """KIP-227: after the first, a request names only what changes, and hears only of what has changed."""
    topic = await topic_of(servers, partitions=3)
    everything = [(topic, [(partition, -1, 0, -1, 1 << 20) for partition in range(3)])]

    async with connection(servers) as asked:

        async def fetch(session: int, epoch: int, topics: list, forgotten: list) -> tuple[int, int, list[int]]:
            """The error, the session, and the partitions that are spoken of."""
            request = FetchRequest_v11(-1, 100, 1, 1 << 20, 0, session, epoch, topics, forgotten, "")
            found = await asked.send(Exactly(request))
            return found.error_code, found.session_id, [part[0] for _, parts in found.topics for part in parts]

        error, session, spoken = await fetch(0, 0, everything, [])
        equal((error, sorted(spoken)), (0, [0, 1, 2]), "a new session")
        true(session > 0, "the session has a number")
        epochs = itertools.count(1)

        async def is_quiet() -> bool:
            return await fetch(session, next(epochs), [], []) == (0, session, [])

        await until_async(is_quiet, "nothing new")  # a new topic's watermarks are news once
        await asked.send(ProduceRequest(None, -1, 30_000, [(topic, [(1, one_batch("x"))])]))
        equal(await fetch(session, next(epochs), [], []), (0, session, [1]), "one has a record")
        equal(await fetch(session, next(epochs), [], [(topic, [1])]), (0, session, []), "that one is forgotten")
        equal((await fetch(session, 99, [], []))[0], errors.InvalidFetchSessionEpoch.errno, "a wrong epoch")
        equal((await fetch(session + 1, 1, [], []))[0], errors.FetchSessionIdNotFound.errno, "another's session")
        equal((await fetch(0, -1, everything, []))[0::2], (0, [0, 1, 2]), "without a session")


# -- who comes in ------------------------------------------------------------------------------------------------


def tls(servers: Servers, address: str, *, certificate: bool) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=servers.ca)
    if certificate:
        context.load_cert_chain(servers.client_cert, servers.client_key)
    return {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_context": context}


async def round_trip(servers: Servers, settings: dict[str, Any]) -> None:
    """Create, produce and read with these settings."""
    topic = fresh("secured")
    async with admin(servers, **settings) as asked:
        equal(codes(await asked.create_topics([NewTopic(topic, 1, 1)])), [0])
    async with producer(servers, **settings) as into:
        equal(await send(into, topic, values("a")), [0])
    async with consumer(servers, fresh("group"), **settings) as source:
        source.subscribe([topic])
        equal([message.value for message in await take(source, 1)], [b"a"])


async def kept_out(servers: Servers, settings: dict[str, Any]) -> None:
    async def come() -> None:
        async with producer(servers, **settings):
            pass

    await refused(errors.KafkaConnectionError, come())


async def let_in(servers: Servers, mechanism: str) -> None:
    await round_trip(servers, sasl_of_python_clients(servers, mechanism, servers.password))


async def check_wrong_password_refused(servers: Servers) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        await kept_out(servers, sasl_of_python_clients(servers, mechanism, "guessed"))


async def check_tls(servers: Servers) -> None:
    await round_trip(servers, tls(servers, servers.tls, certificate=False))


async def check_mtls(servers: Servers) -> None:
    await round_trip(servers, tls(servers, servers.mtls, certificate=True))


async def check_mtls_without_certificate_refused(servers: Servers) -> None:
    await kept_out(servers, tls(servers, servers.mtls, certificate=False))


TABLE = in_each_codec(codec) | with_each_mechanism(let_in)


if __name__ == "__main__":
    main(globals())
