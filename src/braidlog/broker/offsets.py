"""Committed offsets: how far a group has got in a partition.

Knows: the last commit of each (group, topic, partition). Refuses to know: who is in the group (groups does).
Invariants: a commit is durable before it is acknowledged; a committed offset is the next one to read; commits of several
partitions are one batch of the journal: all of them survive a crash, or none.
"""

from collections.abc import Sequence

import msgspec

from braidlog.broker.ports import World
from braidlog.cluster.journal import Journal, Table
from braidlog.model.errors import BrokerError, Reason

METADATA_CHARS_MAX = 4096
GROUP_CHARS_MAX = 249


class Committed(msgspec.Struct, frozen=True):
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    committed_ms: int = 0


class Commit(msgspec.Struct, frozen=True):
    """One partition of a commit."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class Offsets:
    """The use case."""

    def __init__(self, journal: Journal, table: Table, world: World) -> None:
        self._journal = journal
        self._table = table
        self._world = world

    async def commit(self, group: str, commits: Sequence[Commit], *, forward_only: bool = False) -> None:
        """Commit several partitions at once, durably. `forward_only` refuses to go back."""
        check_group_name(group)
        for commit in commits:
            self._check(group, commit, forward_only=forward_only)
        now_ms = self._world.now_ms()
        entries = [
            (
                (self._table.kind, group, commit.topic, commit.partition),
                Committed(commit.offset, commit.metadata, commit.leader_epoch, now_ms),
            )
            for commit in commits
        ]
        if not entries:
            return
        next_offset = self._journal.put_many(list(entries))
        self._table.values.update(entries)
        await self._world.durable(self._journal.partition, next_offset)

    def _check(self, group: str, commit: Commit, *, forward_only: bool) -> None:
        if commit.offset < 0:
            raise BrokerError(Reason.OFFSET_OUT_OF_RANGE, f"offset {commit.offset} cannot be committed")
        if len(commit.metadata) > METADATA_CHARS_MAX:
            raise BrokerError(Reason.INVALID_RECORD, f"commit metadata has at most {METADATA_CHARS_MAX} characters")
        if forward_only:
            known = self.committed(group, commit.topic, commit.partition)
            if known is not None and commit.offset < known.offset:
                raise BrokerError(
                    Reason.OFFSET_REGRESSION,
                    f"group {group!r} is at {known.offset} in {commit.topic}/{commit.partition}, {commit.offset} goes back",
                )

    def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        found: Committed | None = self._table.get(group, topic, partition)
        return found

    def of_group(self, group: str) -> dict[tuple[str, int], Committed]:
        return {(str(key[1]), int(key[2])): value for key, value in self._table.items() if key[0] == group}

    def groups(self) -> set[str]:
        return {str(key[0]) for key, _ in self._table.items()}

    async def forget(self, group: str, topic: str | None = None) -> None:
        """Drop a group's commits, all of them or those of one topic."""
        keys = [(g, t, p) for (g, t, p), _ in self._table.items() if g == group and topic in (None, t)]
        await self._drop([(str(g), str(t), int(p)) for g, t, p in keys])

    async def forget_topic(self, topic: str) -> None:
        """A deleted topic's commits go with it: a new one of that name begins anew."""
        await self._drop([(str(g), str(t), int(p)) for (g, t, p), _ in self._table.items() if t == topic])

    async def _drop(self, keys: Sequence[tuple[str, str, int]]) -> None:
        if keys:
            next_offset = self._journal.put_many([((self._table.kind, *key), None) for key in keys])
            for key in keys:
                self._table.values.pop((self._table.kind, *key), None)
            await self._world.durable(self._journal.partition, next_offset)


def check_group_name(group: str) -> None:
    if not 1 <= len(group) <= GROUP_CHARS_MAX:
        raise BrokerError(
            Reason.INVALID_GROUP, f"a group name has 1 to {GROUP_CHARS_MAX} characters, this one has {len(group)}"
        )
