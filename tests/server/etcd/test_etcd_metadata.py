"""A node that keeps its metadata in etcd: whole lives of it on real members, and everything that it refuses."""

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest
import trustme
from click.testing import CliRunner
from tests.debian import have
from tests.server.etcd.members import Member, fill, members
from tests.server.test_node import OFF, append
from tests.waiting import until

import braidlog
from braidlog.cli import main
from braidlog.cluster.etcd import image_snapshots
from braidlog.cluster.etcd.entries import Keys, one
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.migration import MOVING
from braidlog.cluster.etcd.port import EtcdRefusedError, Put
from braidlog.cluster.etcd.position import Position, PositionFile
from braidlog.cluster.metadata.events import AddRule, QuotaEntity, SetQuota
from braidlog.cluster.metadata.history import History
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.local_store import METADATA_TOPIC
from braidlog.cluster.metadata.metadata_store import Conflict, Metadata
from braidlog.cluster.registration import NodeDescription, Registrar, StartFile
from braidlog.coordinator.transactions.producer_ids import BLOCK, ProducerIds
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.security.authorization import Operation, Rule
from braidlog.security.quotas import Direction
from braidlog.security.users import Hash
from braidlog.server import node as compose
from braidlog.server.config import AuthConfig, ServerConfig, load_config
from braidlog.server.etcd import etcd_metadata, etcd_process
from braidlog.server.etcd.etcd_metadata import ClusterStore, retry_until_answered
from braidlog.server.etcd.gateway import Gateway, GatewaySettings
from braidlog.server.etcd.migration import move_folder
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.server.node import Server
from braidlog.server.peers.certificate_authority import Pair, make_authority, make_node_certificate
from braidlog.server.peers.certificates import PeerTls, peer_tls
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.storage.group_commit import Flusher
from braidlog.tasks import Tasks
from braidlog.testing.server import ServerProcess, hold_port

SECONDS_MAX = 120.0
ADMINISTRATOR = [Rule("*", [Operation.ALL])]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with members(tmp_path_factory.mktemp("etcd"), 1) as started:
        yield started[0]


def config_for(folder: Path, etcd: str | list[str], prefix: str, **flags: object) -> ServerConfig:
    dotted = {f"cluster.{name}": value for name, value in flags.items() if name != "node"}
    ports = {"cluster.peers.gossip_port": 0, "cluster.peers.replica_port": 0}
    wanted = {"cluster.etcd": etcd, "cluster.prefix": prefix, "node": flags.get("node", "0"), **ports, **dotted}
    return load_config(None, {}, {"data_dir": str(folder), "auth.rules": ADMINISTRATOR, **OFF, **wanted}).config


