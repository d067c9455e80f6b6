"""`braid log list`: what is in a folder."""

import click

from braidlog.cli.terminal.output import DATA, print_json, size, table
from braidlog.storage.files import OsDisk
from braidlog.tools.dump import list_topics


@click.command("list")
@DATA
@click.option(
    "-o",
    "output",
    type=click.Choice(["table", "json", "name"]),
    default="table",
    show_default=True,
    help="How to print; `name` prints topic names only.",
)
def list_(data: str, output: str) -> None:
    """Topics, partitions, offsets and sizes of the folder DATA.

    Offsets are [start, end): the first record there is, and the offset the next one gets.
    """
    topics = list_topics(OsDisk(), data)
    if output == "json":
        print_json(topics)
    elif output == "name":
        for topic in topics:
            click.echo(topic.name)
    elif not topics:
        click.echo(f"{data} holds no topics yet.")
    else:
        rows = [
            [
                topic.name,
                str(partition.partition),
                f"[{partition.start_offset}, {partition.end_offset})",
                str(partition.segments),
                partition.fault or size(partition.bytes),
            ]
            for topic in topics
            for partition in topic.partitions
        ]
        click.echo("\n".join(table(["TOPIC", "PARTITION", "OFFSETS", "SEGMENTS", "SIZE"], rows)))
