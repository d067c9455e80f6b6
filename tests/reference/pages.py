"""Pages of docs/reference made from the tables that a node uses: settings, metrics, errors, protocol-limits; `make reference`.

    python -m tests.reference.pages settings > docs/reference/settings.md

Knows: where settings, metrics and errors are declared, how a sentence beside one is found. Refuses to know: any of them.
Invariant: a page holds nothing that was written by hand: it is right whenever it is made.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib import import_module
from typing import Any, Final

import click
import msgspec
from tests.reference.commands import exit_codes

from braidlog.adapters.kafka.administration.config_table import ROWS
from braidlog.cli.node.config_init import NOTES
from braidlog.client.drivers.contract import TITLES
from braidlog.client.errors import Refusal
from braidlog.client.schemes import capabilities
from braidlog.model.errors import Reason
from braidlog.model.reporting.metrics import TABLE
from braidlog.server.config import ENVIRONMENT_PREFIX, ServerConfig, load_config
from braidlog.wire.dialect import dialects

_SHOWN: Final = frozenset(load_config(None, {}, {}).flat())
"""What can be set; the rest of a struct is for its own use."""


def settings() -> str:
    head = f"""\
# Settings

Made by `make reference` from the declarations. Each is a line of the file (`braid serve --config FILE`), a variable
(`limits.connections_max` is `{ENVIRONMENT_PREFIX}LIMITS__CONNECTIONS_MAX`) or a flag (`--set limits.connections_max=100`);
later ones win: default, file, variable, flag.
`braid config show --origin` tells what a node would take and from where, `braid config check` whether it is right.
"""
    return head + "".join(_sections("", ServerConfig()))


def _sections(prefix: str, config: msgspec.Struct) -> Iterator[str]:
    """A section of the file, then those within it."""
    inner: list[tuple[str, msgspec.Struct]] = []
    rows = []
    said = _sentences(type(config))
    kafka = {field: row for row in ROWS.values() for field in row.ours} if prefix == "topics." else {}
    for name in config.__struct_fields__:
        value, dotted = getattr(config, name), f"{prefix}{name}"
        if isinstance(value, msgspec.Struct):
            inner.append((dotted, value))
        if dotted not in _SHOWN:
            continue
        shown = json.dumps(msgspec.to_builtins(value))
        what = " ".join(
            (NOTES.get(dotted) or said.get(name) or (kafka[name].text if name in kafka else "")).split()
        ).replace("|", "\\|")
        theirs = f" (Kafka: `{kafka[name].name}`)" if name in kafka else ""
        rows.append(f"| `{dotted}`{theirs} | `{shown}` | {what} |\n")
    if rows:
        title = f"[{prefix.rstrip('.')}]" if prefix else "At the top of the file"
        yield f"\n## {title}\n\n{_about(prefix.rstrip('.'), type(config))}"
        yield "| setting | default | |\n|---|---|---|\n"
        yield from rows
    for dotted, section in inner:
        yield from _sections(f"{dotted}.", section)


def _about(section: str, declared: type) -> str:
    """What is said of a section as a whole."""
    note = NOTES.get(section, "")
    said = f"{note[:1].upper()}{note[1:]}." if note else ""
    written = "" if _is_made(declared) else inspect.cleandoc(declared.__doc__ or "")
    text = "\n\n".join(each for each in (said, written) if each)
    return f"{text}\n\n" if text else ""


def _sentences(declared: type) -> dict[str, str]:
    """What stands under each field of a struct, in the source of it and of what it is made of."""
    found: dict[str, str] = {}
    for each in reversed(declared.__mro__):
        if each.__module__.startswith("braidlog.") and not _is_made(each):
            body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
            assert isinstance(body, ast.ClassDef)
            for field, after in zip(body.body, body.body[1:], strict=False):
                match field, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                        found[name] = text
    return found


def _is_made(struct: type) -> bool:
    """By msgspec, of a dialect's declaration: it has no source."""
    return struct.__qualname__.endswith("ListenerConfig") and struct.__qualname__ != "ListenerConfig"


