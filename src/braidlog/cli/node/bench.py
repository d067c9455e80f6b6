"""`braid bench`: a quick measurement of a running node.

Knows: options, how figures look. Refuses to know: what is measured (`tools/bench.py`).
"""

import secrets

import click
import msgspec

from braidlog.cli import FAULT, end, say
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import OUTPUT, is_watched, print_json, print_table
from braidlog.client.blocking import Client
from braidlog.tools.bench import Figure, Load, measure
from braidlog.wire.rustlog import DIALECT

NOTE = "A quick look through one Python client on one connection: no benchmark of the node, nor of the machine."


class Measurement(msgspec.Struct, frozen=True):
    """What `braid bench -o json` prints."""

    dialect: str
    records: int
    record_bytes: int
    figures: list[Figure]
    note: str = NOTE


@click.command(epilog=f"Example: braid bench --server {DIALECT.local_url} --records 50000")
@click.option(
    "--records", type=click.IntRange(1, 10_000_000), default=20_000, show_default=True, help="In each repeat."
)
@click.option(
    "--bytes", "record_bytes", type=click.IntRange(1, 1_000_000), default=200, show_default=True, help="Of a record."
)
@click.option("--repeats", type=click.IntRange(1, 100), default=5, show_default=True)
@OUTPUT
@with_client
def bench(client: Client, records: int, record_bytes: int, repeats: int, output: str) -> None:
    """Write and read records of a topic of its own, several times, and say how fast that was: the median of the repeats, the
    slowest and the fastest.

    The topic is deleted afterwards, where the protocol can.
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
            say(f"{client.dialect} cannot delete topics: {topic} stays")
    if output == "json":
        print_json(Measurement(client.dialect, records, record_bytes, figures))
        return
    rows = [[each.name, f"{each.median:,.2f}", f"{each.low:,.2f}", f"{each.high:,.2f}", each.unit] for each in figures]
    print_table(["FIGURE", "MEDIAN", "LOW", "HIGH", "UNIT"], rows)
    click.echo(f"{records:,} records of {record_bytes} bytes, {repeats} times, through {client.dialect}. {NOTE}")


def _tell(sentence: str) -> None:
    if is_watched():
        click.echo(sentence, err=True)