def serve(config: ServerConfig, scene: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            server = Server(config)
            await server.start()
            try:
                await scene(server)
            finally:
                await server.stop()

    asyncio.run(run())


async def nothing(_: Server) -> None: ...


async def make_topic(server: Server) -> None:
    assert server.services is not None
    await server.services.topics.create("t", 1)


def refusal(config: ServerConfig) -> str:
    with pytest.raises((BrokerError, StorageFault)) as refused:
        serve(config, nothing)
    return str(refused.value)


def test_topics_users_and_rules_are_kept_in_etcd(tmp_path: Path, etcd: Member) -> None:
    async def first(server: Server) -> None:
        assert server.services is not None
        await server.services.topics.create("orders", 3)
        await server.services.users.put("ann", Hash.SHA_256, bytes(16), 4096, bytes(32))
        await server.services.rules.add([Rule("ann", [Operation.READ], topic="orders")])
        await server.services.topics.create("gone", 1)
        await server.services.topics.delete("gone")

    async def second(server: Server) -> None:
        assert server.services is not None
        assert sorted(server.services.hosting.names()) == ["orders"]
        assert server.services.hosting.partition("orders", 2).end_offset == 0
        assert server.services.users.names() == ["ann"]
        assert [rule.topic for rule in server.services.rules.added()] == ["orders"]
        reached.append(PositionFile(OsDisk(), str(tmp_path / "data"), "0").load())
        position = server.services.metadata.seq
        assert reached[0] is not None
        assert reached[0].seq == position, "what was acted on is durable"

    reached: list[Position | None] = []
    config = config_for(tmp_path / "data", [etcd.url], "kept")
    serve(config, first)
    serve(config, second)
    folder = DataFolder(OsDisk(), config.data_dir, SystemClock(), read_only=True)
    assert METADATA_TOPIC not in [meta.name for meta in folder.topics()]


def test_quotas_and_rules_that_another_has_set_hold_here(tmp_path: Path, etcd: Member) -> None:
    async def scene(server: Server) -> None:
        assert server.services is not None
        quotas, rules = server._quotas, server.services.rules
        assert quotas.is_unlimited
        gateway = Gateway(GatewaySettings(endpoints=[etcd.url], read_seconds_max=60, write_seconds_max=60))
        other = EtcdStore(gateway, server.services.runtime, prefix="far", node="1", new_nonce=lambda: "of another")
        try:
            await other.open()
            _, seq = other.load()
            rates = {"append_bytes_per_second": 10.0}
            events = [
                SetQuota.of(QuotaEntity(client_id="app"), rates),
                AddRule(principal="ann", topic="orders", operations=("read",)),
            ]
            assert not isinstance(await other.propose(events, seq), Conflict)
            while quotas.is_unlimited or not rules.added():  # noqa: ASYNC110 - another process has set them: there is no event
                await asyncio.sleep(0.01)
        finally:
            other.close()
            gateway.close()
        assert quotas.charge("ann", Direction.APPEND, 60, 0.0, "app") == 5.0
        await server.services.topics.create("orders", 1)
        assert quotas.charge("ann", Direction.APPEND, 0, 0.0, "app") == 5.0, "what comes later forgives no debt"

    serve(config_for(tmp_path / "data", [etcd.url], "far"), scene)


def test_a_folder_follows_one_metadata_log_and_no_other(tmp_path: Path, etcd: Member) -> None:
    config = config_for(tmp_path / "data", [etcd.url], "whose")
    serve(config, make_topic)
    assert "whose metadata is in etcd: set [cluster] etcd" in refusal(config_for(tmp_path / "data", "", "whose"))
    assert "belongs to" in refusal(config_for(tmp_path / "data", [etcd.url], "elsewhere"))
    assert "this folder belongs to node '0'" in refusal(config_for(tmp_path / "data", [etcd.url], "whose", node="7"))
    with braidlog.Log(str(tmp_path / "own")) as log:
        log.create_topic("t")
    assert "does not move into etcd" in refusal(config_for(tmp_path / "own", [etcd.url], "own"))
    for name in ("cluster.a", "cluster.b"):
        (tmp_path / "data" / name).unlink()
    assert "restore them from a backup" in refusal(config)


def test_new_folders_join_the_cluster_that_etcd_holds(tmp_path: Path, etcd: Member) -> None:
    async def first(server: Server) -> None:
        assert server.services is not None
        others = [Server(config_for(tmp_path / node, [etcd.url], "joined", node=node)) for node in ("1", "2")]
        try:
            for each in others:
                await each.start()
            made = await server.services.topics.create("orders", 1)
            assert (sorted(made.assignments[0].replicas), made.min_in_sync) == ([0, 1, 2], 2)
            for each in others:
                assert each.services is not None
                while not each.services.hosting.exists("orders"):  # noqa: ASYNC110 - another node has made it: no event
                    await asyncio.sleep(0.01)
                assert (
                    each.services.metadata.image.topics["orders"].topic_id
                    == server.services.hosting.meta("orders").topic_id
                )
            taken = Server(config_for(tmp_path / "another", [etcd.url], "joined", node="1"))
            with pytest.raises(BrokerError, match="node '1' already runs with another data folder"):
                await taken.start()
        finally:
            for each in others:
                await each.stop()

    serve(config_for(tmp_path / "0", [etcd.url], "joined"), first)
    serve(config_for(tmp_path / "1", [etcd.url], "joined", node="1"), nothing)
    assert "belongs to" in refusal(config_for(tmp_path / "1", [etcd.url], "another prefix", node="1"))


def test_a_folder_that_died_while_it_joined_joins_at_its_next_start(tmp_path: Path, etcd: Member) -> None:
    """Its own cluster was chosen, and another one was begun in etcd before it got there."""
    config = config_for(tmp_path / "late", [etcd.url], "first", node="1")
    folder = DataFolder(OsDisk(), config.data_dir, SystemClock())
    PositionFile(OsDisk(), config.data_dir, "1").save(Position("never begun", 0, ""))
    folder.release()
    serve(config_for(tmp_path / "early", [etcd.url], "first"), make_topic)
    found: list[list[str]] = []

    async def look(server: Server) -> None:
        assert server.services is not None
        found.append(sorted(server.services.hosting.names()))

    serve(config, look)
    assert found == [["t"]]
    folder = DataFolder(OsDisk(), str(tmp_path / "other"), SystemClock())
    folder.join_cluster("another")
    PositionFile(OsDisk(), str(tmp_path / "other"), "2").save(Position("another", 0, ""))
    folder.release()
    assert "belongs to another" in refusal(config_for(tmp_path / "other", [etcd.url], "first", node="2"))


def test_a_single_node_is_moved_into_a_cluster_and_others_join_it(
    tmp_path: Path, etcd: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def alone(server: Server) -> None:
        assert server.services is not None
        await server.services.topics.create("orders", 2)
        await append(server, "orders", b"kept")

    async def clustered(server: Server) -> None:
        assert server.services is not None
        hosting = server.services.hosting
        assert (hosting.names(), hosting.partition("orders", 0).end_offset) == (["orders"], 1)
        other = Server(config_for(tmp_path / "other", [etcd.url], "moved", node="1"))
        await other.start()
        try:
            assert other.services is not None
            assert other.services.metadata.image.topics["orders"].topic_id == hosting.meta("orders").topic_id
        finally:
            await other.stop()

    def move(url: str) -> None:
        config = config_for(tmp_path / "data", [url], "moved")
        folder = DataFolder(OsDisk(), config.data_dir, SystemClock())
        try:
            asyncio.run(move_folder(folder, "0", config.cluster, config.kv))
        finally:
            folder.release()

    serve(config_for(tmp_path / "data", "", "moved"), alone)
    assert "run `braid cluster init`" in refusal(config_for(tmp_path / "data", [etcd.url], "moved"))
    monkeypatch.setattr(etcd_metadata, "START_SECONDS_MAX", 0.0)
    with ports(1) as (port,), pytest.raises(BrokerError, match="cannot be written"):
        move(f"http://127.0.0.1:{port}")
    monkeypatch.undo()
    serve(config_for(tmp_path / "data", "", "moved"), nothing)
    move(etcd.url)
    assert "whose metadata is in etcd: set [cluster] etcd" in refusal(config_for(tmp_path / "data", "", "moved"))
    serve(config_for(tmp_path / "data", [etcd.url], "moved"), clustered)
    with pytest.raises(BrokerError, match=r"already belongs to cluster"):
        move(etcd.url)


def test_a_folder_whose_move_did_not_end_does_not_start(tmp_path: Path, etcd: Member) -> None:
    config = config_for(tmp_path / "data", [etcd.url], "half moved")
    folder = DataFolder(OsDisk(), config.data_dir, SystemClock())
    folder.join_cluster("c")
    PositionFile(OsDisk(), config.data_dir, "0").save(Position("c", 0, MOVING))
    folder.release()
    assert "has an unfinished move into cluster" in refusal(config)


def test_a_copy_of_a_folder_takes_the_number_and_the_first_one_stops(tmp_path: Path, etcd: Member) -> None:
    async def first(server: Server) -> None:
        shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("LOCK"))
        copy = Server(config_for(tmp_path / "copy", [etcd.url], "copies"))
        await copy.start()
        try:
            with pytest.raises(BrokerError, match="was started by another process"):
                await server.run()
        finally:
            await copy.stop()

    config = config_for(tmp_path / "data", [etcd.url], "copies")
    serve(config, nothing)
    serve(config, first)


def test_an_etcd_that_was_set_back_is_refused(tmp_path: Path, etcd: Member) -> None:
    config = config_for(tmp_path / "data", [etcd.url], "back")
    serve(config, make_topic)
    have("etcdctl", "etcd-client")
    subprocess.run(["etcdctl", f"--endpoints={etcd.url}", "del", "--prefix", "/back/"], check=True, timeout=60)
    assert "check the addresses of etcd and the prefix" in refusal(config)


def test_a_node_serves_with_what_it_has_while_the_head_in_etcd_is_not_ours(
    tmp_path: Path, etcd: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever another process writes into the metadata: the node names the key, and follows once that is restored."""
    keys = Keys("strangers")
    backwards = msgspec.json.encode(Position("c", 1, "d"))

    async def scene(server: Server) -> None:
        assert server.services is not None
        await make_topic(server)
        stranger = Gateway(GatewaySettings(endpoints=[etcd.url], read_seconds_max=60, write_seconds_max=60))
        own = (await stranger.read(one(keys.head))).items[0].value
        head = msgspec.json.decode(own, type=Position)
        attacks = {
            "the head does not decode": b"mine",
            "the head names cluster 'c'": backwards,
            "etcd was restored from an old copy": msgspec.json.encode(Position(head.cluster, 1, "d")),
            "the head names entry 900": msgspec.json.encode(Position(head.cluster, 900, "d")),
        }
        strays = [keys.life("0"), keys.tick("0"), keys.alive.first + b"\xff", keys.events.first + b"x"]
        await stranger.write([Put(key, b"\xff") for key in (*strays, keys.images.first + b"x/end")])
        for words, value in attacks.items():
            await stranger.write([Put(keys.head, value)])
            with pytest.raises(BrokerError, match=f"not this cluster's: .*{words}"):
                await server.services.topics.create("more", 1)
            await append(server, "t", b"served")
            assert "metadata rejected: metadata in etcd is not this cluster's" in caplog.text
            await stranger.write([Put(keys.head, own)])
        await server.services.topics.create("later", 1)
        while (await stranger.read(one(keys.life("0")))).items[0].value == b"\xff":  # noqa: ASYNC110 - the node writes it
            await asyncio.sleep(0.05)
        await stranger.write([Put(keys.head, b"mine")])
        stranger.close()

    config = config_for(tmp_path / "data", [etcd.url], "strangers")
    serve(config, scene)
    assert "restore key /strangers/head" in refusal(config)


@contextmanager
def ports(count: int) -> Iterator[list[int]]:
    held = [hold_port() for _ in range(count)]
    yield [port for _, port in held]
    for holder, _ in held:
        os.close(holder)


def is_said(node: ServerProcess, words: str) -> bool:
    return words in node.errors()


def is_ready_and_tells(node: ServerProcess, words: str) -> bool:
    with urlopen(f"{node.admin_url}/readyz", timeout=60) as answer:
        checks = {check["name"]: check for check in json.load(answer)["checks"]}
    assert checks["etcd member"]["ok"]
    return words in checks["etcd member"]["reason"]


def test_a_member_beside_the_node_ends_with_it_is_started_again_and_ends_with_a_clean_stop(tmp_path: Path) -> None:
    have("etcd", "etcd-server")
    running = tmp_path / "data" / "etcd" / "process.json"
    with ports(2) as (client, peer):
        words = {"etcd": "embedded", "client_port": client, "peer_port": peer}
        settings = [word for name, value in words.items() for word in ("--set", f"cluster.{name}={value}")]
        with ServerProcess(tmp_path / "data", *settings, admin=True) as node:
            with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client_:
                client_.admin.create_topic("orders", partitions=2)
            pid = json.loads(running.read_text())["pid"]
            node.kill()
            until(lambda: etcd_process._started(pid) is None, "the member has ended")
            node.restart()
            killed, pid = pid, json.loads(running.read_text())["pid"]
            assert pid != killed
            with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client_:
                assert "orders" in client_.admin.list_topics()
            os.kill(pid, signal.SIGKILL)
            until(partial(is_said, node, "was killed by signal 9; restarted"), "the member is back")
            killed, pid = pid, json.loads(running.read_text())["pid"]
            assert pid != killed
            until(partial(is_ready_and_tells, node, "was killed by signal 9; restarted"), "health tells so")
            with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client_:
                client_.admin.create_topic("after")
            assert node.stop() == 0
    assert not running.exists()
    assert etcd_process._started(pid) is None


def test_a_member_that_never_answers_does_not_outlive_the_start_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, running = tmp_path / "etcd", tmp_path / "data" / "etcd" / "process.json"
    program.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'etcd Version: 3.4.23' && exit\nexec sleep 600\n")
    program.chmod(0o755)
    pids = []

    async def give_up(_: object) -> None:
        pids.append(json.loads(running.read_text())["pid"])
        raise BrokerError(Reason.UNAVAILABLE, "etcd does not answer")

    monkeypatch.setattr(etcd_metadata, "find_program", lambda: str(program))
    monkeypatch.setattr(etcd_process.Member, "_wait_until_asked", give_up)
    assert "etcd does not answer" in refusal(config_for(tmp_path / "data", "embedded", "p"))
    (pid,) = pids
    assert etcd_process._started(pid) is None


def test_a_member_is_not_started_again_while_the_node_stops(tmp_path: Path) -> None:
    have("etcd", "etcd-server")

    async def scene(server: Server) -> None:
        assert server._cluster is not None
        keeping = server._cluster._store._keeping_member
        assert keeping is not None
        assert not keeping.done()
        await server._cluster.leave()
        assert keeping.cancelling() or keeping.cancelled()

    with ports(2) as (client, peer):
        serve(config_for(tmp_path / "data", "embedded", "p", client_port=client, peer_port=peer), scene)


def test_a_node_serves_through_an_outage_and_says_so(tmp_path: Path) -> None:
    with members(tmp_path, 1) as (only,):
        settings = ["--set", f"cluster.etcd={only.url}"]
        with ServerProcess(tmp_path / "data", *settings, admin=True) as node:
            with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
                client.admin.create_topic("orders")
                only.signal(signal.SIGSTOP)
                with client.producer() as producer:
                    assert producer.send("orders", b"during").result(60).offset == 0
                until(lambda: "etcd has not answered for" in node.errors(), "the outage is said")
                with urlopen(f"{node.admin_url}/readyz", timeout=60) as answer:
                    checks = {check["name"]: check for check in json.load(answer)["checks"]}
                assert "works:    produce and consume" in checks["metadata"]["reason"]
                with urlopen(f"{node.admin_url}/", timeout=60) as page:
                    assert b"works:    produce and consume" in page.read()
                only.signal(signal.SIGCONT)
                until(lambda: "etcd answers again" in node.errors(), "it is over")
                client.admin.create_topic("after")
            node.kill()
            node.restart()
            with braidlog.connect(f"kafka://127.0.0.1:{node.ports['kafka']}") as client:
                assert {"orders", "after"} <= set(client.admin.list_topics())
                assert client.admin.span("orders", 0).latest == 1


def test_a_full_etcd_refuses_changes_and_the_node_serves_on(tmp_path: Path) -> None:
    async def scene(server: Server) -> None:
        assert server.services is not None
        await server.services.topics.create("before", 1)
        etcd = Gateway(GatewaySettings(endpoints=[only.url], read_seconds_max=60, write_seconds_max=60))
        with pytest.raises(EtcdRefusedError):
            await fill(etcd)
        etcd.close()
        with pytest.raises(BrokerError, match=r"change rejected: .*database space exceeded"):
            await server.services.topics.create("after", 1)
        assert server.services.hosting.names() == ["before"]
        await append(server, "before", b"x")

    with members(tmp_path, 1, "--quota-backend-bytes", str(16 * 1024 * 1024)) as (only,):
        serve(config_for(tmp_path / "data", [only.url], "full"), scene)


def test_no_etcd_is_an_error_that_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_metadata, "START_SECONDS_MAX", 0.0)
    with ports(1) as (port,):
        said = refusal(config_for(tmp_path / "a", [f"http://127.0.0.1:{port}"], "p"))
    assert said.startswith("cannot reach the metadata: ")
    assert f"127.0.0.1:{port}" in said
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(etcd_process, "PACKAGE", "no_such_package")
    assert "apt-get install etcd-server" in refusal(config_for(tmp_path / "b", "embedded", "p"))
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho 'etcd Version: 3.5.2'\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(program))
    assert "is etcd 3.5.2, whose members can diverge" in refusal(config_for(tmp_path / "b", "embedded", "p"))


def test_a_start_that_takes_long_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compose, "TELL_SECONDS", 0.02)
    monkeypatch.setattr(etcd_metadata, "SAY_SECONDS", 0.02)
    monkeypatch.setattr(etcd_metadata, "START_SECONDS_MAX", 1.0)
    with ports(1) as (nobody,):
        assert "cannot reach the metadata" in refusal(config_for(tmp_path, f"http://127.0.0.1:{nobody}", "p"))
    said = [each for each in caplog.messages if each.startswith("waiting for etcd, up to ")]
    assert len(said) > 1
    assert any("not ready after" in each and "waits for the metadata" in each for each in caplog.messages)


def renewed(authority: Pair, folder: Path, name: str) -> bytes:
    """The certificate of node 0 in `folder`, made anew; what a client is shown then."""
    made = make_node_certificate(authority, folder / name, 0, SystemClock())
    for path in made:
        path.replace(folder / path.name)
    return ssl.PEM_cert_to_DER_cert((folder / made.certificate.name).read_text())


async def shown_at(port: int, tls: PeerTls) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls.client, server_hostname="node-0")
    try:
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(found, bytes)
        return found
    finally:
        writer.close()


def test_a_renewed_certificate_is_shown_to_other_nodes_without_a_restart(
    tmp_path: Path, etcd: Member, caplog: pytest.LogCaptureFixture
) -> None:
    authority = make_authority(tmp_path, SystemClock())
    first = renewed(authority, tmp_path, "first")
    files = {
        "ca": str(authority.certificate),
        "cert": str(tmp_path / "node-0.pem"),
        "key": str(tmp_path / "node-0.key"),
    }
    other = make_node_certificate(authority, tmp_path / "other", 1, SystemClock())
    tls = peer_tls(files["ca"], *map(str, other))

    async def scene(server: Server) -> None:
        assert server._cluster is not None
        node = server._cluster
        assert node._listener is not None
        ports = node.gossip.port, node._listener.port

        async def shown() -> list[bytes]:
            return [await shown_at(port, tls) for port in ports]

        assert await shown() == [first] * 2
        second = renewed(authority, tmp_path, "second")
        assert await shown() == [first] * 2
        server.reload_certificates()
        while await shown() != [second] * 2:  # gossip reads it on a thread of its own
            pass
        shutil.copy(other.key, files["key"])  # of another pair
        server.reload_certificates()
        assert await shown() == [second] * 2
        assert "peer certificate not reloaded" in caplog.text

    serve(
        config_for(tmp_path / "data", etcd.url, "renewal", **{f"peers.{key}": value for key, value in files.items()}),
        scene,
    )


def test_an_embedded_member_on_loopback_asks_for_the_nodes_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With clients that have to say who they are, ports without certificates are warned of."""
    have("etcd", "etcd-server")
    made = CliRunner().invoke(main, ["cluster", "certificates", str(tmp_path), "0"])
    assert made.exit_code == 0, made.output
    files = {"ca": "braidlog-ca.pem", "cert": "node-0.pem", "key": "node-0.key"}
    own = {f"peers.{name}": str(tmp_path / file) for name, file in files.items()}
    with ports(2) as (client, peer):
        there = {"client_port": client, "peer_port": peer}

        async def closed(server: Server) -> None:
            await make_topic(server)
            for place in (f"127.0.0.1:{client}/version", f"127.0.0.1:{peer}/members"):
                assert await asyncio.to_thread(answers, f"https://{place}", server.config.cluster.tls())
                assert not await asyncio.to_thread(answers, f"https://{place}", nameless)
                assert not await asyncio.to_thread(answers, f"http://{place}", None)

        nameless = ssl.create_default_context(cafile=own["peers.ca"])
        serve(config_for(tmp_path / "closed", "embedded", "closed", **there, **own), closed)
        assert "open to this machine" not in caplog.text
        serve(config_for(tmp_path / "open", "embedded", "open", **there), nothing)
        warned = [each for each in caplog.messages if each.startswith("open to this machine: ")]
        assert len(warned) == 2
        assert all("run `braid cluster certificates" in each for each in warned)
        caplog.clear()
        config = config_for(tmp_path / "free", "embedded", "free", **there)
        free = msgspec.structs.replace(config, auth=AuthConfig(allow_open=True))

        async def add_user(server: Server) -> None:
            assert "open to this machine" not in caplog.text, "everybody may do everything"
            assert server.services is not None
            await server.services.users.put("ann", Hash.SHA_256, bytes(16), 4096, bytes(32))

        serve(free, add_user)
        serve(free, nothing)
        assert caplog.text.count("open to this machine: ") == 2


def answers(url: str, context: ssl.SSLContext | None) -> bool:
    try:
        with urlopen(url, timeout=SECONDS_MAX, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_members_with_tls_and_client_certificates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is shown to them is read again with the others (`test_settings.py`)."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1", common_name=name)
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    server = str(tmp_path / "server.pem")
    options = [
        "--cert-file",
        server,
        "--key-file",
        server,
        "--client-cert-auth",
        "--trusted-ca-file",
        str(tmp_path / "ca.pem"),
    ]
    shown = {"ca": str(tmp_path / "ca.pem"), "cert": str(tmp_path / "client.pem")}
    with members(tmp_path, 1, *options, scheme="https") as (only,):
        config = config_for(tmp_path / "data", [only.url], "tls", **shown)
        spoil = Path(shown["cert"]).write_text

        async def scene(server: Server) -> None:
            caplog.set_level("INFO")
            server.reload_certificates()
            assert "etcd client certificate reloaded" in caplog.messages
            spoil("no certificate")
            server.reload_certificates()
            assert "etcd client certificate not reloaded" in caplog.text

        serve(config, scene)


@pytest.mark.parametrize("error", [None, BrokerError(Reason.TIMED_OUT, "late")])
def test_a_change_that_nobody_waits_for_any_more_goes_on_and_ends(error: BrokerError | None) -> None:
    """The client has gone, its handler was ended where it waited: the node has no task that crashed."""

    async def scene() -> tuple[list[BaseException], bool]:
        crashed: list[BaseException] = []
        tasks = Tasks(crashed.append)
        may_go_on, has_ended = asyncio.Event(), asyncio.Event()

        async def change() -> None:
            await may_go_on.wait()
            has_ended.set()
            if error is not None:
                raise error

        waiting = asyncio.get_running_loop().create_task(etcd_metadata.in_task(tasks, change()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        may_go_on.set()
        await asyncio.gather(*tasks._tasks)
        return crashed, has_ended.is_set()

    assert asyncio.run(scene()) == ([], True)


STARTS = 50


def test_fifty_nodes_that_start_at_the_same_time_all_register(tmp_path: Path) -> None:
    """Over one etcd that stops in the middle, with an image every few entries: proposals lose, and their outcomes are unknown."""
    stores: list[ClusterStore] = []

    async def begin(number: int, etcd: Member, runtime: EventLoopRuntime, tasks: Tasks) -> tuple[int, int]:
        """The node's incarnation, and the end of its block of producer ids."""
        config = config_for(tmp_path / str(number), [etcd.url], "many", node=str(number))
        folder = DataFolder(OsDisk(), config.data_dir, SystemClock())
        cluster = ClusterStore(config.cluster, folder, runtime, config.node, tasks)
        await cluster.open()
        stores.append(cluster)
        cluster.store._snapshot_every = 5
        metadata = Metadata(cluster.store, runtime)
        cluster.store.arrived = metadata.catch_up
        tasks.spawn(cluster.store.follow_changes(), "metadata")
        said = NodeDescription(number=number, name=config.node, folder_id=folder.identity.folder_id, boot_id="b")
        registrar = Registrar(metadata, runtime, StartFile(folder.disk, folder.path), said, lambda: uuid.uuid4().hex)
        incarnation = await registrar.register()
        ids = ProducerIds(metadata, runtime)
        await retry_until_answered(ids.fill_reserve)
        assert ids._reserve is not None
        folder.release()
        return incarnation, ids._reserve[1]

    async def scene(etcd: Member) -> None:
        crashed: list[BaseException] = []
        clock, tasks = SystemClock(), Tasks(crashed.append)
        flusher = Flusher(clock)
        runtime = EventLoopRuntime(clock, flusher)
        starting = [asyncio.ensure_future(begin(number, etcd, runtime, tasks)) for number in range(STARTS)]
        await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
        etcd.signal(signal.SIGSTOP)
        while not any(each.store.outage for each in stores):  # noqa: ASYNC110 - a time-out makes it true
            await asyncio.sleep(0.01)
        etcd.signal(signal.SIGCONT)
        started = await asyncio.gather(*starting)
        assert crashed == []
        gateway = stores[0]._gateway
        assert gateway is not None
        loaded = await image_snapshots.load(gateway, Keys("many"), History())
        assert loaded is not None
        nodes = loaded.image.cluster.nodes()
        assert [nodes[number].incarnation for number in range(STARTS)] == [incarnation for incarnation, _ in started]
        assert sorted(end for _, end in started) == [Image().ids_taken + (at + 1) * BLOCK for at in range(STARTS)]
        for each in stores:
            each.store.close()
            await each.stop()
        await tasks.stop()
        flusher.stop()

    with members(tmp_path, 1) as (etcd,):
        asyncio.run(scene(etcd))
