"""Which versions a new schema is held against, and which of the two reads.

| level | the new one reads data of | data of the new one is read by |
|---|---|---|
| BACKWARD | the last version | |
| FORWARD | | the last version |
| FULL | the last version | the last version |
| …_TRANSITIVE | as above, all versions | |
| NONE | nothing is compared | |
"""

from collections.abc import Sequence
from enum import StrEnum

from braidlog.registry.schemas import Parsed


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


def misfits(new: Parsed, earlier: Sequence[Parsed], level: Level) -> list[str]:
    """`earlier`: versions of the subject, oldest first. What is of another type fits nothing."""
    found: list[str] = []
    if level is Level.NONE:
        return found
    reads, is_read = not level.startswith("FORWARD"), not level.startswith("BACKWARD")
    for each in earlier if level.is_transitive else earlier[-1:]:
        if type(each) is not type(new):
            found.append("the earlier schema is of another type")
            continue
        found += new.misfits(each) if reads else []
        found += each.misfits(new) if is_read else []
    return found
