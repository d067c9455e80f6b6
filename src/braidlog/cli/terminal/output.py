"""Terminal output: tables, sizes, colours, progress, hints.

Output into a pipe has no colour and no progress. Hints go to stderr of a terminal, and not with --quiet.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, TypeVar

import click
import msgspec
from msgspec.structs import astuple

NAMED_MAX: Final = 5
Command = TypeVar("Command", bound=Callable[..., object])

DATA = click.argument("data", type=click.Path(readable=False))
"""A file option; the reader checks readability, so that its error names the owner."""


_QUIET, _YAML, _BRIEF = "braidlog.quiet", "braidlog.yaml", "braidlog.brief"


def take_form(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Record whether YAML is wanted, and return `json`: commands handle JSON only."""
    ctx.meta[_YAML] = value == "yaml"
    return "json" if value == "yaml" else value


def _output(*forms: str, text: str = "Output format.") -> Callable[[Command], Command]:
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(forms),
        default=forms[0],
        show_default=True,
        callback=take_form,
        help=text,
    )


OUTPUT = _output("table", "json", "yaml")
PLAN = _output("json", "table")
"""Option -o of commands with a table."""
LISTING = _output("table", "json", "yaml", "name", text="Output format; `name` prints names only.")
TEXT_OR_JSON = _output("text", "json", "yaml")
LINES = _output(
    "text", "json", "yaml", text="Output format; `json` prints one object per line, `yaml` one document each."
)


def _be_quiet(ctx: click.Context, _param: click.Parameter, *, value: bool) -> None:
    if value:
        ctx.meta[_QUIET] = True


QUIET = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, param, value: _be_quiet(ctx, param, value=value),
    help="Print no hints and no progress.",
)
PROGRESS_FROM_BYTES = 64 * 1024 * 1024


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> None:
    """Print left-aligned columns, two blanks apart; None is an empty cell."""
    lines = [list(head), *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        click.echo(indent + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def size(count: int) -> str:
    """Format a number of bytes: 999 B, 1.2 kB, 3.4 GB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def moment(timestamp_ms: int) -> str:
    """Format a timestamp in UTC; a value outside the range of dates stays a number."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


def paint(text: str, colour: str) -> str:
    """Colour text on a terminal, unless NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=colour, bold=True)


def is_watched() -> bool:
    """Return whether stderr is a terminal, and --quiet is not set."""
    return sys.stderr.isatty() and not click.get_current_context().meta.get(_QUIET, False)


def hint(*commands: str) -> None:
    """Print useful next commands."""
    if is_watched():
        for command in commands:
            click.echo(f"next: {command}", err=True)


def shown(raw: bytes) -> str:
    """Decode bytes as text, with escapes for invalid UTF-8."""
    return raw.decode("utf-8", "backslashreplace")


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on stderr of a terminal while many bytes are read; else yield None."""
    if total < PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def be_brief() -> None:
    """Print only results from now on, JSON on one line each, for repeated output."""
    meta = click.get_current_context().meta
    meta[_QUIET] = meta[_BRIEF] = True


def print_json(value: object) -> None:
    """Print a value as JSON, or as YAML with -o yaml."""
    meta, encoded = click.get_current_context().meta, msgspec.json.encode(value)
    if meta.get(_BRIEF) or meta.get(_YAML):
        click.echo(line_of(encoded))
    else:
        click.echo(msgspec.json.format(encoded, indent=2))


def line_of(encoded: bytes) -> str:
    """Return one of several values: the line of JSON, or a YAML document."""
    meta = click.get_current_context().meta
    if not meta.get(_YAML):
        return encoded.decode()
    from braidlog.cli.terminal.yaml_text import yaml_of  # noqa: PLC0415 - only with -o yaml

    return f"---\n{yaml_of(msgspec.json.decode(encoded))}"


def print_listing(
    names: Sequence[str],
    output: str,
    rows_of: Callable[[Sequence[str]], Sequence[msgspec.Struct]],
    head: Sequence[str],
    empty: tuple[str, ...],
    more: str,
) -> None:
    """Print a listing in the format of -o. `empty`: message and hints without rows; `more`: command that describes a row."""
    if output == "name":
        for name in names:
            click.echo(name)
        return
    print_rows(rows_of(names), output, head, empty)
    if names and output == "table":
        hint(f"{more} {names[0]}")


def print_rows(rows: Sequence[msgspec.Struct], output: str, head: Sequence[str], empty: tuple[str, ...]) -> None:
    """Print rows in the format of -o. `empty`: message and hints without rows."""
    if output == "json":
        print_json(rows)
    elif rows:
        print_table(head, map(astuple, rows))
    else:
        click.echo(empty[0])
        hint(*empty[1:])


def plural(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def named(names: Sequence[str]) -> str:
    """Return the first `NAMED_MAX` names in one line, and the number of the others."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def lost(offsets: int) -> str:
    return "no offset is lost" if not offsets else "1 offset is lost" if offsets == 1 else f"{offsets} offsets are lost"
