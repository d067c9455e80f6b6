"""`braid serve --wire-log`: off, it is not there; on, it tells what passes, and never holds the loop up."""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import socket
import threading
import time
from pathlib import Path

import msgspec
import pytest
from tests.server.etcd.members import members
from tests.tools.schemas import check
from tests.tools.wire.braid import braid

from braidlog.server.config import ListenersConfig, ServerConfig, WireLogConfig
from braidlog.server.net.session import Session
from braidlog.server.net.wire_log import WatchedSession
from braidlog.server.node import Server
from braidlog.testing.server import ServerProcess
from braidlog.tools.wire.capture.pcapng import Address
from braidlog.tools.wire.capture.recorder import Recorder, RecorderSettings
from braidlog.wire.dialect import dialects
from braidlog.wire.observer import Side
from braidlog.wire.peer import messages as m
from braidlog.wire.peer.connection import write

DIALECTS = sorted(dialects())
SECONDS_MAX = 60
PING = bytes.fromhex("CAFE01040000000100000000")


@pytest.mark.parametrize("path", ["", "log"])
def test_without_it_sessions_are_plain(tmp_path: Path, path: str) -> None:
    """One look when a listener is made; nothing of it on the way of a message."""

    async def main() -> set[type]:
        usual = ListenersConfig()
        free = {name: msgspec.structs.replace(getattr(usual, name), port=0) for name in usual.__struct_fields__}
        listeners = msgspec.structs.replace(usual, **free)
        log = WireLogConfig(str(tmp_path / path) if path else "")
        server = Server(ServerConfig(data_dir=str(tmp_path / "data"), listeners=listeners, wire_log=log))
        await server.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.ports["mayfly"])
            writer.write(PING)
            await asyncio.wait_for(reader.readexactly(12), SECONDS_MAX)
            kinds = {type(session) for session in server.listeners["mayfly"].sessions}
            writer.close()
            return kinds
        finally:
            await server.stop()

    assert asyncio.run(main()) == {WatchedSession if path else Session}


@pytest.mark.parametrize("form", ["text", "json"])
def test_every_door_is_logged(tmp_path: Path, form: str) -> None:
    log, capture = tmp_path / "wire.log", tmp_path / "wire.pcapng"
    words = ("--wire-log", str(log), "--wire-format", form, "--wire-hex", "--wire-pcapng", str(capture))
    with ServerProcess(tmp_path / "data", *words) as server:
        for dialect in DIALECTS:
            done = braid(
                "wire", "send", "--example", dialect, "--server", f"{dialect}://127.0.0.1:{server.ports[dialect]}"
            )
            assert done.returncode == 0, done.stdout
        ports = dict(server.ports)
    text = log.read_text()
    if form == "json":
        entries = [json.loads(line) for line in text.splitlines()]
        for entry in entries:
            check("wire-log", entry)
        assert {entry["dialect"] for entry in entries} == set(DIALECTS)
        opened = [entry for entry in entries if entry["event"] == "open"]
        closed = [entry for entry in entries if entry["event"] == "closed"]
        assert len(opened) == len(closed) > 30
    for dialect in DIALECTS:
        decoded = braid(
            "wire", "decode", str(capture), "--dialect", dialect, "--port", str(ports[dialect]), "-o", "json"
        )
        names = {json.loads(line)["name"] for line in decoded.stdout.splitlines()}
        assert len(names) > 4, (dialect, names)


def test_what_another_node_says_is_logged(tmp_path: Path) -> None:
    """Gossip and keys: the node's one port, 0xBEE5."""
    log = tmp_path / "wire.log"
    ping = write(bytes(15) + b"\x01", m.Ping(0))
    comparing = write(bytes(15) + b"\x01", m.SyncRequest(0, 0, 0, 0, 1, 0))
    words = ("--wire-log", str(log), "--wire-format", "json")
    with (
        members(tmp_path, 1) as (etcd,),
        ServerProcess(tmp_path / "data", "--set", f"cluster.etcd={etcd.url}", *words) as server,
    ):
        _, port = server._held["cluster.peers.gossip_port"]
        with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as gossip:
            gossip.sendall(ping)
            assert gossip.recv(4) == bytes.fromhex("BEE50102")
        with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as keys:
            keys.sendall(comparing)
            assert keys.recv(1) == b"", "of a node that is not registered"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in entries:
        check("wire-log", entry)
    said = {(entry["side"], entry["name"]) for entry in entries if entry["event"] == "message"}
    assert said == {("client", "PING"), ("server", "PONG"), ("client", "SYNC_REQ")}
    assert {entry["dialect"] for entry in entries} == {"peer"}


