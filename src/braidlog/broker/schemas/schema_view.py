"""A view of the schema log for one part of a node, read on from its last position.

Invariants: the result of `learn` contains everything that was committed before the call; concurrent callers share
one read. Nothing is read before the first call.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from braidlog.broker.schemas.schema_log import Entry, Place, SchemaReader
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.registry.subject_ids import SubjectIds


class SchemaState(Protocol):
    """The state that records are applied to."""

    def apply(self, entries: Iterable[Entry]) -> None: ...


F = TypeVar("F", bound=SchemaState)


class SchemaView(Generic[F]):
    """One view per node and purpose; `empty` creates the state before any record is applied."""

    def __init__(self, log: SchemaReader, runtime: Runtime, empty: Callable[[], F]) -> None:
        self._log = log
        self._runtime = runtime
        self._empty = empty
        self._turns = KeyedLock(runtime)
        self._place = Place()
        self.fold = empty()
        self.read_at: float | None = None
        """Start time of the last completed read."""

    async def learn(self) -> F:
        asked_at = self._runtime.monotonic()
        async with self._turns.acquire("schemas"):
            if self.read_at is not None and self.read_at > asked_at:
                return self.fold  # another caller's read began after this call
            begun_at = self._runtime.monotonic()
            try:
                await self._catch_up()
            except BrokerError as error:
                raise BrokerError(
                    Reason.TIMED_OUT, f"the schemas of the topic's subject cannot be read: {error}; try again"
                ) from error
            self.read_at = begun_at
            return self.fold

    async def _catch_up(self) -> None:
        while True:
            page = await self._log.read(self._place)
            if page.topic_id != self._place.topic_id or page.begin != self._place.offset:
                self.fold, self.read_at = self._empty(), None  # until all of it has been read
            self.fold.apply(page.entries)
            self._place = Place(page.topic_id, page.next_offset)
            if page.next_offset >= page.end:
                return


FRESH_SECONDS = 30.0
"""How long a deleted id is still accepted at most."""


class SchemaIds(SchemaView[SubjectIds]):
    """The ids of each subject's schemas; one instance per node."""

    def __init__(self, log: SchemaReader, runtime: Runtime) -> None:
        super().__init__(log, runtime, SubjectIds)

    def ids_of(self, subject: str) -> set[int]:
        return self.fold.ids_of(subject)

    def is_stale(self) -> bool:
        return self.read_at is None or self._runtime.monotonic() - self.read_at > FRESH_SECONDS
