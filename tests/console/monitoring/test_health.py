"""`/readyz` says why not."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.adapters.kafka.client import Client, values_of
from tests.cli.braid import Braid
from tests.console.asking import ask
from tests.console.waiting import until

import braidlog
from braidlog.console.monitoring import health
from braidlog.console.monitoring.health import probe
from braidlog.model.reporting.node_report import Check
from braidlog.testing.server import ServerProcess


def checks(node: ServerProcess) -> tuple[int, dict[str, dict[str, object]]]:
    answer = ask(f"{node.admin_url}/readyz")
    body = answer.json()
    assert (body["status"] == "ready") == (answer.status == 200)
    return answer.status, {check["name"]: check for check in body["checks"]}


def test_a_good_node_is_ready(node: ServerProcess) -> None:
    status, found = checks(node)
    assert status == 200
    assert set(found) == {"node", "listeners", "disk", "partitions", "keyvalue"}
    assert all(check["ok"] for check in found.values())
    for path in ("/healthz", "/health"):
        assert ask(f"{node.admin_url}{path}").json() == {"status": "alive"}


def test_too_little_room_is_a_reason(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", f"admin.disk_free_bytes_min={2**60}", admin=True) as node:
        status, found = checks(node)
        assert status == 503
        assert not found["disk"]["ok"]
        assert "disk_free_bytes_min" in str(found["disk"]["reason"])
        assert found["partitions"]["ok"]


class _Standing:
    """A node that never answers, or whose snapshot says what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.welcome = SimpleNamespace(data_dir=str(folder), disk_free_bytes_min=0)

    async def snapshot(self) -> Any:
        await asyncio.Event().wait()


def test_what_does_not_keep_a_node_from_serving_is_told_and_leaves_it_ready(tmp_path: Path) -> None:
    node: Any = _Standing(tmp_path)
    good = SimpleNamespace(
        listeners=[], partitions=[], keyvalue=SimpleNamespace(fault=""), warnings={"clock": "set it"}
    )
    good.cluster = SimpleNamespace(nodes=[], weak=[], weak_left_out=0)

    async def snapshot() -> Any:
        return good

    node.snapshot = snapshot
    found = asyncio.run(health.Doctor(node).look(60))
    assert found.status == "ready"
    assert Check("clock", ok=True, reason="set it") in found.checks


async def _look(doctor: health.Doctor, *seconds: float) -> list[tuple[str, dict[str, bool]]]:
    found = [await doctor.look(each) for each in seconds]
    return [(each.status, {check.name: check.ok for check in each.checks}) for each in found]


