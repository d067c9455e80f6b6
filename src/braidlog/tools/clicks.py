"""Generate sample events of a web shop, to try a topic, a group or a pipeline.

The same seed generates the same events, except for times. Events of a session have its name as key, and versions
1, 2, 3, …; events of a producer have sequence numbers 1, 2, 3, …. Both have no gaps, so a consumer can check that it
received every event once and in order.

    key      demo-1-session-7               headers  producer = demo-1, sequence = 42
    value    {"event_id": "demo-1-42", "type": "item_added", "user": "user-3", "page": "/basket", "aggregate": "demo-1-session-7",
              "version": 4, "producer": "demo-1", "sequence": 42, "at": "2026-11-15T10:00:00.000Z",
              "id": "demo-1-session-7", "latency_ms": 12.3, "amount": null}

`id` repeats the aggregate, under the name that the template of `braid pipeline init` uses.
"""

import random
from datetime import UTC, datetime

import msgspec

from braidlog.model.record import NewRecord

USERS = 50
SESSIONS_OPEN = 20
_START = "session_started"
_END = "order_placed"
_NEXT: dict[str, tuple[tuple[str, int], ...]] = {
    _START: (("page_viewed", 9), ("session_ended", 1)),
    "page_viewed": (("page_viewed", 5), ("link_clicked", 3), ("item_added", 2), ("session_ended", 1)),
    "link_clicked": (("page_viewed", 9), ("session_ended", 1)),
    "item_added": (("page_viewed", 4), ("item_added", 2), (_END, 3), ("session_ended", 1)),
    _END: (("session_ended", 1),),
}
"""Possible next types after each type, with weights. A type without a row ends its session."""
_PAGES = ("/", "/search", "/books", "/books/7", "/games", "/games/12", "/about", "/help")
_LATENCY = (3.0, 0.7)
"""Log-normal distribution: the median is 20 ms, the 99th percentile five times that."""
_AMOUNT = (5.0, 120.0)
_PLACES = {"item_added": "/basket", _END: "/checkout"}


class Click(msgspec.Struct, frozen=True):
    """An event; its schema is docs/schemas/click.json."""

    event_id: str
    type: str
    user: str
    page: str
    aggregate: str
    version: int
    producer: str
    sequence: int
    at: str
    id: str
    latency_ms: float
    """Response time of the page."""
    amount: float | None = None
    """Amount of an order."""

    def record(self, timestamp_ms: int | None) -> NewRecord:
        headers = (("producer", self.producer.encode()), ("sequence", b"%d" % self.sequence))
        return NewRecord(msgspec.json.encode(self), self.aggregate.encode(), headers, timestamp_ms)


class _Session:
    """A session: its last event and the number of events."""

    __slots__ = ("last", "name", "page", "user", "version")

    def __init__(self, name: str, user: str) -> None:
        self.name = name
        self.user = user
        self.page = "/"
        self.last: str | None = None
        self.version = 0


class Clicks:
    """Generator of events."""

    def __init__(self, producer: str, chance: random.Random) -> None:
        self.producer = producer
        self._chance = chance
        self._sequence = 0
        self._sessions: list[_Session] = []
        self._begun = 0

    def next(self, now_ms: int) -> Click:
        session = self._session()
        kind = self._kind(session)
        session.last = kind
        session.version += 1
        session.page = _PLACES.get(kind) or (self._chance.choice(_PAGES) if kind == "page_viewed" else session.page)
        if kind not in _NEXT:
            self._sessions.remove(session)
        self._sequence += 1
        return Click(
            event_id=f"{self.producer}-{self._sequence}",
            type=kind,
            user=session.user,
            page=session.page,
            aggregate=session.name,
            version=session.version,
            producer=self.producer,
            sequence=self._sequence,
            at=_iso(now_ms),
            id=session.name,
            latency_ms=round(self._chance.lognormvariate(*_LATENCY), 1),
            amount=round(self._chance.uniform(*_AMOUNT), 2) if kind == _END else None,
        )

    def _session(self) -> _Session:
        """Return an open session, or a new one until there are enough."""
        if len(self._sessions) < SESSIONS_OPEN and (not self._sessions or self._chance.random() < 0.2):
            self._begun += 1
            user = f"user-{self._chance.randint(1, USERS)}"
            # Session names contain the producer: shared names would look like gaps in the versions.
            self._sessions.append(_Session(f"{self.producer}-session-{self._begun}", user))
            return self._sessions[-1]
        return self._chance.choice(self._sessions)

    def _kind(self, session: _Session) -> str:
        if session.last is None:
            return _START
        following = _NEXT[session.last]
        kinds = [kind for kind, _ in following]
        return self._chance.choices(kinds, [weight for _, weight in following])[0]


def _iso(timestamp_ms: int) -> str:
    at = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
