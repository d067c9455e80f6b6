"""Administration over a socket: topics, partitions, records, settings, folders; by hand and with client libraries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.kafka.asker import Asker, create
from tests.adapters.kafka.clients import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    KafkaAdminClient,
    KafkaException,
    NewPartitions,
    NewTopic,
    Producer,
    ResourceType,
    TopicPartition,
)
from tests.wire.kafka.vectors import RESPONSES

from braidlog.adapters.kafka.administration.config_table import ROWS
from braidlog.adapters.kafka.administration.configs import OURS, RATE
from braidlog.model.settings import TopicSettings
from braidlog.server.config import ServerConfig
from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import topics as m
from braidlog.wire.kafka.messages.parts import TopicPartitions
from braidlog.wire.kafka.rows import NO_UUID

WAIT_SECONDS = 60.0
TOPIC, BROKER, GROUP = 2, 4, 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("data"), "--set", "listeners.kafka.partitions=3") as process:
        yield process


def make(asker: Asker, name: str, version: int = 7, *, validate_only: bool = False, **more: Any) -> Any:
    fields = {"num_partitions": 1, "replication_factor": 1, **more}
    fields["configs"] = [m.ConfigValue(*pair) for pair in more.get("configs", {}).items()]
    topic = m.CreateTopicsRequestTopic(name, **fields)
    (told,) = asker.ask(m.CreateTopicsRequest([topic], 30_000, validate_only), version).topics
    return told


def metadata(asker: Asker, name: str) -> Any:
    asked = c.MetadataRequest([c.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return asker.ask(asked, 12).topics[0]


def settings_of(asker: Asker, name: str, version: int = 4, kind: int = TOPIC) -> dict[str, Any]:
    asked = m.DescribeConfigsRequest([m.DescribeConfigsRequestResource(kind, name, None)], True, True)
    (told,) = asker.ask(asked, version).results
    assert told.error_code == 0, told
    return {each.name: each for each in told.configs}


def alter(asker: Asker, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False) -> Any:
    configs = [m.IncrementalAlterConfigsRequestConfig(*change) for change in changes]
    resource = m.IncrementalAlterConfigsRequestResource(TOPIC, name, configs)
    (told,) = asker.ask(m.IncrementalAlterConfigsRequest([resource], validate_only)).responses
    return told


# -- topics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 8))
def test_create_in_every_version(asker: Asker, version: int) -> None:
    name = f"made{version}"
    told = make(asker, name, version, num_partitions=2, configs={"retention.ms": "1234", "cleanup.policy": "compact"})
    assert (told.error_code, told.error_message) == (0, None)
    found = metadata(asker, name)
    assert len(found.partitions) == 2
    assert found.topic_id != NO_UUID
    if version >= 5:
        assert (told.num_partitions, told.replication_factor) == (2, 1)
        assert {each.name: each.value for each in told.configs}["retention.ms"] == "1234"
    if version >= 7:
        assert told.topic_id == found.topic_id
    again = make(asker, name, version)
    assert again.error_code == E.TOPIC_ALREADY_EXISTS
    assert "exists" in again.error_message


@pytest.mark.parametrize(
    ("name", "more", "code"),
    [
        ("bad name", {}, E.INVALID_TOPIC),
        ("", {}, E.INVALID_TOPIC),
        ("__internal", {}, E.INVALID_TOPIC),
        ("zero", {"num_partitions": 0}, E.INVALID_PARTITIONS),
        ("many", {"num_partitions": 10_001}, E.INVALID_PARTITIONS),
        ("replicas", {"replication_factor": 3}, E.INVALID_REPLICATION_FACTOR),
        ("unknown", {"configs": {"no.such": "1"}}, E.INVALID_CONFIG),
        ("wrong", {"configs": {"retention.ms": "soon"}}, E.INVALID_CONFIG),
        ("fixed", {"configs": {"unclean.leader.election.enable": "true"}}, E.INVALID_CONFIG),
        ("low", {"configs": {"segment.bytes": "1"}}, E.INVALID_CONFIG),
        ("policy", {"configs": {"cleanup.policy": "burn"}}, E.INVALID_CONFIG),
        (
            "assigned",
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [m.CreateTopicsRequestAssignment(0, [7])],
            },
            E.INVALID_REPLICA_ASSIGNMENT,
        ),
        ("both", {"assignments": [m.CreateTopicsRequestAssignment(0, [0])]}, E.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_created(asker: Asker, name: str, more: dict[str, Any], code: E) -> None:
    for validate_only in (True, False):
        told = make(asker, name, validate_only=validate_only, **more)
        assert told.error_code == code
        assert told.error_message
    assert metadata(asker, name or "x").error_code != 0


def test_defaults_assignments_duplicates_and_looking_only(asker: Asker) -> None:
    assert make(asker, "default", num_partitions=-1, replication_factor=-1).num_partitions == 3
    assigned = [m.CreateTopicsRequestAssignment(number, [0]) for number in range(2)]
    assert make(asker, "placed", num_partitions=-1, replication_factor=-1, assignments=assigned).num_partitions == 2
    assert make(asker, "looked", validate_only=True, configs={"retention.ms": None}).error_code == 0
    assert metadata(asker, "looked").error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    twice = m.CreateTopicsRequest([m.CreateTopicsRequestTopic("twice", 1, 1)] * 2)
    assert [each.error_code for each in asker.ask(twice).topics] == [E.INVALID_REQUEST] * 2


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_in_every_version(asker: Asker, version: int) -> None:
    name = f"gone{version}"
    create(asker, name)
    before = metadata(asker, name).topic_id
    topics = [m.DeleteTopicsRequestTopic(name), m.DeleteTopicsRequestTopic("nope")]
    told = asker.ask(m.DeleteTopicsRequest(topics, [name, "nope"], 30_000), version).responses
    assert [(each.name, each.error_code) for each in told] == [(name, 0), ("nope", E.UNKNOWN_TOPIC_OR_PARTITION)]
    create(asker, name)
    after = metadata(asker, name).topic_id
    assert after != before, "a new topic of the same name is another one"
    if version >= 6:
        by_id = [m.DeleteTopicsRequestTopic(None, before), m.DeleteTopicsRequestTopic(None, after)]
        told = asker.ask(m.DeleteTopicsRequest(by_id), version).responses
        assert [(each.name, each.error_code) for each in told] == [(None, E.UNKNOWN_TOPIC_ID), (name, 0)]


def test_ids_stay_through_a_restart(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        with Asker(server.address("kafka")) as asker:
            create(asker, "kept")
            before = metadata(asker, "kept").topic_id
            assert alter(asker, "kept", ("retention.ms", 0, "77")).error_code == 0
        server.kill()
        server.restart()
        with Asker(server.address("kafka")) as asker:
            assert metadata(asker, "kept").topic_id == before
            assert settings_of(asker, "kept")["retention.ms"].value == "77"


def test_more_partitions(asker: Asker) -> None:
    create(asker, "grown")

    def grow(name: str, count: int, *assigned: list[int], validate_only: bool = False) -> int:
        places = [m.CreatePartitionsRequestAssignment(each) for each in assigned] or None
        asked = m.CreatePartitionsRequest([m.CreatePartitionsRequestTopic(name, count, places)], 30_000, validate_only)
        return int(asker.ask(asked).results[0].error_code)

    assert grow("grown", 3, validate_only=True) == 0
    assert len(metadata(asker, "grown").partitions) == 1
    assert grow("grown", 3) == 0
    assert len(metadata(asker, "grown").partitions) == 3
    assert grow("grown", 3) == grow("grown", 2) == E.INVALID_PARTITIONS
    assert grow("nope", 3) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert grow("grown", 4, [9]) == E.INVALID_REPLICA_ASSIGNMENT
    assert grow("grown", 4, [0]) == 0


# -- records -----------------------------------------------------------------------------------------------------


def test_deleting_records(asker: Asker, address: str) -> None:
    create(asker, "trimmed")
    producer = Producer({"bootstrap.servers": address})
    for number in range(10):
        producer.produce("trimmed", b"%d" % number, partition=0)
    assert producer.flush(WAIT_SECONDS) == 0
    for version in range(3):

        def trim(offset: int, partition: int = 0, version: int = version) -> tuple[int, int]:
            asked = [m.DeleteRecordsRequestTopic("trimmed", [m.DeleteRecordsRequestPartition(partition, offset)])]
            (told,) = asker.ask(m.DeleteRecordsRequest(asked, 30_000), version).topics[0].partitions
            return told.low_watermark, told.error_code

        assert trim(version + 1) == (version + 1, 0)
        assert trim(99) == (-1, E.OFFSET_OUT_OF_RANGE)
        assert trim(0, 9) == (-1, E.UNKNOWN_TOPIC_OR_PARTITION)
    admin = AdminClient({"bootstrap.servers": address})
    place = TopicPartition("trimmed", 0, -1)
    assert admin.delete_records([place])[place].result().low_watermark == 10


def test_folders(asker: Asker, server: ServerProcess, address: str) -> None:
    create(asker, "sized")
    producer = Producer({"bootstrap.servers": address})
    producer.produce("sized", bytes(1000), partition=0)
    assert producer.flush(WAIT_SECONDS) == 0
    for version in range(1, 5):
        (found,) = asker.ask(m.DescribeLogDirsRequest(None), version).results
        assert found.log_dir == server.data_dir
        sizes = {topic.name: topic.partitions[0].partition_size for topic in found.topics}
        assert 1000 < sizes["sized"] < 1200
        asked = [TopicPartitions("sized", [0, 5])]
        (found,) = asker.ask(m.DescribeLogDirsRequest(asked), version).results
        assert [len(topic.partitions) for topic in found.topics] == [1]


# -- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_in_every_version(asker: Asker, version: int) -> None:
    name = f"described{version}"
    make(asker, name, configs={"retention.ms": "5"})
    found = settings_of(asker, name, version)
    assert set(found) == set(ROWS)
    own, other = found["retention.ms"], found["segment.bytes"]
    assert (own.value, own.config_source, own.read_only) == ("5", 1, False)
    assert (other.value, other.config_source) == (str(TopicSettings().segment_bytes), 5)
    assert [(each.value, each.source) for each in own.synonyms] == [("5", 1), ("-1", 5)]
    assert found["unclean.leader.election.enable"].read_only
    if version >= 3:
        assert own.config_type == 5
        assert own.documentation
    asked = [
        m.DescribeConfigsRequestResource(TOPIC, name, ["retention.ms", "nonsense"]),
        m.DescribeConfigsRequestResource(TOPIC, "nope", None),
        m.DescribeConfigsRequestResource(BROKER, "7", None),
        m.DescribeConfigsRequestResource(99, "x", None),
    ]
    told = asker.ask(m.DescribeConfigsRequest(asked), version).results
    assert [each.error_code for each in told] == [
        0,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.INVALID_REQUEST,
        E.INVALID_REQUEST,
    ]
    assert [each.name for each in told[0].configs] == ["retention.ms"]
    assert settings_of(asker, "0", version, BROKER)["num.partitions"].value == "3"


def test_every_setting_of_ours_is_one_of_kafkas() -> None:
    """A new topic setting without a row here does not pass."""
    ours = {name for row in ROWS.values() for name in row.ours}
    assert ours == {*TopicSettings.__struct_fields__, "min_in_sync"}


def test_every_setting_of_kafkas_is_one_of_ours() -> None:
    """As Apache Kafka told them of a topic (the golden vector): who copies a topic's settings asks for each of them."""
    told = [
        (config.name, config.config_type)
        for vector in RESPONSES
        if isinstance(vector.message, m.DescribeConfigsResponse)
        for result in vector.message.results
        for config in result.configs
        if result.resource_type == TOPIC
    ]
    assert len(told) > 30
    assert {name: kind for name, kind in told if name not in ROWS or ROWS[name].kind != kind} == {}


