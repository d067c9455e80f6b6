# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg"
"""confluent-kafka (librdkafka, the current one) asks everything it can ask of a broker."""

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from tests.interop.kafka.checking import (
    RECORDS,
    SECONDS,
    START_MS,
    Wrong,
    equal,
    fresh,
    in_each_codec,
    main,
    random_bytes,
    true,
    until,
    values,
    with_each_mechanism,
)
from tests.interop.kafka.servers import Servers

NOISE = {"log_level": 0, "broker.address.family": "v4"}
ADMINS: dict[str, AdminClient] = {}


# -- what the checks are made of ---------------------------------------------------------------------------------


def admin(servers: Servers) -> AdminClient:
    return admin_of({"bootstrap.servers": servers.plain, **NOISE})


def admin_of(settings: dict[str, Any]) -> AdminClient:
    """Kept for the next check too: one that is let go takes what it was asked with it."""
    name = json.dumps(settings, sort_keys=True)
    if name not in ADMINS:
        ADMINS[name] = AdminClient(settings)
    return ADMINS[name]


def done(futures: dict) -> dict:
    return {name: future.result(SECONDS) for name, future in futures.items()}


def refused(code: int, work: Callable[[], object]) -> KafkaError:
    try:
        answer = work()
    except KafkaException as raised:
        error: KafkaError = raised.args[0]
        equal(error.name(), KafkaError(code).name(), f"the refusal ({error.str()})")
        return error
    raise Wrong(f"answered {answer!r} where {KafkaError(code).name()} was due")


def topic_of(servers: Servers, partitions: int = 1, **config: str) -> str:
    name = fresh("confluent")
    dotted = {key.replace("_", "."): value for key, value in config.items()}
    done(admin(servers).create_topics([NewTopic(name, partitions, 1, config=dotted)]))
    # Kafka's controller answers before its broker knows.
    until(lambda: _known(servers, name), "the topic")
    return name


def _known(servers: Servers, name: str) -> bool:
    """Asked in a way that does not create it."""
    try:
        done(admin(servers).describe_topics(TopicCollection([name])))
    except KafkaException as raised:
        equal(raised.args[0].code(), KafkaError.UNKNOWN_TOPIC_OR_PART)
        return False
    return True


def producer(servers: Servers, **config: Any) -> Producer:
    dotted = {key.replace("_", "."): value for key, value in config.items()}
    return Producer({"bootstrap.servers": servers.plain, "message.timeout.ms": SECONDS * 1000, **NOISE, **dotted})


def send(into: Producer, topic: str, rows: list, partition: int = 0) -> list[int]:
    """Produce (key, value, headers, timestamp) and wait; the offsets, or the first refusal."""
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error, message):
        errors.append(error) if error else offsets.append(message.offset())

    for key, value, headers, timestamp in rows:
        into.produce(
            topic, value, key, partition=partition, headers=headers, timestamp=timestamp, on_delivery=delivered
        )
    equal(into.flush(SECONDS), 0, "messages left after flush")
    if errors:
        raise KafkaException(errors[0])
    return offsets


def consumer(servers: Servers, group: str | None = None, **config: Any) -> Consumer:
    dotted = {key.replace("_", "."): value for key, value in config.items()}
    start = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.wait.max.ms": 100}
    start |= {"heartbeat.interval.ms": 300}  # a member learns of a rebalance by its next heartbeat
    named = {"group.id": group or fresh("group")}
    return Consumer({"bootstrap.servers": servers.plain, **named, **NOISE, **start, **dotted})


def take(source: Consumer, count: int) -> list:
    found: list = []

    def some():
        for message in source.consume(500, 0.2):
            if message.error():
                raise KafkaException(message.error())
            found.append(message)
        return len(found) >= count

    until(some, f"{count} records")
    return found


def read(servers: Servers, topic: str, count: int, offset: int = OFFSET_BEGINNING, **config: Any) -> list:
    source = consumer(servers, check_crcs=True, **config)
    try:
        source.assign([TopicPartition(topic, 0, offset)])
        return take(source, count)
    finally:
        source.close()


