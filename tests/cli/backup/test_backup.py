"""Back-ups of a node under load, restored: a consistent cut. And what is said where there is none, or it is damaged."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.cli.braid import Braid, as_, guarded, url_of
from tests.waiting import until

import braidlog
from braidlog.client.blocking import Client
from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.testing.server import ServerProcess

KEYS = [f"k{number}".encode() for number in range(20)]
GROUP = "readers"
SECONDS = 60.0
ENOUGH = 15
"""Transactions between two looks."""


def kafka(server: ServerProcess, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": server.bootstrap(), **more}


def transactional(server: ServerProcess) -> Producer:
    producer = Producer(kafka(server, **{"transactional.id": "mover"}))
    producer.init_transactions(SECONDS)
    return producer


class Load:
    """Two clients: each transaction writes its number to `left` and `right` and commits that many of `source`; keys are set."""

    def __init__(self, server: ServerProcess) -> None:
        self.done = 0
        self.sets = 0
        self._server = server
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._move, self._set)]

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failures.append(error)
            raise

    def _move(self) -> None:
        source, mover = Producer(kafka(self._server)), transactional(self._server)
        reader = Consumer(kafka(self._server, **{"group.id": GROUP}))
        while not self._over.is_set():
            number = str(self.done).encode()
            source.produce("source", number, partition=0)
            source.flush(SECONDS)
            mover.begin_transaction()
            for topic in ("left", "right"):
                mover.produce(topic, number)
            place = TopicPartition("source", 0, self.done + 1)
            mover.send_offsets_to_transaction([place], reader.consumer_group_metadata(), SECONDS)
            mover.commit_transaction(SECONDS)
            self.done += 1
        reader.close()

    def _set(self) -> None:
        with braidlog.kv.connect(url_of(self._server, "mayfly")) as client:
            while not self._over.is_set():
                client.set(KEYS[self.sets % len(KEYS)], str(self.sets).encode())
                self.sets += 1

    def wait(self) -> None:
        """For some more of everything."""
        before = self.done, self.sets
        until(
            lambda: bool(self._failures) or (self.done >= before[0] + ENOUGH and self.sets >= before[1] + 100), "load"
        )
        assert not self._failures

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(2 * SECONDS)
        assert not self._failures


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, str, int]]]:
    """A folder with two back-ups of a node under load; of each its id, with how many transactions were done before and after."""
    place = tmp_path_factory.mktemp("backup")
    backups = []
    with ServerProcess(place / "data") as server:
        braid = Braid(server)
        for topic in ("source", "left", "right"):
            braid.ok("topic", "create", topic, "--set", "segment.bytes=16384")
        load = Load(server)
        with load.running():
            for _ in range(2):
                load.wait()
                before = load.done
                made = braid.json("backup", "create", str(place / "kept"), schema="backup-create")
                load.wait()
                backups.append((before, made["backup"], load.done))
        assert not (place / "data" / "cut").exists()
    return place / "kept", backups


@pytest.mark.parametrize("which", [0, 1])
def test_a_restored_backup_is_a_consistent_cut(
    taken: tuple[Path, list[tuple[int, str, int]]], which: int, tmp_path: Path
) -> None:
    folder, backups = taken
    before, name, after = backups[which]
    data = tmp_path / "restored"
    made = Braid().json("restore", str(folder), str(data), "--backup", name, schema="restore")
    assert made["backup"] == name
    assert "Intact" in Braid().ok("log", "verify", str(data))
    assert "Intact" in Braid().ok("kv", "verify", str(data))
    with ServerProcess(data) as server:
        transactional(server)  # its producer comes back: what it had open is aborted
        committed = f"{url_of(server)}?isolation=read_committed"
        with braidlog.connect(committed) as client:
            found = {topic: numbers(client, topic) for topic in ("left", "right", "source")}
            commit = client.admin.lag(GROUP, "source")[0].committed
        done = len(found["left"])
        assert before <= done <= after
        assert found["left"] == found["right"] == list(range(done))
        assert commit == done
        assert commit <= len(found["source"])
        with braidlog.kv.connect(url_of(server, "mayfly")) as keys:
            held = {key: keys.get(key) for key in KEYS}
        assert None not in held.values()
        with braidlog.connect(url_of(server)) as client:
            until(lambda: fed(client) == held, "the feed of keys tells what they hold")


def test_a_backup_of_partitions_that_were_closed_is_sound_when_restored(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        Braid(server).ok("topic", "create", "closed", "-p", "3")
        for partition in "012":
            Braid(server).ok("produce", "closed", "-p", partition, stdin="one\ntwo\n")
    with ServerProcess(tmp_path / "data") as server:
        Braid(server).ok("backup", "create", str(tmp_path / "kept"))
    Braid().ok("restore", str(tmp_path / "kept"), str(tmp_path / "restored"))
    assert "Intact" in Braid().ok("log", "verify", str(tmp_path / "restored"))


def numbers(client: Client, topic: str) -> list[int]:
    return [int(record.value or b"") for record in all_of(client, topic)]


def all_of(client: Client, topic: str) -> list[ConsumedRecord]:
    end = client.admin.span(topic, 0).latest
    found: list[ConsumedRecord] = []
    with client.consumer() as consumer:
        consumer.assign(topic)
        while consumer.reached(topic, 0) < end:
            found += consumer.poll()
    return found


def fed(client: Client) -> dict[bytes, bytes]:
    """What the feed says that keys hold."""
    found: dict[bytes, bytes] = {}
    for record in all_of(client, "__kv"):
        assert record.key is not None
        found[record.key] = record.value or b""
    return found


def test_a_second_backup_copies_what_is_new(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *guarded(tmp_path)) as server:
        braid, kept = Braid(server), str(tmp_path / "kept")
        assert "CLUSTER_AUTHORIZATION_FAILED" in braid.fails(3, "backup", "create", kept, *as_(tmp_path, "ann"))
        braid.environment |= {"BRAID_PRINCIPAL": "root", "BRAID_TOKEN_FILE": str(tmp_path / "root.token")}
        braid.ok("topic", "create", "a", "--set", "segment.bytes=16384")
        for _ in range(4):
            braid.ok("produce", "a", "--whole", stdin=bytes(range(256)) * 40)
        first = braid.json("backup", "create", kept, schema="backup-create")
        again = braid.json("backup", "create", kept, schema="backup-create")
        assert first["added"] > 30_000
        assert again["added"] == 0
        assert again["backup"] > first["backup"]
        braid.ok("produce", "a", stdin="one more\n")
        third = braid.json("backup", "create", kept, schema="backup-create")
        assert 0 < third["added"] < first["added"]
        rows = braid.json("backup", "list", kept, schema="backup-list")
        assert [row["backup"] for row in rows] == [first["backup"], again["backup"], third["backup"]]

    braid.ok("backup", "create", kept, "--data", str(tmp_path / "data"))  # and of a node that is stopped
    gone = json.loads(braid.ok("backup", "prune", kept, "--keep", "1", "--yes", "-o", "json"))
    assert len(gone["removed"]) == 3
    assert braid.json("backup", "verify", kept, schema="backup-verify")["faults"] == []
    braid.ok("restore", kept, str(tmp_path / "restored"))
    assert "one more" in braid.ok("log", "dump", str(tmp_path / "restored"), "a")


def test_damage_is_found_and_mended_by_a_full_one(tmp_path: Path) -> None:
    kept, data = str(tmp_path / "kept"), str(tmp_path / "data")
    with braidlog.Log(data) as log:
        log.create_topic("a").append(b"value")
    braid = Braid()
    made = json.loads(braid.ok("backup", "create", kept, "--data", data, "-o", "json"))
    piece = max((tmp_path / "kept" / "pieces").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    piece.write_bytes(bytes(piece.stat().st_size))
    braid.ok("backup", "create", kept, "--data", data)
    said = braid.fails(1, "backup", "verify", kept)
    assert "SHA-256" in braid("backup", "verify", kept).stdout
    assert said == ""
    assert "SHA-256" in braid.fails(4, "restore", kept, str(tmp_path / "restored"))
    assert "was interrupted" in braid.fails(3, "restore", kept, str(tmp_path / "restored"))
    braid.ok("backup", "create", kept, "--data", data, "--full")
    assert "is intact" in braid.ok("backup", "verify", kept)
    manifest = tmp_path / "kept" / "backups" / f"{made['backup']}.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"topics/0", b"../../00"))
    assert "checksum" in braid.fails(4, "backup", "verify", kept, made["backup"])


def test_what_is_refused(tmp_path: Path) -> None:
    data, other = str(tmp_path / "data"), tmp_path / "other"
    braid = Braid()
    with braidlog.Log(data) as log:
        log.create_topic("a")
        assert "in use" in braid.fails(3, "backup", "create", str(tmp_path / "kept"), "--data", data)
    braid.ok("backup", "create", str(tmp_path / "kept"), "--data", data)
    other.mkdir()
    (other / "mine").touch()
    assert "not empty (mine)" in braid.fails(3, "restore", str(tmp_path / "kept"), str(other))
    assert "holds no backups" in braid.fails(3, "backup", "list", str(other))
    assert "; backups: 2" in braid.fails(3, "restore", str(tmp_path / "kept"), str(tmp_path / "r"), "--backup", "19")