def test_who_does_not_answer_in_time_is_slow_and_not_unready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a disk that stands still is waited for by one thread, however often it is asked about."""
    probes: list[str] = []
    go_on = threading.Event()

    def stand_still(folder: str, _: int) -> Check:
        probes.append(folder)
        go_on.wait()
        return Check("disk", ok=False, reason="full")

    monkeypatch.setattr(health, "probe", stand_still)
    node: Any = _Standing(tmp_path)
    doctor = health.Doctor(node)

    async def play() -> None:
        try:
            await look_on()
        finally:
            go_on.set()  # else the thread would keep the loop from ending

    async def look_on() -> None:
        both = {"node": False, "disk": False}
        assert await _look(doctor, 0.01, 0.01) == [("slow", both), ("slow", both)]
        assert len(probes) <= 1
        go_on.set()
        while (found := await _look(doctor, 0.1)) == [("slow", both)]:
            pass
        assert found == [("not ready", {"node": False, "disk": False})], "what was seen to be wrong is said"
        assert probes == [str(tmp_path)]

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    assert probe(str(tmp_path), 0).ok
    assert list(tmp_path.iterdir()) == []
    gone = probe(str(tmp_path / "gone"), 0)
    assert not gone.ok
    assert "cannot be written" in gone.reason


def test_an_offline_partition_is_a_reason_and_counted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", admin=True) as node:
        with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
            client.admin.create_topic("broken")
            client.admin.create_topic("whole")
            client.producer().send_and_wait("broken", b"x")
        node.stop()
        spoil(tmp_path / "data")
        node.start()
        status, found = checks(node)
        assert status == 503
        assert not found["partitions"]["ok"]
        assert "broken" in str(found["partitions"]["reason"])
        assert "braidlog_partitions_offline 1\n" in ask(f"{node.admin_url}/metrics").text
        assert ask(f"{node.admin_url}/healthz").status == 200
        assert (
            "fail  partitions    broken/0 is damaged: not readable"
            in Braid()("doctor", "--data-dir", str(tmp_path / "data")).stdout
        )


def test_a_damaged_partition_is_a_reason_and_named(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", admin=True) as node:
        with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
            client.admin.create_topic("rotten")
            for _ in range(3):
                client.producer().send_and_wait("rotten", b"x" * 100)
        node.kill()
        (topic,) = [path.parent for path in tmp_path.glob("data/topics/*/topic.a") if b"rotten" in path.read_bytes()]
        (segment,) = topic.glob("0000/*.log")
        content = bytearray(segment.read_bytes())
        content[content.index(b"x" * 100)] ^= 1
        segment.write_bytes(content)
        node.start()
        status, found = checks(node)
        assert status == 503
        assert "rotten/0" in str(found["partitions"]["reason"])
        assert "takes no writes" in str(found["partitions"]["reason"])
        for _ in ("a node that runs", "a folder that nobody uses"):
            told = Braid()("doctor", "--data-dir", str(tmp_path / "data"))
            (line,) = [line for line in told.stdout.splitlines() if " partitions " in line]
            assert line.startswith("fail  partitions    rotten/0 is damaged: "), line
            assert f"braid log repair --dry-run {tmp_path / 'data'} rotten\n" in told.stdout
            assert told.exit_code == 1
            node.stop()


def test_a_byte_that_rots_while_the_node_runs_is_never_served(tmp_path: Path) -> None:
    """In a closed segment: the reader gets what is before it and an error, `/readyz` and `braid health` say which partition."""
    with ServerProcess(tmp_path / "data", "--set", "topics.segment_bytes=65536", admin=True) as node:
        with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
            client.admin.create_topic("rotten")
            producer = client.producer()
            for number in range(40):
                producer.send_and_wait("rotten", b"%02d" % number + b"x" * 4000)
        (topic,) = [path.parent for path in tmp_path.glob("data/topics/*/topic.a") if b"rotten" in path.read_bytes()]
        node.stop()
        node.start()  # what it wrote itself counts as checked for `scrub.check_hours`
        first, *others = sorted(topic.glob("0000/*.log"))
        assert others, "there is one segment only"
        with first.open("r+b") as segment:
            content = segment.read()
            segment.seek(content.index(b"07xxxx") + 100)
            segment.write(b"y")
        values: list[bytes | None] = []
        with Client(node) as reader:
            while (found := reader.fetch("rotten", len(values))).error_code == 0 and len(values) < 40:
                values += [value for _, value in values_of(found.records)]
        assert values == [b"%02d" % number + b"x" * 4000 for number in range(7)]
        until(lambda: checks(node)[0] == 503)
        assert "rotten/0" in str(checks(node)[1]["partitions"]["reason"])
        told = Braid()("health", "--url", node.admin_url, "--timeout", "60")
        assert told.exit_code
        assert "rotten/0" in told.stdout


def spoil(data: Path) -> None:
    """Make the one partition of `broken` impossible to open: its segment is a folder."""
    (topic,) = [path.parent for path in data.glob("topics/*/topic.a") if b"broken" in path.read_bytes()]
    (segment,) = topic.glob("0000/*.log")
    segment.unlink()
    segment.mkdir()


def test_a_node_that_stands_still_is_alive_and_not_ready(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", admin=True) as node:
        assert checks(node)[0] == 200
        os.kill(node.pid, signal.SIGSTOP)
        try:
            # What is shown may be a second old: then the node is asked again, in vain.
            status, found = until(lambda: each if (each := checks(node))[0] == 503 else None)
            assert status == 503
            assert "did not answer" in str(found["node"]["reason"])
            hasty = ask(f"{node.admin_url}/readyz?within_ms=50").json()
            assert hasty["status"] == "slow"
            reasons = {check["name"]: check["reason"] for check in hasty["checks"]}
            slow = "did not answer within 0.05 s"
            assert reasons["node"] == slow
            assert reasons["disk"] in ("", slow), "a machine with much to do may not have got round to it"
            result = Braid()("health", "--url", node.admin_url, "--timeout", "30")
            assert (result.exit_code, result.stdout.splitlines()[0]) == (6, "slow")
            with ThreadPoolExecutor(3) as threads:  # each asks the node anew, and waits in vain
                alive, metrics, topics = threads.map(
                    lambda page: ask(f"{node.admin_url}/{page}"), ("healthz", "metrics", "topics")
                )
            assert alive.status == 200
            assert "braidlog_up 0\n" in metrics.text
            assert topics.status == 503
        finally:
            os.kill(node.pid, signal.SIGCONT)
        until(lambda: checks(node)[0] == 200)
