"""The page and the table say the same."""

from collections.abc import Sequence
from enum import IntEnum

import msgspec
from tests.wire.pages import page, table

from braidlog.wire.rustlog.binary import LAYOUTS
from braidlog.wire.rustlog.messages import BinaryErrorCode, ErrorCode, Message
from braidlog.wire.rustlog.operations import BY_REQUEST, BY_TYPE_BYTE, OPERATIONS


def operations_table() -> str:
    """Name, purpose, JSON fields of request and answer, errors."""
    rows = [
        (f"`{row.name}`", row.purpose, _fields(row.request), _fields(row.response), _codes(row.errors))
        for row in OPERATIONS
    ]
    return table(("type", "purpose", "fields", "fields of the answer", "errors"), rows)


def binary_table() -> str:
    """Type byte, layout of request and answer, errors."""
    rows = [
        (
            f"`{row.type_byte:02X}` {row.name}",
            _layout(row.request),
            _layout(row.binary_response),
            _codes(row.binary_errors),
        )
        for row in OPERATIONS
    ]
    return table(("type byte", "request", "answer", "errors"), rows)


def errors_table(codes: type[ErrorCode] | type[BinaryErrorCode]) -> str:
    """Code, name, and the operations that may answer it."""
    rows = []
    for code in codes:
        named = [row.name for row in OPERATIONS if code in (row.errors if codes is ErrorCode else row.binary_errors)]
        everywhere = len(named) == len(OPERATIONS)
        rows.append((str(code.value), code.name, "any" if everywhere else ", ".join(named) or "a frame, not a request"))
    return table(("code", "name", "given by"), rows)


def _fields(kind: type[Message]) -> str:
    fields = [field for field in msgspec.structs.fields(kind) if field.name != "id"]
    return ", ".join(f"`{each.name}`" if each.required else f"[`{each.name}`]" for each in fields) or "none"


def _layout(kind: type[msgspec.Struct]) -> str:
    return ", ".join(f"{field.label} {name}" for name, field in LAYOUTS[kind]) or "nothing"


def _codes(codes: Sequence[IntEnum]) -> str:
    return " ".join(str(code.value) for code in codes)


def test_the_page_shows_the_tables() -> None:
    for shown in (operations_table(), binary_table(), errors_table(ErrorCode), errors_table(BinaryErrorCode)):
        assert shown + "\n" in page("rustlog")


def test_each_request_and_each_byte_stands_in_one_row() -> None:
    assert len(BY_REQUEST) == len(BY_TYPE_BYTE) == len({row.response for row in OPERATIONS}) == len(OPERATIONS) == 10
