"""Nodes that go on after their etcd was put back to an older copy, or lost: real members, real folders."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.server.etcd.members import Member, members
from tests.server.etcd.test_etcd_metadata import SECONDS_MAX, config_for, refusal
from tests.server.test_node import append

from braidlog.cli import main
from braidlog.cluster.etcd.disaster_recovery import IDS_PER_ENTRY_MAX
from braidlog.coordinator.transactions.producer_ids import BLOCK
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError
from braidlog.partition.hosted_log import Role
from braidlog.partition.produce.append import Acks
from braidlog.server.config import ServerConfig
from braidlog.server.etcd.disaster_recovery import recover_folders
from braidlog.server.node import Server

NODES = ("1", "2")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Member]:
    with members(tmp_path, 1) as (started,):
        yield started


class Nodes:
    """Two nodes over one etcd, whose folder can be put back."""

    def __init__(self, folder: Path, etcd: Member) -> None:
        self._folder, self._etcd = folder, etcd
        self.configs = [config_for(folder / node, [etcd.url], "p", node=node) for node in NODES]
        self.folders = [config.data_dir for config in self.configs]

    def run(self, scene: Callable[[list[Server]], Awaitable[None]]) -> None:
        async def life() -> None:
            async with asyncio.timeout(SECONDS_MAX):
                servers = [Server(config) for config in self.configs]
                try:
                    for server in servers:
                        await server.start()
                    await scene(servers)
                finally:
                    for server in servers:
                        await server.stop()

        asyncio.run(life())

    def recover(self, *folders: str, lost: tuple[int, ...] = ()) -> None:
        config: ServerConfig = self.configs[0]
        asyncio.run(recover_folders(folders or self.folders, config.cluster, SystemClock(), lost))

    def copy_etcd(self) -> None:
        self._etcd.kill()
        shutil.copytree(self._folder / self._etcd.name, self._folder / "copy")
        self._begin()

    def put_back(self, *, empty: bool = False) -> None:
        self._etcd.kill()
        shutil.rmtree(self._folder / self._etcd.name)
        if not empty:
            shutil.copytree(self._folder / "copy", self._folder / self._etcd.name)
        self._begin()

    def _begin(self) -> None:
        self._etcd.start()
        self._etcd.wait_until_healthy()


async def leader_of(servers: list[Server]) -> Server:
    """Of topic t, when all its replicas are in sync."""
    while True:
        for server in servers:
            assert server.services is not None
            image, hosting = server.services.metadata.image, server.services.hosting
            is_whole = "t" in image.topics and len(image.assignment("t", 0).in_sync) == len(servers)
            if is_whole and hosting.exists("t") and hosting.partition("t", 0).role is Role.LEADER:
                return server
        await asyncio.sleep(0.02)


def values(server: Server, topic: str) -> int:
    assert server.services is not None
    return server.services.hosting.partition(topic, 0).end_offset


def test_all_that_was_acknowledged_is_there_after_etcd_was_put_back(tmp_path: Path, etcd: Member) -> None:
    nodes = Nodes(tmp_path, etcd)
    before: dict[str, int] = {}

    async def first(servers: list[Server]) -> None:
        assert servers[0].services is not None
        await servers[0].services.topics.create("t", 1)
        await append(await leader_of(servers), "t", b"1", Acks.ALL)

    async def later(servers: list[Server]) -> None:
        leader = await leader_of(servers)
        services = leader.services
        assert services is not None
        await append(leader, "t", b"2", Acks.ALL)
        await services.topics.create("late", 1)
        before["seq"] = services.metadata.seq
        before["ids"] = services.metadata.image.ids_taken
        before["epoch"] = services.metadata.image.assignment("t", 0).leader_epoch

    async def after(servers: list[Server]) -> None:
        leader = await leader_of(servers)
        services = leader.services
        assert services is not None
        assert values(leader, "t") == 2
        assert sorted(services.metadata.image.topics) == ["late", "t"]
        assert services.metadata.seq > before["seq"]
        assert services.metadata.image.ids_taken > before["ids"]
        assert services.metadata.image.assignment("t", 0).leader_epoch > before["epoch"]
        await append(leader, "t", b"3", Acks.ALL)

    nodes.run(first)
    nodes.copy_etcd()
    nodes.run(later)
    nodes.put_back()
    for config in nodes.configs:
        assert "or stop all nodes and run `braid cluster recover`" in refusal(config)
    with pytest.raises(BrokerError, match="node 2 belongs to this cluster, but its folder was not passed"):
        nodes.recover(nodes.folders[0])
    nodes.recover()
    nodes.run(after)
    nodes.put_back(empty=True)
    assert "run `braid cluster recover`" in refusal(nodes.configs[1])
    settings = ["--set", f"cluster.etcd={etcd.url}", "--set", "cluster.prefix=p"]
    told = CliRunner().invoke(main, ["cluster", "recover", *settings, *nodes.folders, "--yes"], catch_exceptions=False)
    assert "start all nodes with their previous settings" in told.output

    async def at_last(servers: list[Server]) -> None:
        assert values(await leader_of(servers), "t") == 3

    nodes.run(at_last)


def test_an_entry_gives_out_so_many_producer_ids_at_most() -> None:
    assert IDS_PER_ENTRY_MAX == BLOCK
