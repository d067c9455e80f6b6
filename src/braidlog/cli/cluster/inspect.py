"""`braid cluster status`, `nodes`, `partitions`: the state of a cluster as tables and JSON."""

import click
import msgspec
from msgspec.structs import astuple

from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import OUTPUT, hint, named, plural, print_json, print_table
from braidlog.cli.terminal.watch import watched
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import ClusterInfo, ClusterPartition
from braidlog.model.address import show_address


class StatusReport(msgspec.Struct, frozen=True):
    """Output of `braid cluster status -o json`. `leaderless`, `under_replicated` and `below_replication_factor` count
    partitions."""

    cluster_id: str
    controller: int
    nodes: int
    nodes_alive: int
    partitions: int
    under_replicated: int
    leaderless: int
    slots: int = 0
    """Slots of keys; 0: a single node has all keys."""
    slots_under_replicated: int = 0
    slots_leaderless: int = 0
    below_replication_factor: int = 0
    """Partitions with fewer replicas than their topic's replication factor."""


class NodeRow(msgspec.Struct, frozen=True):
    """Row of `braid cluster nodes -o json`. `leads`, `holds`, `in_sync` count partitions."""

    node: int
    address: str
    rack: str
    alive: bool
    draining: bool
    controller: bool
    leads: int
    holds: int
    in_sync: int


def status_of(info: ClusterInfo) -> StatusReport:
    return StatusReport(
        info.cluster_id,
        info.controller,
        len(info.nodes),
        sum(node.alive for node in info.nodes),
        len(info.partitions),
        sum(each.is_under_replicated for each in info.partitions),
        sum(each.leader is None for each in info.partitions),
        info.slots,
        len(info.weak_slots),
        sum(each.leader is None for each in info.weak_slots),
        sum(each.partitions for each in info.lacking),
    )


def rows_of(info: ClusterInfo) -> list[NodeRow]:
    return [
        NodeRow(
            node.node,
            show_address((node.host, node.port)),
            node.rack,
            node.alive,
            node.draining,
            node.node == info.controller,
            sum(each.leader == node.node for each in info.partitions),
            sum(node.node in each.replicas for each in info.partitions),
            sum(node.node in each.in_sync for each in info.partitions),
        )
        for node in info.nodes
    ]


@click.command(epilog="Example: braid cluster status -o json")
@OUTPUT
@with_client
@watched
def status(client: Client, output: str) -> None:
    """Summarize cluster health: live nodes, and partitions and slots without a replica or a leader."""
    info = client.admin.describe_cluster()
    found = status_of(info)
    if output == "json":
        print_json(found)
        return
    click.echo(f"cluster {found.cluster_id}: {found.nodes_alive} of {plural(found.nodes, 'node')} alive")
    click.echo(f"controller: node {found.controller}")
    click.echo(f"{plural(found.partitions, 'partition')}: {_fitness(found.under_replicated, found.leaderless)}")
    if found.below_replication_factor:
        click.echo(
            f"{plural(found.below_replication_factor, 'partition')} below the replication factor: {lacking_topics(info)}"
        )
    if found.slots:
        click.echo(f"{found.slots} slots of keys: {_fitness(found.slots_under_replicated, found.slots_leaderless)}")
    if found.under_replicated or found.below_replication_factor or found.slots_under_replicated:
        hint("braid cluster partitions --under-replicated", "braid cluster doctor")


def lacking_topics(info: ClusterInfo) -> str:
    """Name the topics with fewer replicas than their replication factor."""
    return named([f"{each.topic} (replication factor {each.replication_factor})" for each in info.lacking])


def _fitness(under_replicated: int, leaderless: int) -> str:
    if not under_replicated:
        return "all have a leader, all replicas are in sync"
    words = f"{under_replicated} under-replicated"
    return f"{words}, {leaderless} of them without a leader" if leaderless else words


@click.command(epilog="Example: braid cluster nodes")
@OUTPUT
@with_client
@watched
def nodes(client: Client, output: str) -> None:
    """List nodes: address, state, and how many partitions each leads, holds and has in sync."""
    rows = rows_of(client.admin.describe_cluster())
    if output == "json":
        print_json(rows)
        return
    head = ["NODE", "ADDRESS", "RACK", "STATE", "LEADS", "HOLDS", "IN SYNC"]
    shown = [
        [
            f"{row.node}{' (controller)' if row.controller else ''}",
            row.address,
            row.rack,
            "fenced" if not row.alive else "draining" if row.draining else "alive",
            *(row.leads, row.holds, row.in_sync),
        ]
        for row in rows
    ]
    print_table(head, shown)


@click.command(epilog="Example: braid cluster partitions orders --under-replicated")
@click.argument("topic", required=False)
@click.option("--under-replicated", is_flag=True, help="Only partitions that lack an in-sync replica or a leader.")
@OUTPUT
@with_client
@watched
def partitions(client: Client, topic: str | None, *, under_replicated: bool, output: str) -> None:
    """List partitions, of TOPIC or of all topics: leader, leader epoch, replicas and in-sync replicas."""
    found = [
        each
        for each in client.admin.describe_cluster().partitions
        if topic in (None, each.topic) and (each.is_under_replicated or not under_replicated)
    ]
    if output == "json":
        print_json(found)
        return
    if not found:
        click.echo("No partition is under-replicated." if under_replicated else "No partitions.")
        return
    head = ["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "OFFLINE"]
    print_table(head, map(_cells, found))


def _cells(each: ClusterPartition) -> list[object]:
    topic, number, leader, epoch, *nodes = astuple(each)
    return [topic, number, "none" if leader is None else leader, epoch, *(", ".join(map(str, some)) for some in nodes)]
