"""`braid dev`, `doctor`, `health`, `bench`, `generate`, `config init`, `completion`: what goes around a node."""

import configparser
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.cli.braid import COLLECTED, DEBUGGED, SECONDS_MAX, UNDONE, Braid, check

from braidlog import Log
from braidlog.cli import main
from braidlog.cli.node.config_init import NOTES, template
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.server.config import ServerConfig, check_exposure, load_config
from braidlog.storage.files import OsDisk
from braidlog.testing.server import ServerProcess
from braidlog.tools import doctor as tool
from braidlog.tools.doctor import Status
from braidlog.tools.inspect import Inspection
from braidlog.tools.layout import Layout, TopicPlace
from braidlog.wire.dialect import dialects

# -- dev ---------------------------------------------------------------------------------------------------------------


def test_an_interrupt_of_dev_leaves_no_work_undone(tmp_path: Path) -> None:
    """While a client waits for records."""
    ports = [f"listeners.{name}.port=0" for name in dialects()]
    settings = [word for setting in (*ports, "admin.port=0", "registry.port=0") for word in ("--set", setting)]
    braid = Braid()
    braid.environment |= DEBUGGED
    braid.program = COLLECTED
    with braid.start("dev", "--data-dir", str(tmp_path / "data"), *settings) as node:
        assert node.stdout is not None
        said = b""
        while b"Ctrl-C" not in said:
            line = node.stdout.readline()
            assert line, said
            said += line
        found = re.search(rb"kafka:// *(\S+)", said)
        assert found is not None
        client = Braid(url=f"kafka://{found[1].decode()}")
        client.ok("produce", "t", "--create", stdin="one\n")
        with client.start("tail", "t", "-o", "beginning") as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"one\n"
            node.send_signal(signal.SIGINT)
            _, errors = node.communicate(timeout=SECONDS_MAX)
            follower.kill()
    assert node.returncode == 0, errors
    assert not re.search(UNDONE, errors), errors.decode()


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor(tmp_path: Path) -> None:
    """Every check has its line; a port that is taken is named; nothing is left behind in the folder."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = {f"BRAID_LISTENERS__{name}__PORT": "0" for name in ("CURSUS", "MLOG", "RUSTLOG", "FLUX", "MAYFLY")}
        free["BRAID_ADMIN__PORT"] = "0"
        braid = Braid()
        braid.environment |= {**free, "BRAID_LISTENERS__KAFKA__PORT": str(taken.getsockname()[1])}
        result = braid("doctor", "--data-dir", str(tmp_path / "data"), "-o", "json")
    told = json.loads(result.stdout)
    check("doctor", told)
    findings = {each["check"]: each for each in told["findings"]}
    assert {"python", "kernel", "uvloop", "space", "fsync", "ulimit", "clock", "java", "pyspark"} <= set(findings)
    assert findings["port kafka"]["status"] == "warn"
    assert "is in use by a server" in findings["port kafka"]["detail"]
    assert findings["port kafka"]["remedy"]
    assert findings["port flux"]["status"] == "ok"
    assert told["fit"] is (result.exit_code == 0)
    assert all(each["remedy"] for each in told["findings"] if each["status"] != "ok")
    assert list(tmp_path.iterdir()) == []


def test_doctor_asks_every_member_of_etcd_that_the_settings_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
    (tmp_path / "braid.toml").write_text(f'[cluster]\netcd = "{dead}"\n')
    result = Braid()("doctor", "-c", str(tmp_path / "braid.toml"), "--data-dir", str(tmp_path / "data"), "-o", "json")
    (found,) = [each for each in json.loads(result.stdout)["findings"] if each["check"] == "etcd"]
    assert found["status"] == "warn"
    assert "no member answers" in found["detail"]
    assert "start the cluster's nodes" in found["remedy"]


def test_doctor_finds_the_node_that_runs(braid_server_shared: ServerProcess, tmp_path: Path) -> None:
    findings = list(tool.examine(str(tmp_path), {"listeners.kafka.port": braid_server_shared.ports["kafka"]}))
    (found,) = [each for each in findings if each.check == "port kafka"]
    assert found.status is Status.OK
    assert "in use by a Kafka server" in found.detail


def test_doctor_fails_without_a_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    braid = Braid()
    braid.environment |= {f"BRAID_LISTENERS__{name.upper()}__PORT": "0" for name in _listeners()}
    result = braid("doctor", "--data-dir", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "fail  disk" in result.stdout
    assert "-> choose another --data-dir" in result.stdout


def _listeners() -> list[str]:
    return list(type(ServerConfig().listeners).__struct_fields__)


def test_doctor_names_what_is_damaged_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(tool._partitions(str(tmp_path))) == [], "no node has run here"
    with Log(str(tmp_path)) as log:
        log.create_topic("many", partitions=tool.NAMED_MAX + 2).append(b"x" * 100, partition=3)
    assert [(each.status, each.detail) for each in tool._partitions(str(tmp_path))] == [("ok", "7, all intact")]
    cost = sum(path.stat().st_size + tool.PARTITION_COST_BYTES for path in tmp_path.glob("topics/*/*/*.log"))
    monkeypatch.setattr(tool, "READ_BYTES_MAX", cost - 1)
    (found,) = tool._partitions(str(tmp_path))
    assert (found.status, found.detail) == ("warn", "1 of 7 were not read, to save time")
    assert found.remedy.endswith(f"braid log verify {tmp_path}")
    monkeypatch.undo()
    for segment in tmp_path.glob("topics/*/*/*.log"):
        segment.unlink()
    for checkpoint in tmp_path.glob("topics/*/*/state.*"):
        checkpoint.unlink()
    *named, more = tool._partitions(str(tmp_path))
    assert [each.detail.split(":")[0] for each in named] == [f"many/{number} is damaged" for number in range(5)]
    assert more.detail == "2 more are damaged"
    assert {each.status for each in (*named, more)} == {"fail"}


def test_doctor_names_what_was_set_aside(tmp_path: Path) -> None:
    with Log(str(tmp_path)) as log:
        for name in ("strange", "whole"):
            log.create_topic(name, partitions=2)
    (tmp_path / "topics/00000001").rename(tmp_path / "topics/00000001.stray")
    (tmp_path / "topics/00000002/0001" / f"{0:020d}.log.1763298720000.damaged").write_bytes(b"x")
    (tmp_path / "topics/00000002/0000.1763298720000.damaged").mkdir()
    damaged, stray, rest = tool._partitions(str(tmp_path))
    assert (damaged.status, damaged.detail) == (
        "warn",
        "2 damaged copies: topics/00000002/0000, topics/00000002/0001",
    )
    assert damaged.remedy.endswith(f"(find {tmp_path} -name '*.damaged')")
    assert (stray.status, stray.detail) == ("warn", "1 topics that are not in the metadata: topics/00000001.stray")
    assert (rest.status, rest.detail) == ("ok", "2, all intact")


def test_doctor_looks_twice_at_what_a_running_node_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that retention removes between two reads is no damage; nor is a topic that is deleted."""
    with Log(str(tmp_path)) as log:
        log.create_topic("t")
    looks: list[int] = []
    inspect = Layout.inspect

    def look(layout: Layout, place: TopicPlace, number: int) -> Inspection:
        looks.append(number)
        if len(looks) % 2:
            raise StorageFault("gone")
        return inspect(layout, place, number)

    monkeypatch.setattr(Layout, "inspect", look)
    assert [each.status for each in tool._partitions(str(tmp_path))] == ["ok"]
    assert looks == [0, 0]
    layout = Layout(OsDisk(), str(tmp_path))
    (tmp_path / layout.topics[0].label).rename(tmp_path / f"{layout.topics[0].label}.gone")
    assert tool._damage(layout, layout.topics[0], 0) == ""


