"""A whole server: started, stopped, started again; one broken part does not take the others with it."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.toy import ToyAdapter, until

from braidlog.broker.services import lone_node
from braidlog.cluster.metadata.events import QuotaEntity
from braidlog.codec.batch.records import encode_batch
from braidlog.coordinator.shards import STATE_TOPIC, shard_for_name
from braidlog.model.errors import BrokerError
from braidlog.partition.produce.append import Acks
from braidlog.security.quotas import Direction
from braidlog.server import node as compose
from braidlog.server.adapters import make_adapters
from braidlog.server.cluster_node import ClusterNode
from braidlog.server.cluster_parts import NodeContext
from braidlog.server.config import ServerConfig, load_config
from braidlog.server.net.connection_limits import ConnectionLimits, SessionLimits
from braidlog.server.net.listener import Listener
from braidlog.server.net.memory_budget import Budget
from braidlog.server.net.ports import advertised_addresses
from braidlog.server.node import Server

OFF = {f"listeners.{name}.enabled": False for name in ("cursus", "flux", "kafka", "mayfly", "mlog", "rustlog")}


def config_for(folder: Path, **flags: object) -> ServerConfig:
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    return load_config(None, {}, {"data_dir": str(folder / "data"), **OFF, **dotted}).config


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(run())


async def append(server: Server, topic: str, value: bytes, acks: Acks = Acks.LEADER) -> None:
    assert server.services is not None
    await server.services.append.append(topic, 0, encode_batch([value], base_timestamp=1), acks=acks)


def test_what_was_acknowledged_is_there_the_next_time(tmp_path: Path) -> None:
    async def scene() -> None:
        for number in range(3):
            server = Server(config_for(tmp_path))
            await server.start()
            assert server.services is not None
            await server.services.topics.ensure("a", 1)
            hosted = server.services.hosting.partition("a", 0)
            assert hosted.end_offset == number
            await append(server, "a", b"x")
            await server.stop()

    play(scene)


def test_records_that_nobody_waited_for_are_seen(tmp_path: Path) -> None:
    async def scene() -> None:
        server = Server(config_for(tmp_path))
        await server.start()
        assert server.services is not None
        await server.services.topics.create("a", 1)
        await append(server, "a", b"x", Acks.NONE)
        got = await server.services.fetch.records("a", 0, 0, bytes_max=100, wait_ms=10_000)
        assert [record.value for record in got.records] == [b"x"]
        await server.stop()

    play(scene)


def test_quotas_that_are_set_are_those_of_the_listeners(tmp_path: Path) -> None:
    async def scene() -> None:
        server = Server(config_for(tmp_path, listeners__flux__enabled=True, listeners__flux__port=0))
        await server.start()
        assert server.services is not None
        (listener,) = server.listeners.values()
        quotas = listener._quotas
        assert quotas is not None
        assert quotas.is_unlimited
        await server.services.quota_changes.change({QuotaEntity("ann"): {"append_bytes_per_second": 10.0}})
        assert quotas.charge("ann", Direction.APPEND, 20, 0.0) == 1.0
        await server.stop()

    play(scene)


def test_a_port_that_is_taken_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            flags = {"listeners__rustlog__enabled": True, "listeners__rustlog__port": port}
            with pytest.raises(BrokerError, match="address already in use"):
                await Server(config_for(tmp_path, **flags)).start()
        server = Server(config_for(tmp_path))
        await server.start()
        await server.stop()

    play(scene)


def test_a_topic_that_goes_while_it_is_trimmed_does_not_stop_the_server(tmp_path: Path) -> None:
    async def scene() -> None:
        server = Server(config_for(tmp_path))
        await server.start()
        assert server.services is not None
        topics, hosting = server.services.topics, server.services.hosting
        for name in ("a", "b"):
            await topics.create(name, 1, settings={"retention_ms": 1})
            await append(server, name, b"old")
        hosting.partition("a", 0).log.close()  # as a deletion on its way does
        await server._retain()
        assert hosting.partition("b", 0).start_offset == 1, "the others are trimmed all the same"
        await server.stop()

    play(scene)


def test_shards_of_coordinators_are_compacted(tmp_path: Path) -> None:
    async def scene() -> None:
        server = Server(config_for(tmp_path))
        await server.start()
        assert server.services is not None
        groups = (await server.services.coordinators.reach("g")).groups
        shard = server.services.hosting.hosted(STATE_TOPIC, shard_for_name("g"))
        assert shard is not None
        shard.log.settings = type(shard.log.settings)(compact=True, segment_bytes=4096)
        await server.services.topics.create("a", 1)
        for number in range(200):
            member = f"m{number % 3}"
            await groups.join("g", member, ["a"])
            await groups.leave("g", member)
        before = shard.size_bytes
        await server._retain()
        assert shard.size_bytes < before / 2
        kept = groups.find("g").image()
        await server.stop()
        again = Server(config_for(tmp_path))
        await again.start()
        assert again.services is not None
        assert again.services.coordinators.coordinator_for("g").groups.find("g").image() == kept
        await again.stop()

    play(scene)


class Cluster:
    """A node's place in a cluster, as far as its clock goes."""

    trouble = "the clock is off"

    def clock_trouble(self) -> str:
        return self.trouble


