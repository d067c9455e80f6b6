"""Members of a group of any kind."""

from typing import Generic, TypeVar

M = TypeVar("M")


class Roster(Generic[M]):
    """Members by their ids."""

    _members: dict[str, M]

    @property
    def members(self) -> list[M]:
        return [self._members[name] for name in sorted(self._members)]

    @property
    def has_members(self) -> bool:
        return bool(self._members)

    def has_member(self, member: str) -> bool:
        return member in self._members