def test_doctor_tells_of_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    with Log(str(tmp_path)) as log:
        log.create_topic("t")
    for slot in tmp_path.glob("topics/*/topic.?"):
        slot.unlink()
    assert "name and settings are lost" in next(iter(tool._partitions(str(tmp_path)))).detail
    for slot in tmp_path.glob("folder.?"):
        slot.unlink()
        slot.symlink_to(slot)
    (found,) = tool._partitions(str(tmp_path))
    assert found.status is Status.FAIL
    assert "braid log list" in found.remedy


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ('openjdk version "17.0.9" 2023-10-17', Status.OK),
        ('openjdk version "21" 2023-09-19', Status.OK),
        ('java version "1.8.0_392"', Status.WARN),
        ('openjdk version "11.0.21"', Status.WARN),
        ("nonsense", Status.WARN),
    ],
)
def test_versions_of_java(said: str, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that says what Java says, each as its release printed it."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho {shlex.quote(said)} >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert tool._java().status is status


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tool._package("no-such-package-of-ours", "spark", (1,), None).status is Status.WARN
    assert tool._package("click", "spark", (99,), None).status is Status.WARN
    assert tool._package("click", "spark", (1,), (2,)).status is Status.WARN
    assert tool._package("click", "spark", (8,), None).status is Status.OK
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert tool._java().detail == "not found"


# -- health ------------------------------------------------------------------------------------------------------------


class _Admin(BaseHTTPRequestHandler):
    """An admin port as others may have it: what it answers is the test's."""

    answer: tuple[int, bytes] = (200, b"")
    seen: tuple[str, str | None] = ("", None)

    def do_GET(self) -> None:
        type(self).seen = self.path, self.headers.get("Authorization")
        self.send_response(self.answer[0])
        self.end_headers()
        self.wfile.write(self.answer[1])

    def log_message(self, *_: Any) -> None:
        """Not into the test's output."""


@pytest.fixture
def admin() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Admin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_health(admin: HTTPServer, tmp_path: Path) -> None:
    braid = Braid()
    braid.environment |= {
        "BRAID_ADMIN_URL": f"http://127.0.0.1:{admin.server_port}/",
        "http_proxy": "http://127.0.0.1:1",
    }
    ready = {"status": "ready", "checks": [{"name": "listeners", "ok": True, "reason": None}]}
    _Admin.answer = 200, json.dumps(ready).encode()
    assert braid.json("health", schema="health") == ready
    assert braid.ok("health").splitlines() == ["ready", "    CHECK      REASON", "ok  listeners"]
    assert braid.ok("health", "--quiet") == ""
    (tmp_path / "token").write_text("word\n")
    braid.ok("health", "--token-file", str(tmp_path / "token"))
    assert _Admin.seen == ("/readyz?within_ms=800", "Bearer word")
    (tmp_path / "users").write_text("a user's secret\n")
    braid.environment["BRAID_TOKEN_FILE"] = str(tmp_path / "users")
    braid.ok("health")
    assert "user" not in str(_Admin.seen), "a token of BRAID_TOKEN_FILE is not sent as the admin token"
    braid.environment["BRAID_ADMIN_TOKEN_FILE"] = str(tmp_path / "token")
    braid.ok("health")
    assert _Admin.seen == ("/readyz?within_ms=800", "Bearer word")
    stands = {"status": "ready", "checks": [{"name": "metadata", "ok": True, "reason": "etcd is away\n  goes on: all"}]}
    _Admin.answer = 200, json.dumps(stands).encode()
    assert braid.ok("health").splitlines()[2:] == ["ok  metadata  etcd is away", "                goes on: all"]
    _Admin.answer = 503, b'{"status": "not ready", "checks": [{"name": "disk", "ok": false, "reason": "full"}]}'
    result = braid("health")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "full" in result.stdout
    _Admin.answer = (
        503,
        b'{"status": "slow", "checks": [{"name": "node", "ok": false, "reason": "did not answer within 0.8 s"}]}',
    )
    result = braid("health")
    assert (result.exit_code, result.stderr) == (6, ""), "not 1: a node that has much to do may be well"
    assert "did not answer within 0.8 s" in result.stdout
    for answer in ((404, b"<html>"), (200, b"[]"), (401, b'{"detail": "no"}')):
        _Admin.answer = answer
        assert "is not the admin port" in braid.fails(4, "health")


def test_health_of_a_real_node(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", admin=True) as server:
        asked = ("health", "--url", server.admin_url, "--timeout", "60")
        assert Braid().ok(*asked).startswith("ready\n")
        told = Braid().json(*asked, schema="health")
    assert told["checks"]
    assert all(each["ok"] for each in told["checks"])


def test_health_of_one_who_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "did not answer within 0.1 s" in Braid().fails(6, "health", "--url", url, "--timeout", "0.1")


def test_health_of_nobody() -> None:
    said = Braid().fails(5, "health", "--url", "http://127.0.0.1:1")
    assert "cannot be reached: Connection refused; start a node" in said
    assert "Usage:" in Braid().fails(2, "health", "--url", "127.0.0.1:9644")


# -- bench -------------------------------------------------------------------------------------------------------------


def test_bench(braid_server_shared: ServerProcess) -> None:
    braid = Braid(braid_server_shared)
    told = braid.json("bench", "--records", "300", "--repeats", "2", "--bytes", "50", schema="bench")
    assert [each["name"] for each in told["figures"]] == ["produce", "consume", "latency p50", "latency p99"]
    for each in told["figures"]:
        assert 0 < each["low"] <= each["median"] <= each["high"]
        assert each["repeats"] == 2
    assert "not a benchmark" in told["note"]
    assert not [name for name in braid.ok("topic", "list", "-o", "name").split() if name.startswith("braid-bench")]
    assert "not a benchmark" in braid.ok("bench", "--records", "10", "--repeats", "1")
    assert "Usage:" in braid.fails(2, "bench", "--repeats", "0")


# -- generate ----------------------------------------------------------------------------------------------------------


def _serve_options(args: list[str]) -> dict[str, Any]:
    """What `braid serve` understands of them. With its parent: a command remembers how it was first asked for help."""
    parent = click.Context(main, info_name="braid", **main.context_settings)
    serve = main.get_command(parent, "serve")
    assert serve is not None
    with serve.make_context("serve", args, parent) as context:
        return context.params


def test_the_systemd_unit_starts_what_there_is() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(Braid().ok("generate", "systemd", "--program", "/opt/braid", "--name", "mylog"))
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    service = unit["Service"]
    program, command, *args = shlex.split(service["ExecStart"])
    assert (program, command) == ("/opt/braid", "serve")
    assert _serve_options(args)["data_dir"] == "/var/lib/mylog"
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices"):
        assert service[name] == "yes"
    assert (service["ProtectSystem"], service["StateDirectory"], service["User"]) == ("strict", "mylog", "mylog")
    assert (service["Type"], service["TimeoutStartSec"]) == ("notify", "infinity")


def test_the_systemd_unit_starts_the_program_that_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "elsewhere" / "braid"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program), "generate", "systemd"])
    assert f"ExecStart={program} serve" in Braid().ok("generate", "systemd")
    monkeypatch.setattr("sys.argv", ["/lib/braidlog/cli/__main__.py"])
    monkeypatch.setattr("sys.executable", str(program.with_name("python3")))
    assert f"ExecStart={program} serve" in Braid().ok("generate", "systemd")