def metric_table() -> str:
    """Every metric, its kind, its labels and what it counts."""
    lines = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    for row in TABLE:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    return "\n".join(lines)


def metrics() -> str:
    return f"""\
# Metrics

Made by `make reference` from the table by which a node tells them, on `/metrics` of its admin port. Counts are since the node
started. What to alert of: [running a node](../guides/operations.md#alerts-worth-having).

{metric_table()}
"""


_TABLES: Final = {"mayfly": "STATUSES"}
"""Where a dialect's table has another name than CODES."""


def _codes(dialect: str) -> Mapping[Reason, Any]:
    table: Mapping[Reason, Any] = getattr(
        import_module(f"braidlog.adapters.{dialect}.errors"), _TABLES.get(dialect, "CODES")
    )
    return table


def _code(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_code(each) for each in value) or "its text alone"
    assert isinstance(value, Enum)
    number = f"{value.value} " if isinstance(value.value, int) else ""
    return f"{number}`{value.name}`"


def errors() -> str:
    tables = {name: _codes(name) for name in dialects()}
    rows = [
        f"| {reason.name.lower().replace('_', ' ')} | {' | '.join(_code(each[reason]) for each in tables.values())} |"
        for reason in Reason
    ]
    refusals = [
        f"| `Refusal.{each.name}` | {'yes' if each.retriable else 'no'} | {each.stored.value} | {each.value.text} |"
        for each in Refusal
    ]
    return "\n".join(
        [
            "# Errors",
            "",
            "Made by `make reference` from the tables by which they are told. Beside a code there is a sentence that says",
            "who, what, and what to do.",
            "",
            "## Why a request is not served, in each protocol",
            "",
            f"| why | {' | '.join(tables)} |",
            f"|---|{'---|' * len(tables)}",
            *rows,
            "",
            "## What the Python client raises",
            "",
            "`RefusedError.reason`; the other errors of the client are in [its guide](../guides/client.md).",
            "",
            "| reason | asking again may help | records may be stored | |",
            "|---|---|---|---|",
            *refusals,
            "",
            "## How a command ends",
            "",
            exit_codes(),
            "",
        ]
    )


def _cell(value: Any) -> str:
    """A capability as the table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def capability_table() -> str:
    """The table of docs/guides/client.md."""
    columns = capabilities()
    rows = [f"| | {' | '.join(f'`{name}`' for name in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for field, title in TITLES.items():
        cells = " | ".join(_cell(getattr(able, field)) for able in columns.values())
        rows.append(f"| {title} | {cells} |")
    return "\n".join(rows)


def protocol_limits() -> str:
    header, _, *rows = capability_table().splitlines()
    _, *names = _cells(header)
    sections = []
    for column, name in enumerate(names, start=1):
        dialect = dialects()[name.strip("`").partition("?")[0]]
        lacking = [cells[0] for cells in map(_cells, rows) if cells[column] == "no"]
        told = "\n".join(f"- {each}" for each in lacking) or "Nothing of this list."
        sections.append(
            f"## {name}\n\nOver [{dialect.title}](../dialects/{dialect.name}.md) a client has no\n\n{told}\n"
        )
    return "\n".join(
        [
            "# What each protocol cannot do",
            "",
            "Made by `make reference` from what the client's drivers declare ([the whole table](../guides/client.md)).",
            "A protocol may have more than its driver uses (Cursus has transactions of its own): each has a page, with",
            "deviations and known issues. The log behind all ports is the same. What a protocol cannot carry (keys, headers,",
            "timestamps) is kept for those that can; a client that asks for what its protocol lacks is told which have it.",
            "Keys and values are Mayfly's alone: [its page](../dialects/mayfly.md) has what it lacks.",
            "",
            *sections,
        ]
    )


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings": settings,
    "metrics": metrics,
    "errors": errors,
    "protocol-limits": protocol_limits,
}


@click.command()
@click.argument("page", type=click.Choice(tuple(PAGES)))
def main(page: str) -> None:
    click.echo(PAGES[page](), nl=False)


if __name__ == "__main__":
    main()
