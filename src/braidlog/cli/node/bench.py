"""`braid bench`: measures throughput of a running node (`tools/bench.py`)."""

import secrets

import click
import msgspec

from braidlog.cli import FAULT, end, say
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import OUTPUT, is_watched, print_json, print_table
from braidlog.client.blocking import Client
from braidlog.tools.bench import Figure, Load, measure
from braidlog.wire.rustlog import DIALECT

NOTE = "Measured with one Python client on one connection; this is not a benchmark of the node or the machine."


class Measurement(msgspec.Struct, frozen=True):
    """Output of `braid bench -o json`."""

    dialect: str
    records: int
    record_bytes: int
    figures: list[Figure]
    note: str = NOTE


@click.command(epilog=f"Example: braid bench --server {DIALECT.local_url} --records 50000")
@click.option(
    "--records", type=click.IntRange(1, 10_000_000), default=20_000, show_default=True, help="Records per repetition."
)
@click.option(
    "--bytes",
    "record_bytes",
    type=click.IntRange(1, 1_000_000),
    default=200,
    show_default=True,
    help="Bytes per record.",
)
@click.option("--repeats", type=click.IntRange(1, 100), default=5, show_default=True)
@OUTPUT
@with_client
def bench(client: Client, records: int, record_bytes: int, repeats: int, output: str) -> None:
    """Measure write and read throughput on a temporary topic: median, slowest and fastest repetition.

    The topic is deleted afterwards, if the protocol can delete topics.
    """
    topic = f"braid-bench-{secrets.token_hex(4)}"
    client.admin.create_topic(topic, 1)
    try:
        figures = measure(client, topic, Load(records, record_bytes, repeats), _tell)
    except TimeoutError as error:
        end(FAULT, str(error))
    finally:
        if client.capabilities.deletes:
            client.admin.delete_topic(topic)
        else:
            say(f"{client.dialect} cannot delete topics; delete {topic} through another protocol")
    if output == "json":
        print_json(Measurement(client.dialect, records, record_bytes, figures))
        return
    rows = [[each.name, f"{each.median:,.2f}", f"{each.low:,.2f}", f"{each.high:,.2f}", each.unit] for each in figures]
    print_table(["FIGURE", "MEDIAN", "LOW", "HIGH", "UNIT"], rows)
    click.echo(f"{records:,} records of {record_bytes} bytes, {repeats} times, through {client.dialect}. {NOTE}")


def _tell(sentence: str) -> None:
    if is_watched():
        click.echo(sentence, err=True)
