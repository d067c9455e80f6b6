"""A node from outside: how it starts, what it refuses and says, how it stops, TLS, and what `braid config` shows."""

import hashlib
import json
import os
import re
import resource
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import trustme
from tests.adapters.hostility import CHEAP, STRANGERS, cpu_seconds, read_to_end
from tests.adapters.rustlog.client import Client, framed, payloads
from tests.adapters.rustlog.folders import write_topic
from tests.waiting import until

import braidlog
from braidlog.codec.batch.records import encode_batch
from braidlog.model.clock import SystemClock
from braidlog.server.config import ListenersConfig, ServerConfig
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.server import ServerProcess
from braidlog.wire.dialect import dialects
from braidlog.wire.rustlog import messages as m

REFUSED = 3


def braid(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "braidlog.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def check_refused(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """One line that says why, the exit code of a refusal, and nothing else."""
    assert done.returncode == REFUSED, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("braid: ")
    for word in words:
        assert word in line


# ── Starting ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_says_in_one_line_where_it_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "braidlog.cli", "serve", "--free-ports", "--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout:
        ready = json.loads(process.stdout.readline())
        assert ready["ready"] is True
        assert ready["pid"] == process.pid
        assert sorted(ready["ports"]) == sorted(dialects())
        assert ready["admin"] > 0
        assert len(set(ready["ports"].values())) == len(ready["ports"])
        for port in ready["ports"].values():
            socket.create_connection(("127.0.0.1", port), 10).close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout.read() == ""


def test_dev_says_how_to_reach_it(tmp_path: Path) -> None:
    free = [
        *(f"listeners.{name}.port=0" for name in ListenersConfig.__struct_fields__),
        "admin.port=0",
        "registry.port=0",
    ]
    ports = [part for each in free for part in ("--set", each)]
    command = [sys.executable, "-u", "-m", "braidlog.cli", "dev", "--data-dir", str(tmp_path / "data"), *ports]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        lines = [process.stdout.readline() for _ in range(len(dialects()) + 4)]
        assert str(tmp_path) in lines[0]
        found = dict(re.findall(r"^ +(\w+)://\s*127\.0\.0\.1:(\d+)", "".join(lines), re.MULTILINE))
        assert sorted(found) == sorted(dialects())
        for said, line in (("console", lines[-3]), ("schemas", lines[-2])):
            assert re.search(said + r"\s+http://127\.0\.0\.1:[1-9]\d*/", line)
        assert "Ctrl-C" in lines[-1]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


def test_a_second_node_on_the_same_folder_is_refused(braid_server: ServerProcess) -> None:
    check_refused(braid("serve", "--free-ports", "--data-dir", braid_server.data_dir), braid_server.data_dir, "use")
    with Client(braid_server) as client:
        assert client.ask(m.Ping()) == m.Pong()


def test_a_port_that_is_taken_is_refused_and_the_folder_is_free_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--free-ports", "--data-dir", str(tmp_path / "data"), "--set", f"listeners.rustlog.port={port}"]
        check_refused(braid("serve", *flags), "rustlog", str(port), "in use")
    with ServerProcess(tmp_path / "data"):
        pass


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("limits.idle_second_max=1", "limits.idle_seconds_max"),
        ("listener.rustlog.port=1", "listeners.rustlog.port"),
        ("topics.flsh=os", "topics.flush"),
        ("datadir=x", "data_dir"),
    ],
)
def test_a_setting_spelled_wrong_is_refused_with_the_right_one(tmp_path: Path, name: str, meant: str) -> None:
    check_refused(
        braid("serve", "--data-dir", str(tmp_path), "--set", name), name.partition("=")[0], f"did you mean '{meant}'"
    )
    file = tmp_path / "braid.toml"
    file.write_text(name.replace("=x", '="x"').replace("=os", '="os"'))
    check_refused(braid("serve", "--config", str(file)), str(file), meant)
    variable = "BRAID_" + name.partition("=")[0].upper().replace(".", "__")
    check_refused(braid("serve", "--data-dir", str(tmp_path), **{variable: "1"}), variable, meant)


@pytest.mark.parametrize(
    "change",
    [
        "limits.idle_seconds_max=soon",
        "listeners.rustlog.port=70000",
        "topics.flush=never",
        "limits.in_flight_max=0",
        "idle_partition_seconds=0.5",
    ],
)
def test_a_value_out_of_range_is_refused(tmp_path: Path, change: str) -> None:
    check_refused(braid("serve", "--data-dir", str(tmp_path), "--set", change), change.partition("=")[0])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_node_does_not_listen_to_everyone_by_accident(tmp_path: Path, host: str) -> None:
    done = braid("serve", "--free-ports", "--data-dir", str(tmp_path / "d"), "--set", f"listeners.rustlog.host={host}")
    check_refused(done, host, "auth.tokens", "--allow-open")
    assert not (tmp_path / "d").exists()  # refused before anything was made


def test_a_node_listens_to_everyone_who_was_asked_for(tmp_path: Path) -> None:
    flags = ["--set", "listeners.rustlog.host=0.0.0.0"]
    with ServerProcess(tmp_path / "open", *flags, "--allow-open") as server, Client(server) as client:
        assert client.ask(m.Ping()) == m.Pong()
    settings = tmp_path / "braid.toml"
    settings.write_text(f'[auth.tokens]\nalice = "{hashlib.sha256(b"x").hexdigest()}"\n')
    with ServerProcess(tmp_path / "guarded", "--config", str(settings), *flags) as server, Client(server) as client:
        assert client.ask(m.ListTopics()).code == 400


# ── Stopping ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def stopped_cleanly(path: str, topic: str) -> bool:
    folder = DataFolder(OsDisk(), path, SystemClock())
    try:
        return folder.open_partition(topic, 0).report.clean_stop
    finally:
        folder.release()


def test_a_graceful_stop_is_noted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with Client(server) as client:
            client.create("a")
            client.produce("a", b"x")
            assert server.stop() == 0
        assert "Traceback" not in server.errors()
        assert stopped_cleanly(server.data_dir, "a")
        server.restart()
        with Client(server) as client:
            assert payloads(client.fetch("a").records) == [b"x"]
        server.kill()
        assert not stopped_cleanly(server.data_dir, "a")


def count_answers(client: Client) -> int:
    """How many produces are answered, in order, before the connection ends."""
    count = 0
    try:
        while True:
            assert client.receive().base_offset == count + 1
            count += 1
    except (EOFError, ConnectionError):
        return count


def test_start_stop_and_recovery_are_logged(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with braidlog.connect(f"kafka://127.0.0.1:{server.ports['kafka']}") as client:
            client.admin.create_topic("orders", 2)
            client.producer().send_and_wait("orders", b"v", partition=0)
        server.kill()
        server.restart()
        server.stop()
        server.restart()
        told = server.errors()
    port = server.ports["kafka"]
    assert f"serves {tmp_path / 'data'} as node " in told
    assert f"kafka on 127.0.0.1:{port}" in told
    starts = re.findall(r"recovered (\d+) partitions \((.*)\) in \d+\.\d s; ready after \d+\.\d s", told)
    assert [each[0] for each in starts] == ["0", "2", "2"]
    assert starts[1][1].endswith("of them had no clean stop")
    assert starts[2][1] == "the last stop was clean"
    assert re.search(r"shutting down: draining requests for up to \d+ s", told)
    assert re.search(r"stopped in \d+\.\d s", told)


def test_what_was_asked_before_the_stop_is_answered(tmp_path: Path) -> None:
    """A stop in the middle of a hundred produces: the answers that come are true, and then the connection ends."""
    with ServerProcess(tmp_path / "data") as server:
        with Client(server) as client:
            client.create("a")
            client.send(*[m.Produce(topic="a", partition=0, records=[str(n).encode()]) for n in range(100)])
            assert client.receive().base_offset == 0
            assert server.stop() == 0
            assert "was destroyed" not in server.errors()
            answered = 1 + count_answers(client)
        server.restart()
        with Client(server) as client:
            found = payloads(client.fetch("a").records)
    assert len(found) >= answered
    assert found == [str(n).encode() for n in range(len(found))]


def test_who_only_waits_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--set", "drain_seconds=60") as server, Client(server) as client:
        client.create("a")
        poll = m.Fetch(group_id="", topic="a", partition=0, offset=0, max_bytes=1, max_wait_ms=30_000)
        client.send(m.Ping(), poll, m.Ping())
        assert client.receive() == m.Pong()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15
        said = server.errors()
        assert "was destroyed" not in said, "no task is left behind"
        assert "never awaited" not in said
        assert client.receive().records == [], "its time is up: somebody stands behind it"
        assert client.receive() == m.Pong()
        with pytest.raises((EOFError, ConnectionError)):
            client.receive()


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address_max"])
@pytest.mark.parametrize("dialect", sorted(dialects()))
def test_connections_over_the_limit_are_turned_away(tmp_path: Path, dialect: str, limit: str) -> None:
    with ServerProcess(tmp_path / "data", "--set", f"limits.{limit}=3") as server:
        kept = [socket.create_connection(server.address(dialect), 30) for _ in range(3)]
        for peer in kept:
            peer.sendall(CHEAP[dialect])
            assert peer.recv(1)
        with socket.create_connection(server.address(dialect), 30) as late:
            assert read_to_end(late, 0) == b""
        kept.pop().close()

        def another() -> bool:
            with socket.create_connection(server.address(dialect), 30) as peer:
                try:
                    peer.sendall(CHEAP[dialect])
                    return peer.recv(1) != b""
                except ConnectionError:
                    return False

        until(another)
        for peer in kept:
            peer.close()


@pytest.fixture(params=["uvloop", "asyncio"])
def loop_environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """A node runs on uvloop where that is installed, else on asyncio's own loop."""
    if request.param == "uvloop":
        return {}
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "uvloop.py").write_text("raise ImportError")
    return {"PYTHONPATH": str(tmp_path / "hidden")}


