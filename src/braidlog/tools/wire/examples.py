"""Conversations that come with braidlog, one file of annotated hex for each dialect.

Knows: where they are. Refuses to know: what is in them. `braid wire send --example` plays them, `braid wire fuzz` damages them.
"""

from importlib.resources import files


def example(dialect: str) -> str:
    """The text of a dialect's file; KeyError if there is none."""
    found = files("braidlog.tools.wire") / "conversations" / f"{dialect}.wire"
    if not found.is_file():
        raise KeyError(f"there is no example of {dialect!r}")
    return found.read_text(encoding="utf-8")