def test_the_kubernetes_manifests_name_what_there_is() -> None:
    text = Braid().ok("generate", "k8s", "--image", "example/braidlog:1", "--storage", "7Gi", "--name", "mylog")
    secret, service, stateful = yaml.safe_load_all(text)
    assert [each["kind"] for each in (secret, service, stateful)] == ["Secret", "Service", "StatefulSet"]
    ports = {name: getattr(ServerConfig().listeners, name).port for name in _listeners()} | {"admin": 9644}
    pod = stateful["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "example/braidlog:1"
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == ports
    assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == ports
    assert service["spec"]["selector"] == stateful["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"] == "mylog"
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "admin"}
    (claim,) = stateful["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"] == {"storage": "7Gi"}
    assert {each["name"] for each in container["volumeMounts"]} == {"data", "settings", "tmp"}
    assert pod["spec"]["enableServiceLinks"] is False
    environment = {each["name"]: each["value"] for each in container["env"] if each["name"].startswith("BRAID_")}
    assert environment["BRAID_LISTENERS__KAFKA__ADVERTISED_HOST"] == "$(POD).mylog.$(NAMESPACE).svc"
    settings = secret["stringData"]["braid.toml"]
    with pytest.raises(BrokerError, match="open to all clients"):
        check_exposure(load_config(("braid.toml", settings), environment, {}).config)
    filled = re.sub(r'# (\w+ = )"<.*>"', rf'\1"{"0" * 64}"', settings)
    config = load_config(("braid.toml", filled), environment, {}).config
    check_exposure(config)
    assert (config.listeners.flux.host, config.admin.host) == ("0.0.0.0", "0.0.0.0")
    assert container["command"][:2] == ["braid", "serve"]
    assert _serve_options(container["command"][2:])["data_dir"] == "/data"
    assert "Usage:" in Braid().fails(2, "generate", "k8s")


