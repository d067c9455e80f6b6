"""Port to the metadata log, and this node's image of it.

Does not handle: where the log is stored (`local_store.py`, `etcd/`), the meaning of events (`image.py`).
Invariant: the image contains exactly the entries up to `seq`, all of them durable.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from braidlog.cluster.metadata.events import Event, PartitionEvent, RegisterNode, TopicEvent
from braidlog.cluster.metadata.history import HIDDEN_EVENTS, History, description_of
from braidlog.cluster.metadata.image import Image
from braidlog.model.actor import audit
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime

Decide = Callable[[Image], Sequence[Event]]
"""Returns the events to write for an image; empty if nothing changes. Called again if another change was written
first.
"""
CHANGE_SECONDS_MAX: Final = 60.0
"""How long a change is retried while other changes are written first."""
_TURN = "the metadata of this node"


class Entry(NamedTuple):
    """Events that take effect together."""

    seq: int
    events: Sequence[Event]
    time_ms: int = 0
    """Clock of the node that wrote the entry; 0 if unknown."""


class Conflict(NamedTuple):
    """Another entry was written first; the proposal was not written."""

    seq: int


class TrimmedError(Exception):
    """Entries that were not followed yet have been deleted; load the image that replaces them."""


class MetadataStore(Protocol):
    """A log of entries, numbered from 1 without gaps."""

    history: History
    """Events that `load` read or that followers applied."""

    @property
    def is_alone(self) -> bool:
        """Whether only this node writes the log, so that it can use `write_durably`."""
        ...

    def load(self) -> tuple[Image, int]:
        """The image of all durable entries, and the number of the last one."""
        ...

    async def propose(self, events: Sequence[Event], after: int) -> int | Conflict:
        """Write the entry after `after`, and return its number once it is durable. Raises if the outcome is unknown."""
        ...

    def write_durably(self, events: Sequence[Event]) -> None:
        """Like `propose`, for callers with exclusive access: while a node starts, before it serves clients."""
        ...

    def follow(self, after: int) -> Sequence[Entry]:
        """The durable entries after `after`, in order. Raises `TrimmedError` if an image has replaced them."""
        ...

    async def save(self, image: Image, seq: int) -> None:
        """Called after each entry: save the image from time to time, so that older entries can be deleted."""
        ...

    def close(self) -> None: ...


class Metadata:
    """The metadata image of one node, and the way to change it."""

    def __init__(self, store: MetadataStore, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._turns = KeyedLock(runtime)
        self.image, self.seq = store.load()
        store.history.leader_changes = dict.fromkeys(store.history.leader_changes, 0)  # causes of an earlier run
        self._touched: set[str] = set()
        self.listeners: list[Callable[[], None]] = []
        """Called after the image has changed."""

    @property
    def is_alone(self) -> bool:
        return self._store.is_alone

    @property
    def history(self) -> History:
        return self._store.history

    def topic_id(self, name: str) -> str | None:
        """The id of the topic that has this name now."""
        found = self.image.topics.get(name)
        return None if found is None else found.topic_id

    async def change(self, decide: Decide) -> None:
        """Check and propose events, and apply them once they are durable. After a conflict the decision is repeated at
        the newer image.

        A node has one proposal in flight at a time: of n concurrent ones each could lose to all others, n² attempts in
        total.
        """
        until = self._runtime.monotonic() + CHANGE_SECONDS_MAX
        async with self._turns.acquire(_TURN):
            while events := decide(self.image):
                self.image.check_all(events)
                outcome = await self._store.propose(events, after=self.seq)
                self.catch_up()
                if not isinstance(outcome, Conflict):
                    await self._store.save(self.image, self.seq)
                    _audit(events)
                    return
                if self._runtime.monotonic() >= until:
                    raise BrokerError(
                        Reason.TIMED_OUT,
                        "metadata change timed out after conflicts; nothing was changed",
                    )

    async def write_after(self, events: Sequence[Event], after: int) -> bool:
        """Write events decided at entry `after` directly behind it, or not at all; returns whether it wrote them."""
        if self.seq != after:
            return False
        self.image.check_all(events)
        outcome = await self._store.propose(events, after=after)
        self.catch_up()
        return not isinstance(outcome, Conflict)

    def change_exclusively(self, events: Sequence[Event]) -> None:
        """Like `change`, for callers with exclusive access: while a node starts, before it serves clients."""
        self.image.check_all(events)
        self._store.write_durably(events)
        self.catch_up()

    def take_changed_topics(self) -> set[str]:
        """Return and clear the names of topics changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def catch_up(self) -> None:
        """Apply all log entries after the image."""
        before = self.seq
        try:
            entries = self._store.follow(self.seq)
        except TrimmedError:
            self._touched.update(self.image.topics)
            self.image, self.seq = self._store.load()
            self._touched.update(self.image.topics)
            entries = self._store.follow(self.seq)
        for entry in entries:
            assert entry.seq == self.seq + 1, "entries are applied in order, each once"
            for event in entry.events:
                self._apply(event, entry)
            self.seq = entry.seq
            self.history.finish(entry.seq)
        if self.seq > before:
            for listener in self.listeners:
                listener()

    def _apply(self, event: Event, entry: Entry) -> None:
        before = dict(self.image.topics) if isinstance(event, RegisterNode) else None
        self.history.apply(self.image, event, entry.seq, entry.time_ms)
        if before is not None:  # registrations end leaderships
            self._touched.update(name for name, topic in self.image.topics.items() if before[name] is not topic)
        elif isinstance(event, TopicEvent):
            self._touched.add(event.topic)

    def close(self) -> None:
        self._store.close()


def _audit(events: Sequence[Event]) -> None:
    """Write metadata changes to the audit log. Every change passes here, whichever listener its request used."""
    for event in events:
        if isinstance(event, PartitionEvent):
            audit(f"partition {event.topic}/{event.partition}: {type(event).__name__}")
        elif not isinstance(event, HIDDEN_EVENTS):
            audit(description_of(event))
