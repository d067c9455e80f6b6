"""Editions of a table: what a table that is made anew was before, and what it is now.

Knows: which of two editions gives way. Refuses to know: table formats, why a table is made anew.
Invariant: a table has the rows of one edition. A later edition of the same owner takes the place of an earlier one; an earlier
one, another owner's and a table without an owner are never touched.
"""

from typing import Final, NamedTuple

from braidlog.spark.lake.errors import LakeError

PROPERTY: Final = "braidlog.edition"
_EMPTIED: Final = "empty"


class Edition(NamedTuple):
    """`OWNER:NUMBER`; `:empty` where the earlier edition's rows are gone and nobody has said yet which columns the next has."""

    owner: str
    number: int
    is_made: bool = True

    def __str__(self) -> str:
        return f"{self.owner}:{self.number}" + ("" if self.is_made else f":{_EMPTIED}")

    @property
    def emptied(self) -> "Edition":
        return self._replace(is_made=False)

    def replaces(self, found: "Edition | None", title: str) -> bool:
        """Whether what is there gives way to this one; `LakeError` if it must not."""
        if found is None or found.owner != self.owner:
            raise LakeError(
                f"{title} is there already, and what began it is not this pipeline, or its checkpoints are lost: remove the "
                "table, or give the pipeline another place"
            )
        if found.number > self.number:
            raise LakeError(f"{title} was made anew meanwhile (edition {found.number}); this is edition {self.number}")
        return found < self


def parse_edition(text: str | None) -> Edition | None:
    if text is None:
        return None
    owner, _, rest = text.partition(":")
    number, _, more = rest.partition(":")
    if not owner or not number.isdigit() or more not in ("", _EMPTIED):
        raise LakeError(f"edition = {text!r}: an edition is OWNER:NUMBER")
    return Edition(owner, int(number), not more)
