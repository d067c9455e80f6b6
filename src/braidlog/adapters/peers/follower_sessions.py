"""State of one follower's connection: its pending fetches, ready responses, and how much of both is processed
together.

Does not handle: reading the log, connections, frames.
Invariants: a response is delivered once, to the pending fetch only. Fetches are passed on only while there is room for
their responses, so that a new follower does not make the leader read everything. Records for a follower that is not in
sync obey the throttle.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from braidlog.adapters.peers.replica_messages import Place, size_of, write_answer
from braidlog.broker.partition_reports import ReplicationRate
from braidlog.model.runtime.runtime import Wakeup
from braidlog.model.settings import UNLIMITED
from braidlog.replication.messages import Answer, Fetch
from braidlog.security.quotas import TokenBucket
from braidlog.wire.kafka.messages.replicas import ReplicaFetchResponsePartition

_NAME = re.compile(r"node-(0|[1-9][0-9]{0,9})", re.ASCII)


def name_of(node: int) -> str:
    """The common name of a node, which dialling nodes check."""
    return f"node-{node}"


def node_of(name: str | None) -> int | None:
    """The node of a name; None if it is not a node's name."""
    found = _NAME.fullmatch(name or "")
    return None if found is None else int(found[1])


ANSWERS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum record bytes per response, except for a larger first batch; and of waiting responses, except for one more."""
PARTITIONS_MAX: Final = 20_000

InSync = Callable[[int, Place], bool]
"""in_sync(node, place): whether the node is in the partition's in-sync set."""
HandOn = Callable[[Place, Fetch], None]


class Throttle:
    """Rate limit of records for all followers together that are not in sync."""

    def __init__(self, rate: ReplicationRate) -> None:
        self._rate = rate
        self._bucket: TokenBucket | None = None

    def pause(self, now: float) -> float:
        """Seconds until more records may be sent."""
        return self.spend(0, now)

    def spend(self, size: int, now: float) -> float:
        rate = self._rate.bytes_per_second
        if rate == UNLIMITED:
            return 0.0
        if self._bucket is None or self._bucket.rate != rate:
            self._bucket = TokenBucket(rate, now)
        return self._bucket.consume(size, now)


class FollowerSession:
    """Session of one follower connection."""

    def __init__(self, node: int, number: int, in_sync: InSync, throttle: Throttle) -> None:
        self.node = node
        self.number = number
        self.epoch = 0
        """Epoch of the next request."""
        self.waits: Wakeup | None = None
        """The request that waits for responses."""
        self._in_sync = in_sync
        self._throttle = throttle
        self._questions: dict[Place, tuple[int, Fetch]] = {}
        self._waiting: deque[Place] = deque()
        """Partitions whose fetch was not passed on yet, in arrival order."""
        self._throttled: deque[Place] = deque()
        """Partitions that wait for the throttle."""
        self._in_line: set[Place] = set()
        """The partitions in both queues."""
        self._answers: dict[Place, tuple[int, Answer]] = {}
        self._answers_bytes = 0

    @property
    def has_answers(self) -> bool:
        return bool(self._answers)

    def wake(self) -> None:
        """End the wait of the waiting request, if any."""
        wait, self.waits = self.waits, None
        if wait is not None:
            wait.wake()

    def ask(self, place: Place, number: int, question: Fetch) -> bool:
        """Add a fetch; False if too many are pending."""
        self._forget_answer(place)
        if place not in self._questions and len(self._questions) >= PARTITIONS_MAX:
            return False
        self._questions[place] = number, question
        if place not in self._in_line:
            self._in_line.add(place)
            self._waiting.append(place)
        return True

    def hand_on(self, give: HandOn, now: float, count_max: int) -> float | None:
        """Pass on up to `count_max` fetches while there is room for responses; returns the seconds until the next
        attempt.

        None: no fetch is left, or there is no room until responses are taken.
        """
        if not self._throttle.pause(now):
            self._waiting.extendleft(reversed(self._throttled))
            self._throttled.clear()
        while self._waiting and count_max and self._has_room:
            count_max -= 1
            place = self._waiting.popleft()
            if place in self._questions and self._throttle.pause(now) and not self._in_sync(self.node, place):
                self._throttled.append(place)
                continue
            self._in_line.discard(place)
            if place in self._questions:
                give(place, self._questions[place][1])
        if not self._has_room:
            return None
        return 0.0 if self._waiting else self._throttle.pause(now) if self._throttled else None

    @property
    def _has_room(self) -> bool:
        return self._answers_bytes < ANSWERS_BYTES_MAX

    def answered(self, place: Place, answer: Answer, now: float) -> bool:
        """Add a response; False if its fetch is no longer pending."""
        found = self._questions.get(place)
        if found is None or found[1] != answer.question:
            return False
        del self._questions[place]
        size = size_of(answer)
        self._answers[place] = found[0], answer
        self._answers_bytes += size
        if size and not self._in_sync(self.node, place):
            self._throttle.spend(size, now)
        return True

    def _forget_answer(self, place: Place) -> None:
        """Drop a response that a repeated fetch has made void."""
        found = self._answers.pop(place, None)
        if found is not None:
            self._answers_bytes -= size_of(found[1])

    def take_answers(self) -> Iterator[tuple[Place, ReplicaFetchResponsePartition]]:
        """Responses for one frame; the rest waits for the next."""
        taken_bytes = 0
        for place, (number, answer) in list(self._answers.items()):
            size = size_of(answer)
            if taken_bytes and taken_bytes + size > ANSWERS_BYTES_MAX:
                return
            del self._answers[place]
            self._answers_bytes -= size
            taken_bytes += size
            yield place, write_answer(place[1], number, answer)