def test_a_node_whose_clock_is_off_lets_nothing_go_for_its_age(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        server = Server(ServerConfig(data_dir=str(tmp_path)))
        cluster: Any = Cluster()
        server._cluster = cluster
        await server._retain()
        assert "the clock is off" in caplog.text
        cluster.trouble = ""
        with pytest.raises(AssertionError):  # it was not started: it would have had to look at its services
            await server._retain()

    play(scene)


def test_in_which_order_a_node_joins_its_cluster_and_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the modules of six dialects took a busy machine's loop for five seconds; a node that had joined was fenced. And
    records that came while a node stopped made a task that wrote to a log that was closed."""
    done: list[str] = []

    async def noted(*_: object, what: str = "", **__: object) -> None:
        done.append(what)

    names = ("run", "join", "leave", "disconnect", "stopped_cleanly")
    calls = {name: partial(noted, what=name) for name in names}
    cluster: Any = SimpleNamespace(has_joined=True, serve_calls=lambda *_: None, **calls)

    async def opened(_: object, node: str, context: NodeContext) -> Any:
        parts = lone_node(context.folder, context.runtime, node, context.tasks.spawn)
        return SimpleNamespace(for_services=parts, stop=partial(noted, what="stop"))

    def made(*arguments: Any) -> Any:
        done.append("adapters")
        return make_adapters(*arguments)

    monkeypatch.setattr(compose, "open_cluster_parts", opened)
    monkeypatch.setattr(compose, "ClusterNode", lambda *_: cluster)
    monkeypatch.setattr(compose, "make_adapters", made)

    async def scene() -> None:
        server = Server(config_for(tmp_path))
        stop = server._tasks.stop

        async def stopped() -> None:
            done.append("tasks")
            await stop()

        monkeypatch.setattr(server._tasks, "stop", stopped)
        await server.start()
        await server.stop()

    play(scene)
    assert done[:3] == ["run", "adapters", "join"]
    assert done[3:] == ["leave", "disconnect", "tasks", "stopped_cleanly", "stop"], "what others send makes new tasks"


def test_a_node_of_a_cluster_warns_of_its_clock_and_of_etcd() -> None:
    said: Any = SimpleNamespace(outage="", member_problem="", clock_trouble="")
    store: Any = SimpleNamespace(outage=lambda: said.outage, member_problem=lambda: said.member_problem)
    gossip: Any = SimpleNamespace(clock_trouble=lambda: said.clock_trouble)
    node = ClusterNode.__new__(ClusterNode)
    node._store = store
    node.gossip = gossip
    slots: Any = SimpleNamespace(left=[])
    keys: Any = SimpleNamespace(slots=slots)
    node._keys = keys
    assert node.warnings() == {}
    slots.left = [SimpleNamespace(path="tails/7-3")]
    assert "tails/7-3" in node.warnings()["kept tails"]
    slots.left = []
    said.clock_trouble = "the clock is off"
    assert node.warnings() == {"clock": "the clock is off"}
    said.outage = "etcd is away"
    said.member_problem = "its member has ended"
    expected = {"metadata": "etcd is away", "etcd member": "its member has ended", "clock": "the clock is off"}
    assert node.warnings() == expected


# -- a port --------------------------------------------------------------------------------------------------


async def listening(
    connection_limits: ConnectionLimits,
    session_limits: SessionLimits | None = None,
    advertised: tuple[str, int] = ("", 0),
) -> Listener:
    listener = Listener(
        ToyAdapter(),
        session_limits=session_limits or SessionLimits(),
        connection_limits=connection_limits,
        budget=Budget(2**30),
        advertised=advertised,
    )
    await listener.start("127.0.0.1", 0)
    return listener


async def ask(port: int, text: str) -> tuple[str, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{text}\n".encode())
    try:
        return (await reader.readline()).decode().strip(), writer
    except ConnectionError:
        return "", writer


@pytest.mark.parametrize("port", [0, 19092])
def test_an_advertised_host_without_a_port_has_the_one_listened_on(port: int) -> None:
    async def scene() -> None:
        listener = await listening(ConnectionLimits(), advertised=("broker", port))
        _, writer = await ask(listener.port, "hello")
        (session,) = listener.sessions
        assert session.address == ("broker", port or listener.port)
        writer.close()
        await until(lambda: not listener.sessions)
        await listener.stop(0.1)

    play(scene)


def test_an_advertised_port_without_a_host_is_told_with_the_address_reached(tmp_path: Path) -> None:
    async def scene() -> None:
        listener = await listening(ConnectionLimits(), advertised=("", 19092))
        _, writer = await ask(listener.port, "hello")
        (session,) = listener.sessions
        assert session.address == ("127.0.0.1", 19092)
        writer.close()
        await until(lambda: not listener.sessions)
        await listener.stop(0.1)

    play(scene)
    config = config_for(tmp_path, listeners__kafka__advertised_port=19092)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        assert advertised_addresses(config, {"kafka": [bound]}) == {"kafka": ("127.0.0.1", 19092)}


def test_no_more_connections_than_allowed() -> None:
    async def scene() -> None:
        listener = await listening(ConnectionLimits(connections_max=2, idle_seconds_min=1e9))
        answers = [await ask(listener.port, "hello") for _ in range(3)]
        assert [answer for answer, _ in answers] == ["ok hello", "ok hello", ""]
        answers[0][1].close()
        await until(lambda: len(listener.sessions) == 1)
        answer, writer = await ask(listener.port, "again")
        assert answer == "ok again"
        for _, each in [*answers, ("", writer)]:
            each.close()
        await until(lambda: not listener.sessions)
        await listener.stop(0.1)

    play(scene)


def test_who_trickles_is_swept_away_and_others_are_not() -> None:
    async def scene() -> None:
        limits = SessionLimits(frame_seconds_max=0.001)
        listener = await listening(ConnectionLimits(), limits)
        reader, slow = await asyncio.open_connection("127.0.0.1", listener.port)
        slow.write(b"half a lin")
        good, writer = await ask(listener.port, "hello")
        assert good == "ok hello"
        await until(lambda: any(s.connection.buffered_bytes for s in listener.sessions))
        while listener.cut_off == 0:
            await listener.sweep()
            await asyncio.sleep(0.001)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert (listener.cut_off, len(listener.sessions)) == (1, 1)
        for each in (slow, writer):
            each.close()
        await until(lambda: not listener.sessions)
        await listener.stop(0.1)

    play(scene)


def test_stopping_answers_what_was_asked() -> None:
    async def scene() -> None:
        listener = await listening(ConnectionLimits())
        adapter = listener.adapter
        assert isinstance(adapter, ToyAdapter)
        asking = asyncio.ensure_future(ask(listener.port, "wait 1"))
        await until(lambda: "1" in adapter.waiting)
        stopping = asyncio.ensure_future(listener.stop(10))
        await asyncio.sleep(0)
        adapter.release("1")
        answer, writer = await asking
        assert answer == "ok 1"
        await stopping
        assert not listener.sessions
        writer.close()

    play(scene)


def test_a_client_that_sends_on_while_the_server_stops_reads_its_answer_and_the_end() -> None:
    async def scene() -> None:
        listener = await listening(ConnectionLimits())
        adapter = listener.adapter
        assert isinstance(adapter, ToyAdapter)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"owe 1\n")
        await until(lambda: "1" in adapter.waiting)
        stopping = asyncio.ensure_future(listener.stop(60))
        await asyncio.sleep(0)
        writer.write(b"more\n" * 1000)  # is not read any more, and must not reset the connection
        adapter.release("1")
        assert await reader.read() == b"ok 1\n", "and nothing that came after"
        writer.write(b"more\n")
        writer.close()
        await stopping

    play(scene)