def test_a_unit_of_several_nodes_says_what_differs_and_its_settings_are_settings(tmp_path: Path) -> None:
    text = Braid().ok("generate", "systemd", "--program", "/opt/braid", "--nodes", "3")
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    assert unit["Service"]["EnvironmentFile"] == "/etc/braidlog/node.env"
    assert unit["Service"]["KillMode"] == "mixed"
    settings = dict(re.findall(r"^#   (BRAID_\w+)=(.*)$", text, re.MULTILINE))
    config = load_config(None, settings, {}).config
    assert (config.node, config.cluster.is_embedded, config.cluster.peers.host) == ("1", True, "10.0.0.1")
    assert config.cluster.endpoints == [f"https://10.0.0.{number}:2379" for number in (1, 2, 3)]
    assert config.cluster.member("1").ca == config.cluster.peers.ca, "members show certificates"
    assert {getattr(config.listeners, name).host for name in _listeners()} == {"10.0.0.1"}
    braid_words = re.search(r"braid (cluster certificates) (\S+) (.*)$", text, re.MULTILINE)
    assert braid_words is not None
    made = tmp_path / "made"
    Braid().ok(*braid_words[1].split(), str(made), *braid_words[3].split())
    for path in (config.cluster.peers.ca, config.cluster.peers.cert, config.cluster.peers.key):
        assert (made / Path(path).name).exists()
    single = Braid().ok("generate", "systemd", "--program", "/opt/braid")
    assert "etcd" not in single
    assert "EnvironmentFile" not in single


