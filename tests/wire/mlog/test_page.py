"""The page says what the table says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from braidlog.wire.mlog.messages import errors_table, operations_table

PAGE = Path(__file__).parents[3] / "docs" / "dialects" / "mlog.md"


@pytest.mark.parametrize("table", [operations_table, errors_table])
def test_the_page_holds_the_table(table: Callable[[], str]) -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), f"put this into {PAGE.name}:\n{table()}"
