"""docs/reference/spark-options.md, made from the options that each format declares.

Knows: where formats declare them and how a page shows them. Refuses to know: any option. A format joins by its line in `FORMATS`.

    python -m tests.reference.spark_options > docs/reference/spark-options.md
"""

import sys
from importlib import import_module

from braidlog.spark.options import REQUIRED, FormatOptions, Option

FORMATS = (
    "braidlog.spark.source.options:Query",
    "braidlog.spark.sink.options:Settings",
    "braidlog.spark.keyvalue.options:Feed",
    "braidlog.spark.keyvalue.options:Target",
    "braidlog.spark.lake.reading:LakeQuery",
    "braidlog.spark.lake.sink:LakeOptions",
)
"""`module:name` of each, in the order of the page."""

_INTRODUCTION = """\
# Options of the Spark formats

Made by `make reference` from the options; a test holds it current. Names have no case, as everywhere in
Spark. An option that is not here is refused with the nearest name that is, and so are settings of Kafka's Java client
(`kafka.*`) other than those below: nothing is dropped in silence."""


def formats() -> list[FormatOptions]:
    found = []
    for home in FORMATS:
        module, _, name = home.partition(":")
        found.append(getattr(import_module(module), name).declared)
    return found


def page() -> str:
    return "\n\n".join([_INTRODUCTION, *map(_section, formats())]) + "\n"


def _section(declared: FormatOptions) -> str:
    verb = {"read": "reading", "write": "writing"}[declared.direction]
    rows = [f"## `{declared.format}`, {verb}", "", "| option | takes | default | |", "|---|---|---|---|"]
    return "\n".join([*rows, *map(_row, declared.options)])


def _row(option: Option) -> str:
    named = "<br>".join([f"`{option.name}`", *(f"or `{alias}`" for alias in option.aliases)])
    default = "required" if option.default is REQUIRED else f"`{option.default}`" if option.default else ""
    return f"| {named} | {_cell(option.kind.form)} | {default} | {_cell(option.meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
