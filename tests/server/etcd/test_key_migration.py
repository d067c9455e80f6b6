"""Keys of a lone node are its cluster's when the folder is moved there, also if the power goes at any step of the move."""

import contextlib
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner
from tests.broker.keys.test_key_service import KvNode
from tests.cli.braid import url_of
from tests.debian import have
from tests.model.manual_world import Job, ManualRuntime
from tests.sampling import FULL
from tests.server.etcd.members import members
from tests.simulation.etcd import ModelClient, ModelEtcd
from tests.waiting import until

from braidlog import kv
from braidlog.cli import main
from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.migration import is_moving, move_into_etcd
from braidlog.cluster.etcd.port import Put, Range
from braidlog.cluster.etcd.position import Position, PositionFile
from braidlog.cluster.metadata.image import Image
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import HybridClock, Stamp
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.values import kind_of, write_value
from braidlog.kv.replicated import checkpoints
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.log_records import SlotRecord
from braidlog.kv.replicated.slots import FEED_TOPIC, KEY_LOGS, LOG_TOPIC, log_of, slot_of
from braidlog.model.errors import StorageFault
from braidlog.model.settings import Flush
from braidlog.partition.internal.internal_topic import open_metadata
from braidlog.partition.key_log import rows_in
from braidlog.server.etcd.key_migration import KeyMigration
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.cluster_process import ClusterProcess
from braidlog.testing.disk import Crash, SimulatedDisk
from braidlog.testing.server import ServerProcess

KEYS = Keys("p")
SETTINGS = KeyValueSettings(flush=Flush.INTERVAL)
LONG = tuple(b"%05d" % at * 12_000 for at in range(40))
"""A list that takes several records."""
KINDS: tuple[o.Operation[Any], ...] = (
    o.Set(b"text", b""),
    o.Increment(b"count", -(2**40)),
    o.Push(b"list", o.End.RIGHT, (b"a", b"", b"c")),
    o.HashSet(b"hash", ((b"f", b"1"), (b"g", b"\xff"))),
)
Contents = dict[bytes, tuple[str, bytes, int]]
"""Of each key its kind, its value and its deadline."""


def filled() -> KvNode:
    """A node with every kind of key, with and without deadlines of many milliseconds, and with keys whose time is over."""
    node = KvNode()
    node.do(o.Set(b"over", b"v", ttl_seconds=5))
    node.do(o.Set(b"nearly over", b"v", ttl_seconds=8))
    node.clock.advance(7_333)
    for operation in KINDS:
        node.do(operation)
    for at, operation in enumerate(KINDS * 20):
        name = b"%s %d" % (operation.key, at)
        node.do(msgspec.structs.replace(operation, key=name))
        node.clock.advance(7)
        node.do(o.Expire(name, 1_000_000 + at))
    for value in LONG:
        node.do(o.Push(b"long", o.End.RIGHT, (value,)))
    return node


