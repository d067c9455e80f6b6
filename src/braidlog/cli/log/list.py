"""`braid log list`: lists the topics of a data folder."""

import click

from braidlog.cli.terminal.output import DATA, LISTING, print_json, print_table, size
from braidlog.storage.files import OsDisk
from braidlog.tools.dump import list_topics


@click.command("list")
@DATA
@LISTING
def list_(data: str, output: str) -> None:
    """List topics and partitions of the folder DATA with offsets and sizes.

    Offsets are [start, end): the first record, and the offset of the next record.
    """
    topics = list_topics(OsDisk(), data)
    if output == "json":
        print_json(topics)
    elif output == "name":
        for topic in topics:
            click.echo(topic.name)
    elif not topics:
        click.echo(f"{data} holds no topics.")
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
