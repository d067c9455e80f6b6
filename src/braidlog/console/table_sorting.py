"""Filter and order of a table, kept in the page's address, so that reloads and shared links show the same rows."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

INTERNAL: Final = "__"
"""Prefix of internal topics."""
SCHEMAS: Final = "_schemas"
"""Topic in which clients of the schema registry expect its records; internal, too."""

T = TypeVar("T", bound=tuple[Any, ...])


def is_internal(topic: str) -> bool:
    return topic.startswith(INTERNAL) or topic == SCHEMAS


class Listing(NamedTuple):
    sort: str
    down: bool
    contains: str
    internal: bool

    @classmethod
    def of(cls, request: Request, columns: Sequence[str]) -> "Listing":
        """Parse the request; the default order is by the first column."""
        asked = request.query_params
        sort = asked.get("sort", "")
        return cls(
            sort if sort in columns else columns[0],
            asked.get("down", "") == "1",
            asked.get("contains", "")[:200],
            asked.get("internal", "") == "1",
        )

    def address(self, column: str) -> str:
        """Return the address of the table ordered by `column`, or reversed."""
        down = not self.down if column == self.sort else False
        asked = {"sort": column, "down": "1" if down else "", "contains": self.contains}
        return "?" + urlencode(
            {name: value for name, value in {**asked, "internal": "1" if self.internal else ""}.items() if value}
        )

    def shown(self, rows: Iterable[T], name: str) -> tuple[list[T], int]:
        """Return the rows, and the number of hidden internal ones. `name`: the field with the name."""
        wanted = self.contains.lower()
        found = [row for row in rows if wanted in getattr(row, name).lower()]
        told = [row for row in found if self.internal or not is_internal(getattr(row, name))]
        return sorted(told, key=self._key, reverse=self.down), len(found) - len(told)

    def _key(self, row: Any) -> tuple[bool, Any]:  # noqa: ANN401 - any column
        """Return the sort key; unknown values come first."""
        value = getattr(row, self.sort)
        return value is not None, 0 if value is None else value
