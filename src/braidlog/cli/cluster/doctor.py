"""`braid cluster doctor`: diagnoses a cluster and suggests remedies. Exit code 1 if it finds a problem."""

import ipaddress
from collections import Counter
from typing import Final

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.cluster.inspect import lacking_topics
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import OUTPUT, named, paint, print_json
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import ClusterInfo

UNEVEN: Final = 2
"""A node that leads this many times its share is reported."""


class Finding(msgspec.Struct, frozen=True):
    """A problem, and its remedy (`advice`)."""

    what: str
    advice: str


def examine(info: ClusterInfo) -> list[Finding]:
    """Return all problems, worst first."""
    return [
        *_leaderless(info),
        *_leaderless_slots(info),
        *_dead(info),
        *_draining(info),
        *_under_replicated(info),
        *_lacking(info),
        *_weak_slots(info),
        *_addresses(info),
        *_alone(info),
        *_uneven(info),
    ]


def _leaderless(info: ClusterInfo) -> list[Finding]:
    places = [f"{each.topic}/{each.partition}" for each in info.partitions if each.leader is None]
    advice = "start their nodes (braid cluster partitions --under-replicated): only they have the acknowledged records"
    return [Finding(f"without a leader: {named(places)}", advice)] if places else []


def _leaderless_slots(info: ClusterInfo) -> list[Finding]:
    numbers = [str(each.partition) for each in info.weak_slots if each.leader is None]
    holders = {node for each in info.weak_slots if each.leader is None for node in each.replicas}
    advice = f"start the nodes that hold them: {', '.join(map(str, sorted(holders)))}"
    return [Finding(f"no node serves the keys of slots {named(numbers)}", advice)] if numbers else []


def _dead(info: ClusterInfo) -> list[Finding]:
    return [
        Finding(
            f"node {node.node} ({node.host}:{node.port}) is fenced",
            "start it again; its log says why it stopped",
        )
        for node in info.nodes
        if not node.alive
    ]


def _draining(info: ClusterInfo) -> list[Finding]:
    return [
        Finding(
            f"node {node.node} is draining: it leads no partition",
            f"after the maintenance: braid cluster drain {node.node} --undo, or start it again",
        )
        for node in info.nodes
        if node.alive and node.draining
    ]


def _under_replicated(info: ClusterInfo) -> list[Finding]:
    alive = {node.node for node in info.nodes if node.alive}
    places = [
        f"{each.topic}/{each.partition}"
        for each in info.partitions
        if each.leader is not None and set(each.in_sync) < set(each.replicas) <= alive
    ]
    advice = "all their nodes are alive: wait until they catch up; check their disks and network if they do not"
    return [Finding(f"replicas are behind: {named(places)}", advice)] if places else []


def _lacking(info: ClusterInfo) -> list[Finding]:
    advice = "the cluster adds the replicas once enough nodes are live: start the offline nodes, or end their drain"
    text = f"fewer replicas than the replication factor: {lacking_topics(info)}"
    return [Finding(text, advice)] if info.lacking else []


def _weak_slots(info: ClusterInfo) -> list[Finding]:
    alive = {node.node for node in info.nodes if node.alive}
    led = [each for each in info.weak_slots if each.leader is not None]
    places = [str(each.partition) for each in led if set(each.replicas) <= alive]
    few = [str(each.partition) for each in led if len(each.in_sync) * 2 <= len(each.replicas)]
    advice = "all their nodes are alive: wait until they catch up; check their disks and network if they do not"
    found = [Finding(f"replicas of keys are behind: slots {named(places)}", advice)] if places else []
    if few:
        advice = "only consistency ONE is available: start the offline nodes, or wait until they catch up"
        found.insert(0, Finding(f"no majority is in sync: slots {named(few)}", advice))
    return found


def _addresses(info: ClusterInfo) -> list[Finding]:
    hosts = {node.host for node in info.nodes}
    loopback = sorted(host for host in hosts if _is_loopback(host))
    if len(hosts) < 2 or not loopback:
        return []
    advice = "set listeners.*.advertised_host on those nodes to a name that clients on other machines can resolve"
    return [Finding(f"nodes advertise loopback addresses to clients: {', '.join(loopback)}", advice)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _alone(info: ClusterInfo) -> list[Finding]:
    if len(info.nodes) < 2:
        return []
    places = [f"{each.topic}/{each.partition}" for each in info.partitions if len(each.replicas) == 1]
    advice = "they are lost if their node's disk fails: add replicas on other nodes"
    return [Finding(f"no other replica: {named(places)}", advice)] if places else []


def _uneven(info: ClusterInfo) -> list[Finding]:
    alive = [node.node for node in info.nodes if node.alive]
    leads = Counter(each.leader for each in info.partitions if each.leader is not None)
    share = sum(leads.values()) / max(len(alive), 1)
    found = [node for node in alive if leads[node] > UNEVEN * share and leads[node] > len(alive)]
    return [
        Finding(
            f"node {node} leads {leads[node]} partitions, at least twice its share",
            "preferred leaders are elected automatically after some minutes without changes",
        )
        for node in found
    ]


@click.command(epilog="Example: braid cluster doctor || echo unhealthy")
@OUTPUT
@with_client
def doctor(client: Client, output: str) -> None:
    """Diagnose cluster problems and suggest remedies; exit with 1 if there are any."""
    found = examine(client.admin.describe_cluster())
    if output == "json":
        print_json(found)
    elif not found:
        click.echo("No problems found.")
    else:
        for each in found:
            click.echo(f"{paint('wrong', 'red')}  {each.what}\n       {each.advice}")
    if found:
        end(NO)
