"""The page says what is served."""

from pathlib import Path

from tests.adapters.kafka.test_served import Door

from braidlog.adapters.kafka.errors import CODES
from braidlog.wire.kafka.apis import OWN
from braidlog.wire.kafka.tables import apis_table

PAGE = Path(__file__).parents[3] / "docs" / "dialects" / "kafka.md"


def errors_table() -> str:
    rows = ["| reason | code |", "|---|---|"]
    rows += [f"| {reason.name} | {int(code)} {code.name} |" for reason, code in CODES.items()]
    return "\n".join(rows)


def test_the_page_shows_the_tables() -> None:
    page = PAGE.read_text("utf-8")
    assert apis_table(Door().adapter.served) in page
    assert apis_table(Door().adapter.served, OWN) in page
    assert errors_table() in page
