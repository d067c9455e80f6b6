"""The client, and the metadata log on it, against real members of etcd that die, stop and fill up."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.cluster.etcd.script import Script
from tests.cluster.etcd.stores import BLOCK, next_block
from tests.cluster.etcd.test_model import ANSWERS
from tests.debian import have
from tests.server.etcd.members import Member, fill, members
from tests.server.etcd.moved_clock import AWAY_SECONDS

from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.port import EtcdAwayError, EtcdRefusedError, Put, Range
from braidlog.cluster.etcd.presence import Life, Presence
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError
from braidlog.server.etcd.etcd_process import check_version
from braidlog.server.etcd.gateway import Gateway, GatewaySettings
from braidlog.server.etcd.http_connection import Endpoint, parse_endpoint
from braidlog.server.event_loop_runtime import EventLoopRuntime
from braidlog.storage.group_commit import Flusher

ALL = Range(b"/s/", b"/s0")
SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with members(tmp_path_factory.mktemp("etcd"), 3) as started:
        yield started


def play(
    scene: Callable[[Gateway], Awaitable[None]],
    urls: list[str],
    seconds: float = 30.0,
    write_seconds: float | None = None,
    **words: str,
) -> None:
    """With time-outs that a busy machine does not reach, where silence is not what the scene is about."""

    async def run() -> None:
        patience = seconds if write_seconds is None else write_seconds
        settings = GatewaySettings(endpoints=urls, read_seconds_max=seconds, write_seconds_max=patience, **words)
        etcd = Gateway(settings)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await scene(etcd)
        finally:
            etcd.close()

    asyncio.run(run())


class Node:
    """The metadata log of one node on real etcd."""

    def __init__(self, etcd: Gateway, name: str, prefix: str, propose_seconds_max: float = SECONDS_MAX) -> None:
        runtime = EventLoopRuntime(
            SystemClock(), cast("Flusher", SimpleNamespace(appended=None))
        )  # nothing is synced here
        nonces = iter(range(1_000_000))
        self.store = EtcdStore(
            etcd,
            runtime,
            prefix=prefix,
            node=name,
            new_nonce=lambda: f"{name}-{next(nonces)}",
            snapshot_every=20,
            propose_seconds_max=propose_seconds_max,
        )
        self._runtime = runtime
        self.moved = asyncio.Event()

    async def open(self) -> "Node":
        await self.store.open()
        self.metadata = Metadata(self.store, self._runtime)
        self.store.arrived = self._catch_up
        self._tasks = [asyncio.create_task(self.store.follow_changes()), asyncio.create_task(self.store.check_watch())]
        return self

    def _catch_up(self) -> None:
        self.metadata.catch_up()
        self.moved.set()

    async def reach(self, seq: int) -> None:
        while self.metadata.seq < seq:
            self.moved.clear()
            await self.moved.wait()

    async def close(self) -> None:
        self.store.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def test_a_real_etcd_answers_the_script_as_it_did(three: list[Member]) -> None:
    async def scene(etcd: Gateway) -> None:
        await etcd.check_versions()
        given = await Script(etcd).play()
        assert [repr(each) for each in given] == ANSWERS.read_text().splitlines()

    play(scene, [member.url for member in three])


def test_nodes_follow_each_other_while_a_member_dies_and_comes_back(three: list[Member]) -> None:
    async def scene(etcd: Gateway) -> None:
        founder = Node(etcd, "1", "deaths")
        await founder.store.create_cluster("c")
        nodes = [await founder.open(), await Node(etcd, "2", "deaths").open()]
        before = nodes[0].metadata.image.ids_taken
        for round_ in range(24):
            if round_ == 8:
                three[0].kill()
            if round_ == 16:
                three[0].start()
            await nodes[round_ % 2].metadata.change(next_block)
        for node in nodes:
            await node.reach(24)
        assert {node.metadata.image.ids_taken for node in nodes} == {before + 24 * BLOCK}
        fresh = await Node(etcd, "3", "deaths").open()
        assert fresh.metadata.image == nodes[0].metadata.image
        for node in [*nodes, fresh]:
            await node.close()

    try:
        play(scene, [member.url for member in three])
    finally:
        three[0].wait_until_healthy()


def test_without_a_majority_nothing_is_changed_and_it_says_so(three: list[Member]) -> None:
    async def away(etcd: Gateway) -> None:
        node = Node(etcd, "1", "majority", propose_seconds_max=1.0)
        await node.store.create_cluster("c")
        await node.open()
        three[1].signal(signal.SIGSTOP)
        three[2].signal(signal.SIGSTOP)
        with pytest.raises(BrokerError, match="the outcome of the change is unknown"):
            await node.metadata.change(next_block)
        assert node.store.outage is not None
        assert "does not answer" in node.store.outage.cause
        await node.close()

    async def back(etcd: Gateway) -> None:
        node = await Node(etcd, "1", "majority").open()
        before = node.metadata.image.ids_taken
        await node.metadata.change(next_block)
        assert node.metadata.image.ids_taken in (before + BLOCK, before + 2 * BLOCK)  # the first one may be made yet
        fresh = await Node(etcd, "2", "majority").open()
        await node.reach(fresh.metadata.seq)
        assert fresh.metadata.image == node.metadata.image
        await node.close()
        await fresh.close()

    urls = [member.url for member in three]
    try:
        play(away, urls, seconds=2.0)
    finally:
        three[1].signal(signal.SIGCONT)
        three[2].signal(signal.SIGCONT)
    play(back, urls)


def test_a_disk_that_is_slow_changes_nothing_twice_and_is_told(tmp_path: Path) -> None:
    """Each write takes longer than anybody waits for it: what became of it is asked until it is known."""

    async def found(etcd: Gateway) -> None:
        await Node(etcd, "1", "slow").store.create_cluster("c")

    async def scene(etcd: Gateway) -> None:
        node = await Node(etcd, "1", "slow").open()
        before = node.metadata.image.ids_taken
        await node.metadata.change(next_block)
        assert (node.metadata.image.ids_taken, node.metadata.seq) == (before + BLOCK, 1)
        while node.store.outage is None:  # ticks are written too  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.01)
        assert "are its disks slow" in node.store.outage.report(0)
        await node.close()

    with members(tmp_path, 1) as (only,):
        play(found, [only.url])
        only.kill()
        only.start(sync_ms=400)
        only.wait_until_healthy()
        play(scene, [only.url], write_seconds=0.25)


def test_clocks_that_are_moved_end_no_lease_and_no_change(tmp_path: Path) -> None:
    """All members' wall clocks go ten minutes ahead, then ten minutes behind, while a node changes things and is alive."""
    program = os.environ.get("ETCD_WITH_MOVED_CLOCK")
    if program is None:
        pytest.skip("needs an etcd that is built for it: `make etcd-clock` (Go 1.26)")

    async def scene(etcd: Gateway, started: list[Member]) -> None:
        founder = Node(etcd, "1", "clock")
        await founder.store.create_cluster("c")
        node = await founder.open()
        runtime = EventLoopRuntime(SystemClock(), cast("Flusher", SimpleNamespace(appended=None)))
        presence = Presence(etcd, runtime, Keys("clock"), node="1", life=Life("f", "1"))
        await presence.register()
        keeping = asyncio.create_task(presence.keep_registered())
        written = (await etcd.read(Keys("clock").alive)).items
        before, changes = node.metadata.image.ids_taken, 0
        for ahead in (1, -1):
            for member in started:
                while ahead * await asyncio.to_thread(member.clock_ahead_seconds) < AWAY_SECONDS / 2:
                    await node.metadata.change(next_block)
                    changes += 1
        assert node.metadata.image.ids_taken == before + changes * BLOCK
        held = (await etcd.read(Keys("clock").alive)).items
        assert held == written, "its lease has ended, and it took another one"
        await presence.leave()
        keeping.cancel()
        await node.close()

    with members(tmp_path, 3, program=program) as started:
        play(partial(scene, started=started), [member.url for member in started])


