"""`braid kv stats`, `memory`, `snapshot`: the node behind the keys."""

import click
import msgspec

from braidlog.cli.kv.options import with_store
from braidlog.cli.terminal.output import moment, print_json, size, table
from braidlog.client.kv.blocking import KeyValue


def _print_figures(answer: msgspec.Struct, output: str) -> None:
    """What the server told; bytes and moments as people read them."""
    told = {name: value for name, value in msgspec.structs.asdict(answer).items() if value is not None}
    if output == "json":
        print_json(told)
        return
    rows = [[name.replace("_", " "), _figure(name, value)] for name, value in told.items()]
    click.echo("\n".join(table(["FIGURE", "VALUE"], rows)))


def _figure(name: str, value: int) -> str:
    if name == "bytes" or name.endswith(("_bytes", "_bytes_freed")):
        return size(value)
    if name.endswith("_ms"):
        return moment(value) if value else "never"
    return str(value)


@click.command()
@with_store
def stats(store: KeyValue, output: str) -> None:
    """Counts since the node started; `sequence` counts changes since the store was made."""
    _print_figures(store.stats(), output)


@click.command()
@with_store
def memory(store: KeyValue, output: str) -> None:
    """What the keys take in memory, and what they may take; a limit of 0 is none."""
    _print_figures(store.memory(), output)


@click.command()
@with_store
def snapshot(store: KeyValue, output: str) -> None:
    """Write all keys to one file, and drop the log that it replaces; print what was written."""
    _print_figures(store.snapshot(), output)
