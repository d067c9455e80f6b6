"""Groups over a socket: every version by hand, three client libraries, both kinds of groups, kill -9."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.flux.talk import Talk
from tests.adapters.kafka.asker import Asker, create
from tests.adapters.kafka.client import Client
from tests.adapters.kafka.clients import (
    AdminClient,
    AIOKafkaConsumer,
    AIOKafkaProducer,
    Consumer,
    ConsumerGroupTopicPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    KafkaConsumer,
    KafkaProducer,
    Producer,
    TopicPartition,
)
from tests.waiting import until

from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.consumer import assignment, read_subscription, subscription
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import groups as g
from braidlog.wire.kafka.rows import NO_UUID

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data"), "--set", "groups.rebalance_delay_ms=50") as process:
        yield process


# -- by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_life_in_every_version(asker: Asker, version: int) -> None:
    group = f"life{version}"
    first = asker.ask(
        g.JoinGroupRequest(
            group,
            10_000,
            10_000,
            protocol_type="consumer",
            protocols=[g.JoinGroupRequestProtocol("range", b"metadata")],
        ),
        version,
    )
    if version >= 4:
        assert (first.error_code, first.member_id[:6]) == (E.MEMBER_ID_REQUIRED, "asker-")
    told = asker.join(group, first.member_id, version)
    assert (told.error_code, told.leader, told.generation_id) == (0, told.member_id, 1)
    assert told.protocol_name == "range"
    assert [(each.member_id, bytes(each.metadata)) for each in told.members] == [(told.member_id, b"metadata")]
    shares = [g.SyncGroupRequestAssignment(told.member_id, b"mine")]
    synced = asker.ask(g.SyncGroupRequest(group, 1, told.member_id, assignments=shares), min(version, 5))
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    beat = asker.ask(g.HeartbeatRequest(group, 1, told.member_id), min(version, 4))
    assert beat.error_code == 0
    leaving = min(version, 5)
    members = [g.LeaveGroupRequestMember(told.member_id)] if leaving >= 3 else []
    left = asker.ask(g.LeaveGroupRequest(group, told.member_id, members), leaving)
    assert left.error_code == 0
    assert [each.error_code for each in left.members] == [0] * len(members)
    assert asker.ask(g.HeartbeatRequest(group, 1, told.member_id)).error_code == E.UNKNOWN_MEMBER_ID


def test_a_join_that_waits_holds_its_answer_and_those_behind_it(asker: Asker, server: ServerProcess) -> None:
    told = asker.alone("waits")
    with Asker(server.address("kafka")) as other:
        asked = g.JoinGroupRequest(
            "waits", 10_000, 10_000, protocol_type="consumer", protocols=[g.JoinGroupRequestProtocol("range", b"2")]
        )
        other.send(asked, 3)
        other.send(c.FindCoordinatorRequest("waits"), 0)
        until(lambda: asker.ask(g.HeartbeatRequest("waits", 1, told.member_id)).error_code == E.REBALANCE_IN_PROGRESS)
        again = asker.join("waits", told.member_id)
        joined, found = other.answer(), other.answer()
        assert (again.generation_id, joined.generation_id) == (2, 2)
        assert isinstance(found, c.FindCoordinatorResponse), "in the order of the requests"
        assert {each.member_id for each in again.members} == {told.member_id, joined.member_id}
        # The one who does not lead waits for its share; the leader brings it.
        other.send(g.SyncGroupRequest("waits", 2, joined.member_id))
        shares = [g.SyncGroupRequestAssignment(joined.member_id, b"theirs")]
        assert asker.ask(g.SyncGroupRequest("waits", 2, told.member_id, assignments=shares)).error_code == 0
        assert other.answer().assignment == b"theirs"


def test_what_is_refused(asker: Asker) -> None:
    told = asker.alone("refused")
    assert asker.join("refused", "stranger").error_code == E.UNKNOWN_MEMBER_ID
    assert asker.join("").error_code == E.INVALID_GROUP_ID
    assert asker.join("", session_timeout_ms=0).error_code == E.INVALID_GROUP_ID, "the name first, as Kafka judges"
    for timeout_ms in (1, 5_999, 1_800_001):
        assert asker.join("refused", session_timeout_ms=timeout_ms).error_code == E.INVALID_SESSION_TIMEOUT
    other = [g.JoinGroupRequestProtocol("other", b"")]
    assert asker.join("refused", protocols=other).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert asker.join("refused", protocol_type="connect").error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert asker.ask(g.HeartbeatRequest("refused", 9, told.member_id)).error_code == E.ILLEGAL_GENERATION
    assert asker.ask(g.HeartbeatRequest("nobody", 1, "m")).error_code == E.UNKNOWN_MEMBER_ID
    assert asker.ask(g.SyncGroupRequest("refused", 9, told.member_id)).error_code == E.ILLEGAL_GENERATION
    wrong = g.SyncGroupRequest("refused", 1, told.member_id, None, "consumer", "sticky")
    assert asker.ask(wrong).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    members = [g.LeaveGroupRequestMember(told.member_id), g.LeaveGroupRequestMember("stranger")]
    left = asker.ask(g.LeaveGroupRequest("refused", members=members))
    assert [each.error_code for each in left.members] == [0, E.UNKNOWN_MEMBER_ID]
    assert asker.ask(g.LeaveGroupRequest("refused", "stranger"), 0).error_code == E.UNKNOWN_MEMBER_ID


def test_a_static_member_takes_over_and_fences(asker: Asker) -> None:
    told = asker.alone("static", group_instance_id="A")
    back = asker.join("static", group_instance_id="A")
    assert (back.generation_id, back.skip_assignment) == (told.generation_id, True)
    assert back.member_id != told.member_id
    assert asker.ask(g.SyncGroupRequest("static", 1, back.member_id, "A")).assignment == b"share"
    beat = g.HeartbeatRequest("static", 1, told.member_id, "A")
    assert asker.ask(beat).error_code == E.FENCED_INSTANCE_ID
    assert asker.join("static", told.member_id, group_instance_id="A").error_code == E.FENCED_INSTANCE_ID
    sent_away = g.LeaveGroupRequest("static", members=[g.LeaveGroupRequestMember("", "A")])
    assert asker.ask(sent_away).members[0].error_code == 0


@pytest.mark.parametrize("version", range(7))
def test_coordinators(asker: Asker, server: ServerProcess, version: int) -> None:
    told = asker.ask(c.FindCoordinatorRequest("g", 0, ["g", "h"]), version)
    found = told.coordinators if version >= 4 else [told]
    assert {(each.error_code, each.node_id, each.host, each.port) for each in found} == {
        (0, 0, *server.address("kafka"))
    }
    if version:
        told = asker.ask(c.FindCoordinatorRequest("g", 9, ["g"]), version)
        assert (told.coordinators[0] if version >= 4 else told).error_code == E.INVALID_REQUEST


# -- commits -----------------------------------------------------------------------------------------------------


def committing(topic: str, *partitions: tuple[int, int, str], topic_id: bytes = NO_UUID, **more: Any) -> Any:
    asked = [g.OffsetCommitRequestPartition(number, offset, 3, text) for number, offset, text in partitions]
    topics = [g.OffsetCommitRequestTopic(topic, topic_id, asked)]
    return g.OffsetCommitRequest(**{"group_id": "commits", "topics": topics, **more})


def fetching(topic: str, *partitions: int, version: int, topic_id: bytes = NO_UUID, **more: Any) -> Any:
    topics = [g.OffsetFetchRequestTopic(topic, topic_id, list(partitions))]
    if version >= 8:
        return g.OffsetFetchRequest(groups=[g.OffsetFetchRequestGroup("commits", topics=topics)], **more)
    return g.OffsetFetchRequest("commits", topics, **more)


def topics_of(told: Any, version: int) -> Any:
    return told.groups[0].topics if version >= 8 else told.topics


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_in_every_version(asker: Asker, version: int) -> None:
    topic = f"commits{version}"
    create(asker, topic, 2)
    topic_id = asker.ask(c.MetadataRequest([c.MetadataRequestTopic(name=topic)])).topics[0].topic_id
    by_id = topic_id if version >= 10 else NO_UUID
    told = asker.ask(committing(topic, (0, 5, "note ü"), (7, 1, ""), topic_id=by_id), version)
    assert [each.error_code for each in told.topics[0].partitions] == [0, E.UNKNOWN_TOPIC_OR_PARTITION]
    found = asker.ask(fetching(topic, 0, 1, version=version, topic_id=by_id), version)
    (shown,) = topics_of(found, version)
    epoch = 3 if version >= 6 else -1
    assert [
        (each.partition_index, each.committed_offset, each.metadata, each.error_code) for each in shown.partitions
    ] == [(0, 5, "note ü", 0), (1, -1, "", 0)]
    if version >= 5:
        assert shown.partitions[0].committed_leader_epoch == epoch
    assert (shown.topic_id if version >= 10 else shown.name) == (topic_id if version >= 10 else topic)
    everything = (
        g.OffsetFetchRequest(groups=[g.OffsetFetchRequestGroup("commits", topics=None)])
        if version >= 8
        else g.OffsetFetchRequest("commits", None)
    )
    shown = topics_of(asker.ask(everything, version), version)
    assert (topic_id if version >= 10 else topic) in [t.topic_id if version >= 10 else t.name for t in shown]
    if version >= 10:
        wrong = asker.ask(committing("", (0, 1, ""), topic_id=b"x" * 16), version)
        assert wrong.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_ID


def test_commits_are_fenced(asker: Asker) -> None:
    create(asker, "fenced")
    told = asker.alone("fenced")

    def code(**more: Any) -> int:
        answer = asker.ask(committing("fenced", (0, 1, ""), group_id="fenced", **more), 9)
        return int(answer.topics[0].partitions[0].error_code)

    assert code() == E.UNKNOWN_MEMBER_ID
    assert code(member_id=told.member_id, generation_id_or_member_epoch=9) == E.ILLEGAL_GENERATION
    assert code(member_id=told.member_id, generation_id_or_member_epoch=1) == 0
    large = committing("fenced", (0, 1, "x" * 5000), group_id="other")
    assert asker.ask(large, 9).topics[0].partitions[0].error_code == E.OFFSET_METADATA_TOO_LARGE
    assert asker.ask(committing("fenced", (0, -5, ""), group_id="other"), 9).topics[0].partitions[0].error_code == (
        E.OFFSET_OUT_OF_RANGE
    )


def test_deleting_offsets_spares_what_is_read(asker: Asker) -> None:
    create(asker, "read")
    create(asker, "unread")
    protocols = [g.JoinGroupRequestProtocol("range", subscription(["read"]))]
    told = asker.alone("deleting", protocols=protocols)
    for topic in ("read", "unread"):
        more = {"member_id": told.member_id, "generation_id_or_member_epoch": told.generation_id}
        committed = asker.ask(committing(topic, (0, 1, ""), group_id="deleting", **more), 9)
        assert committed.topics[0].partitions[0].error_code == 0
    asked = [g.OffsetDeleteRequestTopic(name, [g.OffsetDeleteRequestPartition(0)]) for name in ("read", "unread", "no")]
    answer = asker.ask(g.OffsetDeleteRequest("deleting", asked))
    assert [each.partitions[0].error_code for each in answer.topics] == [
        E.GROUP_SUBSCRIBED_TO_TOPIC,
        0,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert asker.ask(g.OffsetDeleteRequest("nobody", asked)).error_code == E.GROUP_ID_NOT_FOUND


# -- looking and deleting ----------------------------------------------------------------------------------------


def test_list_describe_delete(asker: Asker) -> None:
    told = asker.alone("shown", b"opaque")
    for version in range(7):
        (shown,) = asker.ask(g.DescribeGroupsRequest(["shown"]), version).groups
        assert (shown.error_code, shown.group_state, shown.protocol_type) == (0, "Stable", "consumer")
        (member,) = shown.members
        assert (member.member_id, member.client_id) == (told.member_id, "asker")
        assert (member.member_metadata, member.member_assignment) == (b"metadata", b"opaque")
        assert member.client_host == "/127.0.0.1"
        (gone,) = asker.ask(g.DescribeGroupsRequest(["nobody"]), version).groups
        assert (gone.group_state, gone.error_code) == ("Dead", E.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    for version in range(6):
        listed = asker.ask(g.ListGroupsRequest(), version).groups
        assert ("shown", "consumer") in {(each.group_id, each.protocol_type) for each in listed}
    stable = asker.ask(g.ListGroupsRequest(["Stable"], ["classic"])).groups
    assert "shown" in {each.group_id for each in stable}
    assert asker.ask(g.ListGroupsRequest(["Empty"])).groups == [
        each for each in asker.ask(g.ListGroupsRequest()).groups if each.group_state == "Empty"
    ]
    assert asker.ask(g.ListGroupsRequest([], ["consumer"])).groups == []
    names = ["shown", "nobody"]
    codes = [each.error_code for each in asker.ask(g.DeleteGroupsRequest(names)).results]
    assert codes == [E.NON_EMPTY_GROUP, E.GROUP_ID_NOT_FOUND]
    asker.ask(g.LeaveGroupRequest("shown", told.member_id), 0)
    assert [each.error_code for each in asker.ask(g.DeleteGroupsRequest(names[:1])).results] == [0]


def test_groups_of_another_door(asker: Asker, server: ServerProcess) -> None:
    """A group in which the broker assigns is seen here, not joined; and the other way round."""
    create(asker, "shared", 2)
    with Talk(server.address("flux")) as flux:
        assert flux.ask("JOIN", "two-doors shared m1").startswith("OK|")
        (shown,) = asker.ask(g.DescribeGroupsRequest(["two-doors"])).groups
        assert (shown.group_state, shown.protocol_type) == ("Stable", "consumer")
        assert read_subscription(shown.members[0].member_metadata).topics == ["shared"]
        assert shown.members[0].member_assignment == assignment({"shared": [0, 1]})
        assert asker.join("two-doors").error_code == E.INCONSISTENT_GROUP_PROTOCOL
        asker.alone("here-first")
        assert flux.ask("JOIN", "here-first shared m1").startswith("ERR|BAD_REQUEST")


# -- client libraries --------------------------------------------------------------------------------------------


def fill(address: str, topic: str, partitions: int, count: int = 60) -> set[bytes]:
    producer = Producer({"bootstrap.servers": address})
    values = {b"%d" % number for number in range(count)}
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(WAIT_SECONDS) == 0
    return values


def consumer(address: str, group: str, **more: Any) -> Any:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            "topic.metadata.refresh.interval.ms": 1000,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )


def poll_all(consumers: list[Any], wanted: set[bytes]) -> None:
    """Every value is read, by whichever consumer."""
    missing = set(wanted)

    def step() -> bool:
        for each in consumers:
            message = each.poll(0.05)
            if message is not None and not message.error():
                missing.discard(message.value())
        return not missing

    until(step)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_librdkafka_consumers_share_and_take_over(asker: Asker, address: str, strategy: str) -> None:
    topic = f"rd-{strategy}"
    create(asker, topic, 4)
    values = fill(address, topic, 4)
    consumers = [consumer(address, topic, partition_assignment_strategy=strategy) for _ in range(2)]
    for each in consumers:
        each.subscribe([topic])

    def shares() -> list[set[int]]:
        for each in consumers:
            each.poll(0.05)
        return [{place.partition for place in each.assignment()} for each in consumers]

    until(lambda: [len(share) for share in shares()] == [2, 2])
    assert set.union(*shares()) == {0, 1, 2, 3}
    for each in consumers:
        for place in each.assignment():
            each.seek(TopicPartition(topic, place.partition, 0))
    poll_all(consumers, values)
    consumers.pop().close()
    until(lambda: [len(share) for share in shares()] == [4])
    consumers[0].commit(
        offsets=[TopicPartition(topic, number, 7, metadata="here") for number in range(4)], asynchronous=False
    )
    committed = consumers[0].committed([TopicPartition(topic, 2)], WAIT_SECONDS)
    assert [(place.offset, place.metadata) for place in committed] == [(7, "here")]
    consumers[0].close()
    admin = AdminClient({"bootstrap.servers": address})
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result()
    assert {place.offset for place in listed.topic_partitions} == {7}
    assert admin.delete_consumer_groups([topic])[topic].result() is None


def test_a_static_librdkafka_consumer_comes_back_without_a_round(asker: Asker, address: str) -> None:
    create(asker, "rd-static", 2)
    first = consumer(address, "rd-static", group_instance_id="one")
    first.subscribe(["rd-static"])
    until(lambda: (first.poll(0.05), first.assignment())[1])
    generation = asker.ask(g.DescribeGroupsRequest(["rd-static"])).groups[0].members[0].member_id
    second = consumer(address, "rd-static", group_instance_id="one")
    second.subscribe(["rd-static"])
    until(lambda: (second.poll(0.05), second.assignment())[1])
    assert asker.ask(g.DescribeGroupsRequest(["rd-static"])).groups[0].members[0].member_id != generation
    errors = []

    def fenced() -> bool:
        message = first.poll(0.05)
        if message is not None and message.error():
            errors.append(message.error().name())
        return "_FATAL" in errors

    until(fenced)
    second.close()


def test_kafka_python_consumers(asker: Asker, address: str) -> None:
    create(asker, "kp", 2)
    producer = KafkaProducer(bootstrap_servers=address)
    for number in range(20):
        producer.send("kp", b"%d" % number, partition=number % 2)
    producer.flush(WAIT_SECONDS)
    producer.close()
    consumers = [
        KafkaConsumer(
            "kp",
            bootstrap_servers=address,
            group_id="kp",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=6000,
            metadata_max_age_ms=1000,
        )
        for _ in range(2)
    ]
    seen: set[bytes] = set()

    def step() -> bool:
        # This client gives up a join that does not end within one poll, and begins another.
        for each in consumers:
            for records in each.poll(500).values():
                seen.update(record.value for record in records)
        return len(seen) == 20 and all(len(each.assignment()) == 1 for each in consumers)

    try:
        until(step)
        for each in consumers:
            each.commit()
            (place,) = each.assignment()
            assert each.committed(place) == 10
    finally:
        for each in consumers:
            each.close(autocommit=False)


def test_aiokafka_consumers(asker: Asker, address: str) -> None:
    create(asker, "aio", 2)

    async def read() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address)
        await producer.start()
        for number in range(20):
            await producer.send_and_wait("aio", b"%d" % number, partition=number % 2)
        await producer.stop()
        consumers = [
            AIOKafkaConsumer(
                "aio",
                bootstrap_servers=address,
                group_id="aio",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=200,
            )
            for _ in range(2)
        ]
        for each in consumers:
            await each.start()
        seen: set[bytes] = set()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(seen) < 20 or any(len(each.assignment()) != 1 for each in consumers):
                for each in consumers:
                    for records in (await each.getmany(timeout_ms=50)).values():
                        seen.update(record.value for record in records)
        for each in consumers:
            await each.commit()
            for place in each.assignment():
                assert await each.committed(place) == 10
            await each.stop()

    asyncio.run(read())


# -- kill -9 -----------------------------------------------------------------------------------------------------


def test_members_and_commits_outlive_the_node(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--set", "groups.rebalance_delay_ms=50") as server:
        with Asker(server.address("kafka")) as asker:
            create(asker, "kept")
            told = asker.alone("kept", b"share")
            more = {"member_id": told.member_id, "generation_id_or_member_epoch": told.generation_id}
            done = asker.ask(committing("kept", (0, 42, "note"), group_id="kept", **more), 9)
            assert done.topics[0].partitions[0].error_code == 0
        for _ in range(3):
            server.kill()
            server.restart()
            with Asker(server.address("kafka")) as asker:
                beat = g.HeartbeatRequest("kept", told.generation_id, told.member_id)
                assert asker.ask(beat).error_code == 0
                again = asker.ask(g.SyncGroupRequest("kept", told.generation_id, told.member_id))
                assert again.assignment == b"share"
                found = asker.ask(g.OffsetFetchRequest("kept", None), 7)
                assert found.topics[0].partitions[0].committed_offset == 42
                assert (
                    asker.ask(committing("kept", (0, 42, "note"), group_id="kept", **more), 9)
                    .topics[0]
                    .partitions[0]
                    .error_code
                    == 0
                )


# -- what consumers tell each other ------------------------------------------------------------------------------


def test_subscriptions_of_foreign_clients_are_understood() -> None:
    """Bytes of kafka-python's own encoder, ours in its decoder."""
    shares = ConsumerProtocolAssignment.decode(assignment({"a": [0, 2], "b": []}))
    assert [(each.topic, list(each.partitions)) for each in shares.assigned_partitions] == [("a", [0, 2]), ("b", [])]
    assert list(ConsumerProtocolSubscription.decode(subscription(["a", "b"])).topics) == ["a", "b"]
    theirs = ConsumerProtocolSubscription(topics=["a", "bc"], user_data=b"x").encode(version=0)
    assert read_subscription(theirs).topics == ["a", "bc"]