def test_a_full_etcd_refuses_and_says_what_to_do(tmp_path: Path) -> None:
    async def scene(etcd: Gateway) -> None:
        with pytest.raises(EtcdRefusedError, match=r"database space exceeded; free it: etcdctl compact"):
            await fill(etcd)
        assert (await etcd.read(ALL, limit=1)).items

    with members(tmp_path, 1, "--quota-backend-bytes", str(16 * 1024 * 1024)) as started:
        play(scene, [started[0].url])


def test_signing_in(tmp_path: Path) -> None:
    def etcdctl(*words: str) -> None:
        subprocess.run(
            ["etcdctl", f"--endpoints={started[0].url}", *words], check=True, capture_output=True, timeout=60
        )

    async def write(etcd: Gateway) -> None:
        assert (await etcd.write([Put(b"/s/a", b"1")])).done
        etcd._token = "made.up"
        assert (await etcd.write([Put(b"/s/a", b"2")])).done
        assert (await etcd.read(ALL)).items[0].value == b"2"

    tokens: list[str] = []

    async def take_token(etcd: Gateway) -> None:
        assert (await etcd.read(ALL)).items
        tokens.append(etcd._token)

    async def write_once(etcd: Gateway) -> None:
        assert (await etcd.write([Put(b"/s/a", b"4")])).done
        assert (await etcd.read(ALL)).items[0].value == b"4"

    async def refused(etcd: Gateway) -> None:
        with pytest.raises(EtcdRefusedError, match=r"check user, password and token in \[cluster\]"):
            await etcd.write([Put(b"/s/a", b"3")])

    with members(tmp_path, 1) as started:
        have("etcdctl", "etcd-client")
        etcdctl("user", "add", "root:secret")
        etcdctl("auth", "enable")
        play(write, [started[0].url], user="root", password="secret")
        play(take_token, [started[0].url], user="root", password="secret")
        play(write_once, [started[0].url], token=tokens[0])
        play(refused, [started[0].url], token="made.up")
        play(refused, [started[0].url], user="root", password="wrong")
        play(refused, [started[0].url])


