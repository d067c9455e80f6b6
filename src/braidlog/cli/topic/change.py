"""`braid topic create`, `alter`, `trim`, `delete`: change topics.

An irreversible change needs --yes, or confirmation on a terminal.
"""

import click

from braidlog.cli.terminal.arguments import YES, confirm, pairs
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.names import complete_topics
from braidlog.cli.terminal.output import hint, plural
from braidlog.client.blocking import Client

TOPIC = click.argument("topic", shell_complete=complete_topics)
SETTING = click.option(
    "-c",
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting, e.g. retention.ms=86400000; repeatable.",
)


@click.command(epilog="Example: braid topic create clicks -p 3 -c cleanup.policy=compact")
@TOPIC
@click.option("-p", "--partitions", type=click.IntRange(1), default=1, show_default=True)
@SETTING
@click.option("--if-absent", is_flag=True, help="Do nothing if the topic exists.")
@with_client
def create(client: Client, topic: str, partitions: int, changes: tuple[str, ...], *, if_absent: bool) -> None:
    """Create the topic TOPIC."""
    settings = pairs(changes, "-c")
    if if_absent and topic in client.admin.list_topics():
        click.echo(f"{topic} already exists")
        return
    client.admin.create_topic(topic, partitions, settings)
    click.echo(f"created {topic}")
    hint(f"braid produce {topic}", f"braid topic describe {topic}")


@click.command(epilog="Example: braid topic alter clicks --partitions 6 -c retention.ms=3600000 --reset segment.bytes")
@TOPIC
@click.option("-p", "--partitions", type=click.IntRange(1), help="New partition count; can only be increased.")
@SETTING
@click.option("--reset", "resets", multiple=True, metavar="NAME", help="Setting to reset to its default; repeatable.")
@with_client
def alter(
    client: Client, topic: str, partitions: int | None, changes: tuple[str, ...], resets: tuple[str, ...]
) -> None:
    """Change settings of TOPIC in one step, then add partitions.

    More partitions change the partition of a key; records are ordered only within a partition.
    """
    settings: dict[str, str | None] = {**pairs(changes, "-c"), **dict.fromkeys(resets)}
    if not settings and partitions is None:
        raise click.UsageError("nothing to change: pass -c NAME=VALUE, --reset NAME or --partitions N")
    client.admin.alter_topic(topic, settings, partitions=partitions)
    click.echo(f"changed {topic}")
    hint(f"braid topic describe {topic}")


@click.command(epilog="Example: braid topic trim clicks -p 0 --before 1000")
@TOPIC
@click.option("-p", "--partition", type=click.IntRange(0), help="Partition to trim.  [default: all]")
@click.option("--before", required=True, metavar="OFFSET|end", help="First offset to keep; `end` deletes all records.")
@YES
@with_client
def trim(client: Client, topic: str, partition: int | None, before: str, *, yes: bool) -> None:
    """Delete the oldest records of TOPIC. This cannot be undone."""
    if before != "end" and not before.isdecimal():
        raise click.UsageError(f"--before is an offset or `end`, not {before!r}")
    client.require("trims")
    spans = client.admin.describe_topic(topic).partitions
    chosen = range(len(spans)) if partition is None else [partition]
    if partition is not None and partition >= len(spans):
        raise click.UsageError(f"{topic} has {plural(len(spans), 'partition')}; partition {partition} does not exist")
    confirm(f"Delete all records of {topic} before {before}?", yes=yes)
    for number in chosen:
        wanted = spans[number].latest if before == "end" else min(int(before), spans[number].latest)
        earliest = client.admin.trim(topic, number, max(wanted, spans[number].earliest))
        click.echo(f"{topic}/{number} now starts at {earliest}")


@click.command(epilog="Example: braid topic delete clicks --yes")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@YES
@with_client
def delete(client: Client, topics: tuple[str, ...], *, yes: bool) -> None:
    """Delete each TOPIC and all its records. This cannot be undone."""
    client.require("deletes")
    confirm(f"Delete {', '.join(topics)} and all their records?", yes=yes)
    for topic in topics:
        client.admin.delete_topic(topic)
        click.echo(f"deleted {topic}")
