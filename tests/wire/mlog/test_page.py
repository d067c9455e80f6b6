"""The page says what the table says."""

import re

from tests.wire.pages import page, table

from braidlog.wire.mlog.errors import ErrorCode
from braidlog.wire.mlog.messages import MessageType
from braidlog.wire.mlog.operations import OPERATIONS


def operations_table() -> str:
    rows = []
    for operation in OPERATIONS:
        answer = f"{operation.response_number.value}{', pushed' if operation.streams else ''}"
        errors = " ".join(str(code.value) for code in sorted(operation.errors))
        rows.append((str(operation.number.value), operation.name, answer, operation.purpose, errors))
    shown = table(("type", "operation", "answer", "for", "errors"), rows)
    return f"{shown}\n| {MessageType.RPC_ERROR.value} | RPCError | | takes the place of any answer | |"


def test_the_page_holds_the_table() -> None:
    assert operations_table() in page("mlog")


def test_the_page_says_of_every_error_when_it_comes() -> None:
    _, _, told = page("mlog").partition("| code | name | when |\n")
    rows = re.findall(r"^\| (\d+) \| (\w+) \| \w.* \|$", told.partition("\n\n")[0], re.MULTILINE)
    assert rows == [(str(code.value), code.name) for code in ErrorCode]
