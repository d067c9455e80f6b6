"""What an administrator changes through the Kafka door, as a foreign one (librdkafka) sees it, and the other way round."""

import time
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.client.dialects import COLUMNS, fresh, server_url

import braidlog
from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.client.schemes import capabilities
from braidlog.testing.server import ServerProcess

SECONDS = 30


def foreign(server: ServerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{server.ports['kafka']}"})


def own_settings(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    told = admin.describe_configs([resource])[resource].result(SECONDS)
    return {name: each.value for name, each in told.items() if not each.is_default}


def test_settings_and_partitions(braid_server_shared: ServerProcess) -> None:
    topic, other = fresh("set"), foreign(braid_server_shared)
    with braidlog.connect(server_url("kafka", braid_server_shared)) as client:
        client.admin.create_topic(topic, 1, {"retention.ms": "1000", "segment.bytes": "1048576"})
        assert own_settings(other, topic) == {"retention.ms": "1000", "segment.bytes": "1048576"}
        client.admin.alter_topic(topic, {"retention.ms": None, "cleanup.policy": "compact"}, partitions=3)
        assert own_settings(other, topic) == {"segment.bytes": "1048576", "cleanup.policy": "compact"}
        assert len(other.list_topics(topic, SECONDS).topics[topic].partitions) == 3
        told = {each.name: each for each in client.admin.topic_settings(topic)}
        assert (told["cleanup.policy"].value, told["cleanup.policy"].is_default) == ("compact", False)
        assert told["retention.ms"].is_default
        assert told["unclean.leader.election.enable"].is_fixed
        assert told["retention.ms"].text
        client.admin.alter_topic(topic, partitions=3)  # what is so already is no error
        for wrong in ({"no.such": "1"}, {"retention.ms": "soon"}, {"segment.bytes": "1"}):
            with pytest.raises(braidlog.RefusedError) as caught:
                client.admin.alter_topic(topic, {"cleanup.policy": "delete", **wrong})
            assert caught.value.reason is braidlog.Refusal.INVALID
        assert own_settings(other, topic)["cleanup.policy"] == "compact", "all of them or none"
        with pytest.raises(braidlog.RefusedError, match="INVALID_PARTITIONS"):
            client.admin.alter_topic(topic, partitions=2)


def test_topics_are_described_with_one_request_of_a_kind(
    braid_server_shared: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = KafkaDriver.ask

    async def counted(driver: KafkaDriver, message: Any, *args: Any) -> Any:
        asked.append(type(message).__name__)
        return await ask(driver, message, *args)

    names = [fresh("many") for _ in range(3)]
    with braidlog.connect(server_url("kafka", braid_server_shared)) as client:
        for count, name in enumerate(names, start=1):
            client.admin.create_topic(name, count)
        client.producer().send_and_wait(names[2], b"one", partition=2)
        monkeypatch.setattr(KafkaDriver, "ask", counted)
        found = client.admin.describe_topics(names)
        assert asked == ["MetadataRequest", "ListOffsetsRequest", "ListOffsetsRequest"]
        assert [(each.topic, [span.latest for span in each.partitions]) for each in found] == [
            (names[0], [0]),
            (names[1], [0, 0]),
            (names[2], [0, 0, 1]),
        ]
        with pytest.raises(braidlog.RefusedError, match="braid topic create absent"):
            client.admin.describe_topics([names[0], "absent"])


def test_the_oldest_records_are_deleted(braid_server_shared: ServerProcess) -> None:
    topic = fresh("trim")
    with braidlog.connect(server_url("kafka", braid_server_shared)) as client:
        client.admin.create_topic(topic)
        producer = client.producer()
        for value in (b"one", b"two", b"three"):
            producer.send_and_wait(topic, value)
        assert client.admin.trim(topic, 0, 2) == 2
        assert client.admin.describe_topic(topic).partitions[0].earliest == 2
        with pytest.raises(braidlog.RefusedError) as caught:
            client.admin.trim(topic, 0, 9)
        assert caught.value.reason is braidlog.Refusal.OFFSET_OUT_OF_RANGE


def test_commits_of_a_group(braid_server_shared: ServerProcess) -> None:
    first, second, group = fresh("a"), fresh("b"), fresh("group")
    other = foreign(braid_server_shared)
    with braidlog.connect(server_url("kafka", braid_server_shared)) as client:
        client.admin.create_topic(first, 2)
        client.admin.create_topic(second)
        for topic in (first, second):
            client.producer().send_and_wait(topic, b"x", partition=0)
        client.admin.reset_group(group, first, {0: 1, 1: 0})
        theirs = [ConsumerGroupTopicPartitions(group, [TopicPartition(second, 0, 1)])]
        other.alter_consumer_group_offsets(theirs)[group].result(SECONDS)
        assert client.admin.group_offsets(group) == {(first, 0): 1, (first, 1): 0, (second, 0): 1}
        listed: Any = other.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(SECONDS)
        assert {(each.topic, each.partition): each.offset for each in listed.topic_partitions} == (
            client.admin.group_offsets(group)
        )
        client.admin.delete_group(group)
        assert client.admin.group_offsets(group) == {}
        with pytest.raises(braidlog.RefusedError, match="GROUP_ID_NOT_FOUND"):
            client.admin.delete_group(group)


def test_a_group_with_members_is_left_alone(braid_server_shared: ServerProcess) -> None:
    topic, group = fresh("t"), fresh("group")
    with braidlog.connect(server_url("kafka", braid_server_shared)) as client:
        client.admin.create_topic(topic)
        with client.consumer() as consumer:
            consumer.subscribe(topic, group=group)
            with pytest.raises(braidlog.RefusedError):
                client.admin.reset_group(group, topic, {0: 0})
            with pytest.raises(braidlog.RefusedError, match="NON_EMPTY_GROUP"):
                client.admin.delete_group(group)
        client.admin.reset_group(group, topic, {0: 0})


@pytest.mark.parametrize("column", [column for column in COLUMNS if column != "kafka"])
def test_what_a_dialect_cannot_is_refused_before_it_is_asked(column: str, braid_server_shared: ServerProcess) -> None:
    able = capabilities()[column]
    assert (able.settings, able.trims, able.group_offsets) == (False, False, False)
    with braidlog.connect(server_url(column, braid_server_shared)) as client:
        admin = client.admin
        for refused in (
            lambda: admin.create_topic("t", 1, {"retention.ms": "1"}),
            lambda: admin.alter_topic("t", {"retention.ms": "1"}),
            lambda: admin.topic_settings("t"),
            lambda: admin.trim("t", 0, 0),
            lambda: admin.group_offsets("g"),
            lambda: admin.delete_group("g"),
            lambda: client.require("settings"),
        ):
            with pytest.raises(braidlog.UnsupportedError, match=r"does not support .*; supported by: kafka"):
                refused()


def test_where_a_log_ends_with_what_is_no_record(braid_server_shared: ServerProcess) -> None:
    """After the mark of a transaction nothing is to be handed out, and a reader can know it."""
    from confluent_kafka import Producer  # noqa: PLC0415 - this one test writes transactions

    topic = fresh("marks")
    with braidlog.connect(server_url("kafka", braid_server_shared)) as client:
        client.admin.create_topic(topic)
        writer = Producer(
            {"bootstrap.servers": f"127.0.0.1:{braid_server_shared.ports['kafka']}", "transactional.id": fresh("tx")}
        )
        writer.init_transactions(SECONDS)
        writer.begin_transaction()
        writer.produce(topic, b"one")
        writer.commit_transaction(SECONDS)
        latest = client.admin.describe_topic(topic).partitions[0].latest
        assert latest == 2
        with client.consumer() as consumer:
            consumer.assign(topic)
            found: list[bytes | None] = []
            deadline = time.monotonic() + SECONDS
            while consumer.reached(topic, 0) < latest:
                assert time.monotonic() < deadline, "the end was never reached"
                found += [record.value for record in consumer.poll(timeout=0.2)]
            assert found == [b"one"]
            assert consumer.position(topic, 0) == 1