def test_some_are_changed(asker: Asker) -> None:
    make(asker, "changed")
    told = alter(asker, "changed", ("retention.ms", 0, "5"), ("max.message.bytes", 0, "2000"))
    assert told.error_code == 0
    assert alter(asker, "changed", ("cleanup.policy", 2, "compact")).error_code == 0
    assert settings_of(asker, "changed")["cleanup.policy"].value == "compact,delete"
    assert alter(asker, "changed", ("cleanup.policy", 3, "delete"), ("retention.ms", 1, None)).error_code == 0
    found = settings_of(asker, "changed")
    assert (found["cleanup.policy"].value, found["retention.ms"].value) == ("compact", "-1")
    assert found["max.message.bytes"].value == "2000"
    assert alter(asker, "changed", ("compression.type", 0, "producer")).error_code == 0
    for wrong in (("nonsense", 0, "1"), ("retention.ms", 2, "1"), ("retention.ms", 0, None), ("retention.ms", 0, "x")):
        assert alter(asker, "changed", ("segment.ms", 0, "9"), wrong).error_code == E.INVALID_CONFIG
    assert alter(asker, "changed", *[("segment.ms", 0, "9")] * 2).error_code == E.INVALID_REQUEST
    assert settings_of(asker, "changed")["segment.ms"].config_source == 5, "as a whole or not at all"
    assert alter(asker, "changed", ("segment.ms", 0, "9"), validate_only=True).error_code == 0
    assert settings_of(asker, "changed")["segment.ms"].config_source == 5
    assert alter(asker, "nope", ("segment.ms", 0, "9")).error_code == E.UNKNOWN_TOPIC_OR_PARTITION


