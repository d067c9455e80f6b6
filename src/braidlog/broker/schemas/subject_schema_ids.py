"""The ids of subjects, as the log of schemas has them: for records that are checked as they are appended.

Refuses to know: records of topics, schemas' texts. Nothing is read where no topic is checked.
"""

from braidlog.broker.schemas.schema_log import SchemaReader
from braidlog.broker.schemas.schema_view import SchemaFold
from braidlog.model.runtime.runtime import World
from braidlog.registry.subject_ids import SubjectIds

FRESH_SECONDS = 30.0
"""For how long an id that was deleted is taken at most."""


class SchemaIds(SchemaFold[SubjectIds]):
    """One for a node."""

    def __init__(self, log: SchemaReader, world: World) -> None:
        super().__init__(log, world, SubjectIds)

    def of(self, subject: str) -> set[int]:
        return self.fold.of(subject)

    def is_stale(self) -> bool:
        return self.read_at is None or self._world.monotonic() - self.read_at > FRESH_SECONDS
