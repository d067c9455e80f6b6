"""The tables of docs/dialects/mayfly.md, written from the table of commands. A test holds page and tables equal.

Knows: Markdown. Refuses to know: anything that `operations.py` and `fields.py` do not say.
"""

from collections.abc import Sequence

from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.fields import GROWING, LAYOUTS, TAGS
from braidlog.wire.mayfly.messages import Status
from braidlog.wire.mayfly.operations import CLUSTERED, CONNECTION, EVERYWHERE, OPERATIONS


def commands_table() -> str:
    """Number, name, bodies, the payload's maximum, statuses."""
    rows = [
        (
            f"`{row.number:02X}` {row.name}",
            row.purpose,
            _body(row.request),
            f"{row.payload_bytes_max:,}",
            _body(row.answer),
            " ".join(f"{status:02X}" for status in row.statuses),
        )
        for row in OPERATIONS
    ]
    return _table(("command", "purpose", "request", "bytes at most", "answer", "statuses"), rows)


def statuses_table() -> str:
    """Number, name, and who gives it."""
    rows = [(f"`{status:02X}`", status.name, _given_by(status)) for status in Status]
    return _table(("status", "name", "given by"), rows)


def tags_table() -> str:
    """Every tagged field of every message."""
    rows = [
        (kind.__name__, f"`{tag.number:04X}`", name, tag.label)
        for kind, tags in TAGS.items()
        for name, tag in tags.items()
    ]
    return _table(("message", "tag", "field", "value"), rows)


def _given_by(status: Status) -> str:
    if status is Status.OK or status in EVERYWHERE:
        return "any command" if status is not Status.AUTH_REQUIRED else "any command but AUTH"
    if status in CONNECTION:
        return "a frame that is no command"
    if status in CLUSTERED:
        return "any command, where there is more than one node"
    return ", ".join(row.name for row in OPERATIONS if status in row.statuses)


def _body(kind: type[m.Message]) -> str:
    fixed = [f"{field.label} `{name}`" for name, field in LAYOUTS[kind]]
    if kind is m.Set:
        fixed[-1] = f"[{fixed[-1]}]"
    if kind in GROWING or TAGS.get(kind):
        fixed.append("[tagged]" if kind in GROWING or kind is m.Stored else "tagged")
    return ", ".join(fixed) or "nothing"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
