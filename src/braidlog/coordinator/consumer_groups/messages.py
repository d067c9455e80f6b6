"""Messages between a consumer group and its members, and the stored state of members."""

import msgspec

from braidlog.coordinator.consumer_groups.assignors import Shares
from braidlog.coordinator.groups.group import MEMBER_BYTES, TOPICS_MAX
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX

JOIN, LEAVE, PAUSE = 0, -1, -2
"""Special member epochs: join, leave, and pause (a static member that will return)."""
PARTITION_BYTES = 400
"""Memory per partition of a member: in its assignment, its target and the owner table."""
PATTERN_CHARS_MAX = 1_000
REBALANCE_TIMEOUT_MS_MAX = 2**31 - 1

Held = dict[str, dict[int, int]]
"""topic id → partition → the epoch in which it was assigned."""


class ClassicSide(msgspec.Struct, frozen=True):
    """The classic side of a member that joins and syncs: what it would bring to a classic group."""

    session_timeout_ms: int
    protocols: list[tuple[str, bytes]]


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's report. None means unchanged."""

    member: str
    epoch: int
    instance: str | None = None
    rack: str | None = None
    client: str = ""
    host: str = ""
    by: str = ""
    """The principal: a pattern matches only topics that it may see."""
    rebalance_timeout_ms: int | None = None
    topics: list[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: dict[str, set[int]] | None = None
    """Partitions that the member reads now, by topic id."""
    classic: ClassicSide | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the member reports everything, because it lost its state and needs a full response."""
        has_wish = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms is not None and has_wish and self.owned is not None

    def check(self) -> None:
        """Raise for values that no group accepts."""
        for word in (self.member, self.instance or "", self.rack or ""):
            if len(word) > NAME_CHARS_MAX or not word.isprintable():
                raise BrokerError(
                    Reason.INVALID_GROUP,
                    f"names of members have at most {NAME_CHARS_MAX} printable characters, not {word[:60]!r}",
                )
        for topic in self.topics or ():
            if len(topic) > NAME_CHARS_MAX:
                raise BrokerError(
                    Reason.INVALID_TOPIC_NAME, f"{topic[:60]!r} has more than {NAME_CHARS_MAX} characters"
                )
        if len(self.topics or ()) > TOPICS_MAX:
            raise BrokerError(
                Reason.INVALID_GROUP, f"a member names at most {TOPICS_MAX} topics, not {len(self.topics or ())}"
            )


class ConsumerMember(msgspec.Struct, frozen=True):
    """Stored state of one member."""

    member: str
    instance: str | None = None
    rack: str | None = None
    client: str = ""
    host: str = ""
    by: str = ""
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS_MAX
    topics: list[str] = []
    pattern: str = ""
    assignor: str = ""
    epoch: int = JOIN
    """The epoch of the member's last assignment; `PAUSE` for a static member that will return."""
    previous_epoch: int = JOIN
    held: Held = {}
    """Partitions that the member may read now."""
    revoking: Held = {}
    """Partitions that the member must revoke and may still read."""
    target: Shares = {}
    """Partitions that the member reads once other members have revoked theirs."""
    classic: ClassicSide | None = None

    @property
    def shares(self) -> Shares:
        return {topic: sorted(held) for topic, held in self.held.items()}

    @property
    def is_reconciled(self) -> bool:
        """Whether the member reads exactly its target."""
        return not self.revoking and self.shares == self.target

    @property
    def subscription(self) -> tuple[object, ...]:
        """Everything that determines the member's assignment."""
        return tuple(self.topics), self.pattern, self.by if self.pattern else "", self.assignor

    @property
    def held_bytes(self) -> int:
        """Approximate memory use."""
        partitions = sum(map(len, (*self.held.values(), *self.revoking.values(), *self.target.values())))
        words = len(self.pattern) + sum(100 + len(topic) for topic in self.topics)
        words += sum(len(name) + len(data) for name, data in self.classic.protocols) if self.classic else 0
        return MEMBER_BYTES + words + partitions * PARTITION_BYTES


class ConsumerGroupImage(msgspec.Struct, frozen=True):
    """Stored state of a group apart from its members, which have their own entries."""

    epoch: int
    assignor: str = ""
    changed_ms: int = 0
    """Wall time; an empty group is deleted after its retention time."""


class Change(msgspec.Struct, frozen=True):
    """Result of a step: journalled first, then applied, then sent."""

    members: dict[str, ConsumerMember | None]
    """New state by member id; None for a removed member."""
    epoch: int | None = None
    """The group's new epoch; None: unchanged."""
    assignor: str = ""
    """The assignor that computed the targets of that epoch."""


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """Response to a heartbeat. `assignment` is None if unchanged."""

    member: str
    epoch: int
    assignment: Shares | None