def row(message) -> tuple:
    return message.key(), message.value(), list(message.headers() or []), message.timestamp()[1]


def owned(members: list[Consumer]) -> list[set[int]]:
    for member in members:
        member.poll(0.05)
    return [{each.partition for each in member.assignment()} for member in members]


# -- topics ------------------------------------------------------------------------------------------------------


def check_metadata(servers: Servers) -> None:
    topic = topic_of(servers, 3)
    seen = admin(servers).list_topics(timeout=SECONDS)
    equal(list(seen.topics[topic].partitions), [0, 1, 2])
    equal({part.leader for part in seen.topics[topic].partitions.values()} <= set(seen.brokers), True, "leaders known")
    true(seen.controller_id in seen.brokers, "the controller is a broker")
    true(seen.cluster_id, "a cluster id")


def check_unknown_topic(servers: Servers) -> None:
    described = admin(servers).describe_topics(TopicCollection([fresh("nobody")]))
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, next(iter(described.values())).result)


def check_create_topics_with_configs(servers: Servers) -> None:
    topic = topic_of(servers, 2, retention_ms="3600000", max_message_bytes="65536", cleanup_policy="compact")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (entries,) = done(admin(servers).describe_configs([resource])).values()
    equal(entries["retention.ms"].value, "3600000")
    equal(entries["max.message.bytes"].value, "65536")
    equal(entries["cleanup.policy"].value, "compact")


def check_create_existing_refused(servers: Servers) -> None:
    topic = topic_of(servers)
    again = admin(servers).create_topics([NewTopic(topic, 1, 1)])
    refused(KafkaError.TOPIC_ALREADY_EXISTS, again[topic].result)


def check_create_invalid_refused(servers: Servers) -> None:
    asked = admin(servers)
    bad_name, bad_config, bad_count = "no spaces here", fresh("badconfig"), fresh("badcount")
    answers = asked.create_topics(
        [
            NewTopic(bad_name, 1, 1),
            NewTopic(bad_config, 1, 1, config={"retention.ms": "soon"}),
            NewTopic(bad_count, 0, 1),
        ]
    )
    refused(KafkaError.TOPIC_EXCEPTION, answers[bad_name].result)
    refused(KafkaError.INVALID_CONFIG, answers[bad_config].result)
    refused(KafkaError.INVALID_PARTITIONS, answers[bad_count].result)


def check_create_validate_only(servers: Servers) -> None:
    topic = fresh("validate")
    done(admin(servers).create_topics([NewTopic(topic, 1, 1)], validate_only=True))
    true(topic not in admin(servers).list_topics(timeout=SECONDS).topics, "validated, not created")


def check_delete_topics(servers: Servers) -> None:
    topic = topic_of(servers)
    asked = admin(servers)
    done(asked.delete_topics([topic]))
    until(lambda: topic not in asked.list_topics(timeout=SECONDS).topics, "the topic to be gone")
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, asked.delete_topics([topic])[topic].result)


def check_create_partitions(servers: Servers) -> None:
    topic = topic_of(servers)
    asked = admin(servers)
    done(asked.create_partitions([NewPartitions(topic, 3)]))
    until(lambda: len(asked.list_topics(timeout=SECONDS).topics[topic].partitions) == 3, "three partitions")
    equal(send(producer(servers), topic, values("x"), partition=2), [0])
    refused(KafkaError.INVALID_PARTITIONS, asked.create_partitions([NewPartitions(topic, 2)])[topic].result)


def check_describe_topics(servers: Servers) -> None:
    topic = topic_of(servers, 2)
    (seen,) = done(admin(servers).describe_topics(TopicCollection([topic]))).values()
    equal((seen.name, len(seen.partitions), seen.is_internal), (topic, 2, False))
    true(any(str(seen.topic_id) != str(zero) for zero in ("AAAAAAAAAAAAAAAAAAAAAA",)), "a topic id")


# -- producing ---------------------------------------------------------------------------------------------------


