"""What the log of schemas says, as far as one part of a node needs it, read on from where it was read to.

Knows: how far the log was read. Refuses to know: what is made of its records.
Invariants: what was committed when `learn` was asked is in what it returns; several who ask at once look once. Nothing is read
before anybody asks.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from braidlog.broker.schemas.schema_log import Entry, Place, SchemaReader
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.registry.subject_ids import SubjectIds


class SchemaState(Protocol):
    """What records become."""

    def apply(self, entries: Iterable[Entry]) -> None: ...


F = TypeVar("F", bound=SchemaState)


class SchemaView(Generic[F]):
    """One for a node and a purpose; `empty` makes what nothing was read into."""

    def __init__(self, log: SchemaReader, runtime: Runtime, empty: Callable[[], F]) -> None:
        self._log = log
        self._runtime = runtime
        self._empty = empty
        self._turns = KeyedLock(runtime)
        self._place = Place()
        self.fold = empty()
        self.read_at: float | None = None
        """When the last look began that came to its end."""

    async def learn(self) -> F:
        asked_at = self._runtime.monotonic()
        async with self._turns.acquire("schemas"):
            if self.read_at is not None and self.read_at > asked_at:
                return self.fold  # somebody else's look began after this was asked
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
                self.fold, self.read_at = self._empty(), None  # until all of it is read
            self.fold.apply(page.entries)
            self._place = Place(page.topic_id, page.next_offset)
            if page.next_offset >= page.end:
                return


FRESH_SECONDS = 30.0
"""For how long an id that was deleted is taken at most."""


class SchemaIds(SchemaView[SubjectIds]):
    """One for a node."""

    def __init__(self, log: SchemaReader, runtime: Runtime) -> None:
        super().__init__(log, runtime, SubjectIds)

    def ids_of(self, subject: str) -> set[int]:
        return self.fold.ids_of(subject)

    def is_stale(self) -> bool:
        return self.read_at is None or self._runtime.monotonic() - self.read_at > FRESH_SECONDS
