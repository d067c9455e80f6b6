"""The page and the table say the same."""

from pathlib import Path

from braidlog.wire.rustlog.messages import BinaryErrorCode, ErrorCode
from braidlog.wire.rustlog.operations import BY_REQUEST, BY_TYPE_BYTE, OPERATIONS
from braidlog.wire.rustlog.tables import binary_table, errors_table, operations_table

PAGE = Path(__file__).parents[3] / "docs" / "dialects" / "rustlog.md"


def test_the_page_shows_the_tables() -> None:
    page = PAGE.read_text("utf-8")
    for table in (operations_table(), binary_table(), errors_table(ErrorCode), errors_table(BinaryErrorCode)):
        assert table in page


def test_each_request_and_each_byte_stands_in_one_row() -> None:
    assert len(BY_REQUEST) == len(BY_TYPE_BYTE) == len({row.response for row in OPERATIONS}) == len(OPERATIONS) == 10
