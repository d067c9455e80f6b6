"""Computes a registry's results from schemas: the stored text, and compatibility.

A new schema is compared with earlier versions by the level of its subject:

| level | the new schema reads data of | data of the new schema is read by |
|---|---|---|
| BACKWARD | the last version | |
| FORWARD | | the last version |
| FULL | the last version | the last version |
| …_TRANSITIVE | as above, all versions | |
| NONE | nothing is compared | |

A `Reading` and a `Comparison` are self-contained, so that a process with limits can compute them.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from braidlog.registry.errors import too_complex
from braidlog.registry.schemas import Parsed, Schema, read

MISFITS_MAX: Final = 100
"""Maximum incompatibilities listed for a comparison."""
MISFIT_CHARACTERS_MAX: Final = 1000
SMALL_CHARACTERS_MAX: Final = 8 * 1024
"""A schema up to this length, with its references, is parsed in milliseconds and with little memory, whatever its
content."""


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
    """A schema with all its references."""

    schema: Schema
    referenced: Mapping[str, Schema]

    @property
    def is_small(self) -> bool:
        """Whether it can be parsed in this process without limits."""
        texts = (self.schema.text, *(each.text for each in self.referenced.values()))
        return sum(map(len, texts)) <= SMALL_CHARACTERS_MAX

    def parsed(self) -> Parsed:
        """Parse the schema. Raises INVALID_SCHEMA."""
        return read(self.schema, self.referenced)


class Reading(msgspec.Struct, frozen=True, tag=True):
    """A schema to parse, and the format to write it in: "" is the stored text."""

    schema: Whole
    format: str = ""

    def answer(self) -> list[str]:
        """Return the text, and the identity, which equivalent schemas share. Raises INVALID_SCHEMA."""
        parsed = self.schema.parsed()
        return [parsed.formatted(self.format), parsed.identity]


class Comparison(msgspec.Struct, frozen=True, tag=True):
    """A comparison of schemas. `earlier`: the versions that the level names, oldest first."""

    new: Whole
    earlier: list[Whole]
    level: Level

    def answer(self) -> list[str]:
        """Return the incompatibilities. Raises INVALID_SCHEMA if there are too many pairs of types."""
        new = self.new.parsed()
        faults: list[str] = []
        for each in self.earlier:
            faults += [text[:MISFIT_CHARACTERS_MAX] for text in self._misfits(new, each)[:MISFITS_MAX]]
        return faults[:MISFITS_MAX]

    def _misfits(self, new: Parsed, earlier: Whole) -> list[str]:
        if earlier.schema.type != self.new.schema.type:
            return ["the earlier schema is of another type"]
        parsed = earlier.parsed()
        faults = [] if self.level.startswith("FORWARD") else new.misfits(parsed)
        return faults if self.level.startswith("BACKWARD") else faults + parsed.misfits(new)


Task = Reading | Comparison
Compute = Callable[[Task], list[str]]


def compute(task: Task) -> list[str]:
    """Compute the answer in this process: for callers that trust the schemas."""
    try:
        return task.answer()
    except RecursionError:
        raise too_complex("the depth of types") from None
