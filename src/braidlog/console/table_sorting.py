"""A table as somebody wants to see it: which rows, in which order.

Knows: the address that says so, so that what is looked at again and again, or sent to somebody, looks the same. Refuses to know:
what is in a row.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

INTERNAL: Final = "__"
"""How the names of a node's own topics begin."""
SCHEMAS: Final = "_schemas"
"""Where the schema registry's clients expect its records: a node's own, too."""

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
        """The first column is the order where none is asked for."""
        asked = request.query_params
        sort = asked.get("sort", "")
        return cls(
            sort if sort in columns else columns[0],
            asked.get("down", "") == "1",
            asked.get("contains", "")[:200],
            asked.get("internal", "") == "1",
        )

    def address(self, column: str) -> str:
        """Of the same table by another column, or the other way round."""
        down = not self.down if column == self.sort else False
        asked = {"sort": column, "down": "1" if down else "", "contains": self.contains}
        return "?" + urlencode(
            {name: value for name, value in {**asked, "internal": "1" if self.internal else ""}.items() if value}
        )

    def shown(self, rows: Iterable[T], name: str) -> tuple[list[T], int]:
        """The rows, and how many are hidden because they are the node's own. `name`: the field with the name."""
        wanted = self.contains.lower()
        found = [row for row in rows if wanted in getattr(row, name).lower()]
        told = [row for row in found if self.internal or not is_internal(getattr(row, name))]
        return sorted(told, key=self._key, reverse=self.down), len(found) - len(told)

    def _key(self, row: Any) -> tuple[bool, Any]:  # noqa: ANN401 - any column
        """What is not known comes first."""
        value = getattr(row, self.sort)
        return value is not None, 0 if value is None else value
