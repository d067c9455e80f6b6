"""Where the metadata log is kept, as a port; and this node's image of it.

Knows: how a decision is taken at an image, proposed, and taken again if the log has moved on meanwhile. Refuses to know: where
the log is (`local.py`, `etcd/`), what an event means (`image.py`).
Invariant: the image holds exactly the entries up to `seq`, and no entry that is not durable.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from braidlog.cluster.events import Event, PartitionEvent, RegisterNode, TopicEvent
from braidlog.cluster.history import UNTOLD, History, said
from braidlog.cluster.image import Image
from braidlog.model.actor import audit
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.turns import Turns
from braidlog.model.world import World

Decide = Callable[[Image], Sequence[Event]]
"""From the image to the events that should follow; called again if another change came first. None: nothing is to change."""
CHANGE_SECONDS_MAX: Final = 60.0
"""How long a decision is taken again because another change came first."""
_TURN = "the metadata of this node"


class Entry(NamedTuple):
    """Events that become true together."""

    seq: int
    events: Sequence[Event]
    time_ms: int = 0
    """By the clock of whoever wrote it; 0 if that is not known."""


class Conflict(NamedTuple):
    """The log has gone on beyond the entry that a proposal was to follow; nothing was written."""

    seq: int


class TrimmedError(Exception):
    """Entries that were not followed yet have been let go: their image is to be loaded."""


class MetadataStore(Protocol):
    """A log of entries, numbered from 1 on without gaps."""

    history: History
    """What `load` has read of it, and whoever follows it has applied."""

    @property
    def is_alone(self) -> bool:
        """Whether nobody but this node writes to it, so that it can `write_durably`."""
        ...

    def load(self) -> tuple[Image, int]:
        """The image of all that is durable, and the number of the last entry in it."""
        ...

    async def propose(self, events: Sequence[Event], after: int) -> int | Conflict:
        """Write the entry that follows `after`. Durable when this returns its number; raises if that cannot be known."""
        ...

    def write_durably(self, events: Sequence[Event]) -> None:
        """As `propose`, for whoever has the store alone: while a node starts, before anyone is served."""
        ...

    def follow(self, after: int) -> Sequence[Entry]:
        """The durable entries beyond `after`, in order. `TrimmedError`: they are in an image by now, load it."""
        ...

    async def save(self, image: Image, seq: int) -> None:
        """Called after each entry: keep the image now and then, so that the entries before it can go."""
        ...

    def close(self) -> None: ...


class Metadata:
    """The image of one node, and the way to change it."""

    def __init__(self, store: MetadataStore, world: World) -> None:
        self._store = store
        self._world = world
        self._turns = Turns(world)
        self.image, self.seq = store.load()
        store.history.leader_changes = dict.fromkeys(store.history.leader_changes, 0)  # they are those of another life
        self._touched: set[str] = set()
        self.listeners: list[Callable[[], None]] = []
        """Called after the image has changed, by whomever."""

    @property
    def is_alone(self) -> bool:
        return self._store.is_alone

    @property
    def history(self) -> History:
        return self._store.history

    def topic_id(self, name: str) -> str | None:
        """Of the topic that has a name now."""
        found = self.image.topics.get(name)
        return None if found is None else found.topic_id

    async def change(self, decide: Decide) -> None:
        """Check, propose, and apply once it is durable; a decision that came second is taken again at the newer image.

        One proposal of a node is under way at a time: of n at once each would lose to all before it, n² times in all.
        """
        until = self._world.monotonic() + CHANGE_SECONDS_MAX
        async with self._turns.take(_TURN):
            while events := decide(self.image):
                self.image.check_all(events)
                outcome = await self._store.propose(events, after=self.seq)
                self.catch_up()
                if not isinstance(outcome, Conflict):
                    await self._store.save(self.image, self.seq)
                    _audit(events)
                    return
                if self._world.monotonic() >= until:
                    raise BrokerError(
                        Reason.TIMED_OUT, "other changes of the metadata came first for too long; nothing was changed"
                    )

    async def write_after(self, events: Sequence[Event], after: int) -> bool:
        """Write what was decided at entry `after` directly behind it, or not at all; whether it was written."""
        if self.seq != after:
            return False
        self.image.check_all(events)
        outcome = await self._store.propose(events, after=after)
        self.catch_up()
        return not isinstance(outcome, Conflict)

    def change_alone(self, events: Sequence[Event]) -> None:
        """As `change`, for whoever has the store alone: while a node starts, before anyone is served."""
        self.image.check_all(events)
        self._store.write_durably(events)
        self.catch_up()

    def take_touched(self) -> set[str]:
        """The topics that were changed since this was last asked."""
        touched, self._touched = self._touched, set()
        return touched

    def catch_up(self) -> None:
        """Apply what the log has beyond the image."""
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
        if before is not None:  # it ends leaderships
            self._touched.update(name for name, topic in self.image.topics.items() if before[name] is not topic)
        elif isinstance(event, TopicEvent):
            self._touched.add(event.topic)

    def close(self) -> None:
        self._store.close()


def _audit(events: Sequence[Event]) -> None:
    """Whoever asked for it is named in the log, whichever door it came by: every change of metadata comes this way."""
    for event in events:
        if isinstance(event, PartitionEvent):
            audit(f"partition {event.topic}/{event.partition}: {type(event).__name__}")
        elif not isinstance(event, UNTOLD):
            audit(said(event))
