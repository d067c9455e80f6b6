"""`braid cluster drain`: a node leads nothing, and stays.

Knows: what to ask, how long to watch, what to say. Refuses to know: who leads next (the nodes decide).
"""

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
    """What `braid cluster drain -o json` prints. `leads`: the partitions that it still leads, and why (`reason`)."""

    node: int
    draining: bool
    leads: list["StillLed"]


class StillLed(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    reason: str


def still_led(info: ClusterInfo, node: int) -> list[StillLed]:
    """What a node leads although it should not."""
    may_lead = {each.node for each in info.nodes if each.alive and not each.draining and each.node != node}
    return [
        StillLed(each.topic, each.partition, _reason(each, may_lead)) for each in info.partitions if each.leader == node
    ]


def _reason(each: ClusterPartition, may_lead: set[int]) -> str:
    if may_lead & {*each.in_sync}:
        return ""
    others = ", ".join(str(other) for other in each.replicas if other != each.leader)
    return f"no other replica that may lead is in sync (on: {others})" if others else "it has no other replica"


@click.command(epilog="Example: braid cluster drain 2")
@click.argument("number", metavar="NODE", type=click.IntRange(min=0))
@click.option("--undo", is_flag=True, help="It may lead again. A node that is started anew may, too.")
@TEXT_OR_JSON
@with_client
def drain(client: Client, number: int, *, undo: bool, output: str) -> None:
    """Let other nodes lead what NODE leads. It goes on running and following, and leads nothing until --undo or its next start.

    Leaders move to replicas that are in sync, so nothing is lost and clients follow by themselves. What no other node can lead is
    named, with the reason, and stays; the exit code is 1 then. Groups, transactions and keys do not move.
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
    """Until it leads nothing that another could; what is left then."""
    pause, until = threading.Event(), time.monotonic() + MOVE_SECONDS_MAX
    while True:
        left = still_led(client.admin.describe_cluster(), number)
        if all(each.reason for each in left):
            return left
        if time.monotonic() >= until:
            late = f"not moved within {MOVE_SECONDS_MAX:g} s: is the controller well?"
            return [msgspec.structs.replace(each, reason=each.reason or late) for each in left]
        pause.wait(PAUSE_SECONDS)


def _tell(number: int, left: list[StillLed]) -> None:
    if not left:
        click.echo(f"node {number} leads nothing any more; it goes on following")
        hint(f"braid cluster drain {number} --undo")
        return
    click.echo(f"node {number} drains, and still leads {plural(len(left), 'partition')}:")
    for each in left[:NAMED_MAX]:
        click.echo(f"  {each.topic}/{each.partition}: {each.reason}")
    if len(left) > NAMED_MAX:
        click.echo(f"  and {len(left) - NAMED_MAX} more")
