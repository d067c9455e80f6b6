"""Kafka's own command-line tools against three nodes: topics that are placed, replicas that move, leaders, who is there.

docs/dialects/kafka.md has the same table for people.
"""

import json
import re
import time
from pathlib import Path

from tests.interop.kafka.command_tools import CONFIGS, Case, started

from braidlog.testing.cluster_process import ClusterProcess

TOPIC, PLACED = "moved", "placed"
BEFORE, AFTER = ((1, 2), (2, 3), (3, 1)), ((3, 1), (1, 2), (2, 3))
MOVE = "reassign.ReassignPartitionsCommand"
SECONDS_MAX = 60.0
_B = "--bootstrap-server AT "


def described(topic: str, places: tuple[tuple[int, ...], ...]) -> Case:
    """Each partition is on these nodes, and has a leader: on a busy machine one may lose its place to another for a while."""
    rows = [
        f"Partition: {number}\tLeader: \\d\tReplicas: {_listed(nodes)}\tIsr: " for number, nodes in enumerate(places)
    ]
    return Case("TopicCommand", f"{_B}--describe --topic {topic}", ".*".join(rows))


def _listed(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes))


CASES = [
    # Before the first group: `--at-min-isr-partitions` looks for `min.insync.replicas` of each topic.
    Case("TopicCommand", f"{_B}--describe --at-min-isr-partitions", ""),
    Case("TopicCommand", f"{_B}--describe --topic __consumer_offsets", "does not exist as expected", 1),
    Case("consumer.group.ConsumerGroupCommand", f"{_B}--describe --group g", "unknown group 'g'"),
    Case("TopicCommand", f"{_B}--describe --topic __consumer_offsets", "PartitionCount: 16\tReplicationFactor: 3"),
    Case("TopicCommand", f"{_B}--describe --topic __consumer_offsets", r"\A(?!.*Leader: none)"),
    Case("TopicCommand", f"{_B}--describe --at-min-isr-partitions", ""),
    Case(
        CONFIGS,
        f"{_B}--alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=50000",
        "Completed updating config for group g",
    ),
    Case("TopicCommand", f"{_B}--create --topic {TOPIC} --replica-assignment 1:2,2:3,3:1", "Created topic"),
    described(TOPIC, BEFORE),
    Case("TopicCommand", f"{_B}--create --topic {PLACED} --replica-assignment 1:2,2:3", "Created topic"),
    Case("TopicCommand", f"{_B}--alter --topic {PLACED} --partitions 3 --replica-assignment 1:2,2:3,3:1:2", "", 1),
    Case("TopicCommand", f"{_B}--alter --topic {PLACED} --partitions 3 --replica-assignment 1:2,2:3,3:1", ""),
    described(PLACED, BEFORE),
    Case("TopicCommand", f"{_B}--create --topic many --partitions 4 --replication-factor 3", "Created topic"),
    Case(
        "TopicCommand", f"{_B}--create --topic more --partitions 1 --replication-factor 4", "4 replicas need 4 nodes", 1
    ),
    Case("TopicCommand", f"{_B}--describe --topic many", "PartitionCount: 4\tReplicationFactor: 3"),
    Case("TopicCommand", f"{_B}--describe --unavailable-partitions", r"\A(?!.*Topic:)"),
    Case(MOVE, f"{_B}--generate --topics-to-move-json-file TOPICS --broker-list 2,3", "Proposed partition reassign"),
    Case(MOVE, f"{_B}--execute --reassignment-json-file PLAN --throttle 50000000", "throttle.*Successfully started"),
    Case(MOVE, f"{_B}--verify --reassignment-json-file PLAN", rf"({TOPIC}-\d is complete.*){{3}}Clearing topic-level"),
    Case(MOVE, f"{_B}--list", "No partition reassignments found"),
    Case(
        MOVE, f"{_B}--cancel --reassignment-json-file PLAN", "None of the specified partition reassignments are active"
    ),
    Case(CONFIGS, f"{_B}--describe --entity-type brokers", r"\A(?!.*throttled)"),
    Case("LeaderElectionCommand", f"{_B}--election-type preferred --all-topic-partitions", ""),
    Case(
        "LeaderElectionCommand", f"{_B}--election-type preferred --topic {TOPIC} --partition 0", "(completed|already)"
    ),
    Case(
        "LeaderElectionCommand",
        f"{_B}--election-type unclean --topic {TOPIC} --partition 0",
        "does not support unclean elections",
        1,
    ),
    described(TOPIC, AFTER),
    Case("MetadataQuorumCommand", f"{_B}describe --status", 'LeaderId: +1\n.*CurrentVoters:.*"id": 3'),
    Case("MetadataQuorumCommand", f"{_B}describe --replication", "1 .*Leader.*2 .*Follower.*3 .*Follower"),
    Case("ClusterTool", f"cluster-id {_B}", "Cluster ID: .{22}"),
    Case("ClusterTool", f"list-endpoints {_B}", r"\n1 .*unfenced.*\n2 .*unfenced.*\n3 .*unfenced"),
    Case("ClusterTool", f"unregister {_B}--id 9", "broker 9 is not registered", 1),
    Case("ClusterTool", f"unregister {_B}--id 3", "node 3 is running; stop it first", 1),
    Case("BrokerApiVersionsCommand", _B, r"(id: \d.*){3}"),
    Case("LogDirsCommand", f"{_B}--describe --topic-list {TOPIC}", '("broker":.*){3}'),
    Case("GetOffsetShell", f"{_B}--topic {TOPIC}", f"{TOPIC}:0:0\n{TOPIC}:1:0\n{TOPIC}:2:0"),
    Case("TopicCommand", f"{_B}--delete --topic many", ""),
]
"""They follow from one another."""
ONCE = ("--create", "--execute", "--delete")
"""The others may ask a node a moment before it has heard of what another has acknowledged: they are run until they say it."""


def test_the_tools_run(cluster: ClusterProcess, tmp_path: Path) -> None:
    plan = [{"topic": TOPIC, "partition": number, "replicas": nodes} for number, nodes in enumerate(AFTER)]
    files = {
        "TOPICS": {"topics": [{"topic": TOPIC}], "version": 1},
        "PLAN": {"partitions": plan, "version": 1},
    }
    words = {"AT": cluster.url("kafka").removeprefix("kafka://")} | {name: str(tmp_path / name) for name in files}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    with started(tmp_path / "log") as tools:
        for case in CASES:
            deadline = time.monotonic() + SECONDS_MAX
            while wrong := tools.judge(case, words):
                is_last = time.monotonic() > deadline or any(word in case.arguments for word in ONCE)
                assert not is_last, re.sub(r"\n\s+at .*", "", wrong)