def test_what_one_may_do_with_a_group_is_told_to_who_asks(asker: Asker) -> None:
    asker.alone("allowed")
    asked = g.DescribeGroupsRequest(["allowed", "not-there"], include_authorized_operations=True)
    bits = (1 << 3) | (1 << 6) | (1 << 8)
    assert [each.authorized_operations for each in asker.ask(asked, 5).groups] == [bits, bits], "read, delete, describe"
    (unasked,) = asker.ask(g.DescribeGroupsRequest(["allowed"]), 5).groups
    assert unasked.authorized_operations == -(2**31)


def test_who_gives_up_a_join_that_waits_may_leave_on_the_same_connection(asker: Asker, server: ServerProcess) -> None:
    """What is asked behind a join that waits for others is answered after it, and counts before."""
    told = asker.alone("given-up")
    with Asker(server.address("kafka")) as other:
        first = other.ask(join_of("given-up"), 9)
        other.send(join_of("given-up", first.member_id), 9)
        other.send(g.LeaveGroupRequest("given-up", members=[g.LeaveGroupRequestMember(first.member_id)]), 5)

        def members() -> list[str]:
            beat = asker.ask(g.HeartbeatRequest("given-up", 1, told.member_id))
            assert beat.error_code in (E.NONE, E.REBALANCE_IN_PROGRESS), "the one that waits for us is still there"
            (group,) = asker.ask(g.DescribeGroupsRequest(["given-up"])).groups
            return [each.member_id for each in group.members] if beat.error_code else []

        until(lambda: members() == [told.member_id])


def test_a_client_that_closes_while_it_joins_does_not_hold_up_its_group(server: ServerProcess, asker: Asker) -> None:
    """Before version 4 a client has no id until its join is answered: it cannot come back as that member."""

    def long_join(member: str = "") -> g.JoinGroupRequest:
        protocols = [g.JoinGroupRequestProtocol("range", b"metadata")]
        return g.JoinGroupRequest("held", 1_800_000, 1_800_000, member, protocol_type="consumer", protocols=protocols)

    first = asker.ask(long_join(), 3)
    assert first.error_code == 0

    def members() -> int:
        return len(asker.ask(g.DescribeGroupsRequest(["held"])).groups[0].members)

    with Client(server) as gone:
        gone.send(long_join(), version=3)
        until(lambda: members() == 2)
    until(lambda: members() == 1)
    again = asker.ask(long_join(first.member_id), 3)
    assert [each.member_id for each in again.members] == [first.member_id]


def join_of(group: str, member: str = "") -> g.JoinGroupRequest:
    protocols = [g.JoinGroupRequestProtocol("range", b"metadata")]
    return g.JoinGroupRequest(group, 10_000, 10_000, member, protocol_type="consumer", protocols=protocols)
