"""The dialect's page and the table say the same."""

from pathlib import Path

from braidlog.wire.flux.lines import CORRELATION_ID_BYTES_MAX
from braidlog.wire.flux.messages import ErrorCode
from braidlog.wire.flux.operations import WAIT_MS_MAX, operations_table
from braidlog.wire.flux.records import LINE_BYTES_MAX, RECORDS_PER_LINE_MAX
from braidlog.wire.flux.tokens import KEY_BYTES_MAX

PAGE = (Path(__file__).parents[3] / "docs" / "dialects" / "flux.md").read_text(encoding="utf-8")


def test_the_page_has_the_table() -> None:
    assert operations_table() in PAGE


def test_the_page_names_every_error() -> None:
    assert all(f"| `{code}` |" in PAGE for code in ErrorCode)


def test_the_page_names_the_limits() -> None:
    for limit in (LINE_BYTES_MAX, CORRELATION_ID_BYTES_MAX, KEY_BYTES_MAX, RECORDS_PER_LINE_MAX, WAIT_MS_MAX):
        assert f"{limit:,}" in PAGE