def test_settings_without_effect_are_kept_and_shown(asker: Asker) -> None:
    """Tools that copy settings from Kafka bring them along."""
    wanted = {
        "compression.type": "zstd",
        "segment.jitter.ms": "9",
        "file.delete.delay.ms": "1",
        "message.format.version": "2.8",
    }
    configs = [m.ConfigValue(name, value) for name, value in wanted.items()]
    told = asker.ask(m.CreateTopicsRequest([m.CreateTopicsRequestTopic("noted", 1, 1, configs=configs)])).topics[0]
    assert told.error_code == 0, told.error_message

    def found() -> dict[str, str]:
        shown = settings_of(asker, "noted")
        return {name: shown[name].value for name in wanted}

    assert found() == wanted
    assert settings_of(asker, "noted")["compression.type"].config_source == 1
    assert alter(asker, "noted", ("compression.type", 1, None), ("segment.jitter.ms", 0, "10")).error_code == 0
    assert found() == wanted | {"compression.type": "producer", "segment.jitter.ms": "10"}
    for name, value in (
        ("compression.type", "rar"),
        ("segment.jitter.ms", "x"),
        ("min.cleanable.dirty.ratio", "1.2.3"),
    ):
        assert alter(asker, "noted", (name, 0, value)).error_code == E.INVALID_CONFIG
    asked = [m.AlterConfigsRequestResource(2, "noted", [m.ConfigValue("preallocate", "true")])]
    assert asker.ask(m.AlterConfigsRequest(asked)).responses[0].error_code == 0
    assert found()["file.delete.delay.ms"] == "60000", "all the others go back to their defaults"
    assert settings_of(asker, "noted")["preallocate"].value == "true"


