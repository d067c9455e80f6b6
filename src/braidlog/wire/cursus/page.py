"""The tables of the page `docs/dialects/cursus.md`, made from the declarations.

Knows: markdown tables. Refuses to know: everything a table does not say; people write that.
"""

import msgspec

from braidlog.wire.cursus.batch import Batch
from braidlog.wire.cursus.failures import WHEN
from braidlog.wire.cursus.messages import BATCH, EVERYWHERE, OPERATIONS, Operation


def operations_table() -> str:
    """One line for each operation: both spellings, the answers, the errors of its own."""
    lines = [
        "| operation | what for | the document's arguments | the clients' arguments | answers | errors of its own |",
        "|" + "---|" * 6,
    ]
    for row in OPERATIONS:
        answers = ", ".join(kind.__name__ for kind in row.answers)
        errors = ", ".join(f"`{code}`" for code in row.errors) or "none"
        lines.append(f"| `{row.name}` | {row.purpose} | {_seed(row)} | {_clients(row)} | {answers} | {errors} |")
    return "\n".join(lines)


def errors_table() -> str:
    """One line for each error code, and whether any operation may give it."""
    lines = ["| code | when, and with which fields | any operation |", "|---|---|---|"]
    lines += [f"| `{code}` | {when} | {'yes' if code in EVERYWHERE else ''} |" for code, when in WHEN.items()]
    return "\n".join(lines)


def _seed(row: Operation) -> str:
    if row.name == BATCH:
        return "binary"
    if row.positional is None:
        return "not in the document"
    return " ".join(f"`{name}`" for name in row.positional) or "none"


def _clients(row: Operation) -> str:
    if row.request is Batch:
        return "binary"
    words = []
    for field in msgspec.structs.fields(row.request):
        name = field.encode_name if field.name != row.bare else f"{field.encode_name} (or bare)"
        words.append(f"`{name}`" if field.required else f"[`{name}`]")
    return " ".join(words) or "none"