def check_acks_0(servers: Servers) -> None:
    topic = topic_of(servers)
    send(producer(servers, acks=0), topic, values("a", "b", "c"))
    equal([m.value() for m in read(servers, topic, 3)], [b"a", b"b", b"c"])


def check_acks_1(servers: Servers) -> None:
    topic = topic_of(servers)
    equal(send(producer(servers, acks=1), topic, values("a", "b")), [0, 1])


def check_acks_all(servers: Servers) -> None:
    topic = topic_of(servers)
    into = producer(servers, acks="all")
    equal(send(into, topic, values("a", "b")), [0, 1])
    equal(send(into, topic, values("c")), [2])


def codec(servers: Servers, name: str) -> None:
    topic = topic_of(servers)
    into = producer(servers, compression_type=name, linger_ms=20)
    rows = RECORDS + [(b"%d" % n, b"again and again " * 50, [], START_MS + n) for n in range(300)]
    equal(send(into, topic, rows), list(range(len(rows))))
    equal([row(message) for message in read(servers, topic, len(rows))], rows)


def check_idempotence(servers: Servers) -> None:
    topic = topic_of(servers)
    into = producer(servers, enable_idempotence=True, linger_ms=0, batch_num_messages=7)
    wanted = [b"%d" % n for n in range(500)]
    equal(send(into, topic, [(None, value, [], START_MS) for value in wanted]), list(range(500)))
    equal([m.value() for m in read(servers, topic, 500)], wanted)


def check_headers_nulls_timestamps(servers: Servers) -> None:
    topic = topic_of(servers)
    send(producer(servers), topic, RECORDS)
    equal([row(message) for message in read(servers, topic, len(RECORDS))], RECORDS)


def check_append_time(servers: Servers) -> None:
    topic = topic_of(servers, message_timestamp_type="LogAppendTime")
    send(producer(servers), topic, values("a"))
    (message,) = read(servers, topic, 1)
    kind, stamp = message.timestamp()
    equal(kind, 2, "the kind of timestamp (2 is the log's)")
    true(stamp > START_MS + 1_000_000, "the log's own time")


def check_large_accepted(servers: Servers) -> None:
    topic = topic_of(servers, max_message_bytes="3000000")
    big = random_bytes(2_500_000)
    into = producer(servers, message_max_bytes=3_000_000)
    equal(send(into, topic, [(None, b"small", [], START_MS), (None, big, [], START_MS)]), [0, 1])
    # A fetch brings the first batch whole, however little was asked for.
    found = read(servers, topic, 2, fetch_message_max_bytes=1000)
    true([m.value() for m in found] == [b"small", big], "the large record as it was sent")


def check_large_refused(servers: Servers) -> None:
    topic = topic_of(servers, max_message_bytes="10000")
    into = producer(servers)
    refused(KafkaError.MSG_SIZE_TOO_LARGE, lambda: send(into, topic, [(None, random_bytes(50_000), [], START_MS)]))
    equal(send(into, topic, values("small")), [0])


def check_keyless_into_compacted_refused(servers: Servers) -> None:
    topic = topic_of(servers, cleanup_policy="compact")
    into = producer(servers)
    refused(KafkaError.INVALID_RECORD, lambda: send(into, topic, values("nameless")))
    equal(send(into, topic, [(b"k", b"named", [], START_MS)]), [0])


def check_partition_by_key(servers: Servers) -> None:
    topic = topic_of(servers, 4)
    into = producer(servers, partitioner="murmur2_random")
    for number in range(40):
        into.produce(topic, b"%d" % number, b"key-%d" % (number % 8))
    equal(into.flush(SECONDS), 0)
    source = consumer(servers)
    source.subscribe([topic])
    places: dict[bytes, set[int]] = {}
    for message in take(source, 40):
        places.setdefault(message.key(), set()).add(message.partition())
    source.close()
    equal({len(parts) for parts in places.values()}, {1}, "partitions of one key")


# -- reading -----------------------------------------------------------------------------------------------------


