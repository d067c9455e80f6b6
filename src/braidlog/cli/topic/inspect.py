"""`braid topic list`, `describe`."""

from collections.abc import Sequence

import click
import msgspec
from msgspec.structs import astuple

from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.names import complete_topics
from braidlog.cli.terminal.output import LISTING, OUTPUT, hint, print_json, print_listing, print_table
from braidlog.cli.terminal.watch import watched
from braidlog.client.blocking import Client


class TopicRow(msgspec.Struct, frozen=True):
    """Row of `braid topic list -o json`. `offsets`: from earliest to latest; after compaction there may be fewer records."""

    topic: str
    partitions: int
    offsets: int


class PartitionRow(msgspec.Struct, frozen=True):
    """Offsets are `[earliest, latest)`."""

    partition: int
    earliest: int
    latest: int


class SettingRow(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    is_default: bool


class TopicDescription(msgspec.Struct, frozen=True):
    """Row of `braid topic describe -o json`. `settings` is null if the protocol does not return settings."""

    topic: str
    partitions: list[PartitionRow]
    settings: list[SettingRow] | None


@click.command("list", epilog="Example: braid topic list -o name")
@LISTING
@with_client
@watched
def list_(client: Client, output: str) -> None:
    """List topics with their partitions and number of offsets."""

    def rows(names: Sequence[str]) -> list[TopicRow]:
        return [
            TopicRow(info.topic, len(info.partitions), sum(span.latest - span.earliest for span in info.partitions))
            for info in client.admin.describe_topics(names)
        ]

    empty = "No topics.", "braid topic create NAME", "braid demo clicks"
    head = ["TOPIC", "PARTITIONS", "OFFSETS"]
    print_listing(client.admin.list_topics(), output, rows, head, empty, "braid topic describe")


@click.command(epilog="Example: braid topic describe clicks -o json")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--all", "everything", is_flag=True, help="Show default settings, too.")
@OUTPUT
@with_client
@watched
def describe(client: Client, topics: tuple[str, ...], output: str, *, everything: bool) -> None:
    """Describe partitions and offsets of each TOPIC, and its settings if the protocol returns them."""
    found = [described_topic(client, name, everything=everything) for name in topics]
    if output == "json":
        print_json(found)
        return
    for at, each in enumerate(found):
        if at:
            click.echo()
        _print(each)
    hint(f"braid consume {topics[0]} -o -5")


def described_topic(client: Client, topic: str, *, everything: bool) -> TopicDescription:
    info = client.admin.describe_topic(topic)
    partitions = [PartitionRow(number, span.earliest, span.latest) for number, span in enumerate(info.partitions)]
    settings = None
    if client.capabilities.settings:
        told = client.admin.topic_settings(topic)
        settings = [
            SettingRow(each.name, each.value, each.is_default) for each in told if everything or not each.is_default
        ]
    return TopicDescription(topic, partitions, settings)


def _print(found: TopicDescription) -> None:
    click.echo(f"{found.topic}")
    print_table(["PARTITION", "EARLIEST", "LATEST"], map(astuple, found.partitions), indent="  ")
    if found.settings:
        cells = [[row.name, row.value, "default" if row.is_default else ""] for row in found.settings]
        print_table(["SETTING", "VALUE", ""], cells, indent="  ")
