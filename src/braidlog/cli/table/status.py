"""`braid table status`: lag, size and errors of the tables of topics."""

import click
import msgspec

from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import OUTPUT, hint, moment, print_json, print_table, size
from braidlog.cli.terminal.watch import watched
from braidlog.client.blocking import Client

_PREFIX = "braidlog.table"


class TableRow(msgspec.Struct, frozen=True):
    """A topic's table as the connected node sees it. `lag_records`: of the partitions that the node leads; `lag_bytes`:
    their approximate size in the log. `committed_ms`: time of the last commit; null if never. `undecoded`: rows whose
    value does not have the form, with null columns. `error`: why the table is not written."""

    topic: str
    form: str
    lag_records: int
    lag_bytes: int
    rows: int
    files: int
    bytes: int
    committed_ms: int | None
    metadata: str | None
    undecoded: int
    error: str | None


@click.command(epilog="Example: braid table status -o json | jq '.[] | select(.error)'")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@OUTPUT
@with_client
@watched
def status(client: Client, topics: tuple[str, ...], output: str) -> None:
    """Show lag, rows, size, last commit and error of the table of each TOPIC, or of all topics."""
    rows = [row for name in topics or client.admin.list_topics() if (row := _row(client, name)) is not None]
    if output == "json":
        print_json(rows)
    elif rows:
        head = ["TOPIC", "FORM", "LAG", "LAG BYTES", "ROWS", "FILES", "SIZE", "COMMITTED"]
        print_table(head, map(_cells, rows))
        for each in rows:
            if each.undecoded:
                click.echo(
                    f"{each.topic}: {each.undecoded} rows are not valid {each.form}: their columns are null, see value"
                )
            if each.error:
                click.echo(f"{each.topic}: {each.error}")
    else:
        click.echo("No topic is a table." if not topics else "None of these topics is a table.")
        hint(f"braid topic alter {topics[0] if topics else 'NAME'} --set braidlog.table=json")


def _row(client: Client, topic: str) -> TableRow | None:
    told = {each.name.removeprefix(_PREFIX): each.value or "" for each in client.admin.topic_settings(topic)}
    form = told.get("", "off")
    if form == "off":
        return None
    names = (".lag", ".lag.bytes", ".rows", ".files", ".bytes", ".committed.ms", ".undecoded")
    lag, lag_bytes, rows, files, size_bytes, committed, undecoded = (int(told.get(name) or 0) for name in names)
    metadata, error = told.get(".metadata") or None, told.get(".error") or None
    return TableRow(topic, form, lag, lag_bytes, rows, files, size_bytes, committed or None, metadata, undecoded, error)


def _cells(row: TableRow) -> list[object]:
    committed = "never" if row.committed_ms is None else moment(row.committed_ms)
    return [row.topic, row.form, row.lag_records, size(row.lag_bytes), row.rows, row.files, size(row.bytes), committed]
