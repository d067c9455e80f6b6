"""`braid log accept-loss`: lets a node start without a lost internal topic."""

import click

from braidlog.cli.terminal.arguments import confirm
from braidlog.cli.terminal.output import DATA
from braidlog.model.clock import SystemClock
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder

HELD = {
    "__coordinator_state": "committed offsets, groups, transactions, sinks, named producers, snapshots of streams",
    "__kv": "the change feed of keys and values; the keys and values themselves are stored elsewhere",
    "__metadata": "users, rules, replica assignments, and topic settings that are not in a topic's folder",
}


@click.command("accept-loss")
@DATA
@click.argument("topic", type=click.Choice(sorted(HELD)))
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def accept_loss(data: str, topic: str, *, yes: bool) -> None:
    """Accept the loss of an internal TOPIC, so that a node starts on the folder DATA without it.

    A node refuses to start if its metadata is missing; without coordinator state it refuses groups and transactions. Use
    this command only if you have no backup of the topic's folder to restore. Records of other topics are not changed:
    without `__metadata` a node adopts every topic in the folder. Does nothing if the topic exists. No node may have the
    folder open.
    """
    folder = DataFolder(OsDisk(), data, SystemClock(), create=False)
    try:
        if folder.find(topic) is not None or topic not in folder.identity.internal_topics:
            click.echo(f"Internal topic {topic!r} exists: nothing changed.")
            return
        confirm(f"Permanently lost: {HELD[topic]}. Continue without it?", yes=yes)
        folder.forget_internal(topic)
        click.echo(f"The next start creates an empty {topic!r}.")
    finally:
        folder.release()