@pytest.mark.parametrize("version", range(3))
def test_all_are_changed(asker: Asker, version: int) -> None:
    name = f"whole{version}"
    make(asker, name, configs={"retention.ms": "5", "min.insync.replicas": "2"})

    def replace(kind: int, name: str, *pairs: tuple[str, str | None]) -> int:
        configs = [m.ConfigValue(*pair) for pair in pairs]
        asked = m.AlterConfigsRequest([m.AlterConfigsRequestResource(kind, name, configs)])
        return int(asker.ask(asked, version).responses[0].error_code)

    assert replace(TOPIC, name, ("segment.ms", "9")) == 0
    own = {key: each.value for key, each in settings_of(asker, name).items() if each.config_source == 1}
    assert own == {"segment.ms": "9"}
    assert replace(TOPIC, name, ("segment.ms", "x")) == E.INVALID_CONFIG
    assert replace(BROKER, "0", ("segment.ms", "9")) == E.INVALID_REQUEST


def test_a_change_holds_at_once(asker: Asker, address: str) -> None:
    make(asker, "at-once")
    producer = Producer({"bootstrap.servers": address})
    codes: list[str | None] = []

    def send() -> str | None:
        producer.produce(
            "at-once", bytes(3000), on_delivery=lambda error, _: codes.append(error.name() if error else None)
        )
        producer.flush(WAIT_SECONDS)
        return codes[-1]

    assert send() is None
    alter(asker, "at-once", ("max.message.bytes", 0, "2000"))
    assert send() == "MSG_SIZE_TOO_LARGE"
    alter(asker, "at-once", ("max.message.bytes", 1, None))
    assert send() is None


