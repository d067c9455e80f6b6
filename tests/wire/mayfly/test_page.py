"""The page and the tables say the same."""

from pathlib import Path

from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.fields import TAGS
from braidlog.wire.mayfly.operations import BY_NUMBER, BY_REQUEST, GROUPS, NAMES, OPERATIONS
from braidlog.wire.mayfly.tables import commands_table, statuses_table, tags_table

PAGE = Path(__file__).parents[3] / "docs" / "dialects" / "mayfly.md"


def test_the_page_shows_the_tables() -> None:
    page = PAGE.read_text("utf-8")
    for table in (commands_table(), statuses_table(), tags_table()):
        assert table in page


def test_each_request_and_each_number_stands_in_one_row() -> None:
    assert len(BY_REQUEST) == len(BY_NUMBER) == len(OPERATIONS) == len(NAMES) == 28
    assert {row.number >> 4 for row in OPERATIONS} == set(GROUPS)


def test_the_documents_maximum_of_get() -> None:
    assert BY_REQUEST[m.Get].payload_bytes_max == 258


def test_a_tag_is_given_once() -> None:
    for tags in TAGS.values():
        assert len({tag.number for tag in tags.values()}) == len(tags)
