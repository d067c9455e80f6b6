"""`braid doctor`: is this machine fit, and is the folder whole?

Knows: how findings look, and which exit code they are. Refuses to know: what is checked (`tools/doctor.py`).
"""

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
    """What `braid doctor -o json` prints."""

    fit: bool
    findings: list[Finding]


_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@click.command(epilog="Example: braid doctor --data-dir /var/lib/braidlog")
@click.option("--config", "-c", metavar="FILE", help="Settings in TOML, those of the node.")
@click.option("--data-dir", metavar="FOLDER", help="Where the log would live.  [default: as `braid config show` says]")
@OUTPUT
@QUIET
def doctor(config: str | None, data_dir: str | None, output: str) -> None:
    """Check this machine: Python and the compiled kernel, the disk and how long it takes to keep a byte, ports, open files, the
    clock; and for Spark and lakes Java and packages. Where the settings name a cluster, ask each member of etcd for its health.
    Where a node has run, also its partitions, as far as they can be read in some seconds: those that are damaged are named.

    `fail` is what keeps a node or a partition from working, `warn` what some uses lack, what is slow or was not looked at. Exits
    with 1 if anything fails.
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
        remedy = "start the nodes of the cluster, or check [cluster] etcd"
        yield Finding("etcd", Status.WARN, f"no member answers: {error}", remedy)
    else:
        yield from etcd_findings([(each.number, each.name, each.url, each.trouble) for each in members])


def _print(found: Finding) -> None:
    click.echo(f"{paint(f'{found.status:4}', _COLOURS[found.status])}  {found.check:12}  {found.detail}")
    if found.remedy:
        click.echo(f"{'':20}-> {found.remedy}")
