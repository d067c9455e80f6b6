"""The page and the tables say the same."""

import re

import msgspec
from tests.wire.pages import page, table

from braidlog.wire.cursus.batch import Batch
from braidlog.wire.cursus.failures import ErrorCode
from braidlog.wire.cursus.messages import BATCH, EVERYWHERE, OPERATIONS, Operation


def operations_table() -> str:
    """One line for each operation: both spellings, the answers, the errors of its own."""
    heads = (
        "operation",
        "what for",
        "the document's arguments",
        "the clients' arguments",
        "answers",
        "errors of its own",
    )
    rows = []
    for row in OPERATIONS:
        answers = ", ".join(kind.__name__ for kind in row.answers)
        errors = ", ".join(f"`{code}`" for code in row.errors) or "none"
        rows.append((f"`{row.name}`", row.purpose, _document(row), _clients(row), answers, errors))
    return table(heads, rows)


def _document(row: Operation) -> str:
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


def test_the_page_holds_the_table() -> None:
    assert operations_table() in page("cursus")


def test_the_page_says_of_every_error_when_it_comes_and_whether_anywhere() -> None:
    _, _, told = page("cursus").partition("| code | when, and with which fields | any operation |\n")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (yes|) \|$", told.partition("\n\n")[0], re.MULTILINE)
    assert dict(rows) == {str(code): "yes" if code in EVERYWHERE else "" for code in ErrorCode}
