"""`braid cluster remove`: a node that does not come back is forgotten.

Knows: what to ask and to say. Refuses to know: when that is allowed (the nodes say it).
"""

import click
import msgspec

from braidlog.cli.terminal.arguments import YES, confirm
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import TEXT_OR_JSON, hint, print_json
from braidlog.client.blocking import Client


class RemovedNode(msgspec.Struct, frozen=True):
    """What `braid cluster remove -o json` prints."""

    removed: int


@click.command(epilog="Example: braid cluster remove 3")
@click.argument("number", metavar="NODE", type=click.IntRange(min=0))
@YES
@TEXT_OR_JSON
@with_client
def remove(client: Client, number: int, *, yes: bool, output: str) -> None:
    """Forget NODE for good: it is stopped, does not come back, and holds nothing.

    Its embedded member of etcd is removed, too; `braid doctor` says how many members are left.

    Refused while it lives, and while it has replicas: move those to other nodes first (`braid cluster reassign`), then stop it.
    """
    confirm(f"Remove node {number} for good?", yes=yes)
    client.admin.remove_node(number)
    if output == "json":
        print_json(RemovedNode(number))
    else:
        click.echo(f"node {number} is removed")
        hint("braid doctor")