def check_watermarks(servers: Servers) -> None:
    topic = topic_of(servers)
    source = consumer(servers)
    equal(source.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS), (0, 0))
    send(producer(servers), topic, values("a", "b", "c"))
    equal(source.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS), (0, 3))
    source.close()


def check_offsets_by_time(servers: Servers) -> None:
    topic = topic_of(servers)
    into = producer(servers)
    for number in range(5):
        send(into, topic, [(None, b"%d" % number, [], START_MS + number * 1000)])
    source = consumer(servers)
    asked = {START_MS: 0, START_MS + 1: 1, START_MS + 4000: 4, START_MS + 4001: -1}
    for stamp, wanted in asked.items():
        (found,) = source.offsets_for_times([TopicPartition(topic, 0, stamp)], timeout=SECONDS)
        equal(found.offset, wanted, f"offset at {stamp - START_MS} ms")
    source.close()


def check_list_offsets(servers: Servers) -> None:
    topic = topic_of(servers)
    rows: list = [
        (None, b"old", [], START_MS),
        (None, b"newest", [], START_MS + 9000),
        (None, b"mid", [], START_MS + 50),
    ]
    send(producer(servers), topic, rows)
    place = TopicPartition(topic, 0)
    asked = admin(servers)
    specs = {
        "earliest": (OffsetSpec.earliest(), 0),
        "latest": (OffsetSpec.latest(), 3),
        "timestamp": (OffsetSpec.for_timestamp(START_MS + 1), 1),
        "max timestamp": (OffsetSpec.max_timestamp(), 1),
    }
    for name, (spec, wanted) in specs.items():
        (found,) = done(asked.list_offsets({place: spec}, isolation_level=IsolationLevel.READ_COMMITTED)).values()
        equal(found.offset, wanted, name)


def check_from_mid_batch(servers: Servers) -> None:
    topic = topic_of(servers)
    wanted = [f"{n}" for n in range(50)]
    send(producer(servers, linger_ms=100), topic, values(*wanted))
    found = read(servers, topic, 13, offset=37)
    equal([(m.offset(), m.value()) for m in found], [(n, b"%d" % n) for n in range(37, 50)])


def check_out_of_range(servers: Servers) -> None:
    topic = topic_of(servers)
    send(producer(servers), topic, values("a", "b"))
    equal([m.value() for m in read(servers, topic, 2, offset=1000)], [b"a", b"b"], "after reset to earliest")


def check_seek(servers: Servers) -> None:
    topic = topic_of(servers)
    send(producer(servers), topic, values("a", "b", "c"))
    source = consumer(servers)
    source.assign([TopicPartition(topic, 0, 0)])
    equal([m.value() for m in take(source, 3)], [b"a", b"b", b"c"])
    source.seek(TopicPartition(topic, 0, 1))
    equal([m.value() for m in take(source, 2)], [b"b", b"c"])
    source.close()


# -- groups ------------------------------------------------------------------------------------------------------


def check_group_rebalance(servers: Servers) -> None:
    topic, group = topic_of(servers, 4), fresh("group")
    first = consumer(servers, group)
    first.subscribe([topic])
    until(lambda: owned([first]) == [{0, 1, 2, 3}], "one member with all")
    second = consumer(servers, group)
    second.subscribe([topic])
    until(lambda: sorted(map(sorted, owned([first, second]))) == [[0, 1], [2, 3]], "two and two")
    first.close()
    until(lambda: owned([second]) == [{0, 1, 2, 3}], "the other takes over")
    second.close()


def check_consumer_protocol(servers: Servers) -> None:
    topic, group = topic_of(servers, 4), fresh("group")
    settings = {"bootstrap.servers": servers.plain, "group.id": group, "group.protocol": "consumer", **NOISE}
    first, second = Consumer(settings), Consumer(settings)
    first.subscribe([topic])
    until(lambda: owned([first]) == [{0, 1, 2, 3}], "one member with all")
    second.subscribe([f"^{topic}.?"])
    until(lambda: [len(parts) for parts in owned([first, second])] == [2, 2], "two and two")
    place = first.assignment()[0]
    first.commit(offsets=[TopicPartition(topic, place.partition, 0, "by epoch")], asynchronous=False)
    equal(first.committed([place], timeout=SECONDS)[0].metadata, "by epoch", "the commit")
    first.close()
    until(lambda: owned([second]) == [{0, 1, 2, 3}], "the other takes over")
    second.close()


