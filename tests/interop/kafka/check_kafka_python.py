# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg"
"""kafka-python asks everything it can ask of a broker. (Importing it warns of its own use of a deprecated call.)"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tests.interop.kafka.checking import (
    RECORDS as EVERY_RECORD,
)
from tests.interop.kafka.checking import (
    SECONDS,
    START_MS,
    Wrong,
    equal,
    fresh,
    in_each_codec,
    main,
    random_bytes,
    sasl_of_python_clients,
    true,
    until,
    values,
    with_each_mechanism,
)
from tests.interop.kafka.servers import Servers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka import (
        ConsumerRebalanceListener,
        IsolationLevel,
        KafkaAdminClient,
        KafkaConsumer,
        KafkaProducer,
        OffsetAndMetadata,
        OffsetSpec,
        TopicPartition,
        errors,
    )
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ConfigResource,
        ConfigResourceType,
        NewPartitions,
        NewTopic,
        ResourcePattern,
        ResourcePatternFilter,
        ResourceType,
    )
    from kafka.admin import ACLResourcePatternType as PatternType
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

# The client sends no header without a value.
RECORDS = [
    (key, value, [pair for pair in headers if pair[1] is not None], at) for key, value, headers, at in EVERY_RECORD
]


# -- what the checks are made of ---------------------------------------------------------------------------------


@contextlib.contextmanager
def admin(servers: Servers) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=servers.plain)
    try:
        yield client
    finally:
        client.close()


def refused(kind: Any, work: Callable[[], object]) -> None:
    try:
        answer = work()
    except kind:
        return
    raise Wrong(f"answered {answer!r} where {kind.__name__} was due")


def topic_of(servers: Servers, partitions: int = 1, **config: str) -> str:
    name = fresh("kafka-python")
    dotted = {key.replace("_", "."): value for key, value in config.items()}
    with admin(servers) as asked:
        asked.create_topics([NewTopic(name, partitions, 1, topic_configs=dotted)], wait_for_metadata=True)
    return name


@contextlib.contextmanager
def producer(servers: Servers, **config: Any) -> Iterator[KafkaProducer]:
    client = KafkaProducer(**{"bootstrap_servers": servers.plain, "linger_ms": 10, **config})
    try:
        yield client
    finally:
        client.close(timeout=5)


def send(into: KafkaProducer, topic: str, rows: list, partition: int = 0) -> list[int]:
    """Produce (key, value, headers, timestamp) and wait for the offsets."""
    futures = [
        into.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=stamp)
        for key, value, headers, stamp in rows
    ]
    into.flush(SECONDS)
    return [future.get(SECONDS).offset for future in futures]


def write(servers: Servers, topic: str, *texts: str) -> None:
    with producer(servers) as into:
        send(into, topic, values(*texts))


@contextlib.contextmanager
def consumer(servers: Servers, group: str | None = None, **config: Any) -> Iterator[KafkaConsumer]:
    start = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "heartbeat_interval_ms": 300}
    client = KafkaConsumer(**{"bootstrap_servers": servers.plain, "group_id": group, **start, **config})
    try:
        yield client
    finally:
        client.close(autocommit=False)


def take(source: KafkaConsumer, count: int) -> list:
    found: list = []

    def some():
        for messages in source.poll(200).values():
            found.extend(messages)
        return len(found) >= count

    until(some, f"{count} records")
    return found


def read(servers: Servers, topic: str, count: int, offset: int = 0, **config: Any) -> list:
    with consumer(servers, **config) as source:
        place = TopicPartition(topic, 0)
        source.assign([place])
        source.seek(place, offset)
        return take(source, count)


def row(message) -> tuple:
    return message.key, message.value, [(key, value) for key, value in message.headers], message.timestamp


def join(member: KafkaConsumer, topic: str) -> None:
    """Subscribe to a topic the client knows: one it does not is assigned as if it had no partitions, and may stay so."""
    until(lambda: member.partitions_for_topic(topic), "metadata")
    member.subscribe([topic])


def owned(*members: KafkaConsumer) -> list[set[int]]:
    """This client gives up a join that does not end within one poll, and begins another: on a busy machine, for ever."""
    for member in members:
        member.poll(500)
    return [{each.partition for each in member.assignment()} for member in members]


# -- topics ------------------------------------------------------------------------------------------------------


def check_metadata(servers: Servers) -> None:
    topic = topic_of(servers, 3)
    with admin(servers) as asked:
        (seen,) = asked.describe_topics([topic])
        brokers = {each["broker_id"] for each in asked.describe_cluster()["brokers"]}
        true(topic in asked.list_topics(), "the topic among all")
    equal([part["partition_index"] for part in seen["partitions"]], [0, 1, 2])
    true({part["leader_id"] for part in seen["partitions"]} <= brokers, "leaders are brokers")


def check_negotiated_version(servers: Servers) -> None:
    """The client infers a version from what the broker says it speaks, and holds features back from old ones."""
    with admin(servers) as asked:
        node = asked.describe_cluster()["brokers"][0]["broker_id"]
        seen = asked.get_broker_version_data(node).broker_version
    true(seen >= (2, 3), f"taken for a {seen}")


def check_create_topics_with_configs(servers: Servers) -> None:
    topic = topic_of(servers, 2, retention_ms="3600000", max_message_bytes="65536", cleanup_policy="compact")
    with admin(servers) as asked:
        found = configs(asked, topic)
    equal([found[name]["value"] for name in ("retention.ms", "cleanup.policy")], ["3600000", "compact"])


def check_create_existing_refused(servers: Servers) -> None:
    topic = topic_of(servers)
    with admin(servers) as asked:
        refused(errors.TopicAlreadyExistsError, lambda: asked.create_topics([NewTopic(topic, 1, 1)]))


def check_create_with_defaults(servers: Servers) -> None:
    topic = fresh("defaults")
    with admin(servers) as asked:
        asked.create_topics([NewTopic(topic)], wait_for_metadata=True)
        (seen,) = asked.describe_topics([topic])
    equal(len(seen["partitions"]), 1)


def check_delete_topics(servers: Servers) -> None:
    topic = topic_of(servers)
    with admin(servers) as asked:
        asked.delete_topics([topic])
        until(lambda: topic not in asked.list_topics(), "the topic to be gone")
        refused(errors.UnknownTopicOrPartitionError, lambda: asked.delete_topics([topic]))


def check_create_partitions(servers: Servers) -> None:
    topic = topic_of(servers)
    with admin(servers) as asked:
        asked.create_partitions({topic: NewPartitions(3)})
        until(lambda: len(asked.describe_topics([topic])[0]["partitions"]) == 3, "three partitions")
        refused(errors.InvalidPartitionsError, lambda: asked.create_partitions({topic: NewPartitions(2)}))
    with producer(servers) as into:
        equal(send(into, topic, values("x"), partition=2), [0])


# -- producing ---------------------------------------------------------------------------------------------------


def check_acks_0(servers: Servers) -> None:
    topic = topic_of(servers)
    with producer(servers, acks=0, enable_idempotence=False) as into:
        for key, value, headers, stamp in values("a", "b", "c"):
            into.send(topic, value, key, headers=headers, partition=0, timestamp_ms=stamp)
        into.flush(SECONDS)
    equal([message.value for message in read(servers, topic, 3)], [b"a", b"b", b"c"])


def check_acks_1(servers: Servers) -> None:
    topic = topic_of(servers)
    with producer(servers, acks=1, enable_idempotence=False) as into:
        equal(send(into, topic, values("a", "b")), [0, 1])


def check_acks_all(servers: Servers) -> None:
    topic = topic_of(servers)
    with producer(servers, acks="all", enable_idempotence=False) as into:
        equal(send(into, topic, values("a", "b")), [0, 1])
        equal(send(into, topic, values("c")), [2])


def codec(servers: Servers, name: str) -> None:
    topic = topic_of(servers)
    rows = RECORDS + [(b"%d" % n, b"again and again " * 50, [], START_MS + n) for n in range(300)]
    with producer(servers, compression_type=None if name == "none" else name) as into:
        equal(send(into, topic, rows), list(range(len(rows))))
    equal([row(message) for message in read(servers, topic, len(rows), check_crcs=True)], rows)


def check_idempotence(servers: Servers) -> None:
    topic = topic_of(servers)
    wanted = [b"%d" % n for n in range(500)]
    with producer(servers, enable_idempotence=True, batch_size=100, linger_ms=0) as into:
        equal(send(into, topic, [(None, value, [], START_MS) for value in wanted]), list(range(500)))
    equal([message.value for message in read(servers, topic, 500)], wanted)


def check_headers_nulls_timestamps(servers: Servers) -> None:
    topic = topic_of(servers)
    with producer(servers) as into:
        send(into, topic, RECORDS)
    equal([row(message) for message in read(servers, topic, len(RECORDS))], RECORDS)


def check_append_time(servers: Servers) -> None:
    topic = topic_of(servers, message_timestamp_type="LogAppendTime")
    with producer(servers) as into:
        stamp = into.send(topic, b"a", partition=0, timestamp_ms=START_MS).get(SECONDS).timestamp
    (message,) = read(servers, topic, 1)
    equal((message.timestamp_type, message.timestamp), (1, stamp))
    true(stamp > START_MS + 1_000_000, "the log's own time")


def check_large_accepted(servers: Servers) -> None:
    topic = topic_of(servers, max_message_bytes="3000000")
    big = random_bytes(2_500_000)
    with producer(servers, max_request_size=3_000_000) as into:
        equal(send(into, topic, [(None, big, [], START_MS), (None, b"small", [], START_MS)]), [0, 1])
    found = read(servers, topic, 2, max_partition_fetch_bytes=1000)
    true([message.value for message in found] == [big, b"small"], "the large record as it was sent")


def check_large_refused(servers: Servers) -> None:
    topic = topic_of(servers, max_message_bytes="10000")
    with producer(servers, enable_idempotence=False) as into:
        refused(
            errors.MessageSizeTooLargeError, lambda: send(into, topic, [(None, random_bytes(50_000), [], START_MS)])
        )
        equal(send(into, topic, values("small")), [0])


# -- reading -----------------------------------------------------------------------------------------------------


def check_beginning_and_end(servers: Servers) -> None:
    topic = topic_of(servers)
    place = TopicPartition(topic, 0)
    write(servers, topic, "a", "b", "c")
    with consumer(servers) as source:
        equal((source.beginning_offsets([place]), source.end_offsets([place])), ({place: 0}, {place: 3}))


def check_offsets_by_time(servers: Servers) -> None:
    topic = topic_of(servers)
    place = TopicPartition(topic, 0)
    with producer(servers) as into:
        for number in range(5):
            send(into, topic, [(None, b"%d" % number, [], START_MS + number * 1000)])
    with consumer(servers) as source:
        for ahead, wanted in ((0, 0), (1, 1), (4000, 4)):
            found = source.offsets_for_times({place: START_MS + ahead})[place]
            equal((found.offset, found.timestamp), (wanted, START_MS + wanted * 1000))
        equal(source.offsets_for_times({place: START_MS + 4001}), {place: None})


def check_list_offsets(servers: Servers) -> None:
    topic = topic_of(servers)
    place = TopicPartition(topic, 0)
    rows: list = [
        (None, b"old", [], START_MS),
        (None, b"newest", [], START_MS + 9000),
        (None, b"mid", [], START_MS + 50),
    ]
    with producer(servers) as into:
        send(into, topic, rows)
    wanted = {OffsetSpec.EARLIEST: 0, OffsetSpec.LATEST: 3, START_MS + 1: 1, OffsetSpec.MAX_TIMESTAMP: 1}
    with admin(servers) as asked:
        found = {spec: asked.list_partition_offsets({place: spec})[place].offset for spec in wanted}
        equal(found, wanted)
        newest = asked.list_partition_offsets({place: OffsetSpec.MAX_TIMESTAMP})[place]
    equal(newest.timestamp, START_MS + 9000)


def check_from_mid_batch(servers: Servers) -> None:
    topic = topic_of(servers)
    with producer(servers, linger_ms=200) as into:
        send(into, topic, values(*(f"{n}" for n in range(50))))
    found = read(servers, topic, 13, offset=37)
    equal([(message.offset, message.value) for message in found], [(n, b"%d" % n) for n in range(37, 50)])


def check_out_of_range(servers: Servers) -> None:
    topic = topic_of(servers)
    write(servers, topic, "a", "b")
    equal([message.value for message in read(servers, topic, 2, offset=1000)], [b"a", b"b"], "after reset")


def check_seek(servers: Servers) -> None:
    topic = topic_of(servers)
    place = TopicPartition(topic, 0)
    write(servers, topic, "a", "b", "c")
    with consumer(servers) as source:
        source.assign([place])
        take(source, 3)
        source.seek(place, 1)
        equal([message.value for message in take(source, 2)], [b"b", b"c"])
        source.seek_to_beginning(place)
        equal(source.position(place), 0)
        source.seek_to_end(place)
        equal(source.position(place), 3)


def check_pause_and_resume(servers: Servers) -> None:
    topic = topic_of(servers)
    place = TopicPartition(topic, 0)
    write(servers, topic, "a")
    with consumer(servers) as source:
        source.assign([place])
        take(source, 1)
        source.pause(place)
        write(servers, topic, "b")
        equal(source.poll(300), {})
        source.resume(place)
        equal([message.value for message in take(source, 1)], [b"b"])


# -- groups ------------------------------------------------------------------------------------------------------


def check_group_rebalance(servers: Servers) -> None:
    topic, group = topic_of(servers, 4), fresh("group")
    with consumer(servers, group) as second:
        with consumer(servers, group) as first:
            join(first, topic)
            until(lambda: owned(first) == [{0, 1, 2, 3}], "one member with all")
            join(second, topic)
            until(lambda: sorted(map(sorted, owned(first, second))) == [[0, 1], [2, 3]], "two and two")
        until(lambda: owned(second) == [{0, 1, 2, 3}], "the other takes over")


def check_sticky(servers: Servers) -> None:
    topic, group = topic_of(servers, 4), fresh("group")
    sticky = {"partition_assignment_strategy": [StickyPartitionAssignor]}
    with consumer(servers, group, **sticky) as first, consumer(servers, group, **sticky) as second:
        join(first, topic)
        until(lambda: owned(first) == [{0, 1, 2, 3}], "one member with all")
        join(second, topic)
        until(lambda: [len(parts) for parts in owned(first, second)] == [2, 2], "two and two")


def check_static_member(servers: Servers) -> None:
    topic, group = topic_of(servers, 2), fresh("group")
    settings = {"group_instance_id": "one", "session_timeout_ms": 30_000}
    with consumer(servers, group) as other:
        with consumer(servers, group, **settings) as static:
            for member in (other, static):
                join(member, topic)
            before = until(lambda: (p := owned(static, other)) and all(len(x) == 1 for x in p) and p, "one each")
        with consumer(servers, group, **settings) as again:
            join(again, topic)
            after = until(lambda: (p := owned(again, other)) and all(len(x) == 1 for x in p) and p, "one each again")
        equal(after, before)


class Watch(ConsumerRebalanceListener):  # type: ignore[misc]  # the client has no types
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def on_partitions_revoked(self, revoked):
        self.events.append(("revoked", len(revoked)))

    def on_partitions_assigned(self, assigned):
        self.events.append(("assigned", len(assigned)))


def check_rebalance_listener(servers: Servers) -> None:
    topic, watch = topic_of(servers, 3), Watch()
    with consumer(servers, fresh("group")) as source:
        join(source, topic)
        source.subscribe([topic], listener=watch)
        until(lambda: owned(source) == [{0, 1, 2}], "the partitions")
    true(("assigned", 3) in watch.events, f"told of the assignment: {watch.events}")


def check_commit_with_metadata(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    place = TopicPartition(topic, 0)
    with consumer(servers, group) as source:
        source.assign([place])
        equal(source.committed(place), None)
        source.commit({place: OffsetAndMetadata(7, "what I know", -1)})
    with consumer(servers, group) as other:
        found = other.committed(place, metadata=True)
    equal((found.offset, found.metadata), (7, "what I know"))


def check_group_goes_on(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    write(servers, topic, "a", "b", "c")
    with consumer(servers, group) as source:
        join(source, topic)
        take(source, 3)
        source.commit({TopicPartition(topic, 0): OffsetAndMetadata(2, "", -1)})
    with consumer(servers, group) as source:
        join(source, topic)
        equal([message.value for message in take(source, 1)], [b"c"])


def check_list_and_describe_groups(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    with consumer(servers, group, client_id="seen") as source, admin(servers) as asked:
        join(source, topic)
        until(lambda: owned(source) == [{0}], "a member")
        listed = {each["group_id"]: each for each in asked.list_groups()}
        equal((listed[group]["group_state"], listed[group]["protocol_type"]), ("Stable", "consumer"))
        seen = asked.describe_groups([group])[group]
    equal((seen["group_state"], seen["protocol_data"], len(seen["members"])), ("Stable", "range", 1))
    equal(seen["members"][0]["client_id"], "seen")


def check_group_offsets(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    place = TopicPartition(topic, 0)
    with admin(servers) as asked:
        asked.alter_group_offsets(group, {place: OffsetAndMetadata(5, "set", -1)})
        found = asked.list_group_offsets({group: None})[group]
        equal({key: (value.offset, value.metadata) for key, value in found.items()}, {place: (5, "set")})
        asked.delete_group_offsets(group, [place])
        equal(asked.list_group_offsets({group: None})[group], {})


def check_delete_group(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    with admin(servers) as asked:
        with consumer(servers, group) as source:
            join(source, topic)
            until(lambda: owned(source) == [{0}], "a member")
            source.commit({TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)})
            equal(asked.delete_groups([group]), {group: "NonEmptyGroupError"})
        until(lambda: asked.delete_groups([group])[group] == "OK", "the group to be empty")
        equal(asked.delete_groups([group]), {group: "GroupIdNotFoundError"})


# -- transactions ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def transactional(servers: Servers, name: str) -> Iterator[KafkaProducer]:
    with producer(servers, transactional_id=name, transaction_timeout_ms=60_000) as into:
        into.init_transactions()
        yield into


def check_transaction_commit_and_abort(servers: Servers) -> None:
    topic = topic_of(servers)
    with transactional(servers, fresh("txn")) as into:
        for texts, commit in ((("a1", "a2"), False), (("c1", "c2"), True), (("a3",), False), (("c3",), True)):
            into.begin_transaction()
            send(into, topic, values(*texts))
            into.commit_transaction() if commit else into.abort_transaction()
    committed = read(servers, topic, 3, isolation_level="read_committed")
    equal([message.value for message in committed], [b"c1", b"c2", b"c3"])
    everything = read(servers, topic, 6, isolation_level="read_uncommitted")
    equal([message.value for message in everything], [b"a1", b"a2", b"c1", b"c2", b"a3", b"c3"])


def check_open_transaction_is_unseen(servers: Servers) -> None:
    topic = topic_of(servers)
    place = TopicPartition(topic, 0)
    write(servers, topic, "before")
    with transactional(servers, fresh("txn")) as into, admin(servers) as asked:
        into.begin_transaction()
        send(into, topic, values("open"))
        ends = [
            asked.list_partition_offsets({place: OffsetSpec.LATEST}, isolation_level=level)[place].offset
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        equal(ends, [1, 2], "stable end, end")
        into.commit_transaction()
    equal([m.value for m in read(servers, topic, 2, isolation_level="read_committed")], [b"before", b"open"])


def check_send_offsets_to_transaction(servers: Servers) -> None:
    source_topic, target, group = topic_of(servers), topic_of(servers), fresh("group")
    write(servers, source_topic, "a", "b", "c")
    place = TopicPartition(source_topic, 0)
    with consumer(servers, group) as source, transactional(servers, fresh("txn")) as into:
        join(source, source_topic)
        take(source, 3)
        for offset, commit in ((3, False), (2, True)):
            into.begin_transaction()
            send(into, target, values(f"upto {offset}"))
            into.send_offsets_to_transaction({place: OffsetAndMetadata(offset, "", -1)}, source.group_metadata())
            into.commit_transaction() if commit else into.abort_transaction()
        # The markers are written after the answer.
        until(lambda: source.committed(place) == 2, "the committed transaction's offset")
    equal([m.value for m in read(servers, target, 1, isolation_level="read_committed")], [b"upto 2"])


def check_zombie_is_fenced(servers: Servers) -> None:
    topic, name = topic_of(servers), fresh("txn")
    with transactional(servers, name) as zombie:
        zombie.begin_transaction()
        send(zombie, topic, values("from the grave"))
        with transactional(servers, name) as successor:
            successor.begin_transaction()
            send(successor, topic, values("alive"))
            successor.commit_transaction()
        fenced = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
        refused(fenced, zombie.commit_transaction)
    equal([m.value for m in read(servers, topic, 1, isolation_level="read_committed")], [b"alive"])


# -- administration ----------------------------------------------------------------------------------------------


def configs(asked: KafkaAdminClient, topic: str) -> Any:
    found = asked.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return found["topic"][topic]


def check_delete_records(servers: Servers) -> None:
    topic = topic_of(servers)
    place = TopicPartition(topic, 0)
    write(servers, topic, *"abcde")
    with admin(servers) as asked:
        equal(asked.delete_records({place: 3})[place]["low_watermark"], 3)
    equal([message.value for message in read(servers, topic, 2)], [b"d", b"e"])
    with consumer(servers) as source:
        equal(source.beginning_offsets([place]), {place: 3})


def check_alter_configs(servers: Servers) -> None:
    topic = topic_of(servers, retention_ms="1000000")
    with admin(servers) as asked:
        asked.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "77777"})])
        until(lambda: configs(asked, topic)["max.message.bytes"]["value"] == "77777", "the altered setting")
        equal(configs(asked, topic)["retention.ms"]["value"], "1000000", "the setting beside it")
        equal(configs(asked, topic)["retention.ms"]["config_source"], "DYNAMIC_TOPIC_CONFIG")
        asked.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=["retention.ms"])])
        until(lambda: configs(asked, topic)["retention.ms"]["value"] != "1000000", "the default again")


def check_replace_configs(servers: Servers) -> None:
    """AlterConfigs, the old call: what is not named goes back to its default."""
    topic = topic_of(servers, retention_ms="1000000")
    with admin(servers) as asked:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "77777"})
        asked.alter_configs([resource], incremental=False)
        until(lambda: configs(asked, topic)["max.message.bytes"]["value"] == "77777", "the altered setting")


def check_describe_broker_configs(servers: Servers) -> None:
    with admin(servers) as asked:
        node = str(asked.describe_cluster()["brokers"][0]["broker_id"])
        found = asked.describe_configs([ConfigResource(ConfigResourceType.BROKER, node)], config_filter="all")
    true(found["broker"][node], "settings of the broker")


def check_describe_cluster(servers: Servers) -> None:
    with admin(servers) as asked:
        seen = asked.describe_cluster()
    true(seen["cluster_id"], "a cluster id")
    equal([f"{each['host']}:{each['port']}" for each in seen["brokers"]], [servers.plain])
    equal(seen["controller_id"], seen["brokers"][0]["broker_id"])


def check_acls(servers: Servers) -> None:
    topic = fresh("acl")
    pattern = ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL)
    allow = ACL("User:bob", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
    every = ACLFilter(
        None,
        None,
        ACLOperation.ANY,
        ACLPermissionType.ANY,
        ResourcePatternFilter(ResourceType.TOPIC, topic, PatternType.ANY),
    )
    with admin(servers) as asked:
        asked.create_acls([allow])
        until(lambda: asked.describe_acls(every)[0] == [allow], "the rule")
        asked.delete_acls([every])
        until(lambda: asked.describe_acls(every)[0] == [], "no rule")


# -- who comes in ------------------------------------------------------------------------------------------------


def round_trip(servers: Servers, settings: dict[str, Any]) -> None:
    """Create, produce and read with these settings."""
    topic = fresh("secured")
    asked = KafkaAdminClient(**settings)
    asked.create_topics([NewTopic(topic, 1, 1)], wait_for_metadata=True)
    asked.close()
    with producer(servers, **settings) as into:
        equal(send(into, topic, values("a")), [0])
    with consumer(servers, fresh("group"), **settings) as source:
        join(source, topic)
        equal([message.value for message in take(source, 1)], [b"a"])


def kept_out(settings: dict[str, Any]) -> None:
    """The client tries until its time is up, whatever it was told."""
    refused(errors.KafkaTimeoutError, lambda: KafkaAdminClient(**settings, bootstrap_timeout_ms=1500))


def let_in(servers: Servers, mechanism: str) -> None:
    round_trip(servers, sasl_of_python_clients(servers, mechanism, servers.password))


def check_wrong_password_refused(servers: Servers) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        kept_out(sasl_of_python_clients(servers, mechanism, "guessed"))


def check_tls(servers: Servers) -> None:
    round_trip(servers, {"bootstrap_servers": servers.tls, "security_protocol": "SSL", "ssl_cafile": servers.ca})


def check_mtls(servers: Servers) -> None:
    round_trip(
        servers,
        {
            "bootstrap_servers": servers.mtls,
            "security_protocol": "SSL",
            "ssl_cafile": servers.ca,
            "ssl_certfile": servers.client_cert,
            "ssl_keyfile": servers.client_key,
        },
    )


def check_mtls_without_certificate_refused(servers: Servers) -> None:
    settings = {"bootstrap_servers": servers.mtls, "security_protocol": "SSL", "ssl_cafile": servers.ca}
    kept_out(settings)


TABLE = in_each_codec(codec) | with_each_mechanism(let_in)


if __name__ == "__main__":
    main(globals())
