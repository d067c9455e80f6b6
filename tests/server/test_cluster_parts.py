"""The parts of a node of a cluster: all of them, or none is left open."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from braidlog.model.clock import SystemClock
from braidlog.model.errors import StorageFault
from braidlog.server import cluster_parts
from braidlog.server.cluster_parts import NodeContext, open_cluster_parts
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.ports import close_all, listen
from braidlog.server.net.scheduler import FairScheduler
from braidlog.server.peers.settings import PeersConfig
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.group_commit import Flusher
from braidlog.tasks import Tasks


def test_metadata_that_cannot_be_read_leaves_neither_ports_nor_the_store_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def load() -> Any:
        raise StorageFault("the image is damaged")

    async def stop() -> None:
        done.append("stopped")

    async def opened(*_: object) -> Any:
        return SimpleNamespace(store=SimpleNamespace(load=load), stop=stop)

    bound: list[int] = []

    def noted(*arguments: Any) -> Any:
        sockets = listen(*arguments)
        bound.append(sockets[0].getsockname()[1])
        return sockets

    monkeypatch.setattr(cluster_parts, "open_cluster", opened)
    monkeypatch.setattr(cluster_parts, "listen", noted)

    async def scene() -> None:
        clock = SystemClock()
        flusher = Flusher(clock)
        folder = DataFolder(OsDisk(), str(tmp_path / "data"), clock)
        runtime = EventLoopRuntime(clock, flusher)
        context = NodeContext(folder, runtime, clock, Tasks(), Budget(2**30), FairScheduler(), lambda _: None)
        config = ClusterConfig(etcd="http://127.0.0.1:1", peers=PeersConfig(gossip_port=0, replica_port=0))
        with pytest.raises(StorageFault, match="the image is damaged"):
            await open_cluster_parts(config, "1", context)
        flusher.stop()
        folder.release()

    asyncio.run(scene())
    assert done == ["stopped"]
    assert len(bound) == 2
    for port in bound:
        close_all({"again": listen("127.0.0.1", port, "a port that is free again")})
