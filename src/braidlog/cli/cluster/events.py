"""`braid cluster events`: prints the events of the metadata log."""

import threading
from typing import Final

import click
import msgspec

from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import LINES, line_of, moment
from braidlog.cli.terminal.times import MOMENT
from braidlog.client.blocking import Client
from braidlog.client.drivers.cluster import ClusterEvent

PAUSE_SECONDS: Final = 0.5


@click.command(epilog="Example: braid cluster events --since -10m --follow")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events until Ctrl-C.")
@click.option("--since", type=MOMENT, default=0, help="Events since -10m (also s, h, d), a time, a date.")
@LINES
@with_client
def events(client: Client, since: int, *, follow: bool, output: str) -> None:
    """List cluster events, oldest first: nodes, leaders, in-sync replicas, topics, users and rules.

    Each line has the time by the clock of the node that wrote the event, the number of its entry in the metadata log,
    and a description. A node keeps about the last 5,000 events.
    """
    pause, after = threading.Event(), (0, -1)
    while True:
        while found := client.admin.cluster_events(after, since):
            for each in found:
                click.echo(line_of(msgspec.json.encode(each)) if output == "json" else _line(each))
            after = found[-1].seq, found[-1].index
        if not follow:
            return
        pause.wait(PAUSE_SECONDS)


def _line(each: ClusterEvent) -> str:
    when = moment(each.time_ms) if each.time_ms else "at an unknown time"
    return f"{when}  {each.seq:>6}  {each.words}"
