"""A node with topics begins a cluster: with embedded members of etcd on several machines (here: ports), and with its groups."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.node import batch_of
from tests.debian import have
from tests.server.etcd.members import members
from tests.server.etcd.test_etcd_metadata import SECONDS_MAX, config_for, ports, serve

import braidlog
from braidlog.broker.coordination.coordinator import Coordinator
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.shards import STATE_TOPIC
from braidlog.coordinator.transactions.markers import Failures
from braidlog.coordinator.transactions.transaction import ProducerIdentity, TxnState
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.server.etcd.migration import move_folder
from braidlog.server.node import Server
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder


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
            while not any("waiting for another node to create a cluster" in each for each in caplog.messages):
                assert not any(each.done() for each in joining)
                await asyncio.sleep(0.01)
            folder = DataFolder(OsDisk(), configs["1"].data_dir, SystemClock())
            try:
                moved = await move_folder(folder, "1", configs["1"].cluster, configs["1"].kv)
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


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells; whoever serves has a time-out
        await asyncio.sleep(0.02)


async def coordinator(server: Server, name: str) -> Coordinator:
    """Of a name, once this node is it."""
    found: list[Coordinator] = []

    def look() -> bool:
        assert server.services is not None
        with contextlib.suppress(BrokerError):
            found.append(server.services.coordinators.coordinator_for(name))
        return bool(found)

    await until(look)
    return found[0]


def committed(kept: Coordinator, group: str) -> list[int]:
    return [each.offset for each in kept.offsets.group_offsets(group).values()]


def test_groups_and_transactions_of_a_single_node_are_its_clusters(tmp_path: Path) -> None:
    """A commit, and a transaction that was decided and not ended, are known on the node that was moved, and then on another."""
    have("etcd", "etcd-server")

    async def killed(*_: object, **__: object) -> Failures:
        raise BrokerError(Reason.UNAVAILABLE, "killed")

    async def alone(server: Server) -> None:
        services = server.services
        assert services is not None
        await services.topics.create("orders", 1)
        reach = services.coordinators.reach
        await (await reach("readers")).offsets.commit("readers", [Commit("orders", 0, 5)])
        transactions = (await reach("t")).transactions
        txn = await transactions.begin_producer("t")
        producing = ProducerIdentity("t", txn.producer_id, txn.epoch)
        await transactions.add_partitions(*producing, [("orders", 0)])
        batch = batch_of(b"x", producer=(txn.producer_id, txn.epoch, 0), transactional=True)
        await services.append.append("orders", 0, batch, transactional_id="t")
        await transactions.add_group(*producing, "carried")
        commits = [Commit("orders", 0, 1)]
        await (await reach("carried")).pending_commits.stage("carried", producing, commits, guard=lambda: None)
        services.markers.write = killed  # type: ignore[method-assign]
        with pytest.raises(BrokerError, match="killed"):
            await transactions.end_transaction(*producing, commit=True)

    async def check(server: Server) -> None:
        assert server.services is not None
        assert committed(await coordinator(server, "readers"), "readers") == [5]
        transactions = (await coordinator(server, "t")).transactions
        await until(lambda: transactions.find("t").state is TxnState.COMMITTED)
        assert committed(await coordinator(server, "carried"), "carried") == [1]

    with members(tmp_path, 1) as (etcd,):
        config = config_for(tmp_path / "0", [etcd.url], "p")

        async def clustered(server: Server) -> None:
            await check(server)
            assert server.services is not None
            metadata = server.services.metadata
            topic = server.services.hosting.partition("orders", 0)
            assert topic.last_stable_offset == topic.end_offset == 2, "the record and its marker"
            other = Server(config_for(tmp_path / "1", [etcd.url], "p", node="1"))
            await other.start()
            try:
                await until(
                    lambda: all(len(each.in_sync) > 1 for each in metadata.image.topics[STATE_TOPIC].assignments)
                )
                assert other.services is not None
                known = other.services.metadata
                await server.stop()
                await until(lambda: all(each.leader == 1 for each in known.image.topics[STATE_TOPIC].assignments))
                await check(other)
            finally:
                await other.stop()

        serve(config_for(tmp_path / "0", "", "p"), alone)
        folder = DataFolder(OsDisk(), config.data_dir, SystemClock())
        try:
            asyncio.run(move_folder(folder, "0", config.cluster, config.kv))
        finally:
            folder.release()
        serve(config, clustered)
