"""The page and the table say the same."""

from tests.wire.pages import page, table

from braidlog.wire.peer.messages import OPERATIONS


def test_the_page_has_the_table() -> None:
    rows = [(f"`{row.number:02X}` {row.name}", row.drawing, str(row.layout.size)) for row in OPERATIONS]
    assert table(("type", "payload", "bytes"), rows) in page("peer")