def check_cooperative(servers: Servers) -> None:
    topic, group = topic_of(servers, 4), fresh("group")
    lost: list[int] = []
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    first = consumer(servers, group, **settings)
    first.subscribe([topic], on_revoke=lambda _, parts: lost.extend(p.partition for p in parts))
    until(lambda: owned([first]) == [{0, 1, 2, 3}], "one member with all")
    second = consumer(servers, group, **settings)
    second.subscribe([topic])
    until(lambda: [len(parts) for parts in owned([first, second])] == [2, 2], "two and two")
    equal(len(lost), 2, "partitions taken from the first")
    first.close()
    second.close()


def check_static_member(servers: Servers) -> None:
    topic, group = topic_of(servers, 2), fresh("group")
    other = consumer(servers, group)
    other.subscribe([topic])
    static = consumer(servers, group, group_instance_id="one", session_timeout_ms=30_000)
    static.subscribe([topic])
    before = until(lambda: (p := owned([static, other])) and all(len(x) == 1 for x in p) and p, "one each")
    static.close()  # a static member does not leave: its partitions stay its own
    again = consumer(servers, group, group_instance_id="one", session_timeout_ms=30_000)
    again.subscribe([topic])
    after = until(lambda: (p := owned([again, other])) and all(len(x) == 1 for x in p) and p, "one each again")
    equal(after, before)
    again.close()
    other.close()


def check_commit_with_metadata(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    source = consumer(servers, group)
    place = TopicPartition(topic, 0)
    (found,) = source.committed([place], timeout=SECONDS)
    equal(found.offset, -1001, "nothing committed")
    source.commit(offsets=[TopicPartition(topic, 0, 7, "what I know")], asynchronous=False)
    (found,) = consumer(servers, group).committed([place], timeout=SECONDS)
    equal((found.offset, found.metadata), (7, "what I know"))
    source.close()


def check_session_timeout_bounds(servers: Servers) -> None:
    """Shorter or longer than a group's broker allows: the member hears it, and is in no group."""
    topic = topic_of(servers)
    for timeout_ms in (50, 1_900_000):
        more = {"max_poll_interval_ms": 2_000_000, "heartbeat_interval_ms": 10}
        source = consumer(servers, None, session_timeout_ms=timeout_ms, **more)
        source.subscribe([topic])

        def heard(source=source) -> str:
            message = source.poll(0.1)
            return message.error().name() if message is not None and message.error() else ""

        equal(until(heard, f"the refusal of {timeout_ms} ms"), "INVALID_SESSION_TIMEOUT")
        equal(source.assignment(), [])
        source.close()


def check_group_goes_on(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    send(producer(servers), topic, values("a", "b", "c"))
    source = consumer(servers, group)
    source.subscribe([topic])
    first = take(source, 3)
    source.commit(message=first[1], asynchronous=False)
    source.close()
    source = consumer(servers, group)
    source.subscribe([topic])
    equal([m.value() for m in take(source, 1)], [b"c"])
    source.close()


def check_list_and_describe_groups(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    source = consumer(servers, group, client_id="seen")
    source.subscribe([topic])
    until(lambda: owned([source]) == [{0}], "a member")
    asked = admin(servers)
    listed = {each.group_id: each for each in asked.list_consumer_groups().result(SECONDS).valid}
    equal(listed[group].state, ConsumerGroupState.STABLE)
    (seen,) = done(asked.describe_consumer_groups([group])).values()
    equal((seen.state, seen.partition_assignor, len(seen.members)), (ConsumerGroupState.STABLE, "range", 1))
    equal(seen.members[0].client_id, "seen")
    equal([(p.topic, p.partition) for p in seen.members[0].assignment.topic_partitions], [(topic, 0)])
    source.close()


def check_delete_group(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    source = consumer(servers, group)
    source.subscribe([topic])
    until(lambda: owned([source]) == [{0}], "a member")
    source.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    asked = admin(servers)
    refused(KafkaError.NON_EMPTY_GROUP, asked.delete_consumer_groups([group])[group].result)
    source.close()

    def deleted():
        try:
            done(asked.delete_consumer_groups([group]))
        except KafkaException as raised:
            equal(raised.args[0].code(), KafkaError.NON_EMPTY_GROUP)
            return False
        return True

    until(deleted, "the group to be empty")
    refused(KafkaError.GROUP_ID_NOT_FOUND, asked.delete_consumer_groups([group])[group].result)


def check_alter_group_offsets(servers: Servers) -> None:
    topic, group = topic_of(servers), fresh("group")
    asked = admin(servers)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5)])
    done(asked.alter_consumer_group_offsets([wanted]))
    (seen,) = done(asked.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])).values()
    equal([(p.topic, p.partition, p.offset) for p in seen.topic_partitions], [(topic, 0, 5)])


