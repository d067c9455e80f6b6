"""What is said between a consumer group and its members, and what is kept of them.

Knows: shapes, and what no group can take. Refuses to know: when any of it is said.
"""

import msgspec

from braidlog.coordinator.consumer_groups.assignors import Shares
from braidlog.coordinator.groups.group import MEMBER_BYTES, TOPICS_MAX
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX

JOIN, LEAVE, PAUSE = 0, -1, -2
"""Member epochs that say what a member wants: to come in, to go for good, to go and (a static member) come back."""
PARTITION_BYTES = 400
"""What one partition of a member takes in memory: in its assignment, its target and the list of owners."""
PATTERN_CHARS_MAX = 1_000
REBALANCE_TIMEOUT_MS_MAX = 2**31 - 1

Held = dict[str, dict[int, int]]
"""topic id → partition → the epoch in which the member got it."""


class ClassicSide(msgspec.Struct, frozen=True):
    """Of a member that joins and syncs as in a group that elects a leader: what it would bring there."""

    session_timeout_ms: int
    protocols: list[tuple[str, bytes]]


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """What a member reports. None is "as before"."""

    member: str
    epoch: int
    instance: str | None = None
    rack: str | None = None
    client: str = ""
    host: str = ""
    by: str = ""
    """The principal: a pattern finds only what this one may see."""
    rebalance_timeout_ms: int | None = None
    topics: list[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: dict[str, set[int]] | None = None
    """By topic id: what it reads now."""
    classic: ClassicSide | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it reports everything: it does not know what we know of it, and is told."""
        has_wish = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms is not None and has_wish and self.owned is not None

    def check(self) -> None:
        """Refuse what no group can grant."""
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
    """One member as it is kept."""

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
    """The last assignment that it was given; `PAUSE` of a static member that went and will be back."""
    previous_epoch: int = JOIN
    held: Held = {}
    """What it may read now."""
    revoking: Held = {}
    """What it was told to give up and may still read."""
    target: Shares = {}
    """What it will read when all others have given up what they are to."""
    classic: ClassicSide | None = None

    @property
    def shares(self) -> Shares:
        return {topic: sorted(held) for topic, held in self.held.items()}

    @property
    def is_reconciled(self) -> bool:
        """Whether it reads what it is to, and nothing else."""
        return not self.revoking and self.shares == self.target

    @property
    def wish(self) -> tuple[object, ...]:
        """All that an assignment is made of."""
        return tuple(self.topics), self.pattern, self.by if self.pattern else "", self.assignor

    @property
    def held_bytes(self) -> int:
        """What it takes in memory, about."""
        partitions = sum(map(len, (*self.held.values(), *self.revoking.values(), *self.target.values())))
        words = len(self.pattern) + sum(100 + len(topic) for topic in self.topics)
        words += sum(len(name) + len(data) for name, data in self.classic.protocols) if self.classic else 0
        return MEMBER_BYTES + words + partitions * PARTITION_BYTES


class ConsumerGroupImage(msgspec.Struct, frozen=True):
    """What is kept of a group beside its members, each of which has an entry of its own."""

    epoch: int
    assignor: str = ""
    changed_ms: int = 0
    """Wall time; an empty group is forgotten some time after."""


class Change(msgspec.Struct, frozen=True):
    """What a step makes of a group: first it is kept, then applied, then told."""

    members: dict[str, ConsumerMember | None]
    """As they are from now on; None: gone."""
    epoch: int | None = None
    """The group's new epoch; None: it stays."""
    assignor: str = ""
    """With which the targets of that epoch were made."""


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """The answer to a heartbeat. `assignment` is None where the member knows it."""

    member: str
    epoch: int
    assignment: Shares | None
