"""Go clients' own test suites, built from their published modules and run unmodified.

Knows: which packages hold tests, what each suite may say otherwise here and why, how `go test -v` reports.
Refuses to know: how the broker was started. go.mod and go.sum beside it hold the modules to their bytes.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.debian import Missing
from tests.interop.kafka.clients import CACHE, alone
from tests.interop.kafka.servers import run_quietly

MODULE = Path(__file__).parents[1] / "go"
BUILD_SECONDS_MAX = 1_200
RUN_SECONDS_MAX = 1_500
_VERDICT = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) \(", re.MULTILINE)
_CHARS_SHOWN = 1_500


class Suite(NamedTuple):
    name: str
    package: str
    exceptions: Mapping[str, str]
    """Test → why it fails here and not at Apache Kafka. One that begins to pass must lose its row."""
    broken: Mapping[str, str] = {}
    """Test → why it is left out: it fails, or ends the whole process, whatever the broker."""
    peer: Mapping[str, str] = {}
    """Test → why it may fail at Apache Kafka, and does not here. As measured."""


_NO_REASSIGNMENT = "one node: partitions have nowhere to go"
_NO_PASSWORD = "its salted password has 18 bytes: of SCRAM-SHA-512 it has 64, and nobody could log in with this one"
_MADE_AT_ONCE = "a topic asked for in Metadata is there in the answer; Kafka makes it after answering, and says none"

_NO_OFFSETS_TOPIC = "`__consumer_offsets` tells where groups are kept and is no topic: a pattern cannot subscribe to it"

SUITES = [
    Suite("franz-go", "github.com/twmb/franz-go/pkg/kgo", {"Test848RegexBrokerResolves": _NO_OFFSETS_TOPIC}),
    Suite(
        "kafka-go",
        "github.com/segmentio/kafka-go",
        {
            "TestClientAlterPartitionReassignments": _NO_REASSIGNMENT,
            "TestClientAlterPartitionReassignmentsMultiTopics": _NO_REASSIGNMENT,
            "TestClientListPartitionReassignments": _NO_REASSIGNMENT,
            "TestAlterUserScramCredentials": _NO_PASSWORD,
            "TestDescribeUserScramCredentials": _NO_PASSWORD,
            "TestWriter/writing_a_message_with_SASL_Plain_authentication": (
                "a node has one Kafka port: the topic written at the one with passwords is not there to be deleted at the other"
            ),
            "TestConn/test_delete_topics": _MADE_AT_ONCE,
            "TestConn/test_delete_topics_with_an_invalid_topic": _MADE_AT_ONCE,
        },
        {
            f"TestReaderConsumerGroup/{part}": "its helper calls a function that it did not set, and the process ends"
            for part in (
                "verify_offset_committed",
                "verify_offset_committed_when_using_interval_committer",
                "consumer_group_commits_on_close",
            )
        }
        | {
            "TestReaderConsumerGroup/consumer_group_rebalance": (
                "two readers want 12 each of 24 records in three partitions: one of them has to have read before the other came"
            ),
            "TestReaderReadCompactedMessage": "wants segments of 200 bytes, which Kafka refuses since 4.0, and we too",
            "TestClientElectLeaders": "one node: Kafka answers REQUEST_TIMED_OUT, and ElectLeaders is not spoken here",
        },
        {
            "TestRebalanceTooManyConsumers": "its reader gets nothing within 10 s",
            "TestClientAlterConfigs": "asks for the value at once, and gets the one before",
            "TestClient/retrieve_committed_offsets_for_a_consumer_group_and_topic": (
                "the first use of a group waits for the coordinator's topic, at times longer than its 30 s"
            ),
        },
    ),
    Suite("kafka-go sasl", "github.com/segmentio/kafka-go/sasl", {}),
    Suite("kafka-go topics", "github.com/segmentio/kafka-go/topics", {}),
]


def go(words: Iterable[str], seconds: float) -> str:
    return run_quietly(["go", *words], seconds, MODULE)


def build(suite: Suite) -> tuple[Path, Path]:
    """The suite as a program, and the folder it wants to run in. One worker at a time."""
    program = CACHE / "go" / f"{suite.name.replace(' ', '-')}.test"
    try:
        with alone("go"):
            go(["test", "-c", "-o", str(program), suite.package], BUILD_SECONDS_MAX)
            return program, Path(go(["list", "-f", "{{.Dir}}", suite.package], BUILD_SECONDS_MAX).strip())
    except FileNotFoundError:
        raise Missing("go is not here: https://go.dev/dl, 1.26 or newer") from None


def failover_command() -> list[str]:
    """The program that writes and reads through franz-go while nodes come and go."""
    return program_of("failover")


def program_of(folder: str) -> list[str]:
    """A program of our own that uses one of the clients."""
    program = CACHE / "go" / f"{folder}-program"
    try:
        with alone("go"):
            go(["build", "-o", str(program), f"./{folder}"], BUILD_SECONDS_MAX)
    except FileNotFoundError:
        raise Missing("go is not here: https://go.dev/dl, 1.26 or newer") from None
    return [str(program)]


def run(
    suite: Suite, environment: Mapping[str, str], before: Iterable[str] = (), only: Iterable[str] = ()
) -> dict[str, str]:
    """Test → "" if it passed, "skipped" if it skipped itself, else the end of what was said. `before`: what runs the program."""
    program, folder = build(suite)
    left_out = "|".join("/".join(f"^{re.escape(part)}$" for part in test.split("/")) for test in suite.broken)
    words = [*before, str(program), "-test.v", f"-test.timeout={RUN_SECONDS_MAX - 60}s"]
    words += [f"-test.skip={left_out}"] if left_out else []
    words += [f"-test.run=^({'|'.join(re.escape(test) for test in only)})$"] if only else []
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    said = done.stdout + done.stderr
    outcomes = verdicts(done.stdout)
    assert outcomes, f"{suite.name} did not run:\n{said[-3000:]}"
    assert "\npanic: " not in said, f"{suite.name} did not end:\n{said[said.index('panic: ') - 2000 :][:5000]}"
    return outcomes


def verdicts(said: str) -> dict[str, str]:
    """Of every test without parts, and of one that failed by itself and not by a part of it."""
    found = {match[2]: (match[1], match.start()) for match in _VERDICT.finditer(said)}
    whole = {test.rpartition("/")[0] for test in found} & set(found)
    by_parts = {test.rpartition("/")[0] for test, (verdict, _) in found.items() if verdict == "FAIL"}
    outcomes = {}
    for test, (verdict, place) in found.items():
        if test in whole and (verdict != "FAIL" or test in by_parts):
            continue
        shown = said[max(place - _CHARS_SHOWN, 0) : place + _CHARS_SHOWN // 3]
        outcomes[test] = {"PASS": "", "SKIP": "skipped"}.get(verdict, shown)
    return outcomes