def test_manifests_of_several_nodes(tmp_path: Path) -> None:
    text = Braid().ok("generate", "k8s", "--image", "i", "--name", "mylog", "--nodes", "3")
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    kinds = ("Secret", "Service", "StatefulSet", "PodDisruptionBudget")
    assert set(found) == {(kind, "mylog") for kind in kinds}
    spec = found["StatefulSet", "mylog"]["spec"]
    budget = found["PodDisruptionBudget", "mylog"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert (spec["replicas"], spec["podManagementPolicy"], spec["serviceName"]) == (3, "Parallel", "mylog")
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
    (apart,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (apart["labelSelector"]["matchLabels"], apart["topologyKey"]) == (labels, "kubernetes.io/hostname")
    assert found["Service", "mylog"]["spec"]["publishNotReadyAddresses"] is True
    (container,) = found["StatefulSet", "mylog"]["spec"]["template"]["spec"]["containers"]
    pod = {"POD": "mylog-2", "NAMESPACE": "ns", "BRAID_NODE": "2"}
    environment = {
        each["name"]: re.sub(r"\$\((\w+)\)", lambda word: pod[word[1]], each["value"])
        for each in container["env"]
        if each["name"].startswith("BRAID_") and "value" in each
    }
    config = load_config(None, environment | {"BRAID_NODE": "2"}, {}).config
    hosts = [f"mylog-{number}.mylog.ns.svc" for number in (2, 0, 1)]
    assert config.cluster.endpoints == [f"https://{host}:2379" for host in hosts], "its own member first"
    member = config.cluster.member("2")
    assert (member.name, member.peer_url, member.ca) == ("2", f"https://{hosts[0]}:2380", config.cluster.peers.ca)
    assert config.cluster.peers.advertised == "mylog-2.mylog.ns.svc"
    assert {getattr(config.listeners, name).advertised_host for name in _listeners()} == {"mylog-2.mylog.ns.svc"}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert (ports["gossip"], ports["replicas"]) == (config.cluster.peers.gossip_port, config.cluster.peers.replica_port)
    (numbered,) = re.findall(r"braid cluster certificates \S+ (.*)$", text, re.MULTILINE)
    assert [each.partition("=")[2] for each in numbered.split()] == [
        f"mylog-{number}.mylog.default.svc" for number in (0, 1, 2)
    ]
    Braid().ok("cluster", "certificates", str(tmp_path / "made"), *numbered.split())
    assert (tmp_path / "made" / Path(config.cluster.peers.cert).name).exists()
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(Path(config.cluster.peers.cert).parent) in mounted


def test_prometheus_and_grafana() -> None:
    text = Braid().ok("generate", "prometheus", "--target", "n1:9644", "--token-file", "/run/token")
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["n1:9644"]}]
    assert job["metrics_path"] == "/metrics"
    assert job["authorization"] == {"credentials_file": "/run/token"}
    assert "credentials" not in Braid().ok("generate", "prometheus")
    several = yaml.safe_load(
        Braid().ok("generate", "prometheus", "--target", "n1:1", "--target", "n2:1", "--name", "l")
    )
    assert several["scrape_configs"][0]["static_configs"] == [{"targets": ["n1:1", "n2:1"]}]
    assert several["rule_files"] == ["l-rules.yml"]
    for words, groups in (
        ((), ["recordings", "alerts"]),
        (("--nodes", "3"), ["recordings", "alerts", "cluster-alerts"]),
        (("--target", "n1:1", "--target", "n2:1"), ["recordings", "alerts", "cluster-alerts"]),
    ):
        rules = yaml.safe_load(Braid().ok("generate", "prometheus", "--rules", "--name", "l", *words))
        assert [each["name"] for each in rules["groups"]] == [f"l-{group}" for group in groups]
    result = Braid()("generate", "grafana")
    if result.exit_code == 0:
        assert json.loads(result.stdout)["title"]
    else:
        assert (result.exit_code, result.stderr) == (
            4,
            "braid: console/grafana.json is missing; reinstall braidlog\n",
        )


