"""Example conversations, one file of annotated hex per dialect.

`braid wire send --example` plays them, `braid wire fuzz` damages them.
"""

from importlib.resources import files


def example(dialect: str) -> str:
    """Return the example of a dialect. Raises `KeyError` if it has none."""
    found = files("braidlog.tools.wire") / "conversations" / f"{dialect}.wire"
    if not found.is_file():
        raise KeyError(f"no example for {dialect!r}")
    return found.read_text(encoding="utf-8")