class Stopped:
    """The folder of a node that does not run."""

    def __init__(self, disk: SimulatedDisk, clock: ManualClock) -> None:
        self.disk = disk
        self.clock = clock
        self.runtime = ManualRuntime(clock)
        self.folder = DataFolder(disk, "/data", clock)
        self.counts: list[int] = []
        self.migration = KeyMigration(self.folder, self.runtime, "0", SETTINGS, self.counts.append)

    @property
    def position(self) -> Position | None:
        return PositionFile(self.disk, "/data", "0").load()

    @property
    def is_moved(self) -> bool:
        return self.position is not None and not is_moving(self.position)

    def move(self, etcd: ModelEtcd) -> None:
        """As `move_folder`."""
        image, _ = open_metadata(self.folder, self.runtime, node="0").load()
        migration = self.migration
        if not self.is_moved:
            migration.prepare(image)
            client, bring = ModelClient(etcd), migration.write
            work = move_into_etcd(client, KEYS, self.folder, image, node="0", new_cluster="c1", bring=bring)
            job: Job[Position] = self.runtime.spawn(work)
            self.runtime.advance(10_000)
            job.result()
        migration.finish()

    def image(self, etcd: ModelEtcd) -> Image:
        known = self.position
        assert known is not None
        etcd.runtime = self.runtime
        store = EtcdStore(ModelClient(etcd), self.runtime, prefix="p", node="0", new_nonce=lambda: "n")
        job: Job[None] = self.runtime.spawn(store.open(known))
        self.runtime.advance(1_000)
        job.result()
        return store.load()[0]

    def slots(self) -> list[LogKeyspace]:
        """What a node makes of the logs in the folder."""
        made = []
        for number in range(KEY_LOGS):
            slot, last = LogKeyspace(HybridClock(b"n" * 16), NoLog(), SETTINGS), Stamp(0, 0, b"")  # type: ignore[arg-type]
            log = self.folder.open_partition(LOG_TOPIC, number)
            for origin, row in rows_in(log, 0, log.end_offset):
                assert isinstance(row, SlotRecord)
                assert last < row.stamp, "each stamp of a log is greater than those before it"
                assert log_of(slot_of(row.key), KEY_LOGS) == number
                checkpoints.apply(slot, origin.offset, row)
                last = row.stamp
            assert last.wall_ms <= self.clock.now_ms()
            made.append(slot)
        return made

    def contents(self) -> Contents:
        found: Contents = {}
        for slot in self.slots():
            for key, value in slot.keyspace.data.items():
                found[key] = kind_of(value), write_value(value), slot.keyspace.deadlines.get(key, 0)
        return found


class NoLog(NamedTuple):
    """Of a slot that only applies."""


def contents_of(node: KvNode) -> Contents:
    """What the lone node has, without keys whose time is over."""
    keyspace, now_ms = node.kv.store.keyspace, node.clock.now_ms()
    return {
        key: (kind_of(value), write_value(value), keyspace.deadlines.get(key, 0))
        for key, value in keyspace.data.items()
        if not 0 < keyspace.deadlines.get(key, 0) <= now_ms
    }


def test_every_key_arrives_with_its_kind_and_its_deadline() -> None:
    node = filled()
    before = contents_of(node)
    assert {kind for kind, _, _ in before.values()} == {"string", "counter", "list", "hash"}
    assert len({deadline_ms % 1000 for _, _, deadline_ms in before.values()}) > 50
    assert b"over" in node.kv.store.keyspace.data, "its record of expiry is not written yet"
    assert (b"over" in before, b"nearly over" in before) == (False, True)
    feed_id = node.services.metadata.image.topics[FEED_TOPIC].topic_id
    moved = Stopped(node.disk.after_kill(), node.clock)
    etcd = ModelEtcd(moved.runtime)
    moved.move(etcd)
    assert moved.contents() == before
    assert moved.migration.keys == len(before) == moved.counts[-1]
    image = moved.image(etcd)
    topic = image.topics[LOG_TOPIC]
    assert (topic.holder, topic.partitions, topic.settings.flush) == ("0", KEY_LOGS, Flush.INTERVAL)
    assert FEED_TOPIC not in image.topics
    assert feed_id in image.deleted, "the folder of the lone node's feed is removed by the next start"
    assert not moved.disk.exists("/data/kv"), "no key is in two places"


def test_a_node_without_keys_brings_no_logs() -> None:
    node = KvNode()
    moved = Stopped(node.disk.after_kill(), node.clock)
    etcd = ModelEtcd(moved.runtime)
    moved.move(etcd)
    assert LOG_TOPIC not in moved.image(etcd).topics, "they are made when all nodes are there"


def test_a_damaged_store_is_refused_before_anything_changes() -> None:
    node = filled()
    disk = node.disk.after_kill()
    first = min(name for name in disk.names("/data/kv") if name.endswith(".wal"))
    disk.open(f"/data/kv/{first}", writable=True).write_at(b"\xff" * 8, 200)
    moved = Stopped(disk, node.clock)
    with pytest.raises(StorageFault, match=r"keys cannot be moved: .*braid kv verify /data"):
        moved.move(ModelEtcd(moved.runtime))
    assert (moved.position, moved.folder.identity.cluster) == (None, "")


