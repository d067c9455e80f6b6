"""Fetch sessions (KIP-227): a client names its partitions once, then only what has changed about them.

Knows: what each connection is in the middle of asking for, and what it was told last. Refuses to know: how records are found, who
may read what: a request of a session is completed before anything else looks at it, so that all of it is authorised each time.
Invariants: a connection has one session at most, which ends with it; there are `SESSIONS_MAX` of them, of `PARTITIONS_MAX`
partitions each, and what they keep counts in the node's memory. Who gets none is served in full.
"""

from collections.abc import Iterable
from itertools import groupby
from weakref import WeakKeyDictionary

import msgspec

from braidlog.adapters.contract import Conversation
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import data as d

SESSIONS_MAX = 1000
PARTITIONS_MAX = 20_000
PARTITION_BYTES = 512
"""What a session keeps of one partition."""
SINCE = 7
"""The first version of Fetch that knows sessions."""
NO_SESSION = 0
FIRST, NONE = 0, -1
"""Epochs of requests that name all their partitions: the first begins a session, the other wants none."""
EPOCH_MAX = 2**31 - 1

Place = tuple[str, bytes, int]
"""A topic by its name or its id, whichever the request has, and the number of a partition."""
Told = tuple[int, int, int]
"""High watermark, last stable offset, start offset."""


class Session:
    """What one connection asks for."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = FIRST
        self.wanted: dict[Place, d.FetchRequestPartition] = {}
        """Those that were given records last stand last: so each has its turn when not all fit an answer."""
        self._told: dict[Place, Told] = {}
        self.held_bytes = 0

    def update(self, message: d.FetchRequest) -> None:
        for gone in message.forgotten_topics_data:
            for number in gone.partitions:
                self.wanted.pop((gone.topic, gone.topic_id, number), None)
                self._told.pop((gone.topic, gone.topic_id, number), None)
        for topic in message.topics:
            for each in topic.partitions:
                self.wanted[topic.topic, topic.topic_id, each.partition] = each
        self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1

    def topics(self) -> list[d.FetchRequestTopic]:
        """Everything that is wanted, in its order; a topic stands there several times if others are between its partitions."""
        return [
            d.FetchRequestTopic(name, topic_id, [self.wanted[place] for place in places])
            for (name, topic_id), places in groupby(self.wanted, lambda place: place[:2])
        ]

    def is_news(self, place: Place, found: d.FetchResponsePartition) -> bool:
        """Whether a client has to hear of a partition; it is remembered that it has."""
        told = (found.high_watermark, found.last_stable_offset, found.log_start_offset)
        is_answer = bool(found.error_code) or has_records(found) or found.preferred_read_replica >= 0
        is_news = is_answer or self._told.get(place) != told
        self._told[place] = told
        if has_records(found) and place in self.wanted:
            self.wanted[place] = self.wanted.pop(place)
        return is_news


def has_records(found: d.FetchResponsePartition) -> bool:
    records = found.records
    return records is not None and (not isinstance(records, bytes) or bool(records))


class FetchSessions:
    """The sessions of all connections."""

    def __init__(self) -> None:
        self._sessions: WeakKeyDictionary[Conversation, Session] = WeakKeyDictionary()
        self._last = 0

    def begin(self, conversation: Conversation, message: d.FetchRequest, version: int) -> d.FetchRequest | E:
        """The request with all its partitions, or why it cannot have them."""
        if version < SINCE or message.session_epoch in (FIRST, NONE):
            self._end(conversation)
            if version >= SINCE and message.session_epoch == FIRST:
                self._open(conversation, message)
            return message
        session = self._sessions.get(conversation)
        if session is None or session.number != message.session_id:
            return E.FETCH_SESSION_ID_NOT_FOUND
        if message.session_epoch != session.epoch:
            return E.INVALID_FETCH_SESSION_EPOCH
        session.update(message)
        if len(session.wanted) > PARTITIONS_MAX:
            self._end(conversation)
            return E.FETCH_SESSION_ID_NOT_FOUND
        self._charge(conversation, session)
        return msgspec.structs.replace(message, topics=session.topics(), forgotten_topics_data=[])

    def finish(self, conversation: Conversation, asked: d.FetchRequest, answer: d.FetchResponse) -> d.FetchResponse:
        """The answer as the session's client wants it: whole to its first request, then only what is new."""
        if asked.session_epoch == NONE:
            return answer
        session = self._sessions.get(conversation)
        if session is None or asked.session_id not in (NO_SESSION, session.number):
            return answer
        news = list(_narrowed(session, answer.responses))
        if asked.session_epoch == FIRST:
            news = answer.responses
        return msgspec.structs.replace(answer, session_id=session.number, responses=news)

    def _open(self, conversation: Conversation, message: d.FetchRequest) -> None:
        if len(self._sessions) >= SESSIONS_MAX:
            return
        self._last = self._last % EPOCH_MAX + 1
        session = self._sessions[conversation] = Session(self._last)
        session.update(message)
        self._charge(conversation, session)

    def _end(self, conversation: Conversation) -> None:
        session = self._sessions.pop(conversation, None)
        if session is not None and session.held_bytes:
            conversation.hold(-session.held_bytes)

    def _charge(self, conversation: Conversation, session: Session) -> None:
        needed = len(session.wanted) * PARTITION_BYTES
        if needed != session.held_bytes:
            conversation.hold(needed - session.held_bytes)
            session.held_bytes = needed


def _narrowed(session: Session, topics: Iterable[d.FetchResponseTopic]) -> Iterable[d.FetchResponseTopic]:
    for topic in topics:
        news = [
            each
            for each in topic.partitions
            if session.is_news((topic.topic, topic.topic_id, each.partition_index), each)
        ]
        if news:
            yield d.FetchResponseTopic(topic.topic, topic.topic_id, news)
