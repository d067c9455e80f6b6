"""The node's snapshot of itself: made in slices, and true although things end meanwhile."""

from types import SimpleNamespace
from typing import Any

from tests.broker.node import Node

from braidlog.coordinator.offsets import Commit
from braidlog.kv.engine import operations as o
from braidlog.model.reporting import node_report as r
from braidlog.model.runtime.cooperative import SLICE
from braidlog.server.node_reporter import Reporter

GROUPS = 3 * SLICE


class Setting:
    """A reporter of a node with many groups, and of nothing else."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.create("orders", 2)
        for number in range(GROUPS):
            self.commit(f"group-{number:04}")
        report: Any = SimpleNamespace(report=dict)
        scrubber: Any = SimpleNamespace(read_bytes=0, damages=0, rounds=0, partitions_left=0)
        limits: Any = type("NoConnections", (), {"__len__": lambda _: 0, "connections_max": 1})()
        budget: Any = SimpleNamespace(bytes_held=0, bytes_max=1, let_go=0)
        loaded: Any = None
        self.reporter = Reporter(
            loaded,
            self.node.services,
            {},
            limits,
            budget,
            self.node.clock,
            worker=report,
            upkeep=report,
            tables=[report],
            scrubber=scrubber,
            syncs=list,
            warnings=dict,
            etcd=r.EtcdReport,
        )

    def commit(self, group: str) -> None:
        self.node.run(self.node.offsets.commit(group, [Commit("orders", 0, 0)]))

    def take(self, meanwhile: Any = lambda: None) -> tuple[r.Snapshot, int]:
        """A snapshot, and how often others had a turn, in which they did something."""
        turns, asked = 0, self.reporter.snapshot()
        while True:
            try:
                asked.send(None)
            except StopIteration as taken:
                return taken.value, turns
            turns += 1
            meanwhile()


def test_others_have_turns_while_groups_are_looked_at() -> None:
    setting = Setting()
    snapshot, turns = setting.take()
    assert [group.group for group in snapshot.groups] == [f"group-{number:04}" for number in range(GROUPS)]
    assert len(snapshot.lags) == GROUPS
    assert len(snapshot.partitions) == 2
    assert turns >= 2 * GROUPS // SLICE, "a group and its lag are two things"
    assert setting.take() == (snapshot, 0), "made once in a while, however many ask"


def test_a_group_that_ends_meanwhile_is_left_out() -> None:
    setting = Setting()
    node = setting.node
    last = f"group-{GROUPS - 1:04}"
    ends = iter([node.groups.delete(last)])

    def end_one() -> None:
        for job in ends:
            node.run(job)

    snapshot, _ = setting.take(end_one)
    assert len(snapshot.groups) == len(snapshot.lags) == GROUPS - 1
    assert last not in {group.group for group in snapshot.groups}


def test_keys_in_doubt_are_a_warning() -> None:
    setting = Setting()
    keyvalue = setting.node.services.keyvalue
    keyvalue.open()
    setting.node.run(keyvalue.store.wal.durable(keyvalue.store.execute(o.Increment(b"count"), 0)))
    assert setting.take()[0].warnings == {}
    setting.node.disk.flip_bit("/data/kv/00000000000000000001.wal", 8 * 140)
    keyvalue.open()
    setting.node.clock.advance(10_000)
    assert "key 'count' is in doubt" in setting.take()[0].warnings["keys in doubt"]
