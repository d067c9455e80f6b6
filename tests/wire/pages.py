"""Tables of the dialects' pages, as the declarations in `wire/` have them."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def page(dialect: str) -> str:
    return (Path(__file__).parents[2] / "docs" / "dialects" / f"{dialect}.md").read_text("utf-8")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, without the line break at its end."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