def test_a_node_without_descriptors_left_serves_on_and_does_not_spin(
    tmp_path: Path, loop_environment: dict[str, str]
) -> None:
    """Those who are in are served; those who are not have to wait or to go; when some have left, others come in."""
    ping, pong = b"V1|1|PING|\n", b"V1|1|OK|pong\n"
    with ServerProcess(tmp_path / "data", environment=loop_environment) as server:
        used = len(os.listdir(f"/proc/{server.pid}/fd"))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
        kept = [socket.create_connection(server.address("flux"), 60) for _ in range(9)]
        for peer in kept:
            peer.sendall(ping)
            assert peer.recv(100) == pong
        outside = [socket.create_connection(server.address("flux"), 60) for _ in range(40)]
        before, began = cpu_seconds(server.pid), time.monotonic()
        rounds = 0
        while time.monotonic() - began < 2.5:
            for peer in kept:
                peer.sendall(ping)
                assert peer.recv(100) == pong
            rounds += 1
            threading.Event().wait(0.05)
        # Some ten milliseconds for the pings; a loop that tries again and again would take all of the time.
        assert cpu_seconds(server.pid) - before < 0.5 * (time.monotonic() - began)
        assert rounds
        for peer in (*outside, *kept):
            peer.close()

        def comes_in() -> bool:
            try:
                with socket.create_connection(server.address("flux"), 60) as late:
                    late.sendall(ping)
                    return late.recv(100) == pong
            except ConnectionError:
                return False

        until(comes_in)
        said = server.errors()
        assert "Traceback" not in said
        assert len(said.splitlines()) < 30
        assert server.stop() == 0


