"""`braid kv stats`, `memory`, `snapshot`: counters, memory and snapshots of the store."""

from collections.abc import Callable

import click
import msgspec

from braidlog.cli.kv.options import with_store
from braidlog.cli.terminal.output import moment, print_json, print_table, size
from braidlog.client.kv.blocking import KeyValue


def _print_figures(answer: msgspec.Struct, output: str) -> None:
    """Print the counters of the server, bytes and times in readable form."""
    told = {name: value for name, value in msgspec.structs.asdict(answer).items() if value is not None}
    if output == "json":
        print_json(told)
        return
    rows = [[name.replace("_", " "), _figure(name, value)] for name, value in told.items()]
    print_table(["FIGURE", "VALUE"], rows)


def _figure(name: str, value: int) -> str:
    if name == "bytes" or name.endswith(("_bytes", "_bytes_freed")):
        return size(value)
    if name.endswith("_ms"):
        return moment(value) if value else "never"
    return str(value)


def _figures(name: str, ask: Callable[[KeyValue], msgspec.Struct], text: str) -> click.Command:
    def command(store: KeyValue, output: str) -> None:
        _print_figures(ask(store), output)

    return click.command(name, help=text)(with_store(command))


stats = _figures(
    "stats",
    KeyValue.stats,
    "Print counters since the node's start, summed over a cluster's nodes; `sequence` counts all changes of the store.",
)
memory = _figures("memory", KeyValue.memory, "Print the memory that keys use, and its limit; 0 means unlimited.")
snapshot = _figures(
    "snapshot",
    KeyValue.snapshot,
    "Write a snapshot of all keys and drop the log that it replaces; print what was written.",
)