# -- transactions ------------------------------------------------------------------------------------------------


def transactional(servers: Servers, name: str) -> Producer:
    into = producer(servers, transactional_id=name, transaction_timeout_ms=60_000)
    into.init_transactions(SECONDS)
    return into


def check_transaction_commit_and_abort(servers: Servers) -> None:
    topic = topic_of(servers)
    into = transactional(servers, fresh("txn"))
    for texts, commit in ((("a1", "a2"), False), (("c1", "c2"), True), (("a3",), False), (("c3",), True)):
        into.begin_transaction()
        send(into, topic, values(*texts))
        into.commit_transaction(SECONDS) if commit else into.abort_transaction(SECONDS)
    committed = read(servers, topic, 3, isolation_level="read_committed")
    equal([m.value() for m in committed], [b"c1", b"c2", b"c3"])
    everything = read(servers, topic, 6, isolation_level="read_uncommitted")
    equal([m.value() for m in everything], [b"a1", b"a2", b"c1", b"c2", b"a3", b"c3"])


def check_open_transaction_is_unseen(servers: Servers) -> None:
    topic = topic_of(servers)
    send(producer(servers), topic, values("before"))
    into = transactional(servers, fresh("txn"))
    into.begin_transaction()
    send(into, topic, values("open"))
    place = TopicPartition(topic, 0)
    ends = {
        level: next(
            iter(done(admin(servers).list_offsets({place: OffsetSpec.latest()}, isolation_level=level)).values())
        )
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    }
    equal([end.offset for end in ends.values()], [1, 2], "stable end, end")
    into.commit_transaction(SECONDS)
    equal([m.value() for m in read(servers, topic, 2, isolation_level="read_committed")], [b"before", b"open"])


def check_send_offsets_to_transaction(servers: Servers) -> None:
    source_topic, target, group = topic_of(servers), topic_of(servers), fresh("group")
    send(producer(servers), source_topic, values("a", "b", "c"))
    source = consumer(servers, group, isolation_level="read_committed")
    source.subscribe([source_topic])
    take(source, 3)
    into = transactional(servers, fresh("txn"))
    place = TopicPartition(source_topic, 0)
    for offset, commit in ((3, False), (2, True)):
        into.begin_transaction()
        send(into, target, values(f"upto {offset}"))
        into.send_offsets_to_transaction(
            [TopicPartition(source_topic, 0, offset)], source.consumer_group_metadata(), SECONDS
        )
        into.commit_transaction(SECONDS) if commit else into.abort_transaction(SECONDS)
    # The markers are written after the answer.
    until(lambda: source.committed([place], timeout=SECONDS)[0].offset == 2, "the committed transaction's offset")
    source.close()
    equal([m.value() for m in read(servers, target, 1, isolation_level="read_committed")], [b"upto 2"])


