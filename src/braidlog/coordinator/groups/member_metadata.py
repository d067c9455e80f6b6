"""Port to the metadata bytes of classic group members, which only their dialect can decode."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class MemberMetadata(Protocol):
    """Decodes and encodes metadata. Raises `ProtocolError` for unreadable bytes."""

    @property
    def protocol_type(self) -> str:
        """Protocol type of groups whose members send this metadata."""
        ...

    def subscription(self, data: bytes) -> tuple[list[str], dict[str, set[int]]]:
        """The topics that a member subscribes to, and the partitions that it reads now, by topic."""
        ...

    def shares(self, data: bytes) -> dict[str, list[int]]:
        """The partitions that a leader assigned, by topic."""
        ...

    def assignment(self, shares: Mapping[str, Sequence[int]]) -> bytes:
        """An assignment encoded for a member."""
        ...
