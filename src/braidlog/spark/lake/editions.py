"""Editions of a table: they distinguish a recreated table from its predecessor.

Does not handle: table formats, why a table is recreated. A table has the rows of one edition. A later edition of the
same owner replaces an earlier one. A later edition, another owner's edition and a table without an owner are never
replaced.
"""

from typing import Final, NamedTuple

from braidlog.spark.lake.errors import LakeError

PROPERTY: Final = "braidlog.edition"
_EMPTIED: Final = "empty"


class Edition(NamedTuple):
    """`OWNER:NUMBER`; `:empty` if the earlier edition's rows are removed and the columns of the next are not known
    yet."""

    owner: str
    number: int
    is_made: bool = True

    def __str__(self) -> str:
        return f"{self.owner}:{self.number}" + ("" if self.is_made else f":{_EMPTIED}")

    @property
    def emptied(self) -> "Edition":
        return self._replace(is_made=False)

    def replaces(self, existing: "Edition | None", title: str) -> bool:
        """Return whether the existing edition must be replaced by this one; `LakeError` if it must not be."""
        if existing is None or existing.owner != self.owner:
            raise LakeError(
                f"{title} already exists; another pipeline created it, or this pipeline's checkpoints are lost: "
                "remove the table, or give the pipeline another location"
            )
        if existing.number > self.number:
            raise LakeError(
                f"{title} was recreated by another run (edition {existing.number}); this is edition {self.number}"
            )
        return existing < self


def parse_edition(text: str | None) -> Edition | None:
    if text is None:
        return None
    owner, _, rest = text.partition(":")
    number, _, more = rest.partition(":")
    if not owner or not number.isdigit() or more not in ("", _EMPTIED):
        raise LakeError(f"invalid edition {text!r}: it must be OWNER:NUMBER")
    return Edition(owner, int(number), not more)
