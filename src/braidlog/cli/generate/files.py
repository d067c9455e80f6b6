"""`braid generate systemd`, `k8s`, `compose`, `prometheus`, `grafana`: print the files of `tools/deployment/manifests.py`."""

import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import click

from braidlog.cli import FAULT, end
from braidlog.cli.terminal.output import QUIET, hint
from braidlog.model.reporting.node_report import ADMIN_PORT
from braidlog.server.config import ListenersConfig
from braidlog.tools.deployment.alerts import rules
from braidlog.tools.deployment.manifests import Deployment, compose, kubernetes, prometheus, systemd

NODES = click.option(
    "--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="Number of nodes of the cluster."
)
IMAGE = click.option("--image", required=True, help="Container image with braidlog, built by `make image`.")
NAME = click.option("--name", default="braidlog", show_default=True, help="Name of the service.")


def _ports() -> dict[str, int]:
    defaults = ListenersConfig()
    return {name: getattr(defaults, name).port for name in ListenersConfig.__struct_fields__}


def _wanted(**fields: Any) -> Deployment:  # noqa: ANN401 - the fields of a deployment
    return Deployment(ports=_ports(), admin_port=ADMIN_PORT, **fields)


@click.command("systemd", epilog="Example: braid generate systemd > /etc/systemd/system/braidlog.service")
@NAME
@click.option("--program", help="Path of braid.  [default: this program]")
@click.option("--config", default="/etc/braidlog/braid.toml", show_default=True, help="Settings file of the node.")
@NODES
@QUIET
def systemd_(name: str, program: str | None, config: str, nodes: int) -> None:
    """Print a systemd unit with its own user and folder, graceful stop and minimal privileges.

    With --nodes all machines use the same unit; its comments explain the settings that differ: addresses and certificates.
    """
    found = str(Path(program or _this_program()).absolute())
    click.echo(systemd(_wanted(name=name, program=found, config=config, nodes=nodes)), nl=False)
    hint("systemctl enable --now braidlog")


def _this_program() -> str:
    """Return the path of the running program; if run as a module, of `braid` beside its Python."""
    beside = Path(sys.executable).with_name("braid")
    for candidate in (sys.argv[0], str(beside)):
        if Path(candidate).name == "braid" and (found := shutil.which(candidate)):
            return found
    return shutil.which("braid") or "/usr/local/bin/braid"


@click.command("k8s", epilog="Example: braid generate k8s --image registry.example/braidlog:0.1 | kubectl apply -f -")
@NAME
@IMAGE
@click.option("--storage", default="20Gi", show_default=True, help="Size of the volume.")
@NODES
@QUIET
def k8s(name: str, image: str, storage: str, nodes: int) -> None:
    """Print a StatefulSet with a volume and probes, a Service, and a Secret with the settings.

    With --nodes pods run on different machines, and planned disruptions stop one pod at a time. Each pod runs a member
    of etcd, so the image needs etcd.
    """
    click.echo(kubernetes(_wanted(name=name, image=image, storage=storage, nodes=nodes)), nl=False)
    hint("kubectl apply -f -")


@click.command("compose", epilog="Example: braid generate compose --image braidlog:0.1.0 > compose.yaml")
@NAME
@IMAGE
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address of this machine that clients connect to, on which ports are published.",
)
@QUIET
def compose_(name: str, image: str, host: str) -> None:
    """Print a Compose file: one node in a container, with a volume, a health check and its settings."""
    click.echo(compose(_wanted(name=name, image=image, host=host)), nl=False)
    hint("docker compose up --detach")


@click.command(
    "prometheus", epilog=f"Example: braid generate prometheus --target node1:{ADMIN_PORT} --target node2:{ADMIN_PORT}"
)
@NAME
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=(f"127.0.0.1:{ADMIN_PORT}",),
    show_default=True,
    help="Admin port of a node; repeatable.",
)
@click.option("--token-file", default="", help="File from which Prometheus reads the admin token.")
@click.option("--rules", "wants_rules", is_flag=True, help="Print alerting and recording rules for rule_files instead.")
@NODES
@QUIET
def prometheus_(name: str, targets: tuple[str, ...], token_file: str, nodes: int, *, wants_rules: bool) -> None:
    """Print a Prometheus scrape configuration for nodes, or with --rules alerting rules.

    The rules include cluster alerts with --nodes, or with several targets.
    """
    if wants_rules:
        click.echo(rules(name, of_cluster=nodes > 1 or len(targets) > 1), nl=False)
        hint(f"promtool check rules {name}-rules.yml")
        return
    click.echo(prometheus(_wanted(name=name, admin=targets, token_file=token_file)), nl=False)
    hint("braid generate prometheus --rules")


@click.command("grafana", epilog="Example: braid generate grafana > braidlog-dashboard.json")
@QUIET
def grafana() -> None:
    """Print a dashboard of a node's metrics for import into Grafana."""
    file = resources.files("braidlog") / "console" / "grafana.json"
    if not file.is_file():
        end(FAULT, "console/grafana.json is missing; reinstall braidlog")
    click.echo(file.read_text(encoding="utf-8"), nl=False)
