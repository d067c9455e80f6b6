"""The page and the tables say the same."""

from tests.wire.pages import page, table

from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.fields import GROWING, LAYOUTS, TAGS
from braidlog.wire.mayfly.operations import (
    BY_NUMBER,
    BY_REQUEST,
    CLUSTERED,
    CONNECTION,
    EVERYWHERE,
    GROUPS,
    NAMES,
    OPERATIONS,
)


def commands_table() -> str:
    """Number, name, bodies, the payload's maximum, statuses."""
    rows = [
        (
            f"`{row.number:02X}` {row.name}",
            row.purpose,
            _body(row.request),
            f"{row.payload_bytes_max:,}",
            _body(row.answer),
            " ".join(f"{status:02X}" for status in row.statuses),
        )
        for row in OPERATIONS
    ]
    return table(("command", "purpose", "request", "bytes at most", "answer", "statuses"), rows)


def statuses_table() -> str:
    """Number, name, and who gives it."""
    rows = [(f"`{status:02X}`", status.name, _given_by(status)) for status in m.Status]
    return table(("status", "name", "given by"), rows)


def tags_table() -> str:
    """Every tagged field of every message."""
    rows = [
        (kind.__name__, f"`{tag.number:04X}`", name, tag.label)
        for kind, tags in TAGS.items()
        for name, tag in tags.items()
    ]
    return table(("message", "tag", "field", "value"), rows)


def _given_by(status: m.Status) -> str:
    if status is m.Status.OK or status in EVERYWHERE:
        return "any command" if status is not m.Status.AUTH_REQUIRED else "any command but AUTH"
    if status in CONNECTION:
        return "a frame that is no command"
    if status in CLUSTERED:
        return "any command, where there is more than one node"
    return ", ".join(row.name for row in OPERATIONS if status in row.statuses)


def _body(kind: type[m.Message]) -> str:
    fixed = [f"{field.label} `{name}`" for name, field in LAYOUTS[kind]]
    if kind is m.Set:
        fixed[-1] = f"[{fixed[-1]}]"
    if kind in GROWING or TAGS.get(kind):
        fixed.append("[tagged]" if kind in GROWING or kind is m.Stored else "tagged")
    return ", ".join(fixed) or "nothing"


def test_the_page_shows_the_tables() -> None:
    for shown in (commands_table(), statuses_table(), tags_table()):
        assert shown + "\n" in page("mayfly")


def test_each_request_and_each_number_stands_in_one_row() -> None:
    assert len(BY_REQUEST) == len(BY_NUMBER) == len(OPERATIONS) == len(NAMES) == 29
    assert {row.number >> 4 for row in OPERATIONS} == set(GROUPS)


def test_the_documents_maximum_of_get() -> None:
    assert BY_REQUEST[m.Get].payload_bytes_max == 258


def test_a_tag_is_given_once() -> None:
    for tags in TAGS.values():
        assert len({tag.number for tag in tags.values()}) == len(tags)
