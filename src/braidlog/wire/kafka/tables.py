"""The tables of docs/dialects/kafka.md, made of the table of APIs: what a page says and what is served are one thing.

Knows: Markdown. Refuses to know: which APIs a node serves (it is asked).
"""

from collections.abc import Sequence

from braidlog.wire.kafka.apis import APIS, Api
from braidlog.wire.kafka.connection import ALL, Served


def apis_table(served: Served = ALL, apis: Sequence[Api] = APIS) -> str:
    """One row for each API: its number, the versions told, from which one on it is flexible."""
    rows = ["| API | key | versions | flexible from |", "|---|---|---|---|"]
    for api in apis:
        if api.key not in served:
            continue
        first, last = api.advertised.first, served[api.key].last
        versions = str(first) if first == last else f"{first}-{last}"
        if api.advertised_first is not None:
            versions += f" (served from {api.versions.first})"
        flexible = "never" if api.flexible_since is None else str(api.flexible_since)
        rows.append(f"| {api.name} | {int(api.key)} | {versions} | {flexible} |")
    return "\n".join(rows)
