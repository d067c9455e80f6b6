"""Kafka's own command-line tools against the Kafka port, one after the other in one Java process.

Each row: the class, its arguments, how it must end, and what it must say. docs/dialects/kafka.md has the same table for people.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.kafka.command_tools import CONFIGS, Case, Tools, jars, started
from tests.interop.kafka.servers import JUDGED, Servers

PAGE = Path(__file__).parents[3] / "docs" / "dialects" / "kafka.md"
MAIN = b"([Ljava/lang/String;)V"
"""What stands in a class that has a method which takes words and gives nothing."""
ENDS = ("Command", "Tool", "Shell", "Performance", "Resetter", "Producer", "Consumer")
TOPIC, COPY = "tools", "tools-copy"


_CONSUMER_GROUPS = "consumer.group.ConsumerGroupCommand"
_B = "--bootstrap-server AT "
CASES = [
    Case(
        "TopicCommand",
        f"{_B}--create --topic {TOPIC} --partitions 1 --config retention.ms=100000000",
        "Created topic tools",
    ),
    Case("TopicCommand", f"{_B}--alter --topic {TOPIC} --partitions 2", ""),
    Case("TopicCommand", f"{_B}--describe --topic {TOPIC}", "PartitionCount: 2.*retention.ms=100000000"),
    Case(
        "ConsoleProducer",
        f"{_B}--topic {TOPIC} --reader-property parse.key=true --reader-property key.separator=:",
        "",
        0,
        "k:one\nk:two\n",
    ),
    Case(
        "consumer.ConsoleConsumer",
        f"{_B}--topic {TOPIC} --from-beginning --max-messages 2 --group tools --timeout-ms 60000",
        "one\ntwo\n",
    ),
    Case(
        "ProducerPerformance",
        f"{_B}--topic {TOPIC} --num-records 50 --record-size 10 --throughput -1",
        "50 records sent",
    ),
    Case("ConsumerPerformance", f"{_B}--topic {TOPIC} --num-records 50 --timeout 60000", "data.consumed.in.nMsg"),
    Case("EndToEndLatency", f"{_B}--topic {TOPIC} --num-records 3 --producer-acks 1 --record-size 20", "Avg latency"),
    Case("VerifiableProducer", f"{_B}--topic {TOPIC} --max-messages 3", "startup_complete"),
    Case(
        "VerifiableConsumer",
        f"{_B}--topic {TOPIC} --group-id tools-v --max-messages 3 --reset-policy earliest",
        "records_consumed",
    ),
    Case("GetOffsetShell", f"{_B}--topic {TOPIC}", r"tools:0:\d+\ntools:1:\d+"),
    Case("TopicCommand", f"{_B}--describe --topic __consumer_offsets", "__consumer_offsets.*PartitionCount: 16"),
    Case("TopicCommand", f"{_B}--describe --at-min-isr-partitions", "Topic: __consumer_offsets"),
    Case("GetOffsetShell", f"{_B}--topic __consumer_offsets", "__consumer_offsets:15:0"),
    Case("DeleteRecordsCommand", f"{_B}--offset-json-file DELETE", "low_watermark: 0"),
    Case(_CONSUMER_GROUPS, f"{_B}--list", "tools"),
    Case(_CONSUMER_GROUPS, f"{_B}--describe --group tools", "CURRENT-OFFSET"),
    Case(_CONSUMER_GROUPS, f"{_B}--reset-offsets --group tools --topic {TOPIC} --to-earliest --execute", "NEW-OFFSET"),
    Case("GroupsCommand", f"{_B}--list", "tools +Classic +consumer"),
    Case(_CONSUMER_GROUPS, f"{_B}--delete --group tools", "was successful"),
    Case(
        "AclCommand",
        f"{_B}--add --allow-principal User:ann --consumer --group g --topic {TOPIC}",
        "Adding ACLs for resource .*GROUP, name=g",
    ),
    Case("AclCommand", f"{_B}--add --deny-principal User:ann --operation Write --topic {TOPIC}", "permissionType=DENY"),
    Case("AclCommand", f"{_B}--remove --force --allow-principal User:ann --consumer --group g --topic {TOPIC}", ""),
    Case(
        "TransactionalMessageCopier",
        f"--broker-list AT --input-topic {TOPIC} --input-partition 0 --output-topic {COPY} --transactional-id tools "
        "--consumer-group tools-c --transaction-size 2 --max-messages 2",
        '"transactionalId":"tools".*"totalProcessed"',
        None,
    ),
    Case("TransactionsCommand", f"{_B}list", "TransactionalId"),
    Case("TransactionsCommand", f"{_B}find-hanging --broker-id 0", "StartOffset"),
    Case("TransactionsCommand", f"{_B}describe-producers --topic {TOPIC} --partition 0", "LastSequence"),
    Case(
        "TransactionsCommand",
        f"{_B}abort --topic {TOPIC} --partition 0 --producer-id 7 --producer-epoch 1 --coordinator-epoch 0",
        "",
    ),
    Case("TransactionsCommand", f"{_B}forceTerminateTransaction --transactionalId tools-x", ""),
    Case("BrokerApiVersionsCommand", _B, r"WriteTxnMarkers\(27\): 1"),
    Case("ClusterTool", f"cluster-id {_B}", "Cluster ID"),
    Case("LogDirsCommand", f"{_B}--describe --topic-list {TOPIC}", '"partition":"tools-0"'),
    Case(
        "reassign.ReassignPartitionsCommand",
        f"{_B}--generate --topics-to-move-json-file MOVE --broker-list 0",
        "Proposed partition reassignment",
    ),
    Case("FeatureCommand", f"{_B}describe", ""),
    Case("ClientMetricsCommand", f"{_B}--list", ""),
    Case(
        "StreamsResetter", f"{_B}--application-id app --input-topics {TOPIC} --force", "Reset-offsets for input topics"
    ),
    Case("consumer.group.ShareGroupCommand", f"{_B}--list", ""),
    Case("streams.StreamsGroupCommand", f"{_B}--list", ""),
    Case(
        "LeaderElectionCommand",
        f"{_B}--election-type preferred --all-topic-partitions",
        "",
    ),
    Case("MetadataQuorumCommand", f"{_B}describe --status", "LeaderId: +0"),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type topics --entity-name {TOPIC} --add-config compression.type=zstd",
        "Completed updating",
    ),
    Case(CONFIGS, f"{_B}--describe --entity-type topics --entity-name {TOPIC}", "compression.type=zstd"),
    Case(CONFIGS, f"{_B}--describe --entity-type brokers", "Dynamic configs for broker 0"),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type brokers --entity-default --add-config log.retention.ms=5",
        "braid config",
        1,
    ),
    Case(CONFIGS, f"{_B}--describe --entity-type groups --entity-name g", ""),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=50000",
        "Completed updating config for group g",
    ),
    Case(CONFIGS, f"{_B}--describe --entity-type groups --entity-name g", "consumer.session.timeout.ms=50000"),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type groups --entity-name g --add-config share.session.timeout.ms=50000",
        "unknown group setting 'share.session.timeout.ms'",
        1,
    ),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type groups --entity-name g --delete-config consumer.session.timeout.ms",
        "Completed updating config for group g",
    ),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type users --entity-name ann --add-config SCRAM-SHA-256=[iterations=4096,password=secret]",
        "Completed updating",
    ),
    Case(CONFIGS, f"{_B}--describe --entity-type users --entity-name ann", "SCRAM-SHA-256=iterations=4096"),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type users --entity-name ann --add-config producer_byte_rate=500000,request_percentage=50",
        "Completed updating",
    ),
    Case(
        CONFIGS,
        f"{_B}--describe --entity-type users --entity-name ann",
        "(?=.*producer_byte_rate=500000)(?=.*request_perc.*50)",
    ),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type users --entity-name ann --delete-config producer_byte_rate,request_percentage",
        "Completed updating",
    ),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type clients --entity-name app --add-config producer_byte_rate=700000",
        "Completed updating",
    ),
    Case(
        CONFIGS,
        f"{_B}--describe --entity-type clients --entity-name app",
        "client-id 'app' are producer_byte_rate=7000",
    ),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type users --entity-name ann --entity-type clients --entity-default "
        "--add-config consumer_byte_rate=800000",
        "Completed updating",
    ),
    Case(
        CONFIGS,
        f"{_B}--describe --entity-type users --entity-name ann --entity-type clients",
        "consumer_byte_rate=8000",
    ),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type ips --entity-name 10.0.0.1 --add-config connection_creation_rate=9",
        "Completed updating",
    ),
    Case(CONFIGS, f"{_B}--describe --entity-type ips", "ip '10.0.0.1' are connection_creation_rate=9"),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type clients --entity-name app --delete-config producer_byte_rate",
        "Completed updating",
    ),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type clients --entity-name app --add-config request_percentage=500",
        "percent",
        1,
    ),
    Case("TopicCommand", f"{_B}--delete --topic {TOPIC}", ""),
]
NOT_RUN = {
    "ClientCompatibilityTest": "a test of clients, which wants topics of its own",
    "ConnectPluginPath": "asks no broker",
    "ConsoleShareConsumer": "share groups are not served",
    "DelegationTokenCommand": "delegation tokens are not served",
    "DumpLogSegments": "asks no broker",
    "JmxTool": "asks no broker",
    "LogCompactionTester": "reads a broker's configuration for minutes",
    "OAuthCompatibilityTool": "asks no broker",
    "ReplicaVerificationTool": "runs until it is stopped",
    "ShareConsumerPerformance": "share groups are not served",
    "VerifiableShareConsumer": "share groups are not served",
}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    with started(tmp_path_factory.mktemp("tools") / "log") as found:
        yield found


@pytest.mark.skipif(JUDGED != "braid", reason="the rows say what this server answers")
def test_the_tools_run(tools: Tools, servers: Servers, tmp_path: Path) -> None:
    """All in one test: they follow from one another."""
    files = {
        "DELETE": {"partitions": [{"topic": TOPIC, "partition": 0, "offset": 0}], "version": 1},
        "MOVE": {"topics": [{"topic": TOPIC}], "version": 1},
    }
    words = {"AT": servers.plain} | {name: str(tmp_path / name) for name in files}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    wrong = [why for case in CASES if (why := tools.judge(case, words))]
    assert not wrong, "\n".join(wrong)


def test_every_tool_is_run_or_has_a_reason() -> None:
    """Whatever of the jar has a `main`."""
    (jar,) = jars().glob("kafka-tools-[0-9]*.jar")
    with zipfile.ZipFile(jar) as content:
        mains = {
            name.removesuffix(".class").rpartition("/")[2]
            for name in content.namelist()
            if name.startswith("org/apache/kafka/tools/") and "$" not in name and MAIN in content.read(name)
        }
    run = {case.tool.rpartition(".")[2] for case in CASES if case.tool != CONFIGS}
    named = {name for name in mains if name.endswith(ENDS)}
    assert run | set(NOT_RUN) <= mains
    assert named <= run | set(NOT_RUN)


def test_the_page_names_every_tool() -> None:
    page = PAGE.read_text(encoding="utf-8")
    tools = {case.tool.rpartition(".")[2] for case in CASES} | set(NOT_RUN)
    assert {name for name in tools if f"`{name}`" not in page} == set()
