"""How things look on a terminal: columns, sizes, colours, progress.

Knows: whether somebody is watching. Refuses to know: what is shown.
Invariant: what goes into a pipe has no colour and no progress.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import click
import msgspec

DATA = click.argument("data", type=click.Path())
OUTPUT = click.option(
    "-o", "output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
PROGRESS_FROM_BYTES = 64 * 1024 * 1024


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Left-aligned columns, two blanks apart."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def size(count: int) -> str:
    """Bytes as a person reads them: 999 B, 1.2 kB, 3.4 GB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def moment(timestamp_ms: int) -> str:
    """A timestamp in UTC; what is not a date stays a number."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def paint(text: str, colour: str) -> str:
    """Colour for a person's eyes only: not into a pipe, not against NO_COLOR (no-color.org)."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=colour, bold=True)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr while bytes are read, if there are many and somebody is watching; else None."""
    if total < PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def lost(offsets: int) -> str:
    return "no offset is lost" if not offsets else "1 offset is lost" if offsets == 1 else f"{offsets} offsets are lost"