def test_nobody_there(tmp_path: Path) -> None:
    async def scene(etcd: Gateway) -> None:
        for call in (etcd.read(ALL), etcd.write([Put(b"a", b"b")]), etcd.watch([ALL], 0), etcd.check_versions()):
            with pytest.raises(EtcdAwayError, match=r"http://127.0.0.1:\d+"):
                await call

    with members(tmp_path, 1) as started:
        url = started[0].url
        started[0].kill()
        play(scene, [url])


@pytest.mark.parametrize("version", ["3.4.22", "3.4.23", "3.5.6", "3.5.21", "3.6.0", "3.7.3", "v3.5.7+git"])
def test_versions_that_are_taken(version: str) -> None:
    check_version(version, "it")


@pytest.mark.parametrize("version", ["3.3.27", "3.4.21", "3.5.0", "3.5.5", "2.3.8", "unknown"])
def test_versions_that_are_refused_by_name(version: str) -> None:
    with pytest.raises(EtcdRefusedError, match=version):
        check_version(version, "it")


def test_addresses() -> None:
    assert parse_endpoint("https://etcd.example:443") == Endpoint("etcd.example", 443, tls=True)
    assert parse_endpoint("10.0.0.1") == Endpoint("10.0.0.1", 2379, tls=False)
    for wrong in ("ftp://x", "http://", "http://x/path"):
        with pytest.raises(ValueError, match=r"is not an etcd address such as http://10\.0\.0\.1:2379"):
            parse_endpoint(wrong)
