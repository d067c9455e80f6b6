"""The page and the table say the same."""

from tests.wire.pages import page, table

from braidlog.wire.peer.messages import OPERATIONS, Row


def test_the_page_has_the_table() -> None:
    rows = [(f"`{row.number:02X}` {row.name}", _payload(row), _size(row)) for row in OPERATIONS]
    for group in (0x0, 0x1, 0x2):
        chosen = [each for each, row in zip(rows, OPERATIONS, strict=True) if row.number >> 4 == group]
        assert table(("type", "payload", "bytes"), chosen) in page("peer")


def _payload(row: Row) -> str:
    return ", ".join(f"{kind.label} `{name}`" for name, kind in row.fields)


def _size(row: Row) -> str:
    return f"{row.bytes_min:,}" if row.bytes_min == row.bytes_max else f"{row.bytes_min:,} to {row.bytes_max:,}"
