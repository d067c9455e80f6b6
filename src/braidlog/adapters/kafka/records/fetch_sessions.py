"""Fetch sessions (KIP-227): a client sends its partitions once, then only changes.

A request of a session is completed before authorization, so that all its partitions are authorized each time.
Invariants: a connection has at most one session, which ends with it. At most `SESSIONS_MAX` sessions exist, with at
most `PARTITIONS_MAX` partitions each; their memory counts in the node's. A client without a session gets full
answers.
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
"""Approximate bytes that a session keeps per partition."""
SINCE = 7
"""The first version of Fetch with sessions."""
NO_SESSION = 0
FIRST, NONE = 0, -1
"""Epochs of full requests: the first starts a session, the other uses none."""
EPOCH_MAX = 2**31 - 1

Place = tuple[str, bytes, int]
"""A topic by its name or id, as in the request, and a partition number."""
Told = tuple[int, int, int]
"""High watermark, last stable offset, start offset."""


class Session:
    """The partitions of one connection."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = FIRST
        self.wanted: dict[Place, d.FetchRequestPartition] = {}
        """The partitions that last got records are at the end: all get their turn if not all fit an answer."""
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
        """Return all partitions in order; a topic appears several times if others are between its partitions."""
        return [
            d.FetchRequestTopic(name, topic_id, [self.wanted[place] for place in places])
            for (name, topic_id), places in groupby(self.wanted, lambda place: place[:2])
        ]

    def is_news(self, place: Place, found: d.FetchResponsePartition) -> bool:
        """Return whether the client must be sent this partition, and remember what was sent."""
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
        """Return the request with all its partitions, or the error code."""
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
        """Return the answer for the session's client: complete for its first request, then changes only."""
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
