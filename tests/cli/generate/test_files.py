"""`braid generate`: the files, judged by the schemas of those who read them.

What they say of a node: `cli/node/test_machine.py`.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.cli.braid import Braid
from tests.debian import Missing, have

from braidlog.model.errors import BrokerError
from braidlog.server.config import ServerConfig, check_exposure, load_config
from braidlog.wire.dialect import dialects

ROOT = Path(__file__).parents[3]
KUBERNETES = ("1.28", "1.34")
"""The oldest that the manifests of several nodes name, and a late one."""


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("nodes", ["1", "3"])
def test_kubernetes_knows_every_field_of_the_manifests(nodes: str, version: str) -> None:
    text = Braid().ok("generate", "k8s", "--image", "braidlog:1", "--nodes", nodes)
    for manifest in yaml.safe_load_all(text):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_noticed() -> None:
    text = Braid().ok("generate", "k8s", "--image", "braidlog:1").replace("readinessProbe", "readynessProbe")
    *_, stateful = yaml.safe_load_all(text)
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(stateful, KUBERNETES[0], strict=True)


def composed(*words: str) -> str:
    return Braid().ok("generate", "compose", "--image", "example/braidlog:1", *words)


def check_schema(schema: str, file: Path) -> "subprocess.CompletedProcess[str]":
    """The check of a package that carries the schemas of others: nothing is fetched."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compose_knows_every_field_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(composed(), encoding="utf-8")
    done = check_schema("vendor.compose-spec", file)
    assert done.returncode == 0, done.stdout
    file.write_text(composed().replace("stop_grace_period", "stop_grace"), encoding="utf-8")
    assert "stop_grace" in check_schema("vendor.compose-spec", file).stdout


def test_the_release_workflow_is_one() -> None:
    done = check_schema("vendor.github-workflows", ROOT / ".github/workflows/release.yml")
    assert done.returncode == 0, done.stdout


def pieces(text: str) -> tuple[dict[str, Any], str]:
    """The one service, and its settings."""
    found = yaml.safe_load(text)
    (service,) = found["services"].values()
    return service, found["configs"]["settings"]["content"]


def test_the_compose_file_names_what_there_is() -> None:
    service, settings = pieces(composed("--host", "10.0.0.7", "--name", "mylog"))
    config = ServerConfig()
    ports = {getattr(config.listeners, name).port for name in dialects()} | {config.admin.port}
    assert set(service["ports"]) == {f"10.0.0.7:{port}:{port}" for port in ports}
    assert all(each.startswith("127.0.0.1:") for each in pieces(composed())[0]["ports"])
    with pytest.raises(BrokerError, match="open to all clients"):
        check_exposure(load_config(("braid.toml", settings), service["environment"], {}).config)
    filled = settings.replace("# app", "app").replace("# token", "token")
    for word in ("application", "operator"):
        filled = filled.replace(f"<SHA-256 of the {word} token>", "0" * 64)
    told = load_config(("braid.toml", filled), service["environment"], {}).config
    check_exposure(told)
    assert (told.listeners.kafka.advertised_host, told.listeners.flux.host) == ("10.0.0.7", "0.0.0.0")
    assert service["entrypoint"][:2] == ["braid", "serve"]
    assert service["image"] == "example/braidlog:1"


def users() -> Iterator[str]:
    """Who runs a node, in every file that says it."""
    (stateful,) = (
        each
        for each in yaml.safe_load_all(Braid().ok("generate", "k8s", "--image", "i"))
        if each["kind"] == "StatefulSet"
    )
    yield str(stateful["spec"]["template"]["spec"]["securityContext"]["runAsUser"])
    yield pieces(composed())[0]["user"].partition(":")[0]
    containerfile = (ROOT / "release/Containerfile").read_text(encoding="utf-8")
    yield containerfile.partition("\nUSER ")[2].partition(":")[0]


def test_image_and_manifests_agree_on_the_user_the_folder_and_the_ports() -> None:
    assert set(users()) == {"10001"}
    containerfile = (ROOT / "release/Containerfile").read_text(encoding="utf-8")
    config = ServerConfig()
    ports = {getattr(config.listeners, name).port for name in dialects()} | {config.admin.port}
    assert {int(each) for each in containerfile.partition("\nEXPOSE ")[2].partition("\n")[0].split()} == ports
    assert "VOLUME /data" in containerfile


@pytest.mark.parametrize("nodes", ["1", "3"])
def test_systemd_knows_every_line_of_the_unit(nodes: str, tmp_path: Path) -> None:
    try:
        have("systemd-analyze", "systemd")
    except Missing as missing:
        pytest.skip(str(missing))
    unit = tmp_path / "braidlog.service"
    text = Braid().ok("generate", "systemd", "--program", "/bin/true", "--nodes", nodes)
    for wrong, said in (("", ""), ("ProtectClok=yes", "Unknown key")):
        unit.write_text(text.replace("[Service]\n", f"[Service]\n{wrong}\n"), encoding="utf-8")
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0
        mine = [line for line in done.stderr.splitlines() if str(unit) in line or unit.name in line]
        assert said in "".join(mine)
        assert bool(mine) == bool(wrong), done.stderr
