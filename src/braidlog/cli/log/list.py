"""`braid log list`: what is in a folder."""

import click

from braidlog.cli.terminal.output import DATA, LISTING, print_json, print_table, size
from braidlog.storage.files import OsDisk
from braidlog.tools.dump import list_topics


@click.command("list")
@DATA
@LISTING
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
                partition.partition,
                f"[{partition.start_offset}, {partition.end_offset})",
                partition.segments,
                partition.fault or size(partition.bytes),
            ]
            for topic in topics
            for partition in topic.partitions
        ]
        print_table(["TOPIC", "PARTITION", "OFFSETS", "SEGMENTS", "SIZE"], rows)