def check_read_work_write(servers: Servers) -> None:
    """Read, work, write, commit both, without a flush in between: partitions, offsets and records are on their way at once."""
    source_topic, target, group = topic_of(servers), topic_of(servers), fresh("group")
    send(producer(servers), source_topic, values(*(f"{number}" for number in range(30))))
    source = consumer(servers, group, isolation_level="read_committed")
    source.subscribe([source_topic])
    into = transactional(servers, fresh("txn"))
    done_upto = 0
    for turn in range(9):
        messages = until(lambda: source.consume(5, 0.5), "records")
        into.begin_transaction()
        for message in messages:
            into.produce(target, message.value(), partition=0)
        done_upto = messages[-1].offset() + 1
        into.send_offsets_to_transaction(
            [TopicPartition(source_topic, 0, done_upto)], source.consumer_group_metadata(), SECONDS
        )
        if turn % 3 == 1:
            into.abort_transaction(SECONDS)
            done_upto = messages[0].offset()
            source.seek(TopicPartition(source_topic, 0, done_upto))
        else:
            into.commit_transaction(SECONDS)
        if done_upto == 30:
            break
    source.close()
    found = read(servers, target, done_upto, isolation_level="read_committed")
    equal([message.value() for message in found], [b"%d" % number for number in range(done_upto)])
    true(done_upto > 5, f"more than one turn's records: {done_upto}")


def check_zombie_is_fenced(servers: Servers) -> None:
    topic, name = topic_of(servers), fresh("txn")
    zombie = transactional(servers, name)
    zombie.begin_transaction()
    send(zombie, topic, values("from the grave"))
    successor = transactional(servers, name)
    successor.begin_transaction()
    send(successor, topic, values("alive"))
    successor.commit_transaction(SECONDS)
    try:
        zombie.produce(topic, b"again", partition=0)
        zombie.commit_transaction(SECONDS)
    except KafkaException as raised:
        true(raised.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED), f"fenced, not {raised}")
    else:
        raise Wrong("a zombie committed")
    equal([m.value() for m in read(servers, topic, 1, isolation_level="read_committed")], [b"alive"])


def check_transaction_timeout_refused(servers: Servers) -> None:
    into = producer(
        servers, transactional_id=fresh("txn"), transaction_timeout_ms=2_000_000_000, message_timeout_ms=1000
    )
    refused(KafkaError.INVALID_TRANSACTION_TIMEOUT, lambda: into.init_transactions(SECONDS))


# -- administration ----------------------------------------------------------------------------------------------


def check_delete_records(servers: Servers) -> None:
    topic = topic_of(servers)
    send(producer(servers), topic, values(*"abcde"))
    (answer,) = done(admin(servers).delete_records([TopicPartition(topic, 0, 3)])).values()
    equal(answer.low_watermark, 3)
    equal([m.value() for m in read(servers, topic, 2)], [b"d", b"e"])
    source = consumer(servers)
    equal(source.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS), (3, 5))
    source.close()


def check_alter_configs(servers: Servers) -> None:
    topic = topic_of(servers, retention_ms="1000000")
    asked = admin(servers)

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        done(asked.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]))

    def shown() -> Any:
        (entries,) = done(asked.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])).values()
        return entries

    alter("max.message.bytes", "77777", AlterConfigOpType.SET)
    until(lambda: shown()["max.message.bytes"].value == "77777", "the altered setting")
    equal(shown()["retention.ms"].value, "1000000", "the setting beside it")
    equal((shown()["retention.ms"].is_default, shown()["segment.bytes"].is_default), (False, True))
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    until(lambda: shown()["retention.ms"].value != "1000000", "the default again")
    refused(KafkaError.INVALID_CONFIG, lambda: alter("max.message.bytes", "many", AlterConfigOpType.SET))


def check_describe_broker_configs(servers: Servers) -> None:
    asked = admin(servers)
    node = next(iter(asked.list_topics(timeout=SECONDS).brokers))
    (entries,) = done(asked.describe_configs([ConfigResource(ResourceType.BROKER, str(node))])).values()
    true(len(entries) > 0, "settings of the broker")


