"""`braid log accept-loss`: go on without an internal topic that is lost."""

import click

from braidlog.cli.terminal.arguments import confirm
from braidlog.cli.terminal.output import DATA
from braidlog.model.clock import SystemClock
from braidlog.storage.files import OsDisk
from braidlog.storage.folder.data_folder import DataFolder

HELD = {
    "__coordinator_state": "committed offsets, groups, transactions, sinks, named producers, snapshots of streams",
    "__kv": "the change feed of keys and values, up to now; the keys and values themselves are not in it",
    "__metadata": "users, rules, who holds which partition, and the settings that a topic's folder does not hold",
}


@click.command("accept-loss")
@DATA
@click.argument("topic", type=click.Choice(sorted(HELD)))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def accept_loss(data: str, topic: str, *, yes: bool) -> None:
    """Let the next node on the folder DATA begin without an internal TOPIC that is lost.

    A node refuses to start if its metadata was there and is not; without the state of its coordinators it refuses groups and
    transactions. Restore the topic's folder if there is a copy; this is for when there is none. Records of topics are not
    touched: without `__metadata` a node takes every topic that it finds in the folder. Nothing is done if the topic is there.
    The folder must not be open elsewhere.
    """
    folder = DataFolder(OsDisk(), data, SystemClock(), create=False)
    try:
        if folder.find(topic) is not None or topic not in folder.identity.internal_topics:
            click.echo(f"Internal topic {topic!r} is not lost: nothing was changed.")
            return
        confirm(f"Lost for good: {HELD[topic]}. Go on without?", yes=yes)
        folder.forget_internal(topic)
        click.echo(f"The next start makes an empty {topic!r}.")
    finally:
        folder.release()
