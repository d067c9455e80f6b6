"""Committed offsets: how far a group has got in a partition.

Knows: the last commit of each (group, topic, partition). Refuses to know: who is in the group (groups does).
Invariants: a commit is durable before it is acknowledged; a committed offset is the next one to read; commits of several
partitions are one batch of the journal: all of them survive a crash, or none; a commit is of a partition that there is, and a
topic's commits end with it.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from braidlog.coordinator.holdings import NODE, Holdings, StateKind
from braidlog.coordinator.journal import Key, Mark, Table, put_together
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.world import World
from braidlog.partition.hosting import Hosting

METADATA_CHARS_MAX = 4096
OFFSET_MAX = 2**63 - 1

Place = tuple[str, int]
"""Topic and partition."""
TopicId = Callable[[str], str | None]
"""The id of the topic that has a name, by the metadata; None if there is none."""
Entry = tuple[Table, Key, msgspec.Struct | None]


class Committed(msgspec.Struct, frozen=True):
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    committed_ms: int = 0
    topic_id: str = ""
    """A topic that was deleted and made again is another."""


class Commit(msgspec.Struct, frozen=True):
    """One partition of a commit."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: str = ""
    """Of the topic that had the name when a transaction staged it; empty: whichever has it now."""


class Offsets:
    """The use case."""

    def __init__(self, table: Table, hosting: Hosting, world: World, holdings: Holdings, topic_id: TopicId) -> None:
        self._table = table
        self._topic_id = topic_id
        self._hosting = hosting
        self._world = world
        self._holdings = holdings
        self._by_group: dict[str, dict[Place, Committed]] = {}
        gone = []
        for (group, topic, partition), committed in table.items():
            place = str(topic), int(partition)
            self._by_group.setdefault(str(group), {})[place] = committed
            if not self._is_there(place[0], committed):  # a crash came between the topic's end and theirs
                gone.append((str(group), *place))
        if gone:
            self._drop(gone)

    def _is_there(self, topic: str, commit: Committed | Commit) -> bool:
        """Whether it is a commit of the topic that has the name now."""
        topic_id = self._topic_id(topic)
        return topic_id is not None and commit.topic_id in ("", topic_id)

    # -- committing ------------------------------------------------------------------------------------------

    async def commit(
        self, group: str, commits: Sequence[Commit], *, forward_only: bool = False, by: str = NODE
    ) -> None:
        """Commit several partitions at once, durably, for the principal `by`. `forward_only` refuses to go back."""
        self.check(group, commits, forward_only=forward_only)
        self._check_room(group, commits)
        with self._holdings.admitted(StateKind.GROUPS, group, by):
            mark = self._put([(group, commit) for commit in commits])
        await self._table.journal.settled(mark)

    def put_staged(self, staged: Sequence[tuple[str, Commit]], beside: Sequence[Entry] = ()) -> Mark:
        """What transactions staged, (group, commit) each, and what goes with them, as one batch: settled when the mark is.

        It was checked when it was staged; what is gone is left out, also if another topic has its name by now."""
        return self._put([(group, commit) for group, commit in staged if self._is_there(commit.topic, commit)], beside)

    def to_stage(self, commits: Iterable[Commit]) -> list[Commit]:
        """With the ids of their topics."""
        return [msgspec.structs.replace(each, topic_id=self._topic_id(each.topic) or "") for each in commits]

    def check(self, group: str, commits: Iterable[Commit], *, forward_only: bool = False) -> None:
        """Refuse what cannot be committed: bad names, places that are not there, impossible offsets, going back."""
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
        """The same for commits that a transaction stages: once that is decided nothing can be refused any more."""
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
                f"group {group!r} has committed offsets of {len(known)} partitions, and may have {most}, not {len(new)} more: "
                "delete offsets of the group, use another group, or raise state.commits_per_group_max",
            )
        self._holdings.check_room()

    def _check_forward(self, group: str, commit: Commit) -> None:
        known = self.committed(group, commit.topic, commit.partition)
        if known is not None and commit.offset < known.offset:
            raise BrokerError(
                Reason.OFFSET_REGRESSION,
                f"group {group!r} is at {known.offset} in {commit.topic}/{commit.partition}, {commit.offset} goes back",
            )

    def _put(self, commits: Sequence[tuple[str, Commit]], beside: Sequence[Entry] = ()) -> Mark:
        """Journal, then memory, in one step."""
        now_ms = self._world.now_ms()
        entries = [
            (
                (group, c.topic, c.partition),
                Committed(c.offset, c.metadata, c.leader_epoch, now_ms, self._topic_id(c.topic) or ""),
            )
            for group, c in commits
        ]
        mark = put_together([*((self._table, key, committed) for key, committed in entries), *beside])
        for (group, topic, partition), committed in entries:
            self._by_group.setdefault(group, {})[topic, partition] = committed
        return mark

    # -- looking ---------------------------------------------------------------------------------------------

    def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        place = topic, partition
        found = self._by_group.get(group, {}).get(place)
        return found if found is not None and self._is_there(topic, found) else None

    def of_group(self, group: str) -> dict[Place, Committed]:
        known = self._by_group.get(group, {})
        return {place: committed for place, committed in known.items() if self._is_there(place[0], committed)}

    def groups(self) -> set[str]:
        return set(self._by_group)

    def has_group(self, group: str) -> bool:
        return group in self._by_group

    # -- forgetting ------------------------------------------------------------------------------------------

    async def forget(self, group: str, topic: str | None = None) -> None:
        """Drop a group's commits, all of them or those of one topic."""
        await self._table.journal.settled(self.drop_group(group, topic))

    def drop_group(self, group: str, topic: str | None = None) -> Mark:
        """The same without the wait: done when this returns, settled when the mark it returns is."""
        return self.drop_places(group, [(t, p) for t, p in self._by_group.get(group, {}) if topic in (None, t)])

    def drop_places(self, group: str, places: Iterable[Place]) -> Mark:
        """Drop a group's commits of some partitions; those it has none of are no error."""
        known = self._by_group.get(group, {})
        return self._drop([(group, *place) for place in dict.fromkeys(places) if place in known])

    async def topic_changed(self, topic: str) -> None:
        """A deleted topic's commits go with it: a new one of that name begins anew."""
        if not self._hosting.exists(topic):
            await self._table.journal.settled(self._drop(self._of_topic(topic)))

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
    """Wider than a topic's rule, as Kafka's clients are used to; but one word that any dialect can print."""
    if not 1 <= len(group) <= NAME_CHARS_MAX:
        fault = f"a group name has 1 to {NAME_CHARS_MAX} characters, this one has {len(group)}"
    elif not group.isprintable() or " " in group:
        fault = f"group name {group[:60]!r} has blanks or characters that cannot be printed"
    else:
        return
    raise BrokerError(Reason.INVALID_GROUP, fault)
