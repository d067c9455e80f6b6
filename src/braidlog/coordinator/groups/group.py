"""One consumer group in which the broker assigns partitions, as a state machine. Time is an argument.

Invariants: the generation grows by one with each change of members or subscriptions and never decreases, even across
an empty group. Each partition has at most one owner per generation. Requests of an old generation are rejected.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from braidlog.coordinator.groups.assignors import Assignment, Assignor, assign
from braidlog.coordinator.groups.roster import Roster
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX

MEMBERS_MAX = 1_000
GROUP_BYTES = 2_000
MEMBER_BYTES = 600
"""Approximate memory of a group and of a member, apart from their strings: about 1,000 and 400 to 600 bytes were
measured.
"""
SESSION_TIMEOUT_MS_MIN = 100
SESSION_TIMEOUT_MS_MAX = 1_800_000
TOPICS_MAX = 1_000


class Member(msgspec.Struct):
    member: str
    topics: list[str]
    session_timeout_ms: int
    seen_ms: int


class GroupImage(msgspec.Struct, frozen=True):
    """Stored state of a group."""

    generation: int
    assignor: Assignor
    members: list[Member]
    assignment: Assignment
    changed_ms: int = 0
    """Wall time; an empty group is deleted after its retention time."""


class Membership(msgspec.Struct, frozen=True):
    """The response to a member: its generation and assignment."""

    member: str
    generation: int
    assignment: dict[str, list[int]]


class Group(Roster[Member]):
    """Join, leave and expiry of one group. Each may start a new generation."""

    def __init__(
        self,
        name: str,
        partitions_of: Callable[[str], int],
        image: GroupImage | None = None,
        *,
        generation: int = 0,
        members_max: int = MEMBERS_MAX,
    ) -> None:
        self.name = name
        self.counted_bytes = 0
        self._members_max = members_max
        self._partitions_of = partitions_of
        self.generation = generation
        self.changed_ms = 0
        self.assignor = Assignor.RANGE
        self._members: dict[str, Member] = {}
        self.assignment: Assignment = {}
        if image is not None:
            self.restore(image)

    @property
    def held_bytes(self) -> int:
        """Approximate memory use."""
        wishes = sum(len(topic) for member in self._members.values() for topic in member.topics)
        return GROUP_BYTES + len(self._members) * MEMBER_BYTES + wishes

    def image(self) -> GroupImage:
        return GroupImage(self.generation, self.assignor, self.members, self.assignment, self.changed_ms)

    def restore(self, image: GroupImage) -> None:
        """Restore the stored state after a restart or a failed journal write."""
        self.generation = image.generation
        self.changed_ms = image.changed_ms
        self.assignor = image.assignor
        self._members = {m.member: m for m in image.members}
        self.assignment = dict(image.assignment)

    # -- changes: each returns whether the group changed and must be kept ------------------------------------

    def join(
        self, member: str, topics: Iterable[str], assignor: Assignor | None, session_timeout_ms: int, now_ms: int
    ) -> bool:
        """Join or rejoin; returns whether anything changed. A member with the same subscription changes nothing."""
        wishes = sorted(set(topics))
        self._check_new(member, wishes)
        known = self._members.get(member)
        chosen = assignor or self.assignor
        same_share = (
            known is not None and known.topics == wishes and chosen is self.assignor and not self._has_grown(wishes)
        )
        same_session = known is not None and known.session_timeout_ms == session_timeout_ms
        self._members[member] = Member(member, wishes, session_timeout_ms, now_ms)
        self.assignor = chosen
        if not same_share:
            self._rebalance()
        return not (same_share and same_session)

    def _check_new(self, member: str, wishes: Sequence[str]) -> None:
        if not 1 <= len(member) <= NAME_CHARS_MAX or not member.isprintable() or " " in member:
            raise BrokerError(
                Reason.INVALID_GROUP,
                f"a member's name must have 1 to {NAME_CHARS_MAX} printable characters and no spaces, not "
                f"{member[:60]!r}",
            )
        if len(wishes) > TOPICS_MAX:
            raise BrokerError(
                Reason.INVALID_GROUP, f"a member subscribes to at most {TOPICS_MAX} topics, not {len(wishes)}"
            )
        if member not in self._members:
            check_size(self.name, len(self._members), self._members_max)

    def _has_grown(self, topics: Iterable[str]) -> bool:
        """Whether a topic has partitions that were added after the assignment."""
        return any(
            sum(len(shares.get(topic, ())) for shares in self.assignment.values()) != self._partitions_of(topic)
            for topic in topics
        )

    def leave(self, member: str, generation: int | None) -> bool:
        if generation is not None:
            self._check(member, generation)
        elif member not in self._members:
            raise self._unknown(member)
        del self._members[member]
        self._rebalance()
        return True

    def expire(self, now_ms: int) -> list[str]:
        """Remove members that missed their session timeout; returns them."""
        expired = [m.member for m in self.members if now_ms - m.seen_ms > m.session_timeout_ms]
        for member in expired:
            del self._members[member]
        if expired:
            self._rebalance()
        return expired

    def rebalance(self) -> None:
        """Start a new generation because a topic grew or was deleted."""
        self._rebalance()

    def _rebalance(self) -> None:
        self.generation += 1
        wishes = {m.member: frozenset(m.topics) for m in self.members}
        topics = {topic for wish in wishes.values() for topic in wish}
        counts = {topic: self._partitions_of(topic) for topic in topics}
        self.assignment = assign(self.assignor, wishes, counts, self.assignment)

    def revive(self, now_ms: int) -> None:
        """Restart the session timeout of every member after a restart of the node."""
        for member in self._members.values():
            member.seen_ms = now_ms

    # -- questions -------------------------------------------------------------------------------------------

    def heartbeat(self, member: str, generation: int, now_ms: int) -> Membership:
        self._check(member, generation).seen_ms = now_ms
        return self.membership(member)

    def membership(self, member: str) -> Membership:
        if member not in self._members:
            raise self._unknown(member)
        return Membership(member, self.generation, self.assignment.get(member, {}))

    def check_owner(self, member: str, generation: int, topic: str, partition: int) -> None:
        """Raise unless the member owns the partition in the current generation."""
        self._check(member, generation)
        if partition not in self.assignment.get(member, {}).get(topic, ()):
            raise BrokerError(
                Reason.PARTITION_NOT_ASSIGNED, f"partition {topic}/{partition} is not assigned to member {member!r}"
            )

    def is_assigned(self, topic: str, partition: int) -> bool:
        return any(partition in shares.get(topic, ()) for shares in self.assignment.values())

    def _check(self, member: str, generation: int) -> Member:
        found = self._members.get(member)
        if found is None:
            raise self._unknown(member)
        if generation != self.generation:
            raise StaleGeneration(self.name, member, current=self.generation, requested=generation)
        return found

    def _unknown(self, member: str) -> BrokerError:
        return BrokerError(Reason.MEMBER_NOT_FOUND, f"group {self.name!r} has no member {member[:60]!r}")


def check_size(group: str, members: int, members_max: int) -> None:
    """Raise if the group has reached its maximum size."""
    if members >= members_max:
        raise BrokerError(
            Reason.GROUP_FULL,
            f"group {group!r} has reached its limit of {members_max} members: remove some, use another group, or raise "
            "state.members_per_group_max",
        )


class StaleGeneration(BrokerError):  # noqa: N818 - one of the reasons, with its numbers
    """A member uses an old generation. Carries both numbers, because some dialects send them."""

    def __init__(self, group: str, member: str, *, current: int, requested: int) -> None:
        super().__init__(
            Reason.STALE_GENERATION,
            f"group {group!r} is in generation {current}, member {member!r} uses {requested}",
        )
        self.current = current
        self.requested = requested
