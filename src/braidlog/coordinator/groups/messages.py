"""What is said between a group that elects its leader and its members, and what is kept of them.

Knows: shapes. Refuses to know: when any of it is said.
"""

from enum import StrEnum

import msgspec

from braidlog.coordinator.groups.group import SESSION_TIMEOUT_MS_MIN
from braidlog.coordinator.journal import NOTHING
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX

PROTOCOLS_MAX = 100
OPAQUE_BYTES_MAX = 1024 * 1024


class State(StrEnum):
    EMPTY = "empty"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    ASSIGNING = "assigning"
    """Of consumer groups: targets are to be made; the next is: not everyone reads what it is to, yet."""
    RECONCILING = "reconciling"


class ClassicMember(msgspec.Struct, frozen=True):
    """One member as it is kept. `instance` is the name a static member has through all its lives."""

    member: str
    instance: str | None
    client: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    """What it can speak, best first, with its metadata for each."""
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def brought_bytes(self) -> int:
        """What it holds of its own words and its leader's."""
        return len(self.assignment) + sum(len(name) + len(data) for name, data in self.protocols)


class ClassicGroupImage(msgspec.Struct, frozen=True):
    """What is kept of a group: the last generation that was begun, and its assignment once there is one."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: list[ClassicMember]
    is_assigned: bool
    changed_ms: int = 0
    """Wall time; an empty group is forgotten some time after."""


class Joining(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to be in. `member` is empty at first; with `id_required` one is handed out before the member counts."""

    member: str = ""
    instance: str | None = None
    client: str = ""
    host: str = ""
    session_timeout_ms: int
    session_timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN
    """The least that counts at the port it comes through."""
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    id_required: bool = False
    knows_skipping: bool = False
    """A leader that comes back can be told that it leads and need not assign anew."""

    def check(self) -> None:
        """Refuse a wish that no group can grant."""
        for word in (self.member, self.instance or "", self.protocol_type, *(name for name, _ in self.protocols)):
            if len(word) > NAME_CHARS_MAX or not word.isprintable():
                raise BrokerError(
                    Reason.INVALID_GROUP,
                    f"names of members and protocols have at most {NAME_CHARS_MAX} printable characters, not {word[:60]!r}",
                )
        if not 1 <= len(self.protocols) <= PROTOCOLS_MAX or not self.protocol_type:
            raise BrokerError(
                Reason.INCONSISTENT_PROTOCOLS, f"a member names a protocol type and 1 to {PROTOCOLS_MAX} protocols"
            )
        check_opaque(sum(len(data) for _, data in self.protocols))


class Joined(msgspec.Struct, frozen=True):
    """What a member is told of a generation. Only the leader learns of the others."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member: str
    members: list[tuple[str, str | None, bytes]] = []
    skip_assignment: bool = False


class Synced(msgspec.Struct, frozen=True):
    protocol_type: str
    protocol: str
    assignment: bytes


class MemberIdRequired(BrokerError):  # noqa: N818 - it is one of the reasons, with what it hands out
    def __init__(self, group: str, member: str) -> None:
        super().__init__(Reason.MEMBER_ID_REQUIRED, f"join group {group!r} again, as member {member!r}")
        self.member = member


class Ticket:
    """A wait for a generation or an assignment. It ends with an answer, or with the reason why there will be none."""

    __slots__ = ("answer", "error", "is_first", "mark", "member")

    def __init__(self, member: str) -> None:
        self.member = member
        self.is_first = False
        """Whether its answer is the first that names the member to its client."""
        self.answer: Joined | Synced | None = None
        self.error: Exception | None = None
        self.mark = NOTHING
        """The answer may be given once this is settled; whoever journals writes it here."""

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or self.error is not None


def check_opaque(size: int) -> None:
    if size > OPAQUE_BYTES_MAX:
        raise BrokerError(
            Reason.INVALID_GROUP,
            f"a member brings at most {OPAQUE_BYTES_MAX} bytes of metadata or assignments, not {size}",
        )


class Ready(msgspec.Struct, frozen=True):
    """What a step has brought about, in the order it is to be done."""

    must_keep: bool
    """First: the group as it is now must be journalled."""
    settled: list[Ticket]
    """Then: those who wait may be answered, once that is durable."""