# -- config init -------------------------------------------------------------------------------------------------------


def test_the_settings_file_changes_nothing_and_has_everything(tmp_path: Path) -> None:
    braid, file = Braid(), tmp_path / "braid.toml"
    assert braid.ok("config", "init", str(file)) == f"wrote {file}\n"
    text = file.read_text(encoding="utf-8")
    assert load_config(("file", text), {}, {}).config == ServerConfig()
    uncommented = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines()[1:])
    loaded = load_config(("file", uncommented), {}, {})
    assert loaded.config == ServerConfig()
    assert {name for name, origin in loaded.origins.items() if origin == "default"} == set()
    assert "already exists" in braid.fails(3, "config", "init", str(file))
    file.write_text("node = 'x'\n")
    braid.ok("config", "init", str(file), "--force")
    assert file.read_text(encoding="utf-8") == text == braid.ok("config", "init", "-") == template()
    missing = str(tmp_path / "missing.toml")
    assert f"file not found: {missing}; create it with `braid config init {missing}`" in braid.fails(
        3, "config", "check", "-c", missing
    )
    assert "No such file" in braid.fails(3, "config", "init", str(tmp_path / "absent" / "braid.toml"))


def test_notes_are_about_settings_that_there_are() -> None:
    values = tomllib.loads(
        "\n".join(line.removeprefix("# ") for line in template().splitlines() if " = " in line or "[" in line[:1])
    )
    for dotted in NOTES:
        place: Any = values
        for name in dotted.split("."):
            assert name in place, dotted
            place = place[name]


# -- completion --------------------------------------------------------------------------------------------------------


def test_bash_completes() -> None:
    """As bash asks for it, with what it was told to run."""
    script = Braid().ok("completion", "bash")
    assert "_BRAID_COMPLETE=bash_complete" in script
    for words, expected in (
        ("braid to", "topic"),
        ("braid topic de", "describe\nplain,delete"),
        ("braid topic list --ser", "--server"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "braidlog.cli"],
            env={
                **os.environ,
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
                "_BRAID_COMPLETE": "bash_complete",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == f"plain,{expected}\n", done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(shell: str) -> None:
    assert f"_BRAID_COMPLETE={shell}_complete" in Braid().ok("completion", shell)


def test_other_shells() -> None:
    assert "Usage:" in Braid().fails(2, "completion", "tcsh")
