"""`braid node`: describes nodes.

A node that does not answer, or is not a braidlog node, is described as far as the other nodes know it.
"""

from typing import Any

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.cluster.inspect import NodeRow, rows_of
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import OUTPUT, hint, paint, plural, print_json, print_table, size
from braidlog.cli.terminal.watch import watched
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import LogFolder
from braidlog.client.errors import ClientError, Refusal, RefusedError, UnsupportedError
from braidlog.model.address import show_address
from braidlog.model.reporting.node_report import Check, NodeDescription

TOPICS_SHOWN = 10


class NodeNumber(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in newer clicks only
    name = "node"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is not a node number; `braid node` without a number describes all nodes", param, ctx)


class ListenerRow(msgspec.Struct, frozen=True):
    """A listener of a node, with the number of open connections."""

    protocol: str
    address: str
    tls: bool
    serving: bool
    connections: int


class ProcessRow(msgspec.Struct, frozen=True):
    """The node's process. `loop_lag_seconds`: delay of the event loop at its last timer."""

    pid: int
    uptime_seconds: float
    cpu_seconds: float
    resident_bytes: int
    open_files: int
    open_files_max: int
    connections: int
    connections_max: int
    loop_lag_seconds: float


class NodeFacts(msgspec.Struct, frozen=True):
    """Row of `braid node -o json`. `placement`: as in `braid cluster nodes`. If the node did not answer, `version` and
    `process` are null, `listeners` and `checks` are empty, and `silence` says why."""

    placement: NodeRow
    version: str | None
    kernel: str | None
    python: str | None
    process: ProcessRow | None
    listeners: list[ListenerRow]
    folders: list[LogFolder]
    checks: list[Check]
    silence: str | None

    @property
    def is_well(self) -> bool:
        return self.placement.alive and self.silence is None and all(check.ok for check in self.checks)


def facts_of(client: Client, row: NodeRow) -> NodeFacts:
    """Describe a node; a fenced node is not queried, since it would not answer."""
    if not row.alive:
        return _facts(row, None, [], "fenced: the node is stopped or unreachable")
    folders: list[LogFolder] = []
    try:
        folders = client.admin.log_folders(row.node)
        told = client.admin.describe_node(row.node)
    except UnsupportedError as error:
        return _facts(row, None, folders, str(error))
    except ClientError as error:
        if isinstance(error, RefusedError) and error.reason is Refusal.NOT_ALLOWED:
            raise
        return _facts(row, None, folders, f"no answer: {error}")
    room = {told.data_dir: (told.disk_bytes, told.disk_free_bytes)}
    return _facts(row, told, [_with_room(each, *room.get(each.path, (-1, -1))) for each in folders], None)


def _with_room(folder: LogFolder, total: int, free: int) -> LogFolder:
    if total < 0 or folder.total_bytes is not None:
        return folder
    return msgspec.structs.replace(folder, total_bytes=total, free_bytes=free)


def _facts(row: NodeRow, told: NodeDescription | None, folders: list[LogFolder], silence: str | None) -> NodeFacts:
    if told is None:
        return NodeFacts(row, None, None, None, None, [], folders, [], silence)
    now, process = told.snapshot, told.snapshot.process
    listeners = [
        ListenerRow(each.dialect, show_address((each.host, each.port)), each.is_tls, each.is_serving, each.connections)
        for each in now.listeners
    ]
    figures = ProcessRow(
        process.pid,
        now.uptime_seconds,
        process.cpu_seconds,
        process.resident_bytes,
        process.open_files,
        process.open_files_max,
        now.connections,
        now.connections_max,
        process.loop_lag_seconds,
    )
    return NodeFacts(row, told.version, told.kernel, told.python, figures, listeners, folders, told.checks, silence)


@click.command(
    epilog="""\b
Example:
  braid node                     all nodes
  braid node 2 --topics          node 2, and how many bytes each topic has there
  braid node -o json | jq '.[].process.resident_bytes'
"""
)
@click.argument("nodes", nargs=-1, type=NodeNumber(), metavar="[NODE]...")
@click.option(
    "--topics", "every_topic", is_flag=True, help=f"Show all topics of a folder instead of the {TOPICS_SHOWN} largest."
)
@OUTPUT
@with_client
@watched
def node(client: Client, nodes: tuple[int, ...], *, every_topic: bool, output: str) -> None:
    """Describe each NODE, or all nodes: version, uptime, memory, connections, listeners, data folders and health.

    Data folders are shown with the size of each topic and the free space on their disk. Exits with 1 if a check fails or
    a node does not answer.
    """
    rows = rows_of(client.admin.describe_cluster())
    missing = sorted(set(nodes) - {row.node for row in rows})
    if missing:
        there = ", ".join(str(row.node) for row in rows)
        end(NO, f"unknown node {missing[0]}; nodes: {there}")
    found = [facts_of(client, row) for row in rows if not nodes or row.node in nodes]
    if output == "json":
        print_json(found)
    else:
        for at, each in enumerate(found):
            if at:
                click.echo()
            _print(each, None if every_topic else TOPICS_SHOWN)
    if not all(each.is_well for each in found):
        end(NO)
    hint("braid cluster doctor", "braid support bundle")


def _print(facts: NodeFacts, topics_max: int | None) -> None:
    row = facts.placement
    state = "fenced" if not row.alive else "draining" if row.draining else "alive"
    role = ", controller" if row.controller else ""
    click.echo(f"node {row.node} at {row.address}: {paint(state, 'green' if row.alive else 'red')}{role}")
    if facts.process is not None:
        process = facts.process
        click.echo(
            f"  braidlog {facts.version} (kernel {facts.kernel}, Python {facts.python}), up {_lasting(process.uptime_seconds)}"
        )
        click.echo(
            f"  {size(process.resident_bytes)} of memory, {process.connections} of {process.connections_max} connections, "
            f"{process.open_files} of {process.open_files_max} files, {process.cpu_seconds:.0f} s CPU time"
        )
    click.echo(f"  leads {plural(row.leads, 'partition')}, holds {row.holds}, in sync {row.in_sync}")
    if facts.listeners:
        cells = [
            [each.protocol, each.address, "yes" if each.tls else "no", each.connections] for each in facts.listeners
        ]
        print_table(["PORT", "ADDRESS", "TLS", "CONNECTIONS"], cells, indent="  ")
    for folder in facts.folders:
        _print_folder(folder, topics_max)
    for check in facts.checks:
        if check.reason:
            click.echo(
                f"  {paint('warning', 'yellow') if check.ok else paint('wrong', 'red')}  {check.name}: {check.reason}"
            )
    if facts.silence is not None:
        click.echo(f"  {paint('wrong', 'red')}  {facts.silence}")
    elif facts.is_well:
        click.echo(f"  {paint('ready', 'green')}")


def _print_folder(folder: LogFolder, topics_max: int | None) -> None:
    room = ""
    if folder.total_bytes is not None and folder.free_bytes is not None:
        room = f", {size(folder.free_bytes)} of {size(folder.total_bytes)} free"
    click.echo(f"  {folder.path}: {size(sum(folder.topics.values()))} in {plural(len(folder.topics), 'topic')}{room}")
    largest = sorted(folder.topics.items(), key=lambda item: (-item[1], item[0]))
    shown = largest[:topics_max]
    if shown:
        print_table(["TOPIC", "SIZE"], [[name, size(count)] for name, count in shown], indent="    ")
    if len(largest) > len(shown):
        click.echo(f"    and {plural(len(largest) - len(shown), 'topic')} more: --topics")


def _lasting(seconds: float) -> str:
    """Format a duration in its two largest units."""
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
