"""Records that come without a batch have a short way into the log: nobody can tell it from the way of all batches."""

import errno
from collections.abc import Coroutine
from random import Random
from typing import Any

import msgspec
import pytest
from tests.broker.node import Node

from braidlog.kv.slots import FEED_TOPIC
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.partition.append import Acks, Appended
from braidlog.partition.hosted_log import Role
from braidlog.storage.head import DATA_START
from braidlog.storage.partition import PartitionLog

SEEDS = 30
STEPS = 60
SETTINGS: tuple[dict[str, Any], ...] = (
    {"flush": "os"},
    {"flush": "interval"},
    {"flush": "ack"},
    {"flush": "os", "append_time": True},
    {"flush": "os", "compact": True},
)
SMALL = {"segment_bytes": 4096, "batch_bytes_max": 2000, "index_interval_bytes": 300}
KINDS = ("one",) * 8 + ("many", "keys", "late", "leader", "large", "fault", "none", "all", "sync", "absent", "wrong")


class Twins:
    """The same node twice: what comes to the second has to be sealed first, always."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
        self.nodes = [Node(), Node()]
        for node in self.nodes:
            node.create("a", 1, settings={**SMALL, **settings})
        sealed = self.nodes[1].services.hosting.partition("a", 0).log
        self.short = 0
        shortly = PartitionLog.append_section

        def append_section(log: PartitionLog, *records: Any, **how: Any) -> tuple[Appended, int] | None:
            found = None if log is sealed else shortly(log, *records, **how)
            self.short += found is not None
            return found

        monkeypatch.setattr(PartitionLog, "append_section", append_section)

    def step(self, chance: Random) -> list[Any]:
        kind = chance.choice(KINDS)
        count = chance.randrange(2, 5) if kind in ("many", "keys") else 1
        size = 2500 if kind == "large" else chance.randrange(120)
        values: list[Any] = [chance.randbytes(size) for _ in range(count)]
        keys = [chance.choice((None, b"k", b"")) for _ in values] if kind == "keys" else None
        values = ["no bytes"] if kind == "wrong" else values
        acks = {"none": Acks.NONE, "all": Acks.ALL}.get(kind, Acks.LEADER)
        return [self._play(node, kind, "b" if kind == "absent" else "a", values, keys, acks) for node in self.nodes]

    def _play(self, node: Node, kind: str, topic: str, values: list[Any], keys: Any, acks: Acks) -> Any:
        hosted = node.services.hosting.partition("a", 0)
        if kind == "late":
            node.clock.advance(1000 * 3600 * 24)
        elif kind == "leader":
            for role in (Role.FOLLOWER, Role.LEADER):
                node.run(node.services.placement.set_role("a", 0, role))
        elif kind == "sync":
            hosted.log.sync()
            hosted.advance()
        elif kind == "fault":
            node.disk.fail_at = {len(node.disk.operations) + 1: errno.ENOSPC}
        try:
            found = node.services.append.append_records(topic, 0, values, keys, acks=acks)
            return ("waited", node.run(found)) if isinstance(found, Coroutine) else found
        except (BrokerError, ProtocolError, StorageFault, TypeError) as error:
            return type(error), str(error), getattr(error, "place", None), getattr(error, "left_remains", None)

    def seen(self) -> list[Any]:
        return [_seen(node) for node in self.nodes]


def _seen(node: Node) -> Any:
    hosted, append = node.services.hosting.partition("a", 0), node.services.append
    log = hosted.log
    segments = [
        (
            each.path,
            each.size,
            each.next_offset,
            each.max_timestamp_ms,
            each.is_settled,
            each.file.read_at(8192, DATA_START),
        )
        for each in log.segments
    ]
    indexes = [[each.index.entry(number) for number in range(len(each.index))] for each in log.segments]
    told = append.records_written, append.batches_written, append.bytes_written
    kept = hosted.high_watermark, log.durable_offset, log.unsynced_bytes, log.watermark, log.image()
    return segments, indexes, told, kept, node.world.syncs, len(node.disk.operations)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_both_ways_write_alike(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    short = 0
    for seed in range(SEEDS):
        with monkeypatch.context() as patched:
            chance, twins = Random(seed), Twins(patched, settings)
            for number in range(STEPS):
                first, second = twins.step(chance)
                assert first == second, f"seed {seed}, step {number}"
                one, other = twins.seen()
                assert one == other, f"seed {seed}, step {number}"
            short += twins.short
    assert bool(short) is not bool(settings.get("append_time")), "the log's own time is stamped on a sealed batch"


def _node(**settings: Any) -> Node:
    node = Node()
    node.create("a", 1, settings={"flush": "os", **settings})
    node.append("a", b"first")  # which begins an epoch, and is not plain
    return node


def _refused(node: Node, topic: str = "a") -> Reason:
    with pytest.raises(BrokerError) as caught:
        node.services.append.append_records(topic, 0, [b"x"], acks=Acks.LEADER)
    return caught.value.reason


def test_whoever_waits_for_records_is_woken() -> None:
    node = _node()
    job = node.spawn(node.services.fetch.records("a", 0, 1, bytes_max=100, wait_ms=10_000))
    assert not job.is_done
    assert node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER) == Appended(1, 1)
    node.world.advance(0)
    assert [record.value for record in job.result().records] == [b"x"]


def test_an_acknowledgement_waits_for_the_disk_where_that_is_promised() -> None:
    node = _node(flush="ack")
    with node.world.holding_syncs():
        appended = node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER)
        assert isinstance(appended, Coroutine)
        job = node.spawn(appended)
        node.world.advance(10_000)
        assert not job.is_done
        assert node.services.hosting.partition("a", 0).high_watermark == 1
    assert job.result() == Appended(1, 1)
    assert node.services.hosting.partition("a", 0).high_watermark == 2


def test_who_does_not_lead_takes_none() -> None:
    node = _node()
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    assert _refused(node) is Reason.NOT_LEADER


def test_a_topic_that_goes_takes_none() -> None:
    node = _node()
    node.services.hosting.partition("a", 0).retire()
    assert _refused(node) is Reason.TOPIC_NOT_FOUND


@pytest.mark.parametrize("name", ["__hidden", FEED_TOPIC])
def test_the_brokers_own_topics_take_none(name: str) -> None:
    node = _node()
    hosting = node.services.hosting
    hosting.put(msgspec.structs.replace(hosting.meta("a"), name=name))
    hosting._hosted[name, 0] = hosting.partition("a", 0)
    expected = Reason.INVALID_TOPIC_NAME if name == FEED_TOPIC else Reason.TOPIC_NOT_FOUND
    assert _refused(node, name) is expected


def test_a_disk_without_room_takes_none() -> None:
    node = _node()
    node.services.append.no_room = StorageFault("too little room")
    with pytest.raises(StorageFault, match="too little room"):
        node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER)


def test_other_replicas_are_waited_for() -> None:
    node = Node()
    node.create("a", 1, followers=["1"], min_in_sync=1, settings={"flush": "os"})
    node.append("a", b"first")
    hosted = node.services.hosting.partition("a", 0)
    assert node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER) == Appended(1, 1)
    assert not hosted.replicated.counts_alone
    assert hosted.log.watermark == hosted.high_watermark


def test_a_damaged_log_takes_none() -> None:
    node = _node()
    log = node.services.hosting.partition("a", 0).log
    log.report.damages.append("somewhere")  # type: ignore[arg-type]  # that there is any is what is looked at
    with pytest.raises(StorageFault, match="repaired"):
        node.services.append.append_records("a", 0, [b"x"], acks=Acks.LEADER)


def test_a_closed_log_is_opened_first() -> None:
    node = _node()
    hosted = node.services.hosting.partition("a", 0)
    hosted.begin_close()
    assert hosted.finish_close()
    appended = node.services.append.append_records("a", 0, [b"y"], acks=Acks.LEADER)
    assert isinstance(appended, Coroutine)
    assert node.run(appended) == Appended(1, 1)
