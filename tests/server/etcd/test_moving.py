"""A node with topics begins a cluster whose members of etcd are embedded, on several machines (here: ports)."""

import asyncio
from pathlib import Path

import pytest
from tests.debian import have
from tests.server.etcd.test_cluster_store import SECONDS_MAX, config_for, ports

import braidlog
from braidlog.model.clock import SystemClock
from braidlog.server.compose import Server
from braidlog.server.etcd.moving import move_folder
from braidlog.storage.files import OsDisk
from braidlog.storage.folder import DataFolder


def test_embedded_members_of_several_machines_lend_a_majority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others run, and wait for the cluster: none of them begins one of its own meanwhile."""
    have("etcd", "etcd-server")
    with braidlog.Log(str(tmp_path / "1")) as log:
        log.create_topic("orders")
        log.topic("orders").append(b"kept")

    async def scene(*numbers: int) -> None:
        members = ",".join(f"{node}=http://127.0.0.1:{port}" for node, port in zip("123", numbers[:3], strict=True))
        configs = {
            node: config_for(
                tmp_path / node,
                "embedded",
                "p",
                node=node,
                initial_cluster=members,
                peer_port=peer,
                client_port=client,
                join=node != "1",
            )
            for node, peer, client in zip("123", numbers[:3], numbers[3:], strict=True)
        }
        servers = {node: Server(config) for node, config in configs.items()}
        joining = [asyncio.ensure_future(servers[node].start()) for node in "23"]
        try:
            while not any("waiting for another node to begin a cluster" in each for each in caplog.messages):
                assert not any(each.done() for each in joining)
                await asyncio.sleep(0.01)
            folder = DataFolder(OsDisk(), configs["1"].data_dir, SystemClock())
            try:
                moved = await move_folder(folder, "1", configs["1"].cluster)
            finally:
                folder.release()
            await asyncio.gather(*joining)
            await servers["1"].start()
            for server in servers.values():
                assert server.services is not None
                assert server._folder is not None
                assert server._folder.identity.cluster == moved.cluster
                assert "orders" in server.services.hosting.names()
        finally:
            for each in joining:
                each.cancel()
            await asyncio.wait(joining)
            for server in reversed(servers.values()):
                await server.stop()

    async def run() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            with ports(6) as numbers:
                await scene(*numbers)

    asyncio.run(run())
