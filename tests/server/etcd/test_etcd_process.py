"""A member that a node runs beside itself: it ends with the node, by a kill and by a clean stop, and starts with the next."""

import asyncio
import json
import os
import select
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.debian import have

from braidlog.cli import main
from braidlog.cluster.etcd.port import EtcdAwayError, Put, Range
from braidlog.model.errors import BrokerError
from braidlog.server.etcd import etcd_process as member
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.etcd_process import Member, MemberSettings, check_program, find_program
from braidlog.server.etcd.gateway import Gateway, GatewaySettings
from braidlog.server.peers.settings import PeersConfig
from braidlog.testing.server import hold_port

NODE = """
import asyncio, sys
from pathlib import Path
import msgspec
from braidlog.server.etcd.etcd_process import Member, MemberSettings, find_program
settings = msgspec.json.decode(sys.argv[1], type=MemberSettings)
asyncio.run(Member(settings, Path(sys.argv[2]), find_program()).start())
print("started", flush=True)
sys.stdin.read()
"""
ALL = Range(b"/", b"0")


@pytest.fixture(scope="module", autouse=True)
def _program() -> None:
    have("etcd", "etcd-server")


def settings() -> MemberSettings:
    (holder, client), (other, peer) = hold_port(), hold_port()
    os.close(holder)
    os.close(other)
    peer_url = f"http://127.0.0.1:{peer}"
    return MemberSettings(
        name="m", client_url=f"http://127.0.0.1:{client}", peer_url=peer_url, initial_cluster=f"m={peer_url}"
    )


async def start_and_stop(member: Member) -> None:
    await member.start()
    await member.stop()


def test_a_member_ends_with_a_node_that_is_killed_and_starts_with_the_next(tmp_path: Path) -> None:
    wanted, running = settings(), tmp_path / "etcd" / "process.json"
    command = [sys.executable, "-c", NODE, msgspec.json.encode(wanted).decode(), str(tmp_path / "etcd")]
    node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert node.stdout is not None
    assert node.stdout.readline() == b"started\n"
    ended = os.pidfd_open(json.loads(running.read_bytes())["pid"])
    try:
        node.kill()
        node.communicate()
        assert select.select([ended], [], [], 60.0)[0], "the member runs on"
    finally:
        os.close(ended)

    async def next_life() -> None:
        ours = Member(wanted, tmp_path / "etcd", find_program())
        etcd = Gateway(GatewaySettings(endpoints=[wanted.client_url], read_seconds_max=30, write_seconds_max=30))
        try:
            await ours.start()
            assert (await etcd.write([Put(b"/a", b"1")])).done
            await ours.stop()
            await ours.start()
            assert [item.value for item in (await etcd.read(ALL)).items] == [b"1"]
        finally:
            etcd.close()
            await ours.stop()

    asyncio.run(next_life())
    assert not running.exists()


def test_a_start_ends_the_member_that_an_earlier_node_left(tmp_path: Path) -> None:
    """Of a version whose member outlived it, or one that takes long to end."""
    wanted = settings()

    async def scene() -> None:
        left, ours = (Member(wanted, tmp_path / "etcd", find_program()) for _ in range(2))
        await left.start()
        assert left._child is not None
        try:
            await asyncio.gather(asyncio.to_thread(left._child.wait, 60), ours.start())
            assert ours._child is not None
            assert ours._child.poll() is None
        finally:
            await ours.stop()

    asyncio.run(scene())


def test_another_process_with_its_number_is_not_taken_for_it(tmp_path: Path) -> None:
    """The machine was started again, and the number in the file is somebody else's."""
    wanted = settings()
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        (tmp_path / "process.json").write_text(f'{{"pid":{stranger.pid},"started":1}}')
        ours = Member(wanted, tmp_path, find_program())
        asyncio.run(start_and_stop(ours))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_member_that_cannot_start_says_why(tmp_path: Path) -> None:
    wanted = settings()
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(BrokerError, match=r"etcd does not answer on http://127\.0\.0\.1:\d+: .*data"):
        asyncio.run(Member(wanted, tmp_path, find_program()).start())


def test_a_member_that_ends_again_and_again_is_started_more_and_more_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'etcd Version: 3.4.23' && exit\necho no room; exit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(member, "AGAIN_SECONDS_MIN", 0.001)
    monkeypatch.setattr(member, "AGAIN_SECONDS_MAX", 0.003)
    pauses = ["0.001 s", "0.002 s", "0.003 s", "0.003 s"]

    async def watch() -> None:
        ends = Member(settings(), tmp_path / "data", str(program))
        keeping = asyncio.ensure_future(ends.keep_running())
        async with asyncio.timeout(60):
            while sum("restarting in" in each for each in caplog.messages) < len(pauses):  # noqa: ASYNC110 - a log
                await asyncio.sleep(0.01)
        keeping.cancel()
        await asyncio.wait([keeping])
        await ends.stop()
        assert "ended with 7" in ends.trouble

    asyncio.run(watch())
    said = [each for each in caplog.messages if "restarting in" in each][: len(pauses)]
    assert [each.partition("restarting in ")[2][:7] for each in said] == pauses
    assert all("ended with 7" in each and each.endswith("last log line: no room") for each in said[1:])
    assert any("restart failed: etcd does not answer on" in each for each in caplog.messages)


def test_members_of_three_addresses_show_each_other_certificates(tmp_path: Path) -> None:
    hosts = {str(number): f"127.0.0.{number}" for number in (2, 3, 4)}
    named = [f"{number}={host}" for number, host in hosts.items()]
    made = CliRunner().invoke(main, ["cluster", "certificates", str(tmp_path), *named])
    assert made.exit_code == 0, made.output
    (holder, client), (other, peer) = hold_port(), hold_port()
    configs = {
        number: ClusterConfig(
            etcd="embedded",
            initial_cluster=",".join(named),
            client_port=client,
            peer_port=peer,
            peers=PeersConfig(
                host=host,
                ca=str(tmp_path / "braidlog-ca.pem"),
                cert=str(tmp_path / f"node-{number}.pem"),
                key=str(tmp_path / f"node-{number}.key"),
            ),
        )
        for number, host in hosts.items()
    }
    members = {
        number: Member(config.member(number), tmp_path / number, find_program(), config.tls())
        for number, config in configs.items()
    }

    async def use() -> None:
        asked = GatewaySettings(endpoints=configs["2"].endpoints, read_seconds_max=30, write_seconds_max=30)
        etcd = Gateway(asked, configs["2"].tls())
        stranger = Gateway(asked, ssl.create_default_context(cafile=configs["2"].peers.ca))
        try:
            await asyncio.gather(*(each.start() for each in members.values()))
            assert (await etcd.write([Put(b"/a", b"1")])).done, "most of them have found each other"
            with pytest.raises(EtcdAwayError):
                await stranger.read(ALL)
            await members["2"].stop()
            assert [item.value for item in (await etcd.read(ALL)).items] == [b"1"], "the node asks the other members"
        finally:
            stranger.close()
            etcd.close()
            await asyncio.gather(*(each.stop() for each in members.values()))

    try:
        asyncio.run(use())
    finally:
        os.close(holder)
        os.close(other)


def test_no_etcd_or_one_that_loses_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho 'etcd Version: 3.5.1'\n")
    program.chmod(0o755)
    with pytest.raises(BrokerError, match=r"is etcd 3\.5\.1, whose members can diverge permanently"):
        check_program(str(program))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(member, "PACKAGE", "no_such_package")
    with pytest.raises(BrokerError, match="apt-get install etcd-server"):
        find_program()
