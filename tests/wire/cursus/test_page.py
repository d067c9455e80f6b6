"""The page and the tables say the same."""

from pathlib import Path

from braidlog.wire.cursus.page import errors_table, operations_table

PAGE = Path(__file__).parents[3] / "docs" / "dialects" / "cursus.md"


def test_the_page_holds_the_tables() -> None:
    text = PAGE.read_text("utf-8")
    assert operations_table() in text, (
        "run: python -c 'from braidlog.wire.cursus.page import *; print(operations_table())'"
    )
    assert errors_table() in text, "run: python -c 'from braidlog.wire.cursus.page import *; print(errors_table())'"
