"""Sends transaction markers to partition leaders and group coordinators, on any node.

Targets are found in the newest metadata; a failed one is retried for a limited time.
Invariants: every existing partition is either marked or reported as a failure; retrying is safe, because a
partition applies each marker once.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from braidlog.broker.forwarding import LOOK_SECONDS, LOOK_SECONDS_MAX, Call, Forwarding, read_asked
from braidlog.broker.routing import Routing
from braidlog.coordinator.offsets import Place
from braidlog.coordinator.state_limits import NODE
from braidlog.coordinator.transactions.markers import End, Failures, LocalMarkers
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, is_elsewhere
from braidlog.model.runtime.runtime import Runtime

CALL: Final = "transaction-markers"
HOLD_SECONDS: Final = 5.0
"""How long a marker waits for partitions without a leader. After that it is retried periodically, outside the
request."""
ANSWERED_SECONDS_MAX: Final = 60.0
NOBODY: Final = -1
"""In place of a leader: the partition has none."""
_AGAIN: Final = frozenset(
    {
        Reason.NOT_LEADER,
        Reason.TIMED_OUT,
        Reason.UNAVAILABLE,
        Reason.TOPIC_NOT_FOUND,
        Reason.PARTITION_NOT_FOUND,
        Reason.NOT_ENOUGH_REPLICAS,
    }
)
"""Retriable reasons: the marker may be written soon, by the same leader or by a new one."""

Target = Place | str
"""Where a transaction ends: a partition, or a group's pending commits."""
_Refused = tuple[Target, str, str]
"""A refused target with reason and text, as sent between nodes."""


class RoutedMarkers:
    """A `MarkerWriter` that writes to local partitions and sends the rest to their leaders."""

    def __init__(self, local: LocalMarkers, routing: Routing, forwarding: Forwarding, runtime: Runtime) -> None:
        self._local = local
        self._routing = routing
        self._forwarding = forwarding
        self._runtime = runtime
        forwarding.answers[CALL] = self.handle_call

    async def write(self, ends: Sequence[End], *, patient: bool = True) -> Failures:
        until = self._runtime.monotonic() + (HOLD_SECONDS if patient else 0)
        pause = LOOK_SECONDS
        while True:
            failures = await self._write_once(ends)
            again = {target for target, error in failures.items() if self._may_pass(target, error)}
            if not again or again != failures.keys() or self._runtime.monotonic() >= until:
                return failures
            ends = _only(ends, again)
            await self._runtime.wakeup().wait(pause)
            pause = min(2 * pause, LOOK_SECONDS_MAX)

    async def handle_call(self, body: bytes) -> bytes:
        """Write the markers that another node's coordinator sends for partitions led here."""
        failures = await self._local.write(read_asked(body, list[End]))
        return msgspec.msgpack.encode([(target, *_in_words(error)) for target, error in failures.items()])

    async def _write_once(self, ends: Sequence[End]) -> Failures:
        """Send one request to each node, all concurrently."""
        failures: Failures = {}
        by_node: dict[int, set[Target]] = {}
        for target in _targets(ends):
            node = self._node_of(target)
            if node == self._routing.own_number or (node is not None and self._routing.is_live(node)):
                by_node.setdefault(node, set()).add(target)
            elif node is not None:
                failures[target] = _no_target(target)
        works = [self._write_at(node, _only(ends, there), failures) for node, there in by_node.items()]
        if by_node.keys() <= {self._routing.own_number}:
            for work in works:
                await work
        else:
            await self._forwarding.together(works, ANSWERED_SECONDS_MAX)
        return failures

    def _node_of(self, target: Target) -> int | None:
        """Return the leader of a partition or the coordinator of a group, `NOBODY` if it has none; None if the
        partition was deleted."""
        if isinstance(target, str):
            found = self._routing.coordinator_of(target)
            return NOBODY if found is None else found
        if not self._routing.has_partition(*target):
            return None
        assignment = self._routing.assignment(*target)
        if assignment is None:
            return self._routing.own_number
        return NOBODY if assignment.leader is None else assignment.leader

    def _may_pass(self, target: Target, error: Exception) -> bool:
        """Return whether a marker may succeed on a retry. A partition held by one node only gets no other leader.

        A partition raises NOT_COORDINATOR about the sender of the marker; a group raises it because another node
        coordinates it by now.
        """
        if not isinstance(error, BrokerError):
            return False
        if isinstance(target, str):
            return is_elsewhere(error) or error.reason in _AGAIN
        return error.reason in _AGAIN and not self._routing.is_held_alone(target[0])

    async def _write_at(self, node: int, ends: Sequence[End], failures: Failures) -> None:
        """Write markers at one node. Until the node answers, they count as failures: the caller may stop waiting
        before that."""
        asked = _targets(ends)
        silence = BrokerError(Reason.TIMED_OUT, f"node {node} has not said that it has written its markers")
        failures.update(dict.fromkeys(asked, silence))
        try:
            found = await (self._local.write(ends) if node == self._routing.own_number else self._ask(node, ends))
        except BrokerError as error:
            failures.update(dict.fromkeys(asked, error))
            return
        for target in asked:
            del failures[target]
        failures.update(found)

    async def _ask(self, node: int, ends: Sequence[End]) -> Failures:
        call = Call(CALL, NODE, msgspec.msgpack.encode(list(ends)), changes=False)
        refused = msgspec.msgpack.decode(await self._forwarding.ask(node, call), type=list[_Refused])
        return {target: BrokerError(Reason[word], text) for target, word, text in refused}


def _targets(ends: Iterable[End]) -> set[Target]:
    return {target for end in ends for target in end.targets}


def _only(ends: Iterable[End], targets: set[Target]) -> list[End]:
    """Return the ends restricted to these partitions and groups."""
    found = []
    for end in ends:
        places = [place for place in end.places if place in targets]
        groups = [group for group in end.groups if group in targets]
        if places or groups:
            found.append(msgspec.structs.replace(end, places=places, groups=groups))
    return found


def _no_target(target: Target) -> BrokerError:
    if isinstance(target, str):
        return BrokerError(
            Reason.UNAVAILABLE, f"group {target!r} has no coordinator now: what was decided waits for it"
        )
    topic, number = target
    text = f"{topic}/{number} has no leader now: what was decided is ended there once it has one"
    return NotLeaderError(topic, number, text)


def _in_words(error: Exception) -> tuple[str, str]:
    reason = error.reason if isinstance(error, BrokerError) else Reason.UNAVAILABLE
    return reason.name, str(error)
