"""`braid cluster drain`: moves leadership away from a node, which keeps following."""

import threading
import time
from typing import Final

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import TEXT_OR_JSON, hint, plural, print_json
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import ClusterInfo, ClusterPartition

PAUSE_SECONDS: Final = 0.1
MOVE_SECONDS_MAX: Final = 15.0
NAMED_MAX: Final = 10


class DrainReport(msgspec.Struct, frozen=True):
    """Output of `braid cluster drain -o json`. `leads`: the partitions that the node still leads, each with a reason."""

    node: int
    draining: bool
    leads: list["StillLed"]


class StillLed(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    reason: str


def still_led(info: ClusterInfo, node: int) -> list[StillLed]:
    """Return the partitions that a drained node still leads."""
    may_lead = {each.node for each in info.nodes if each.alive and not each.draining and each.node != node}
    return [
        StillLed(each.topic, each.partition, _reason(each, may_lead)) for each in info.partitions if each.leader == node
    ]


def _reason(each: ClusterPartition, may_lead: set[int]) -> str:
    if may_lead & {*each.in_sync}:
        return ""
    others = ", ".join(str(other) for other in each.replicas if other != each.leader)
    return f"no other eligible replica is in sync (on: {others})" if others else "it has no other replica"


@click.command(epilog="Example: braid cluster drain 2")
@click.argument("number", metavar="NODE", type=click.IntRange(min=0))
@click.option("--undo", is_flag=True, help="End the drain. A restart of the node ends it, too.")
@TEXT_OR_JSON
@with_client
def drain(client: Client, number: int, *, undo: bool, output: str) -> None:
    """Move leadership of all partitions away from NODE.

    NODE keeps running and following; it leads no partition until --undo or its next start. Leadership moves to in-sync
    replicas, so no record is lost and clients reconnect automatically. Partitions that no other node can lead stay, and
    are listed with the reason; the exit code is then 1. Groups, transactions and keys do not move.
    """
    client.admin.drain_node(number, is_draining=not undo)
    left = [] if undo else _wait(client, number)
    if output == "json":
        print_json(DrainReport(number, not undo, left))
    elif undo:
        click.echo(f"node {number} may lead again")
        hint("braid cluster elect")
    else:
        _tell(number, left)
    if left:
        end(NO)


def _wait(client: Client, number: int) -> list[StillLed]:
    """Wait until the node leads no partition that another node could lead; return those that stay."""
    pause, until = threading.Event(), time.monotonic() + MOVE_SECONDS_MAX
    while True:
        left = still_led(client.admin.describe_cluster(), number)
        if all(each.reason for each in left):
            return left
        if time.monotonic() >= until:
            late = f"not moved within {MOVE_SECONDS_MAX:g} s: check the controller: braid cluster status"
            return [msgspec.structs.replace(each, reason=each.reason or late) for each in left]
        pause.wait(PAUSE_SECONDS)


def _tell(number: int, left: list[StillLed]) -> None:
    if not left:
        click.echo(f"node {number} no longer leads any partition; it keeps following")
        hint(f"braid cluster drain {number} --undo")
        return
    click.echo(f"node {number} is draining, and still leads {plural(len(left), 'partition')}:")
    for each in left[:NAMED_MAX]:
        click.echo(f"  {each.topic}/{each.partition}: {each.reason}")
    if len(left) > NAMED_MAX:
        click.echo(f"  and {len(left) - NAMED_MAX} more")
