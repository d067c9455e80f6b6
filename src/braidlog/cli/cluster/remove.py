"""`braid cluster remove`: removes a node that will not return."""

import click
import msgspec

from braidlog.cli.terminal.arguments import YES, confirm
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import TEXT_OR_JSON, hint, print_json
from braidlog.client.blocking import Client


class RemovedNode(msgspec.Struct, frozen=True):
    """Output of `braid cluster remove -o json`."""

    removed: int


@click.command(epilog="Example: braid cluster remove 3")
@click.argument("number", metavar="NODE", type=click.IntRange(min=0))
@YES
@TEXT_OR_JSON
@with_client
def remove(client: Client, number: int, *, yes: bool, output: str) -> None:
    """Remove the stopped NODE, which holds no replicas, from the cluster.

    Its embedded member of etcd is removed, too; `braid doctor` shows the remaining members.

    Refused while the node is alive or has replicas: move them to other nodes (`braid cluster reassign`), then stop it.
    """
    confirm(f"Remove node {number} permanently?", yes=yes)
    client.admin.remove_node(number)
    if output == "json":
        print_json(RemovedNode(number))
    else:
        click.echo(f"removed node {number}")
        hint("braid doctor")
