"""Fetches of this node from one leader: all partitions over one connection, one request at a time.

Does not handle: replicas. Their fetches arrive by `ask`, responses go to `received`.
Invariants: a response counts only for the pending fetch. A second request is sent only to end the wait of the first,
because of new fetches. Fetches in flight on a broken connection are lost; replicas repeat them on their next tick,
which also reconnects. Responses are delivered in slices of event loop time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from braidlog.adapters.peers.handlers import FIRST
from braidlog.adapters.peers.replica_messages import (
    Place,
    in_request,
    read_answer,
    write_complaint,
    write_question,
)
from braidlog.codec.errors import ProtocolError
from braidlog.replication.messages import Answer, Complaint, CorruptAnswer, Fetch
from braidlog.server.peers.dialing import Dial
from braidlog.server.peers.peer_link import PeerLink
from braidlog.tasks import Tasks
from braidlog.wire.kafka.connection import Response
from braidlog.wire.kafka.messages.data import FetchRequestReplicaState
from braidlog.wire.kafka.messages.replicas import (
    ReplicaFetchRequest,
    ReplicaFetchRequestPartition,
    ReplicaFetchResponsePartition,
)
from braidlog.wire.kafka.replica_fetch import follower_connection

log = logging.getLogger("braidlog.peers")

WAIT_MS: Final = 2_000
"""How long a leader without new data holds a request."""
ANSWER_SECONDS_MAX: Final = 10.0
"""A leader that has not answered by then counts as dead, even if its connection is open."""
REPEAT_SECONDS: Final = 2.0
"""A pending fetch is not repeated earlier: a replica repeats by its clock, and the response is usually on its way."""
LINGER_SECONDS: Final = 0.005
"""After a response, replicas fetch again as soon as they are synced; the next request waits this long to include them.
"""
QUESTIONS_MAX: Final = 1_000
"""Limit per request, as each fetch takes the leader some time."""
COMPLAINTS_MAX: Final = 100
REQUESTS_MAX: Final = 2
SLICE_SECONDS: Final = 0.003

Received = Callable[[int, Place, Answer | CorruptAnswer], None]


class PendingFetch(NamedTuple):
    """A fetch without a response."""

    number: int
    question: Fetch
    asked_at: float


class Fetcher:
    """Fetches of one node from one leader."""

    def __init__(self, leader: int, dial: Dial, received: Received, tasks: Tasks) -> None:
        self.leader = leader
        self._dial = dial
        self._received = received
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._link: PeerLink | None = None
        self._is_connecting = False
        self._number = 0
        self._unsent: dict[Place, Fetch] = {}
        self._standing: dict[Place, PendingFetch] = {}
        self._complaints: deque[tuple[Place, Complaint]] = deque(maxlen=COMPLAINTS_MAX)
        self._answers: deque[tuple[Place, ReplicaFetchResponsePartition]] = deque()
        self._session_id = FIRST
        self._epoch = FIRST
        self._in_flight = 0
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.requests = 0

    # -- asking ----------------------------------------------------------------------------------------------

    def enqueue(self, place: Place, question: Fetch) -> None:
        standing = self._standing.get(place)
        if standing is not None:
            is_early = self._loop.time() - standing.asked_at < REPEAT_SECONDS
            if standing.question == question and is_early:
                return
            del self._standing[place]
        self._unsent[place] = question
        self._flush_soon()

    def complain(self, place: Place, complaint: Complaint) -> None:
        self._complaints.append((place, complaint))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Flush in the next turn of the event loop, so that all fetches of this turn share a request."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._link is None:
            self._connect_soon()
            return
        has_news = bool(self._unsent or self._complaints)
        if self._in_flight >= (REQUESTS_MAX if has_news else 1) or not (has_news or self._standing):
            return
        self._stop_timer()
        self._send(self._link)
        if self._unsent:
            self._flush_soon()

    def _send(self, link: PeerLink) -> None:
        complaints = [(place, write_complaint(place[1], each)) for place, each in self._complaints]
        self._complaints.clear()
        incarnation = max((each.incarnation for each in self._unsent.values()), default=-1)
        asked = self._take_questions(incarnation)
        self._in_flight += 1
        self.requests += 1
        message = ReplicaFetchRequest(
            replica_state=FetchRequestReplicaState(self._dial.node, incarnation),
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=in_request(complaints + asked),
        )
        self._epoch += 1
        link.send(message)
        if self._deadline is None:
            self._deadline = self._loop.call_later(ANSWER_SECONDS_MAX, self._give_up)

    def _take_questions(self, incarnation: int) -> list[tuple[Place, ReplicaFetchRequestPartition]]:
        """Take the unsent fetches. Those of an earlier incarnation of this node are dropped."""
        asked = []
        now = self._loop.time()
        for place in list(self._unsent)[:QUESTIONS_MAX]:
            question = self._unsent.pop(place)
            if question.incarnation == incarnation:
                self._number += 1
                self._standing[place] = PendingFetch(self._number, question, now)
                asked.append((place, write_question(place[1], self._number, question)))
        return asked

    # -- answers ---------------------------------------------------------------------------------------------

    def on_response(self, answer: Response) -> None:
        response = answer.message
        self._in_flight -= 1
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._in_flight:
            self._deadline = self._loop.call_later(ANSWER_SECONDS_MAX, self._give_up)
        if response.error_code:
            log.info("node %d answered a fetch with error %d; reconnecting", self.leader, response.error_code)
            self._give_up()
            return
        self._dial.succeeded()
        self._session_id = response.session_id
        is_idle = not self._answers
        self._answers.extend(
            ((topic.topic_id, each.partition_index), each) for topic in response.responses for each in topic.partitions
        )
        if is_idle:
            self._deliver()

    def _deliver(self) -> None:
        until = self._loop.time() + SLICE_SECONDS
        while self._answers:
            self._hand_on(*self._answers.popleft())
            if self._loop.time() >= until and self._answers:
                self._loop.call_soon(self._deliver)
                return
        if self._unsent or self._complaints:
            self._flush_soon()
        elif not self._in_flight and self._timer is None:
            self._timer = self._loop.call_later(LINGER_SECONDS, self._flush_now)

    def _hand_on(self, place: Place, part: ReplicaFetchResponsePartition) -> None:
        standing = self._standing.get(place)
        if standing is None or standing.number != part.question:
            return
        del self._standing[place]
        answer: Answer | CorruptAnswer
        try:
            answer = read_answer(part, standing.question)
        except ProtocolError as error:
            log.warning("node %d sent invalid records: %s", self.leader, error)
            answer = CorruptAnswer(standing.question)
        self._received(self.leader, place, answer)

    def _flush_now(self) -> None:
        self._timer = None
        self._flush()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the connection --------------------------------------------------------------------------------------

    def _connect_soon(self) -> None:
        if self._is_connecting:
            return
        if not self._dial.may_try():
            self._unsent.clear()
            return
        self._is_connecting = True
        self._tasks.spawn(self._connect(), f"connect to node {self.leader}")

    async def _connect(self) -> None:
        try:
            link = await self._dial.connect(lambda: PeerLink(follower_connection(), self.on_response, self.lost))
        finally:
            self._is_connecting = False
        # The connection may have ended before this point; its `lost` callback does not repeat.
        self._link = link if link is not None and link.is_open else None
        if self._link is None:
            self._unsent.clear()
        elif self._unsent or self._complaints:
            self._flush_soon()

    def lost(self, link: PeerLink) -> None:
        if link is not self._link:
            return
        self._link = None
        self._session_id = self._epoch = FIRST
        self._in_flight = 0
        self._standing.clear()
        self._answers.clear()
        self._stop_timer()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._link is not None:
            self._link.abort()

    def close(self) -> None:
        self._unsent.clear()
        self._give_up()