def check_describe_cluster(servers: Servers) -> None:
    seen = admin(servers).describe_cluster().result(SECONDS)
    true(seen.cluster_id, "a cluster id")
    equal([f"{node.host}:{node.port}" for node in seen.nodes], [servers.plain])
    equal(seen.controller.id, seen.nodes[0].id)


def check_acls(servers: Servers) -> None:
    topic = fresh("acl")
    asked = admin(servers)
    allow = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    done(asked.create_acls([allow]))
    every = AclBindingFilter(
        ResourceType.TOPIC, topic, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    until(lambda: asked.describe_acls(every).result(SECONDS) == [allow], "the rule")
    equal(done(asked.delete_acls([every])), {every: [allow]})
    until(lambda: asked.describe_acls(every).result(SECONDS) == [], "no rule")


def check_statistics(servers: Servers) -> None:
    """librdkafka's own view of the broker: connected, and no errors in receiving."""
    seen: list[dict] = []
    topic = topic_of(servers)
    into = Producer(
        {
            "bootstrap.servers": servers.plain,
            "statistics.interval.ms": 50,
            "stats_cb": lambda text: seen.append(json.loads(text)),
            **NOISE,
        }
    )
    send(into, topic, values("a"))

    def told() -> bool:
        into.poll(0.1)
        return any(broker["tx"] for each in seen for broker in each["brokers"].values())

    until(told, "statistics")
    equal({(b["rxerrs"], b["rxcorriderrs"], b["rxpartial"]) for b in seen[-1]["brokers"].values()}, {(0, 0, 0)})


# -- who comes in ------------------------------------------------------------------------------------------------


def sasl(servers: Servers, mechanism: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers.sasl,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": mechanism,
        "sasl.username": servers.user,
        "sasl.password": password,
        **NOISE,
    }


def round_trip(settings: dict[str, Any]) -> None:
    """Create, produce and read with these settings."""
    topic = fresh("secured")
    done(admin_of(settings).create_topics([NewTopic(topic, 1, 1)]))
    equal(send(Producer(settings), topic, values("a")), [0])
    source = Consumer({**settings, "group.id": fresh("group"), "auto.offset.reset": "earliest"})
    source.subscribe([topic])
    equal([m.value() for m in take(source, 1)], [b"a"])
    source.close()


def kept_out(settings: dict[str, Any], *codes: int) -> None:
    """The client must learn why it is not let in, and get nothing."""
    errors: list[KafkaError] = []
    asked = AdminClient({**settings, "error_cb": errors.append})
    until(
        lambda: (asked.poll(0.1), any(error.code() in codes for error in errors))[1], f"one of {codes} in {errors}", 10
    )
    try:
        asked.list_topics(timeout=0.5)
    except KafkaException:
        return
    raise Wrong("let in")


def let_in(servers: Servers, mechanism: str) -> None:
    round_trip(sasl(servers, mechanism, servers.password))


def check_wrong_password_refused(servers: Servers) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        kept_out(sasl(servers, mechanism, "guessed"), KafkaError._AUTHENTICATION)


def check_without_password_refused(servers: Servers) -> None:
    kept_out({"bootstrap.servers": servers.sasl, **NOISE}, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)


def check_tls(servers: Servers) -> None:
    round_trip({"bootstrap.servers": servers.tls, "security.protocol": "ssl", "ssl.ca.location": servers.ca, **NOISE})


def check_mtls(servers: Servers) -> None:
    round_trip(
        {
            "bootstrap.servers": servers.mtls,
            "security.protocol": "ssl",
            "ssl.ca.location": servers.ca,
            "ssl.certificate.location": servers.client_cert,
            "ssl.key.location": servers.client_key,
            **NOISE,
        }
    )


def check_mtls_without_certificate_refused(servers: Servers) -> None:
    settings = {"bootstrap.servers": servers.mtls, "security.protocol": "ssl", "ssl.ca.location": servers.ca, **NOISE}
    kept_out(settings, KafkaError._SSL, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


TABLE = in_each_codec(codec) | with_each_mechanism(let_in)


if __name__ == "__main__":
    main(globals())
