"""Committed offsets of consumer groups.

Invariants: a commit is durable before it is acknowledged. A committed offset is the next one to read. A commit of
several partitions is one journal batch, which survives a crash completely or not at all. Commits refer to existing
partitions, and are deleted with their topic.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from braidlog.coordinator.journal import Key, Mark, Table, put_atomically
from braidlog.coordinator.state_limits import NODE, StateKind, StateUsage
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition_registry import PartitionRegistry

METADATA_CHARS_MAX = 4096
OFFSET_MAX = 2**63 - 1

Place = tuple[str, int]
"""Topic and partition."""
TopicId = Callable[[str], str | None]
"""The id of the topic with this name in the metadata; None if it does not exist."""
Entry = tuple[Table, Key, msgspec.Struct | None]


class Committed(msgspec.Struct, frozen=True):
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    committed_ms: int = 0
    topic_id: str = ""
    """Distinguishes a topic from a later one of the same name."""


class Commit(msgspec.Struct, frozen=True):
    """Commit of one partition."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: str = ""
    """Id of the topic when a transaction staged the commit; empty: the current topic of that name."""


class Offsets:
    """Operations of committed offsets."""

    def __init__(
        self, table: Table, hosting: PartitionRegistry, runtime: Runtime, holdings: StateUsage, topic_id: TopicId
    ) -> None:
        self._table = table
        self._topic_id = topic_id
        self._hosting = hosting
        self._runtime = runtime
        self._holdings = holdings
        self._by_group: dict[str, dict[Place, Committed]] = {}
        orphaned = []
        for (group, topic, partition), committed in table.items():
            place = str(topic), int(partition)
            self._by_group.setdefault(str(group), {})[place] = committed
            if not self._exists(place[0], committed):  # a crash came between the deletions of the topic and its commits
                orphaned.append((str(group), *place))
        if orphaned:
            self._drop(orphaned)

    def _exists(self, topic: str, commit: Committed | Commit) -> bool:
        """Whether the commit refers to the current topic of that name."""
        topic_id = self._topic_id(topic)
        return topic_id is not None and commit.topic_id in ("", topic_id)

    # -- committing ------------------------------------------------------------------------------------------

    async def commit(
        self, group: str, commits: Sequence[Commit], *, forward_only: bool = False, by: str = NODE
    ) -> None:
        """Commit several partitions durably together, for the principal `by`. `forward_only` rejects lower offsets."""
        self.check(group, commits, forward_only=forward_only)
        self._check_room(group, commits)
        with self._holdings.admit(StateKind.GROUPS, group, by):
            mark = self._put([(group, commit) for commit in commits])
        await self._table.journal.wait_committed(mark)

    def put_staged(self, staged: Sequence[tuple[str, Commit]], beside: Sequence[Entry] = ()) -> Mark:
        """Write the staged commits of transactions, (group, commit) each, and the entries `beside`, as one batch.

        They were checked when staged. Commits of deleted topics are dropped, even if a new topic has the name.
        """
        return self._put([(group, commit) for group, commit in staged if self._exists(commit.topic, commit)], beside)

    def with_topic_ids(self, commits: Iterable[Commit]) -> list[Commit]:
        """The commits with the ids of their topics."""
        return [msgspec.structs.replace(each, topic_id=self._topic_id(each.topic) or "") for each in commits]

    def check(self, group: str, commits: Iterable[Commit], *, forward_only: bool = False) -> None:
        """Raise for commits that are not possible: bad names, unknown partitions, invalid offsets, lower offsets."""
        check_group_name(group)
        for commit in commits:
            self._hosting.check_partition(commit.topic, commit.partition)
            if not 0 <= commit.offset <= OFFSET_MAX:
                raise BrokerError(Reason.OFFSET_OUT_OF_RANGE, f"offset {commit.offset} cannot be committed")
            if len(commit.metadata) > METADATA_CHARS_MAX:
                raise BrokerError(
                    Reason.METADATA_TOO_LARGE, f"commit metadata has at most {METADATA_CHARS_MAX} characters"
                )
            if any("\ud800" <= char <= "\udfff" for char in commit.metadata):
                raise BrokerError(Reason.INVALID_RECORD, "commit metadata is not Unicode text")
            if forward_only:
                self._check_forward(group, commit)

    def check_staged(self, group: str, commits: Sequence[Commit], by: str) -> None:
        """Like `check` for commits that a transaction stages: after its decision none can be rejected."""
        self.check(group, commits)
        self._check_room(group, commits)
        self._holdings.check_new(StateKind.GROUPS, group, by)

    def _check_room(self, group: str, commits: Iterable[Commit]) -> None:
        known = self._by_group.get(group, {})
        new = {(commit.topic, commit.partition) for commit in commits} - known.keys()
        if not new:
            return
        most = self._holdings.limits.commits_per_group_max
        if len(known) + len(new) > most:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"group {group!r} has committed offsets of {len(known)} of at most {most} partitions and adds "
                f"{len(new)}: "
                "delete some, use another group, or raise state.commits_per_group_max",
            )
        self._holdings.check_room()

    def _check_forward(self, group: str, commit: Commit) -> None:
        known = self.committed(group, commit.topic, commit.partition)
        if known is not None and commit.offset < known.offset:
            raise BrokerError(
                Reason.OFFSET_REGRESSION,
                f"group {group!r} is at {known.offset} in {commit.topic}/{commit.partition}; {commit.offset} is lower",
            )

    def _put(self, commits: Sequence[tuple[str, Commit]], beside: Sequence[Entry] = ()) -> Mark:
        """Write journal and memory in one step."""
        now_ms = self._runtime.now_ms()
        entries = [
            (
                (group, c.topic, c.partition),
                Committed(c.offset, c.metadata, c.leader_epoch, now_ms, self._topic_id(c.topic) or ""),
            )
            for group, c in commits
        ]
        mark = put_atomically([*((self._table, key, committed) for key, committed in entries), *beside])
        for (group, topic, partition), committed in entries:
            self._by_group.setdefault(group, {})[topic, partition] = committed
        return mark

    # -- lookup ----------------------------------------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        place = topic, partition
        found = self._by_group.get(group, {}).get(place)
        return found if found is not None and self._exists(topic, found) else None

    def group_offsets(self, group: str) -> dict[Place, Committed]:
        known = self._by_group.get(group, {})
        return {place: committed for place, committed in known.items() if self._exists(place[0], committed)}

    def groups(self) -> set[str]:
        return set(self._by_group)

    def has_group(self, group: str) -> bool:
        return group in self._by_group

    # -- deleting --------------------------------------------------------------------------------------------

    async def forget(self, group: str, topic: str | None = None) -> None:
        """Delete a group's commits, all or those of one topic."""
        await self._table.journal.wait_committed(self.drop_group(group, topic))

    def drop_group(self, group: str, topic: str | None = None) -> Mark:
        """Like `forget` without the wait: durable when the returned mark is settled."""
        return self.drop_places(group, [(t, p) for t, p in self._by_group.get(group, {}) if topic in (None, t)])

    def drop_places(self, group: str, places: Iterable[Place]) -> Mark:
        """Delete a group's commits of some partitions; missing ones are ignored."""
        known = self._by_group.get(group, {})
        return self._drop([(group, *place) for place in dict.fromkeys(places) if place in known])

    async def topic_changed(self, topic: str) -> None:
        """Delete the commits of a deleted topic, so that a new topic of that name starts without commits."""
        if not self._hosting.exists(topic):
            await self._table.journal.wait_committed(self._drop(self._of_topic(topic)))

    def _of_topic(self, topic: str) -> list[tuple[str, str, int]]:
        return [(group, t, p) for group, places in self._by_group.items() for t, p in places if t == topic]

    def _drop(self, keys: Sequence[tuple[str, str, int]]) -> Mark:
        mark = self._table.put_many([(key, None) for key in keys])
        for group, topic, partition in keys:
            places = self._by_group[group]
            del places[topic, partition]
            if not places:
                del self._by_group[group]
        return mark


def check_group_name(group: str) -> None:
    """Check a group name. Wider than the rule for topics, as Kafka clients expect, but one word that every dialect can
    print.
    """
    if not 1 <= len(group) <= NAME_CHARS_MAX:
        fault = f"a group name must have 1 to {NAME_CHARS_MAX} characters, not {len(group)}"
    elif not group.isprintable() or " " in group:
        fault = f"group name {group[:60]!r} contains spaces or unprintable characters"
    else:
        return
    raise BrokerError(Reason.INVALID_GROUP, fault)
