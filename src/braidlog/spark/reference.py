"""docs/reference/spark-options.md, made from the option tables.

Knows: where the tables are and how a page shows them. Refuses to know: any option. A format joins by its line in `TABLES`.

    python -m braidlog.spark.reference > docs/reference/spark-options.md
"""

import sys
from importlib import import_module

from braidlog.spark.options import REQUIRED, FormatOptions, Option

TABLES = (
    "braidlog.spark.source.options:TABLE",
    "braidlog.spark.sink.options:TABLE",
    "braidlog.spark.keyvalue.options:READ",
    "braidlog.spark.keyvalue.options:WRITE",
    "braidlog.spark.lake.sink:WRITE",
)
"""`module:name` of each table, in the order of the page."""

_INTRODUCTION = """\
# Options of the Spark formats

Made from the option tables by `python -m braidlog.spark.reference`; a test holds it current. Names have no case, as everywhere in
Spark. An option that is not here is refused with the nearest name that is, and so are settings of Kafka's Java client
(`kafka.*`) other than those below: nothing is dropped in silence."""


def tables() -> list[FormatOptions]:
    found = []
    for home in TABLES:
        module, _, name = home.partition(":")
        found.append(getattr(import_module(module), name))
    return found


def page() -> str:
    return "\n\n".join([_INTRODUCTION, *map(_section, tables())]) + "\n"


def _section(table: FormatOptions) -> str:
    verb = {"read": "reading", "write": "writing"}[table.direction]
    rows = [f"## `{table.format}`, {verb}", "", "| option | takes | default | |", "|---|---|---|---|"]
    return "\n".join([*rows, *map(_row, table.options)])


def _row(option: Option) -> str:
    named = "<br>".join([f"`{option.name}`", *(f"or `{alias}`" for alias in option.aliases)])
    default = "required" if option.default is REQUIRED else f"`{option.default}`" if option.default else ""
    return f"| {named} | {_cell(option.kind.form)} | {default} | {_cell(option.meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
