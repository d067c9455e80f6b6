"""The dialect's page and the table say the same."""

from tests.wire.pages import page, table

from braidlog.wire.flux.lines import CORRELATION_ID_BYTES_MAX
from braidlog.wire.flux.messages import ErrorCode
from braidlog.wire.flux.operations import OPERATIONS, WAIT_MS_MAX
from braidlog.wire.flux.records import LINE_BYTES_MAX, RECORDS_PER_LINE_MAX
from braidlog.wire.flux.tokens import KEY_BYTES_MAX

PAGE = page("flux")


def _cell(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else "none"


def test_the_page_has_the_table() -> None:
    rows = [
        (_cell(o.command), _cell(o.syntax), _cell(o.payload_syntax), o.purpose, ", ".join(o.errors) or "none")
        for o in OPERATIONS
    ]
    assert table(("command", "arguments", "answers", "for", "errors beside BAD_REQUEST"), rows) + "\n" in PAGE


def test_the_page_names_every_error() -> None:
    assert all(f"| `{code}` |" in PAGE for code in ErrorCode)


def test_the_page_names_the_limits() -> None:
    for limit in (LINE_BYTES_MAX, CORRELATION_ID_BYTES_MAX, KEY_BYTES_MAX, RECORDS_PER_LINE_MAX, WAIT_MS_MAX):
        assert f"{limit:,}" in PAGE
