"""Clicks of people who never were: events to try a log, a group or a pipeline with.

Knows: sessions and what one does in them. Refuses to know: topics, time (it is an argument), where events go.
Invariants: the same seed makes the same events but for their times. Events of one session have its name as their key, and
versions 1, 2, 3, … without a gap; events of one producer have sequence numbers 1, 2, 3, … without a gap: a reader can prove that
it has all of them, once, in order.

    key      demo-1-session-7               headers  producer = demo-1, sequence = 42
    value    {"event_id": "demo-1-42", "type": "item_added", "user": "user-3", "page": "/basket", "aggregate": "demo-1-session-7",
              "version": 4, "producer": "demo-1", "sequence": 42, "at": "2026-11-15T10:00:00.000Z",
              "id": "demo-1-session-7", "latency_ms": 12.3, "amount": null}

`id` is the aggregate again: the word that the template of `braid pipeline init` has for it.
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
"""After each type, what may come next and how often. What has no row ends its session."""
_PAGES = ("/", "/search", "/books", "/books/7", "/games", "/games/12", "/about", "/help")
_LATENCY = (3.0, 0.7)
"""Of a logarithm: the middle is 20 ms, one in a hundred takes five times as long."""
_AMOUNT = (5.0, 120.0)
_PLACES = {"item_added": "/basket", _END: "/checkout"}


class Click(msgspec.Struct, frozen=True):
    """One event; docs/schemas/click.json is its schema."""

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
    """How long the page took."""
    amount: float | None = None
    """Of an order."""

    def record(self, timestamp_ms: int | None) -> NewRecord:
        headers = (("producer", self.producer.encode()), ("sequence", b"%d" % self.sequence))
        return NewRecord(msgspec.json.encode(self), self.aggregate.encode(), headers, timestamp_ms)


class _Session:
    """One visit: its last event and how many there were."""

    __slots__ = ("last", "name", "page", "user", "version")

    def __init__(self, name: str, user: str) -> None:
        self.name = name
        self.user = user
        self.page = "/"
        self.last: str | None = None
        self.version = 0


class Clicks:
    """A producer of events, one after the other."""

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
        """Mostly one that is open; a new one until there are enough."""
        if len(self._sessions) < SESSIONS_OPEN and (not self._sessions or self._chance.random() < 0.2):
            self._begun += 1
            user = f"user-{self._chance.randint(1, USERS)}"
            # Two producers' sessions never have one name: each would count the other's versions as gaps.
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
