"""`braid doctor`: checks this machine and its data folder (`tools/doctor.py`)."""

import asyncio
import itertools
from collections.abc import Iterator

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.node.serve import load_settings
from braidlog.cli.terminal.output import OUTPUT, QUIET, hint, paint, print_json
from braidlog.cluster.etcd.port import EtcdError
from braidlog.server.config import ListenersConfig
from braidlog.server.etcd.cluster_config import ClusterConfig
from braidlog.server.etcd.health import ask_members
from braidlog.tools.doctor import Finding, Status, etcd_findings, examine


class Examination(msgspec.Struct, frozen=True):
    """Output of `braid doctor -o json`."""

    fit: bool
    findings: list[Finding]


_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@click.command(epilog="Example: braid doctor --data-dir /var/lib/braidlog")
@click.option("--config", "-c", metavar="FILE", help="Settings file of the node.")
@click.option("--data-dir", metavar="FOLDER", help="Data folder.  [default: as in `braid config show`]")
@OUTPUT
@QUIET
def doctor(config: str | None, data_dir: str | None, output: str) -> None:
    """Check this machine: Python, compiled kernel, disk and sync latency, ports, open files, clock, Java and packages.

    If the settings name a cluster, also checks the health of each etcd member. If a node has run, also reads its
    partitions for some seconds and lists those that are damaged.

    `fail`: keeps a node or a partition from working. `warn`: missing for some uses, slow, or not checked. Exits with 1
    if anything fails.
    """
    settings = load_settings(config, data_dir, (), {}).config
    listeners = {name: getattr(settings.listeners, name) for name in ListenersConfig.__struct_fields__}
    ports = {f"listeners.{name}.port": each.port for name, each in listeners.items() if each.enabled}
    if settings.admin.enabled:
        ports["admin.port"] = settings.admin.port
    findings = []
    for found in itertools.chain(examine(settings.data_dir, ports), _etcd(settings.cluster)):
        findings.append(found)
        if output == "table":
            _print(found)
    fit = all(found.status is not Status.FAIL for found in findings)
    if output == "json":
        print_json(Examination(fit, findings))
    if not fit:
        end(NO)
    hint("braid dev")


def _etcd(config: ClusterConfig) -> Iterator[Finding]:
    if not config.etcd:
        return
    try:
        members = asyncio.run(ask_members(config))
    except EtcdError as error:
        remedy = "start the cluster's nodes, or check [cluster] etcd"
        yield Finding("etcd", Status.WARN, f"no member answers: {error}", remedy)
    else:
        yield from etcd_findings([(each.number, each.name, each.url, each.trouble) for each in members])


def _print(found: Finding) -> None:
    click.echo(f"{paint(f'{found.status:4}', _COLOURS[found.status])}  {found.check:12}  {found.detail}")
    if found.remedy:
        click.echo(f"{'':20}-> {found.remedy}")
