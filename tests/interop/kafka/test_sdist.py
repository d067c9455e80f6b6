"""kafka-python's own integration tests, from its source distribution, against a node in a process of its own.

What must pass is what passes against Apache Kafka with the same command (`INTEROP_BROKER=apache`); `EXCEPTIONS` names what
braidlog answers otherwise, with the reason, and a test that begins to pass must lose its row.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.kafka.clients import own_tests, source_of
from tests.interop.kafka.servers import IS_FULL, JUDGED, apache, braid_words, certificates

from braidlog.testing.server import ServerProcess

VERSION = "3.0.12"
PARTITIONS = 4  # of a topic made by asking for it: the tests count on it
SESSION_MS = 1_000
"""Its members ask for three seconds, less than Kafka's least value is by default."""

# Its distribution leaves this module out; with a broker of one's own only two names of it are needed.
SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def dump_logs(self):
        pass


class SpawnedService:
    pass
"""

FILES = ("admin", "consumer", "producer") if IS_FULL else ("consumer",)  # sasl and ssl start brokers of their own

EXCEPTIONS: dict[str, str] = {
    "test_elect_leaders": "one node: no other node can lead",
    "test_alter_replica_log_dirs": "one data folder: a replica has nowhere to move (AlterReplicaLogDirs is not spoken)",
    "test_alter_partition_reassignments": "one node: partitions have nowhere to go",
    "test_list_partition_reassignments": "one node: partitions have nowhere to go",
    "test_describe_metadata_quorum": "there is no Raft quorum",
}

# Which Apache Kafka the broker is, by the calls it speaks: the tests expect what that one answers.
VERSIONS = {"apache": "4.3.0", "braid": "4.2.0"}


def sources() -> Path:
    """The unpacked distribution, with what it leaves out."""
    folder = source_of("kafka-python", VERSION)
    (folder / "test" / "__init__.py").touch()  # or `test` is the standard library's
    (folder / "test" / "service.py").write_text(SERVICE, encoding="utf-8")
    for version in VERSIONS.values():  # it looks for the folder, not into it
        (folder / "servers" / version / "kafka-bin").mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sdist")
    if JUDGED == "apache":
        with apache(
            folder, {"num.partitions": str(PARTITIONS), "group.min.session.timeout.ms": str(SESSION_MS)}
        ) as servers:
            yield servers.plain
        return
    words = braid_words("plain", folder, certificates(folder))
    words += ["--set", f"listeners.kafka.partitions={PARTITIONS}"]
    words += ["--set", f"listeners.kafka.session_timeout_ms_min={SESSION_MS}"]
    with ServerProcess(folder / "data", *words) as node:
        yield f"127.0.0.1:{node.ports['kafka']}"


def run(name: str, address: str, report: Path, only: tuple[str, ...] = ()) -> dict[str, str]:
    """Run one of its files, or some tests of it; test → "" if it passed or was skipped by itself, else why not."""
    file = f"test/integration/test_{name}_integration.py"
    files = [f"{file}::{test}" for test in only] or [file]
    return own_tests(sources(), files, report, KAFKA_VERSION=VERSIONS[JUDGED], KAFKA_URI=f"kafka://{address}")


@pytest.mark.parametrize("name", FILES)
def test_of_kafka_python(name: str, address: str, tmp_path: Path) -> None:
    outcomes = run(name, address, tmp_path / "report.xml")
    expected = {test for test in EXCEPTIONS if test in outcomes} if JUDGED == "braid" else set()
    if suspects := tuple(test for test, why in outcomes.items() if why and test not in expected):
        # Its consumer may join a group before it knows the topic and then stays without partitions, at Apache Kafka too,
        # when the machine is busy. What fails twice is ours.
        outcomes |= run(name, address, tmp_path / "again.xml", suspects)
    failed = {test: why for test, why in outcomes.items() if why}
    shown = "\n".join(f"--- {test}\n{why}" for test, why in failed.items() if test not in expected)
    assert set(failed) == expected, f"{sorted(set(failed) ^ expected)}\n{shown}"
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} passed")