def serve_with_descriptors(count: str, data: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """A node that ends as soon as it is ready, under `ulimit -n`."""
    command = [sys.executable, "-m", "braidlog.cli", "serve", "--free-ports", "--data-dir", str(data), *flags]
    script = f'ulimit {count}; coproc N {{ exec {shlex.join(command)}; }}; read -r line <&"${{N[0]}}"; kill $N_PID; wait $N_PID'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_a_node_takes_the_descriptors_it_may_have(tmp_path: Path) -> None:
    done = serve_with_descriptors("-Sn 128", tmp_path / "a", "--set", "limits.connections_max=100")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert f"up to 100 connections, {hard} files and sockets" in done.stderr
    assert "ulimit" not in done.stderr


def test_connections_that_there_are_no_descriptors_for_are_not_promised(tmp_path: Path) -> None:
    done = serve_with_descriptors("-n 400", tmp_path / "a")
    assert "limits.connections_max is 10000" in done.stderr
    assert "up to 300 connections, 400 files and sockets" in done.stderr
    assert done.returncode == 0, done.stderr


def test_more_partitions_than_descriptors(tmp_path: Path) -> None:
    """What is open for a partition is closed when others need it: none of them is refused, stopped or lost."""
    partitions, limit = range(400), 300
    with ServerProcess(tmp_path / "data", open_files_max=limit) as server:
        with Client(server) as client:
            client.create("t", len(partitions))
            for value in (b"a", b"b"):
                client.send(*(m.Produce(topic="t", partition=number, records=[value]) for number in partitions))
                assert [client.receive().base_offset for _ in partitions] == [int(value == b"b")] * len(partitions)
            assert len(os.listdir(f"/proc/{server.pid}/fd")) < 100
        assert server.stop() == 0
        server.start()
        with Client(server) as client:
            for number in partitions:
                assert [record.payload for record in client.fetch("t", partition=number).records] == [b"a", b"b"]
            assert len(os.listdir(f"/proc/{server.pid}/fd")) < 100
            client.send(*(m.Produce(topic="t", partition=number, records=[b"c"]) for number in partitions))
            assert [client.receive().base_offset for _ in partitions] == [2] * len(partitions)
        assert server.stop() == 0


def test_a_limit_too_low_for_a_node_is_refused(tmp_path: Path) -> None:
    done = serve_with_descriptors("-n 100", tmp_path / "a")
    assert "RLIMIT_NOFILE" in done.stderr
    assert "ulimit -n" in done.stderr


def test_a_port_that_is_taken_fails_before_anything_is_recovered(tmp_path: Path) -> None:
    """Recovery may take long: who starts a second node by mistake is told first, and nothing was touched."""
    data = tmp_path / "data"
    write_topic(data, "t", encode_batch([b"x"], base_timestamp=1))
    before = sorted((path, path.stat().st_mtime_ns) for path in data.rglob("0*/*") if path.is_file())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = braid("serve", "--free-ports", "--data-dir", str(data), "--set", f"listeners.flux.port={port}")
    check_refused(done, "flux", str(port), "in use")
    assert before == sorted((path, path.stat().st_mtime_ns) for path in data.rglob("0*/*") if path.is_file())


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Authority:
    """A certificate authority, its files, and clients that trust it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(folder / "ca.pem")
        self._ca.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            folder / "server.pem"
        )

    def flags(self, *, mutual: bool) -> list[str]:
        tls = {"cert": "server.pem"} | ({"client_ca": "ca.pem"} if mutual else {})
        return [p for k, v in tls.items() for p in ("--set", f"listeners.rustlog.tls.{k}={self._folder / v}")]

    def context(self, identity: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self._folder / "ca.pem"))
        if identity is not None:
            identity.configure_cert(context)
        return context

    def identity(self, *names: str, common_name: str | None = None) -> trustme.LeafCert:
        return self._ca.issue_cert(*names, common_name=common_name)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_client(server: ServerProcess, context: ssl.SSLContext) -> Client:
    client = Client(server)
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    return client


def test_tls(tmp_path: Path, authority: Authority) -> None:
    with ServerProcess(tmp_path / "data", *authority.flags(mutual=False)) as server:
        with tls_client(server, authority.context()) as client:
            client.create("a")
            client.produce("a", bytes(3_000_000))
            assert [len(value) for value in payloads(client.fetch("a", max_bytes=10**7).records)] == [3_000_000]
            assert server.stop() == 0
        assert "Traceback" not in server.errors()


def shown_serial(server: ServerProcess, context: ssl.SSLContext) -> str:
    with tls_client(server, context) as client:
        assert client.ask(m.Ping()) == m.Pong()
        assert isinstance(client.socket, ssl.SSLSocket)
        return str((client.socket.getpeercert() or {})["serialNumber"])


def test_a_certificate_is_read_again_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    """For new connections; those that are there stay. One that cannot be used is not, and the old one is."""
    with ServerProcess(tmp_path / "data", *authority.flags(mutual=False)) as server:
        context = authority.context()
        first = shown_serial(server, context)
        with tls_client(server, context) as old:
            (tmp_path / "server.pem").write_text("half a certifi")
            os.kill(server.pid, signal.SIGHUP)
            until(lambda: "keeps the certificate it has" in server.errors())
            assert shown_serial(server, context) == first
            authority.identity("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
            os.kill(server.pid, signal.SIGHUP)
            until(lambda: "has read its certificate again" in server.errors())
            assert shown_serial(server, context) != first
            assert old.ask(m.Ping()) == m.Pong()
        assert server.stop() == 0


def test_a_stranger_at_a_tls_port(tmp_path: Path, authority: Authority) -> None:
    """Plain bytes, half a handshake, a client that trusts another authority: none of it harms, none of it is a traceback."""
    with ServerProcess(tmp_path / "data", *authority.flags(mutual=False)) as server:
        for data in (framed(b'{"type":"Ping"}'), *STRANGERS.values()):
            with socket.create_connection(server.address("rustlog"), 30) as peer:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                read_to_end(peer, 65536)
        with Client(server) as client, pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(client.socket, server_hostname="localhost")
        with tls_client(server, authority.context()) as client:
            assert client.ask(m.Ping()) == m.Pong()
        assert "Traceback" not in server.errors()


def test_with_mutual_tls_a_certificate_says_who_one_is(tmp_path: Path, authority: Authority) -> None:
    """Its common name is the principal, else its first other name; rules are about principals."""
    data = tmp_path / "data"
    write_topic(data, "shared", encode_batch([b"x"], base_timestamp=0))
    settings = tmp_path / "braid.toml"
    settings.write_text(
        '[[auth.rules]]\nprincipal = "alice"\noperations = ["*"]\n'
        '[[auth.rules]]\nprincipal = "bob.example"\noperations = ["read"]\n'
    )
    flags = ["--config", str(settings), "--set", "listeners.rustlog.host=0.0.0.0"]
    others = [n for n in ListenersConfig.__struct_fields__ if n != "rustlog"]
    flags += [part for name in others for part in ("--set", f"listeners.{name}.enabled=false")]
    with ServerProcess(data, *flags, *authority.flags(mutual=True)) as server:
        with tls_client(server, authority.context(authority.identity("a.example", common_name="alice"))) as alice:
            assert alice.produce("shared", b"y").base_offset == 1
        with tls_client(server, authority.context(authority.identity("bob.example"))) as bob:
            assert payloads(bob.fetch("shared").records) == [b"x", b"y"]
            assert bob.produce("shared", b"z").code == 400
        with tls_client(server, authority.context(authority.identity("eve.example", common_name="eve"))) as eve:
            assert eve.fetch("shared").code == 404
            assert eve.ask(m.ListTopics()).code == 400
        with (
            pytest.raises((ssl.SSLError, ConnectionError, EOFError)),
            tls_client(server, authority.context()) as nobody,
        ):
            nobody.ask(m.Ping())
        for reserved in ("*", "anonymous"):
            with (
                pytest.raises((ssl.SSLError, ConnectionError, EOFError)),
                tls_client(
                    server, authority.context(authority.identity("a.example", common_name=reserved))
                ) as everyone,
            ):
                everyone.ask(m.Ping())
        until(lambda: server.errors().count("a reserved principal") == 2)
        other = trustme.CA().issue_cert("alice", common_name="alice")
        with (
            pytest.raises((ssl.SSLError, ConnectionError, EOFError)),
            tls_client(server, authority.context(other)) as liar,
        ):
            liar.ask(m.Ping())
        assert "Traceback" not in server.errors()


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path, authority: Authority) -> None:
    flags = ["--free-ports", "--data-dir", str(tmp_path / "data"), "--set"]
    absent = tmp_path / "absent.pem"
    check_refused(braid("serve", *flags, f"listeners.rustlog.tls.cert={absent}"), str(absent))
    check_refused(
        braid("serve", *flags, f"listeners.rustlog.tls.cert={tmp_path / 'ca.pem'}"), "ca.pem"
    )  # it has no key


# ── Settings ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_config_show_tells_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "braid.toml"
    digest = hashlib.sha256(b"secret").hexdigest()
    file.write_text(
        f'data_dir = "from-file"\nnode = "7"\n[topics]\nflush = "os"\nretention_ms = 5\n[auth.tokens]\nalice = "{digest}"\n'
    )
    done = braid(
        "config", "show", "--origin", "--output", "json", "--config", str(file), "--set", "topics.flush=interval",
        BRAID_DATA_DIR="from-environment", BRAID_TOPICS__RETENTION_MS="6", BRAID_LISTENERS__CURSUS__PORT="10000",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["node"] == {"value": "7", "origin": f"file {file}"}
    assert shown["data_dir"] == {"value": "from-environment", "origin": "environment BRAID_DATA_DIR"}
    assert shown["topics.flush"] == {"value": "interval", "origin": "flag"}
    assert shown["topics.retention_ms"] == {"value": 6, "origin": "environment BRAID_TOPICS__RETENTION_MS"}
    assert shown["listeners.cursus.port"]["value"] == 10000
    assert shown["limits.in_flight_max"] == {"value": 1024, "origin": "default"}
    assert shown["auth.tokens"]["value"] == {"alice": "…"}
    assert digest not in done.stdout


def test_config_show_has_every_setting_as_a_table_too() -> None:
    done = braid("config", "show")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert any(re.fullmatch(r"listeners\.rustlog\.port +9096", line) for line in lines)
    assert any(re.fullmatch(r"limits\.memory_bytes_max +134217728", line) for line in lines)
    assert {line.split(".")[0].split()[0] for line in lines} == set(ServerConfig.__struct_fields__)
    origin = braid("config", "show", "--origin").stdout.splitlines()
    assert all(line.endswith("(default)") for line in origin)