# -- client libraries --------------------------------------------------------------------------------------------


def test_librdkafka(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    made = admin.create_topics([NewTopic("rd", 2, 1, config={"retention.ms": "5"})])
    assert made["rd"].result() is None
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic("rd", 2, 1)])["rd"].result()
    assert caught.value.args[0].name() == "TOPIC_ALREADY_EXISTS"
    assert admin.create_partitions([NewPartitions("rd", 5)])["rd"].result() is None
    resource = ConfigResource(ResourceType.TOPIC, "rd")
    found = admin.describe_configs([resource])[resource].result()
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("5", False)
    assert found["segment.ms"].is_default
    change = ConfigResource(
        ResourceType.TOPIC,
        "rd",
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    assert admin.incremental_alter_configs([change])[change].result() is None
    found = admin.describe_configs([resource])[resource].result()
    assert (found["cleanup.policy"].value, found["retention.ms"].value) == ("compact,delete", "-1")
    node = ConfigResource(ResourceType.BROKER, "0")
    assert admin.describe_configs([node])[node].result()["broker.id"].value == "0"
    assert admin.delete_topics(["rd"])["rd"].result() is None


def test_kafka_python(address: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.create_topics({"kp": {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "5"}}})
        assert "kp" in admin.list_topics()
        admin.create_partitions({"kp": 4})
        assert len(admin.describe_topics(["kp"])[0]["partitions"]) == 4
        admin.delete_topics(["kp"])
        assert "kp" not in admin.list_topics()
    finally:
        admin.close()


def test_settings_of_nodes_are_shown_and_not_changed(asker: Asker, server: ServerProcess) -> None:
    def described(name: str) -> Any:
        (told,) = asker.ask(m.DescribeConfigsRequest([m.DescribeConfigsRequestResource(4, name)])).results
        return told

    told = {each.name: each for each in described("0").configs}
    assert told["group.min.session.timeout.ms"].value == "6000"
    assert told["advertised.listeners"].value == "KAFKA://{}:{}".format(*server.address("kafka"))
    assert all(each.read_only for each in told.values())
    assert (described("").error_code, described("").configs) == (0, []), "what all nodes have in common"
    assert described("7").error_code == E.INVALID_REQUEST
    for name in ("", "0"):
        code, text = _change(asker, BROKER, name, ("log.retention.ms", 0, "1"))
        assert code == E.INVALID_REQUEST
        assert "'log.retention.ms' cannot be changed over Kafka's protocol: set topics.retention_ms in " in text
        assert "set it on each topic" in _change(asker, BROKER, name, ("min.cleanable.dirty.ratio", 0, "0.1"))[1]
        assert "'log.cleaner.threads'" in _change(asker, BROKER, name, ("log.cleaner.threads", 0, "2"))[1]
    kept = {name: each.value for name, each in told.items()}
    for name in ("", "0"):
        every = [(each, 0, value) for each, value in kept.items()]
        assert _change(asker, BROKER, name, *every)[0] == 0, "what tools set to what it is"
        assert _change(asker, BROKER, name, ("log.retention.ms", 1, None))[0] == 0
    assert _change(asker, BROKER, "0", (RATE, 0, "5000"))[0] == 0, "a node that is alone moves nothing"
    assert _change(asker, BROKER, "0", (RATE, 1, None))[0] == 0
    assert "--entity-name" in _change(asker, BROKER, "", (RATE, 0, "5000"))[1]


def _change(asker: Asker, kind: int, name: str, *changes: tuple[str, int, str | None]) -> tuple[int, str]:
    wanted = m.IncrementalAlterConfigsRequestResource(
        kind, name, [m.IncrementalAlterConfigsRequestConfig(*each) for each in changes]
    )
    (told,) = asker.ask(m.IncrementalAlterConfigsRequest([wanted])).responses
    return told.error_code, told.error_message or ""


def _of_group(asker: Asker, name: str) -> dict[str, tuple[str, int]]:
    """Values and where they come from (8: set for this group, 4: the configuration)."""
    wanted = m.DescribeConfigsRequestResource(GROUP, name)
    configs = asker.ask(m.DescribeConfigsRequest([wanted])).results[0].configs
    assert not any(each.read_only for each in configs)
    return {each.name: (each.value, each.config_source) for each in configs}


def test_settings_of_groups_are_shown_and_changed(asker: Asker) -> None:
    session, beat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    as_configured = {session: ("45000", 4), beat: ("5000", 4)}
    assert _of_group(asker, "set") == as_configured
    assert _change(asker, GROUP, "set", (session, 0, "50000"))[0] == 0
    assert _of_group(asker, "set") == {**as_configured, session: ("50000", 8)}
    assert _of_group(asker, "other") == as_configured
    listed = asker.ask(m.ListConfigResourcesRequest([GROUP])).config_resources
    assert [(each.resource_name, each.resource_type) for each in listed] == [("set", GROUP)]
    whole = m.AlterConfigsRequestResource(GROUP, "set", [m.ConfigValue(beat, "4000")])
    assert asker.ask(m.AlterConfigsRequest([whole], validate_only=True)).responses[0].error_code == 0
    assert _of_group(asker, "set")[session] == ("50000", 8)
    assert asker.ask(m.AlterConfigsRequest([whole])).responses[0].error_code == 0
    assert _of_group(asker, "set") == {session: ("45000", 4), beat: ("4000", 8)}, "all others to their defaults"
    assert _change(asker, GROUP, "set", (beat, 1, None))[0] == 0
    assert _of_group(asker, "set") == as_configured
    assert asker.ask(m.ListConfigResourcesRequest([GROUP])).config_resources == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("consumer.session.timeout.ms", "4000", "heartbeat_interval_ms must be 10 to 3999, not 4000"),
        ("consumer.session.timeout.ms", "99", "session_timeout_ms must be 100 to 1800000, not 99"),
        ("consumer.heartbeat.interval.ms", "-1", "consumer.heartbeat.interval.ms must be a number of milliseconds"),
        ("consumer.heartbeat.interval.ms", "9" * 5_000, "must be a number of milliseconds"),
        ("share.auto.offset.reset", "earliest", "unknown group setting 'share.auto.offset.reset'; use one of"),
    ],
)
def test_settings_that_a_group_cannot_have(asker: Asker, name: str, value: str, words: str) -> None:
    values = {"consumer.heartbeat.interval.ms": "4000", name: value}
    code, text = _change(asker, GROUP, "bad", *((each, 0, text) for each, text in values.items()))
    assert (code, words in text) == (E.INVALID_CONFIG, True), text
    assert {source for _, source in _of_group(asker, "bad").values()} == {4}, "all or nothing"


def test_settings_that_stand_for_kafkas_exist() -> None:
    known = {f"topics.{name}" for name in TopicSettings.__struct_fields__} | {"node", "data_dir"}
    for section in ("groups", "limits", "listeners"):
        known |= {f"{section}.{name}" for name in _fields(getattr(ServerConfig(), section))}
    assert set(OURS.values()) <= known


def _fields(section: Any) -> Iterator[str]:
    for name in section.__struct_fields__:
        inner = getattr(section, name)
        yield from (f"{name}.{each}" for each in _fields(inner)) if hasattr(inner, "__struct_fields__") else (name,)


def test_what_has_settings_is_listed(asker: Asker) -> None:
    create(asker, "listed-with-settings")

    def listed(*types: int, version: int = 1) -> Any:
        told = asker.ask(m.ListConfigResourcesRequest(list(types)), version)
        return told.error_code, {(each.resource_type, each.resource_name) for each in told.config_resources}

    assert listed(4, 16) == (0, {(4, "0")})
    assert {(2, "listed-with-settings"), (4, "0")} <= listed()[1]
    assert listed(version=0) == (0, set()), "clients' metrics"
    assert listed(99) == (E.UNSUPPORTED_VERSION, set())
