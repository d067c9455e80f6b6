"""Consumer groups by group.protocol=consumer over a socket: by hand in both versions, and by librdkafka."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.adapters.kafka.asker import Asker, create
from tests.adapters.kafka.clients import (
    AdminClient,
    Consumer,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    Producer,
    TopicPartition,
)
from tests.waiting import until

from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import consumer_groups as m
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.messages import topics as t

WAIT_SECONDS = 60.0
BEAT_MS = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = ("--set", f"groups.heartbeat_interval_ms={BEAT_MS}", "--set", "groups.rebalance_delay_ms=0")
    with ServerProcess(tmp_path_factory.mktemp("data"), *settings) as process:
        yield process


def joining(group: str, *topics: str, member: str = "m", **more: Any) -> m.ConsumerGroupHeartbeatRequest:
    wanted = list(topics) or None
    return m.ConsumerGroupHeartbeatRequest(
        **{
            "group_id": group,
            "member_id": member,
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": wanted,
            "topic_partitions": [],
            **more,
        }
    )


# -- by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2))
def test_a_life_in_both_versions(asker: Asker, version: int) -> None:
    group = f"life{version}"
    create(asker, group, 2)
    told = asker.ask(joining(group, group, member="m" if version else ""), version)
    assert (told.error_code, told.member_epoch, told.heartbeat_interval_ms) == (0, 1, BEAT_MS)
    assert told.member_id == "m" if version else str(uuid.UUID(told.member_id)) == told.member_id
    (share,) = told.assignment.topic_partitions
    assert share.partitions == [0, 1]
    beat = m.ConsumerGroupHeartbeatRequest(group, told.member_id, 1)
    assert asker.ask(beat, version) == m.ConsumerGroupHeartbeatResponse(
        member_id=told.member_id, member_epoch=1, heartbeat_interval_ms=BEAT_MS
    )
    (seen,) = asker.ask(m.ConsumerGroupDescribeRequest([group], include_authorized_operations=True), version).groups
    assert (seen.group_state, seen.group_epoch, seen.assignment_epoch, seen.assignor_name) == (
        "Stable",
        1,
        1,
        "uniform",
    )
    assert seen.authorized_operations > 0
    (member,) = seen.members
    assert (member.member_id, member.member_epoch, member.subscribed_topic_names) == (told.member_id, 1, [group])
    assert [(each.topic_id, each.topic_name, each.partitions) for each in member.assignment.topic_partitions] == [
        (share.topic_id, group, [0, 1])
    ]
    assert member.target_assignment == member.assignment
    assert member.member_type == (1 if version else -1)
    left = asker.ask(m.ConsumerGroupHeartbeatRequest(group, told.member_id, -1), version)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert asker.ask(beat, version).error_code == E.UNKNOWN_MEMBER_ID


def test_a_group_with_a_heartbeat_interval_of_its_own(asker: Asker) -> None:
    create(asker, "paced")
    own = [t.IncrementalAlterConfigsRequestConfig("consumer.heartbeat.interval.ms", 0, str(2 * BEAT_MS))]
    group = t.IncrementalAlterConfigsRequestResource(32, "paced", own)
    assert asker.ask(t.IncrementalAlterConfigsRequest([group])).responses[0].error_code == 0
    assert asker.ask(joining("paced", "paced")).heartbeat_interval_ms == 2 * BEAT_MS
    assert asker.ask(joining("another", "paced")).heartbeat_interval_ms == BEAT_MS


def test_what_is_refused(asker: Asker) -> None:
    def code(asked: m.ConsumerGroupHeartbeatRequest, version: int = 1) -> E:
        told = asker.ask(asked, version)
        assert told.error_message
        return E(told.error_code)

    create(asker, "refused", 1)
    for broken in (
        joining("refused", "refused", member=""),
        joining("refused", "refused", instance_id=""),
        joining("refused", "refused", rack_id=""),
        joining("refused", "refused", rebalance_timeout_ms=-1),
        joining("refused", "refused", rebalance_timeout_ms=-2),
        joining("refused", "refused", topic_partitions=None),
        joining("refused"),
        joining("refused", "refused", member_epoch=-2),
        joining("refused", "refused", member_epoch=-3),
    ):
        assert code(broken) is E.INVALID_REQUEST
    assert code(joining("", "refused")) is E.INVALID_GROUP_ID
    assert code(joining("refused", "refused", server_assignor="sticky")) is E.UNSUPPORTED_ASSIGNOR
    assert code(joining("refused", subscribed_topic_regex="(")) is E.INVALID_REGULAR_EXPRESSION
    assert asker.ask(joining("refused", "refused", instance_id="i")).error_code == 0
    assert code(joining("refused", "refused", member="n", instance_id="i")) is E.UNRELEASED_INSTANCE_ID
    assert code(m.ConsumerGroupHeartbeatRequest("refused", "m", 9)) is E.FENCED_MEMBER_EPOCH
    asker.alone("taken")
    assert code(joining("taken", "refused")) is E.GROUP_ID_NOT_FOUND
    assert asker.join("refused").error_code == E.INCONSISTENT_GROUP_PROTOCOL
    missing, classic = asker.ask(m.ConsumerGroupDescribeRequest(["nope", "taken"])).groups
    assert missing.error_code == classic.error_code == E.GROUP_ID_NOT_FOUND
    assert "not a consumer group" in classic.error_message


def test_commits_and_fetches_name_the_member_epoch(asker: Asker) -> None:
    create(asker, "epochs", 1)
    asker.ask(joining("epochs", "epochs"))

    def commit(epoch: int, member: str = "m") -> int:
        partitions = [g.OffsetCommitRequestPartition(0, 3)]
        topics = [g.OffsetCommitRequestTopic("epochs", partitions=partitions)]
        told = asker.ask(g.OffsetCommitRequest("epochs", epoch, member, topics=topics), 9)
        return int(told.topics[0].partitions[0].error_code)

    def fetch(epoch: int, member: str | None = "m") -> tuple[int, list[int]]:
        topics = [g.OffsetFetchRequestTopic("epochs", partition_indexes=[0])]
        told = asker.ask(g.OffsetFetchRequest(groups=[g.OffsetFetchRequestGroup("epochs", member, epoch, topics)]), 9)
        (group,) = told.groups
        return group.error_code, [each.committed_offset for topic in group.topics for each in topic.partitions]

    assert commit(2) == E.STALE_MEMBER_EPOCH
    assert commit(1, "other") == E.UNKNOWN_MEMBER_ID
    assert commit(1) == 0
    assert fetch(1) == (0, [3])
    assert fetch(-1, None) == (0, [3])
    assert fetch(2)[0] == E.STALE_MEMBER_EPOCH
    assert fetch(1, "other")[0] == E.UNKNOWN_MEMBER_ID


def test_lists_tell_the_type_and_old_tools_see_the_members(asker: Asker) -> None:
    create(asker, "typed", 1)
    asker.ask(joining("typed", "typed"))
    asker.alone("classic")
    listed = {each.group_id: each for each in asker.ask(g.ListGroupsRequest()).groups}
    assert (listed["typed"].group_type, listed["typed"].group_state) == ("consumer", "Stable")
    assert listed["classic"].group_type == "classic"
    only = asker.ask(g.ListGroupsRequest(types_filter=["Consumer"])).groups
    assert "typed" in [each.group_id for each in only]
    assert "classic" not in [each.group_id for each in only]
    (told,) = asker.ask(g.DescribeGroupsRequest(["typed"])).groups
    assert (told.group_state, told.protocol_type, told.members[0].member_id) == ("Stable", "consumer", "m")
    (kept,) = asker.ask(g.DeleteGroupsRequest(["typed"])).results
    assert kept.error_code == E.NON_EMPTY_GROUP
    asker.ask(m.ConsumerGroupHeartbeatRequest("typed", "m", -1))
    (gone,) = asker.ask(g.DeleteGroupsRequest(["typed"])).results
    assert gone.error_code == 0


# -- librdkafka --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def consuming(address: str, group: str, *topics: str, **more: str) -> Iterator[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )
    consumer.subscribe(list(topics))
    try:
        yield consumer
    finally:
        consumer.close()


def produce(address: str, topic: str, partitions: int, count: int) -> set[bytes]:
    producer = Producer({"bootstrap.servers": address})
    values = [b"%d" % number for number in range(count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(WAIT_SECONDS) == 0
    return set(values)


def polled(consumer: Any) -> bytes | None:
    message = consumer.poll(0.05)
    if message is None:
        return None
    assert message.error() is None, message.error()
    return bytes(message.value())


def numbers(consumer: Any) -> set[int]:
    return {each.partition for each in consumer.assignment()}


def test_librdkafka_reads_rebalances_commits_and_goes_on(asker: Asker, address: str) -> None:
    create(asker, "rd", 4)
    values = produce(address, "rd", 4, 40)
    seen: set[bytes] = set()
    with consuming(address, "rd", "rd") as one:

        def all_read() -> bool:
            seen.add(polled(one) or b"")
            return values <= seen

        until(all_read)
        one.commit(asynchronous=False)
        with consuming(address, "rd", "rd") as two:

            def shared() -> bool:
                polled(one), polled(two)
                return len(numbers(one)) == len(numbers(two)) == 2

            until(shared)
            assert numbers(one) | numbers(two) == {0, 1, 2, 3}
            admin = AdminClient({"bootstrap.servers": address})
            (listed,) = [
                each for each in admin.list_consumer_groups().result(WAIT_SECONDS).valid if each.group_id == "rd"
            ]
            assert listed.type is ConsumerGroupType.CONSUMER
            described = admin.describe_consumer_groups(["rd"])["rd"].result(WAIT_SECONDS)
            assert sorted(len(each.assignment.topic_partitions) for each in described.members) == [2, 2]
            one.commit(offsets=[TopicPartition("rd", min(numbers(one)), 7)], asynchronous=False)

        def alone() -> bool:
            polled(one)
            return numbers(one) == {0, 1, 2, 3}

        until(alone)
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("rd")])["rd"].result(WAIT_SECONDS)
    offsets = {each.partition: each.offset for each in asked.topic_partitions}
    assert sorted(offsets.values()) == [7, 10, 10, 10]


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_librdkafka_moves_a_group_to_the_other_protocol_and_back(asker: Asker, address: str, assignor: str) -> None:
    """A classic member and one that reports share the work; each that is left goes on with all of it."""
    name = f"moved-{assignor}"
    create(asker, name, 4)
    classic = {"group_protocol": "classic", "partition_assignment_strategy": assignor, "heartbeat_interval_ms": "50"}
    sent, read = produce(address, name, 4, 40), set[bytes]()
    admin = AdminClient({"bootstrap.servers": address})

    def kind() -> Any:
        return admin.describe_consumer_groups([name])[name].result(WAIT_SECONDS).type

    with consuming(address, name, name, **classic) as old:

        def shared(*wanted: int, members: list[Any]) -> bool:
            read.update(value for each in members if (value := polled(each)) is not None)
            owned = [numbers(each) for each in members]
            return sorted(map(len, owned)) == sorted(wanted) and len(set().union(*owned)) == 4

        until(lambda: shared(4, members=[old]) and read == sent)
        old.commit(asynchronous=False)
        with consuming(address, name, name) as new:
            until(lambda: shared(2, 2, members=[old, new]))
            assert kind() == ConsumerGroupType.CONSUMER
            (told,) = asker.ask(m.ConsumerGroupDescribeRequest([name]), 1).groups
            assert sorted(each.member_type for each in told.members) == [0, 1]
            old.commit(offsets=[TopicPartition(name, number, 10) for number in numbers(old)], asynchronous=False)
            with consuming(address, name, name, **classic) as third:
                until(lambda: shared(1, 1, 2, members=[old, new, third]))
        until(lambda: shared(4, members=[old]) and kind() == ConsumerGroupType.CLASSIC)
    with consuming(address, name, name) as new:
        until(lambda: shared(4, members=[new]))
        assert kind() == ConsumerGroupType.CONSUMER
        committed = new.committed([TopicPartition(name, number) for number in range(4)], WAIT_SECONDS)
        assert [each.offset for each in committed] == [10] * 4


def test_librdkafka_subscribes_by_pattern(asker: Asker, address: str) -> None:
    create(asker, "pattern-1", 1)
    with consuming(address, "pattern", "^pattern-[0-9]+") as consumer:

        def sees(count: int) -> bool:
            polled(consumer)
            return len(consumer.assignment()) == count

        until(lambda: sees(1))
        create(asker, "pattern-2", 1)
        until(lambda: sees(2))


def test_librdkafka_goes_on_after_kill_9(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In the same epoch, with what it had: nobody rebalances because the node was away."""
    settings = ("--set", f"groups.heartbeat_interval_ms={BEAT_MS}")
    with ServerProcess(tmp_path_factory.mktemp("killed"), *settings) as server:
        address = "{}:{}".format(*server.address("kafka"))
        with Asker(server.address("kafka")) as asker:
            create(asker, "k", 2)
        with consuming(address, "k", "k") as consumer:

            def has_all() -> bool:
                polled(consumer)
                return numbers(consumer) == {0, 1}

            until(has_all)
            server.kill()
            server.restart()
            values = produce(address, "k", 2, 10)
            seen: set[bytes] = set()

            def all_read() -> bool:
                with contextlib.suppress(AssertionError):  # it says once that the broker was away
                    seen.add(polled(consumer) or b"")
                return values <= seen

            until(all_read)
            with Asker(server.address("kafka")) as asker:
                (told,) = asker.ask(m.ConsumerGroupDescribeRequest(["k"])).groups
            assert (told.group_state, told.group_epoch) == ("Stable", 1)
