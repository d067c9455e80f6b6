"""Messages between a classic group and its members, and the stored state of members."""

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
    """Consumer groups only: targets must be computed. `RECONCILING`: some members do not read their target yet."""
    RECONCILING = "reconciling"


class ClassicMember(msgspec.Struct, frozen=True):
    """Stored state of one member. `instance` is the permanent name of a static member."""

    member: str
    instance: str | None
    client: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    """Supported protocols with their metadata, preferred first."""
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def brought_bytes(self) -> int:
        """Size of the member's metadata and assignment."""
        return len(self.assignment) + sum(len(name) + len(data) for name, data in self.protocols)


class ClassicGroupImage(msgspec.Struct, frozen=True):
    """Stored state of a group: its last generation, and the assignment once it exists."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: list[ClassicMember]
    is_assigned: bool
    changed_ms: int = 0
    """Wall time; an empty group is deleted after its retention time."""


class Joining(msgspec.Struct, frozen=True, kw_only=True):
    """A join request. `member` is empty at first; with `id_required` the group first returns an id."""

    member: str = ""
    instance: str | None = None
    client: str = ""
    host: str = ""
    session_timeout_ms: int
    session_timeout_ms_min: int = SESSION_TIMEOUT_MS_MIN
    """The minimum session timeout of the protocol."""
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    id_required: bool = False
    knows_skipping: bool = False
    """Whether a returning leader understands that it may skip the assignment."""

    def check(self) -> None:
        """Raise for values that no group accepts."""
        for word in (self.member, self.instance or "", self.protocol_type, *(name for name, _ in self.protocols)):
            if len(word) > NAME_CHARS_MAX or not word.isprintable():
                raise BrokerError(
                    Reason.INVALID_GROUP,
                    f"names of members and protocols must have at most {NAME_CHARS_MAX} printable characters, not "
                    f"{word[:60]!r}",
                )
        if not 1 <= len(self.protocols) <= PROTOCOLS_MAX or not self.protocol_type:
            raise BrokerError(
                Reason.INCONSISTENT_PROTOCOLS, f"a member must name a protocol type and 1 to {PROTOCOLS_MAX} protocols"
            )
        check_opaque(sum(len(data) for _, data in self.protocols))


class Joined(msgspec.Struct, frozen=True):
    """Response to a join. Only the leader receives the member list."""

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


class MemberIdRequired(BrokerError):  # noqa: N818 - one of the reasons, with the new id
    def __init__(self, group: str, member: str) -> None:
        super().__init__(Reason.MEMBER_ID_REQUIRED, f"join group {group!r} again, as member {member!r}")
        self.member = member


class Ticket:
    """A wait for a generation or an assignment. It ends with a response or an error."""

    __slots__ = ("answer", "error", "is_first", "mark", "member")

    def __init__(self, member: str) -> None:
        self.member = member
        self.is_first = False
        """Whether this response is the first to name the member to its client."""
        self.answer: Joined | Synced | None = None
        self.error: Exception | None = None
        self.mark = NOTHING
        """The response may be sent once this mark is settled; the journalling caller sets it."""

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or self.error is not None


def check_opaque(size: int) -> None:
    if size > OPAQUE_BYTES_MAX:
        raise BrokerError(
            Reason.INVALID_GROUP,
            f"metadata and assignments of a member have at most {OPAQUE_BYTES_MAX} bytes, not {size}",
        )


class Ready(msgspec.Struct, frozen=True):
    """Results of a step, in the order to carry them out."""

    must_keep: bool
    """First: journal the group's current state."""
    settled: list[Ticket]
    """Then: send these responses, once that is durable."""
