"""`braid topic create`, `alter`, `trim`, `delete`: topics are changed.

Knows: what must be asked twice. Refuses to know: how a change is made.
Invariant: what cannot be taken back needs --yes, or a person at a terminal who says so.
"""

import click

from braidlog.cli.terminal.arguments import YES, confirm, pairs
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.names import complete_topics
from braidlog.cli.terminal.output import hint, plural
from braidlog.client.blocking import Client

TOPIC = click.argument("topic", shell_complete=complete_topics)
SETTING = click.option(
    "-c", "--set", "changes", multiple=True, metavar="NAME=VALUE", help="A setting, e.g. retention.ms=86400000."
)


@click.command(epilog="Example: braid topic create clicks -p 3 -c cleanup.policy=compact")
@TOPIC
@click.option("-p", "--partitions", type=click.IntRange(1), default=1, show_default=True)
@SETTING
@click.option("--if-absent", is_flag=True, help="It is no error that it is there; it is left as it is.")
@with_client
def create(client: Client, topic: str, partitions: int, changes: tuple[str, ...], *, if_absent: bool) -> None:
    """Make the topic TOPIC."""
    settings = pairs(changes, "-c")
    if if_absent and topic in client.admin.list_topics():
        click.echo(f"{topic} is there already")
        return
    client.admin.create_topic(topic, partitions, settings)
    click.echo(f"created {topic}")
    hint(f"braid produce {topic}", f"braid topic describe {topic}")


@click.command(epilog="Example: braid topic alter clicks --partitions 6 -c retention.ms=3600000 --reset segment.bytes")
@TOPIC
@click.option("-p", "--partitions", type=click.IntRange(1), help="How many there shall be; never fewer than now.")
@SETTING
@click.option("--reset", "resets", multiple=True, metavar="NAME", help="Back to the default; may be repeated.")
@with_client
def alter(
    client: Client, topic: str, partitions: int | None, changes: tuple[str, ...], resets: tuple[str, ...]
) -> None:
    """Change settings of TOPIC, all of them or none; then add partitions.

    More partitions change which partition a key goes to: records of one key are in order within a partition only.
    """
    settings: dict[str, str | None] = {**pairs(changes, "-c"), **dict.fromkeys(resets)}
    if not settings and partitions is None:
        raise click.UsageError("nothing to change: pass -c NAME=VALUE, --reset NAME or --partitions N")
    client.admin.alter_topic(topic, settings, partitions=partitions)
    click.echo(f"changed {topic}")
    hint(f"braid topic describe {topic}")


@click.command(epilog="Example: braid topic trim clicks -p 0 --before 1000")
@TOPIC
@click.option("-p", "--partition", type=click.IntRange(0), help="Only this one; else every partition.")
@click.option("--before", required=True, metavar="OFFSET|end", help="The first offset that stays; `end`: none stays.")
@YES
@with_client
def trim(client: Client, topic: str, partition: int | None, before: str, *, yes: bool) -> None:
    """Delete the oldest records of TOPIC. They cannot be had back."""
    if before != "end" and not before.isdecimal():
        raise click.UsageError(f"--before is an offset or `end`, not {before!r}")
    client.require("trims")
    spans = client.admin.describe_topic(topic).partitions
    chosen = range(len(spans)) if partition is None else [partition]
    if partition is not None and partition >= len(spans):
        raise click.UsageError(f"{topic} has {plural(len(spans), 'partition')}; there is no {partition}")
    confirm(f"Delete all records of {topic} before {before}?", yes=yes)
    for number in chosen:
        wanted = spans[number].latest if before == "end" else min(int(before), spans[number].latest)
        earliest = client.admin.trim(topic, number, max(wanted, spans[number].earliest))
        click.echo(f"{topic}/{number} begins at {earliest}")


@click.command(epilog="Example: braid topic delete clicks --yes")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@YES
@with_client
def delete(client: Client, topics: tuple[str, ...], *, yes: bool) -> None:
    """Delete each TOPIC and all its records. They cannot be had back."""
    client.require("deletes")
    confirm(f"Delete {', '.join(topics)} and all their records?", yes=yes)
    for topic in topics:
        client.admin.delete_topic(topic)
        click.echo(f"deleted {topic}")
