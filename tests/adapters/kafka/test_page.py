"""The page says what is served."""

from collections.abc import Sequence

from tests.adapters.kafka.test_served import Door
from tests.wire.pages import page, table

from braidlog.adapters.kafka.errors import CODES
from braidlog.wire.kafka.apis import APIS, OWN, Api
from braidlog.wire.kafka.connection import Served


def apis_table(served: Served, apis: Sequence[Api] = APIS) -> str:
    """One row for each API: its number, the versions told, from which one on it is flexible."""
    rows = []
    for api in apis:
        if api.key not in served:
            continue
        first, last = api.advertised.first, served[api.key].last
        versions = str(first) if first == last else f"{first}-{last}"
        if api.advertised != api.versions:
            versions += f" (served from {api.versions.first})"
        flexible = "never" if api.flexible_since is None else str(api.flexible_since)
        rows.append((api.name, str(int(api.key)), versions, flexible))
    return table(("API", "key", "versions", "flexible from"), rows)


def errors_table() -> str:
    return table(("reason", "code"), [(reason.name, f"{int(code)} {code.name}") for reason, code in CODES.items()])


def test_the_page_shows_the_tables() -> None:
    shown = page("kafka")
    assert apis_table(Door().adapter.served) in shown
    assert apis_table(Door().adapter.served, OWN) in shown
    assert errors_table() in shown
