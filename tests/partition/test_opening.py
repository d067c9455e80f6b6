"""Partitions open beside the loop: at creation, at growth and at the start of a node."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from tests.broker.node import Node
from tests.server.test_node import append, config_for, play

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.partition.opening import OPENERS
from braidlog.server.node import Server
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.testing.faults import Operation

PARTITIONS = 40
LOOP_SECONDS_MAX = 1.0


class Openings:
    """Every opening of a partition, by the thread it ran on; those of one topic can be held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: dict[tuple[str, int], int] = {}
        self.held = ""
        self.began, self.go_on = threading.Event(), threading.Event()
        self.at_once = self.at_once_max = 0
        self._lock = threading.Lock()
        real = DataFolder.open_partition

        def watched(folder: DataFolder, name: str, partition: int) -> PartitionLog:
            with self._lock:
                self.threads[(name, partition)] = threading.get_ident()
                self.at_once += 1
                self.at_once_max = max(self.at_once_max, self.at_once)
            if name == self.held:
                self.began.set()
                assert self.go_on.wait(60)
            try:
                return real(folder, name, partition)
            finally:
                with self._lock:
                    self.at_once -= 1

        monkeypatch.setattr(DataFolder, "open_partition", watched)

    def on_this_thread(self) -> list[tuple[str, int]]:
        here = threading.get_ident()
        return [place for place, thread in self.threads.items() if thread == here and not place[0].startswith("__")]


def test_the_loops_thread_opens_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openings = Openings(monkeypatch)

    async def use(server: Server, partitions: int, *, at_rest: bool = False) -> None:
        """Whatever asks for all of them, as a Metadata request does."""
        assert server.services is not None
        began = time.thread_time()
        assert len(server.services.hosting.partitions("a")) == partitions
        assert time.thread_time() - began < LOOP_SECONDS_MAX
        assert openings.on_this_thread() == []
        opened = [place for place in openings.threads if place[0] == "a"]
        assert len(opened) == (0 if at_rest else partitions)

    async def scene() -> None:
        server = Server(config_for(tmp_path))
        await server.start()
        assert server.services is not None
        await server.services.topics.create("a", PARTITIONS)
        await use(server, PARTITIONS)
        await server.services.topics.grow("a", PARTITIONS + 10)
        await use(server, PARTITIONS + 10)
        await append(server, "a", b"x")
        await server.stop()
        openings.threads.clear()
        again = Server(config_for(tmp_path))
        await again.start()
        await use(again, PARTITIONS + 10, at_rest=True)
        assert again.services is not None
        assert again.services.hosting.partition("a", 0).end_offset == 1
        await append(again, "a", b"y")
        assert [place for place in openings.threads if not place[0].startswith("__")] == [("a", 0)]
        assert openings.on_this_thread() == []
        assert again.services.hosting.partition("a", 0).end_offset == 2
        await again.stop()

    play(scene)
    assert openings.at_once_max <= OPENERS


async def test_while_a_topic_is_opened_others_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openings = Openings(monkeypatch)
    server = Server(config_for(tmp_path))
    await server.start()
    assert server.services is not None
    await server.services.topics.create("quick", 1)
    openings.held = "slow"
    creation = asyncio.ensure_future(server.services.topics.create("slow", 2 * OPENERS))
    await asyncio.to_thread(openings.began.wait, 60)
    await append(server, "quick", b"x")
    assert server.services.hosting.partition("quick", 0).high_watermark == 1
    assert not creation.done()
    with pytest.raises(BrokerError, match="no topic 'slow'"):
        await append(server, "slow", b"x")
    openings.go_on.set()
    await creation
    await append(server, "slow", b"x")
    assert openings.at_once_max == OPENERS
    await server.stop()


def test_a_topic_of_which_a_partition_cannot_be_opened_is_not_created(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.create("a")
    real = DataFolder.open_partition
    opened: list[PartitionLog] = []

    def broken(folder: DataFolder, name: str, partition: int) -> PartitionLog:
        if (name, partition) == ("b", 2):
            raise StorageFault("too many open files")
        opened.append(real(folder, name, partition))
        return opened[-1]

    monkeypatch.setattr(DataFolder, "open_partition", broken)
    with pytest.raises(StorageFault, match="too many open files"):
        node.create("b", 4)
    assert node.services.hosting.names() == ["a"]
    assert len(opened) == 3
    assert all(log.is_closed for log in opened)
    monkeypatch.undo()
    again = node.restarted()
    assert (again.services.hosting.names(), again.folder.find("b")) == (["a"], None)
    again.create("b", 4)


def test_what_could_not_be_noted_as_made_is_not_served() -> None:
    """The mark fails, and the event that takes the creation back fails as well: the metadata log has stopped."""
    node = Node()
    node.create("a")
    syncs = 0

    def refuse(operation: Operation) -> None:
        nonlocal syncs
        if operation.kind == "sync" and operation.path.startswith(node.folder.partition_folder("__metadata", 0)):
            syncs += 1
            if syncs > 1:  # the first is that of the creation
                raise StorageFault("no", operation.path)

    node.disk.on_operation = refuse
    with pytest.raises(StorageFault):
        node.create("b")
    assert syncs > 1
    assert node.services.hosting.names() == ["a"]
