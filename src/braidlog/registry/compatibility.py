"""Which versions a new schema is held against, and which of the two reads.

| level | the new one reads data of | data of the new one is read by |
|---|---|---|
| BACKWARD | the last version | |
| FORWARD | | the last version |
| FULL | the last version | the last version |
| …_TRANSITIVE | as above, all versions | |
| NONE | nothing is compared | |
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from braidlog.registry.errors import too_complex
from braidlog.registry.schemas import Parsed, Schema, read

MISFITS_MAX: Final = 100
"""Of one comparison: more are not listed."""
MISFIT_CHARACTERS_MAX: Final = 1000


class Level(StrEnum):
    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        return self.value.endswith("_TRANSITIVE")


class Whole(msgspec.Struct, frozen=True):
    """A schema with all that it refers to."""

    schema: Schema
    referenced: Mapping[str, Schema]


class Comparison(msgspec.Struct, frozen=True):
    """`earlier`: the versions that the level names, oldest first."""

    new: Whole
    earlier: list[Whole]
    level: Level

    def misfits(self) -> list[str]:
        """What does not fit. Raises INVALID_SCHEMA when the comparison has too many pairs of types."""
        new = _read(self.new)
        found: list[str] = []
        for each in self.earlier:
            found += [text[:MISFIT_CHARACTERS_MAX] for text in self._misfits(new, each)[:MISFITS_MAX]]
        return found[:MISFITS_MAX]

    def _misfits(self, new: Parsed, earlier: Whole) -> list[str]:
        if earlier.schema.type != self.new.schema.type:
            return ["the earlier schema is of another type"]
        parsed = _read(earlier)
        found = [] if self.level.startswith("FORWARD") else new.misfits(parsed)
        return found if self.level.startswith("BACKWARD") else found + parsed.misfits(new)


def _read(whole: Whole) -> Parsed:
    return read(whole.schema, whole.referenced)


Compare = Callable[[Comparison], list[str]]


def here(comparison: Comparison) -> list[str]:
    """Compare in this process: for callers that trust both schemas."""
    try:
        return comparison.misfits()
    except RecursionError:
        raise too_complex("the depth of types") from None
