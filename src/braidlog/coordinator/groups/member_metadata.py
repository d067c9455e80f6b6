"""What members that elect a leader bring in bytes, which only their dialect can read: what they want, own and are given."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class MemberMetadata(Protocol):
    """`ProtocolError`: these bytes cannot be read."""

    @property
    def protocol_type(self) -> str:
        """Of the groups whose members bring these."""
        ...

    def subscription(self, data: bytes) -> tuple[list[str], dict[str, set[int]]]:
        """The topics that a member wants, and the partitions that it reads now, by topic."""
        ...

    def shares(self, data: bytes) -> dict[str, list[int]]:
        """The partitions that a leader has given it, by topic."""
        ...

    def assignment(self, shares: Mapping[str, Sequence[int]]) -> bytes:
        """The same, to be read by it."""
        ...