def test_whatever_the_disk_kept_the_next_try_brings_every_key() -> None:
    """The power goes in the first try, and after half of those again in the next one."""
    node = filled()
    before, rng = contents_of(node), Random(7)
    del before[b"nearly over"]  # its time is over before some of the tries
    whole = Stopped(node.disk.after_kill(), node.clock)
    begun = len(whole.disk.operations)
    whole.move(ModelEtcd(whole.runtime))
    operations = len(whole.disk.operations) - begun
    assert operations > 50
    ends = {*range(1, 8), *range(operations - 8, operations + 1)}
    for operation in range(1, operations + 1) if FULL else sorted({*ends, *rng.sample(range(1, operations), 12)}):
        stopped, label = Stopped(node.disk.after_kill(), node.clock), ""
        etcd = ModelEtcd(stopped.runtime)
        for stop_at in (operation, rng.randrange(1, operations)) if operation % 2 else (operation,):
            etcd.runtime = stopped.runtime
            stopped.disk.stop_at = len(stopped.disk.operations) + stop_at
            with contextlib.suppress(Crash):
                stopped.move(etcd)
            kept, disk = next(iter(stopped.disk.crash_states(limit=1, rng=rng)))
            label += f"{stop_at} {kept}; "
            stopped = Stopped(disk, node.clock)
            etcd = _copy(etcd, stopped.runtime)
            assert stopped.position is not None or stopped.folder.find(LOG_TOPIC) is None, "it may go on alone"
        stopped.move(etcd)
        found = stopped.contents()
        found.pop(b"nearly over", None)
        assert found == before, label
        assert LOG_TOPIC in stopped.image(etcd).topics, label
        assert not stopped.disk.exists("/data/kv"), label


def _copy(etcd: ModelEtcd, runtime: ManualRuntime) -> ModelEtcd:
    copy = ModelEtcd(runtime)
    items = etcd.read(Range(b"/", b"0"), 0, 0, keys_only=False).items
    copy.write([Put(item.key, item.value) for item in items], [], [])
    return copy


def test_keys_of_a_lone_node_are_served_by_its_cluster(tmp_path: Path) -> None:
    """With real processes: a lone node, a move that is killed, one that is not, and three nodes."""
    have("etcd", "etcd-server")
    data = tmp_path / "node-1"
    with ServerProcess(data) as alone, kv.connect(url_of(alone, "mayfly")) as keys:
        keys.set("text", b"v", ttl_seconds=3000)
        keys.incr("count", 7)
        keys.rpush("list", "a", "b")
        keys.hset("hash", {"f": "1"})
        for at in range(500):
            keys.set(f"key {at}", b"%d" % at)
    with members(tmp_path, 1) as (etcd,):
        settings = ["--data-dir", str(data), "--set", f"cluster.etcd={etcd.url}", "--set", "node=1"]
        said = CliRunner().invoke(main, ["cluster", "init", *settings, "--set", "cluster.prefix=keys"])
        assert "moved 504 keys into the 128 slots" in said.stdout, said.output
        with (
            ClusterProcess(tmp_path, etcd.url, prefix="keys") as nodes,
            kv.connect(nodes.url("mayfly"), retry_timeout=60.0) as keys,
        ):
            assert 2900 < (keys.ttl("text") or 0) <= 3000
            assert (keys.incr("count"), keys.lrange("list"), keys.hgetall("hash")) == (8, [b"a", b"b"], {b"f": b"1"})
            assert [keys.get(f"key {at}") for at in range(500)] == [b"%d" % at for at in range(500)]
            until(lambda: (keys.stats().feed_sequence or 0) >= 504, "the feed of the logs tells of each key")
            nodes[1].stop()
            assert keys.get("key 1") == b"1", "other nodes have replicas"