def test_no_token_is_logged(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text(f'[auth.tokens]\nbob = "{hashlib.sha256(b"open-sesame").hexdigest()}"\n')
    log = tmp_path / "wire.log"
    words = ("--config", str(config), "--wire-log", str(log), "--wire-hex", "--wire-pcapng", str(tmp_path / "pcapng"))
    with ServerProcess(tmp_path / "data", *words) as server:
        sent = {
            "mlog": b'> "AUTH bob open-sesame\\n" 0019 LEN `{}`\n< 001A ...\n',
            "cursus": b"> LEN `AUTH principal=bob token=open-sesame`\n< u32 len [ `OK` ... ]\n",
            "mayfly": b"> CA FE 01 00 u32 1 u32 len [ u16 len [ `open-sesame` ] ]\n< CA FE 01 01 ...\n",
            "flux": b'> "AUTH bob wrong-sesame\\n"\n< ...\n',
        }
        for dialect, given in sent.items():
            server_of = f":{server.ports[dialect]}"
            braid("wire", "send", "-", "--server", server_of, "--timeout", "1", given=given)
    shown = log.read_bytes() + (tmp_path / "pcapng").read_bytes()
    assert b"Principal=bob" in shown
    assert b"0x00(AUTH)" in shown
    for secret in (b"sesame", b"sesame".hex(" ").upper().encode(), b"sesame".hex().encode()):
        assert secret not in shown


def test_what_cannot_be_written_is_dropped_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe that nobody reads: whoever reports goes on at once; the log says what it lacks when it can."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    filler = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(filler, bytes(4096)):  # so that its first line waits already
            pass
    os.close(filler)
    recorder = Recorder(RecorderSettings(str(pipe), queue_bytes_max=256 * 1024), lambda: 0)
    number = recorder.opened("mayfly", Address("127.0.0.1", 1), Address("127.0.0.1", 2))
    deadline = time.monotonic() + SECONDS_MAX
    while recorder._queue and time.monotonic() < deadline:
        os.sched_yield()  # until it has taken that, and waits: all the rest comes to it at once
    reports = 40_000
    for _ in range(reports):
        recorder.spoke(number, Side.CLIENT, PING)
    assert recorder.dropped_bytes > 0
    other = recorder.opened("mayfly", Address("127.0.0.1", 3), Address("127.0.0.1", 2))
    recorder.closed(number)
    recorder.closed(other)
    lines: list[bytes] = []
    os.set_blocking(reader, True)
    drain = threading.Thread(target=lambda: lines.append(_read_all(reader)))
    drain.start()
    with caplog.at_level(logging.WARNING):
        recorder.close()
    drain.join(SECONDS_MAX)
    text = lines[0].lstrip(b"\0").decode()
    messages = text.count("<-- RECV")
    assert 0 < messages < reports
    assert recorder.dropped_bytes == (reports - messages) * len(PING)
    assert "c1 --- GAP bytes dropped, decoding stopped" in text
    assert "c2 --- CLOSED" in text
    assert "wire log too slow: dropped_bytes=" in caplog.text


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def test_a_full_disk_ends_the_log_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(RecorderSettings("/dev/full"), lambda: 0)
    number = recorder.opened("mayfly", Address("127.0.0.1", 1), Address("127.0.0.1", 2))
    for _ in range(1000):
        recorder.spoke(number, Side.CLIENT, PING)
    recorder.closed(number)
    with caplog.at_level(logging.ERROR):
        recorder.close()
    assert "wire log stopped: [Errno 28]" in caplog.text


def test_a_file_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="wire_log: /no/such/folder/log"):
        ServerProcess(tmp_path / "data", "--wire-log", "/no/such/folder/log").start()
