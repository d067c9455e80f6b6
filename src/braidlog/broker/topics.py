"""Topics: create, delete, list, describe, grow, alter; and the way from a name to a hosted partition.

Knows: which topics there are and how they are replicated. Refuses to know: records.
Invariants: a topic that was acknowledged as created is there after a crash; one that was deleted is not; internal topics (their
names begin with two underscores) cannot be made, changed or deleted by a request; one change of a topic at a time.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from braidlog.broker.hosted import HostedPartition, Role
from braidlog.broker.ports import Wakeup, World
from braidlog.cluster.journal import Table
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import TopicSettings, settings_from
from braidlog.replication.replicas import ReplicaSet
from braidlog.storage.folder import DataFolder, TopicMeta

INTERNAL_PREFIX = "__"
FIRST_LEADER_EPOCH = 1
_CHANGE_SECONDS_MAX = 60.0


class Placement(msgspec.Struct, frozen=True):
    """Which nodes hold a topic's partitions: this node and, in the model, its followers."""

    followers: list[str] = []
    min_in_sync: int = 1


class PartitionRole(msgspec.Struct, frozen=True):
    """A role that was set by an administrator and outlives a restart."""

    role: Role
    epoch: int


class Topics:
    """The topics of this node."""

    def __init__(
        self, folder: DataFolder, world: World, node: str, placements: Table, roles: Table, defaults: TopicSettings
    ) -> None:
        self._folder = folder
        self._world = world
        self._placements = placements
        self._roles = roles
        self._hosted: dict[tuple[str, int], HostedPartition] = {}
        self._changing: dict[str, Wakeup] = {}
        self._metas = {meta.name: meta for meta in folder.topics() if not meta.name.startswith(INTERNAL_PREFIX)}
        self.node = node
        self.defaults = defaults

    # -- looking ---------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The users' topics, sorted."""
        return sorted(name for name in self._metas if not name.startswith(INTERNAL_PREFIX))

    def exists(self, name: str) -> bool:
        return name in self._metas

    def meta(self, name: str) -> TopicMeta:
        meta = self._metas.get(name)
        if meta is None:
            raise BrokerError(Reason.TOPIC_NOT_FOUND, f"topic {name[:60]!r} does not exist")
        return meta

    def partition(self, name: str, number: int) -> HostedPartition:
        """The hosted partition, opened on first use."""
        hosted = self._hosted.get((name, number))
        if hosted is None:
            meta = self.meta(name)
            if not 0 <= number < meta.partitions:
                raise BrokerError(
                    Reason.PARTITION_NOT_FOUND,
                    f"topic {name!r} has partitions 0 to {meta.partitions - 1}, not {number}",
                )
            hosted = self._hosted[(name, number)] = self._open(meta, number)
        return hosted

    def partitions(self, name: str) -> list[HostedPartition]:
        return [self.partition(name, number) for number in range(self.meta(name).partitions)]

    def opened(self) -> Iterator[HostedPartition]:
        yield from list(self._hosted.values())

    def _open(self, meta: TopicMeta, number: int) -> HostedPartition:
        log = self._folder.open_partition(meta.name, number)
        placement = self._placements.get(meta.name) or Placement()
        stored = self._roles.get(meta.name, number) or PartitionRole(Role.LEADER, FIRST_LEADER_EPOCH)
        replicas = ReplicaSet(self.node, placement.followers, placement.min_in_sync)
        epoch = max(stored.epoch, log.state.epochs.latest)
        return HostedPartition(meta.name, number, log, replicas, role=stored.role, epoch=epoch)

    # -- changing --------------------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        partitions: int,
        *,
        settings: dict[str, Any] | None = None,
        followers: list[str] | None = None,
        min_in_sync: int = 1,
    ) -> TopicMeta:
        """Create a topic; it is durable when this returns."""
        self._refuse_internal(name)
        wanted = settings_from({**msgspec.to_builtins(self.defaults), **(settings or {})})
        if name in self._metas:
            raise BrokerError(Reason.TOPIC_EXISTS, f"topic {name!r} exists")
        if followers:
            # Before the topic: a crash between the two leaves a placement nobody reads, never a topic that lost its followers.
            await self._settle(self._placements.put(name, value=Placement(followers, min_in_sync)))
        return await self._change(name, lambda: self._folder.create_topic(name, partitions, wanted))

    async def ensure(self, name: str, partitions: int) -> TopicMeta:
        """The topic if it is there, else a new one; two who ask at once get the same."""
        try:
            return self._metas.get(name) or await self.create(name, partitions)
        except BrokerError as error:
            if error.reason is Reason.TOPIC_EXISTS and name in self._metas:
                return self._metas[name]
            raise

    async def _change(self, name: str, change: Callable[[], TopicMeta]) -> TopicMeta:
        """Change the folder beside the loop. Whoever comes second to the same topic waits for the first."""
        while (ahead := self._changing.get(name)) is not None:
            await ahead.wait(_CHANGE_SECONDS_MAX)
        turn = self._changing[name] = self._world.wakeup()
        try:
            meta = self._metas[name] = await self._world.blocking(change)
        finally:
            del self._changing[name]
            turn.wake()
        return meta

    async def delete(self, name: str) -> None:
        self._refuse_internal(name)
        meta = self._metas.pop(name, None)
        if meta is None:
            raise BrokerError(Reason.TOPIC_NOT_FOUND, f"topic {name[:60]!r} does not exist")
        for number in range(meta.partitions):
            hosted = self._hosted.pop((name, number), None)
            if hosted is not None:
                hosted.role = Role.FOLLOWER  # whoever still holds it may append no more
                hosted.log.close()
                hosted.wake()
            if self._roles.get(name, number) is not None:
                self._roles.drop(name, number)
        if self._placements.get(name) is not None:
            self._placements.drop(name)
        await self._world.blocking(lambda: self._folder.delete_topic(name))

    async def grow(self, name: str, partitions: int) -> TopicMeta:
        self._refuse_internal(name)
        self.meta(name)
        return await self._change(name, lambda: self._folder.grow_topic(name, partitions))

    async def alter(self, name: str, changes: dict[str, Any]) -> TopicMeta:
        self._refuse_internal(name)
        settings = self.meta(name).settings.altered(changes)
        meta = await self._change(name, lambda: self._folder.alter_topic(name, settings))
        for number in range(meta.partitions):
            hosted = self._hosted.get((name, number))
            if hosted is not None:
                hosted.log.settings = meta.settings
        return meta

    async def set_role(self, name: str, number: int, role: Role) -> HostedPartition:
        """Make this node leader or follower of a partition. Each leadership is a new epoch."""
        hosted = self.partition(name, number)
        if role is Role.LEADER and hosted.role is Role.FOLLOWER:
            hosted.leader_epoch += 1
            await self._world.blocking(lambda: hosted.log.begin_epoch(hosted.leader_epoch))
        hosted.role = role
        hosted.wake()
        await self._settle(self._roles.put(name, number, value=PartitionRole(role, hosted.leader_epoch)))
        return hosted

    async def set_followers(self, name: str, followers: list[str], min_in_sync: int) -> None:
        """Change which nodes follow a topic's partitions."""
        meta = self.meta(name)
        for number in range(meta.partitions):
            hosted = self._hosted.get((name, number))
            if hosted is not None:
                watermark = hosted.high_watermark
                hosted.replicas = ReplicaSet(self.node, followers, min_in_sync)
                hosted.replicas.restart(watermark)
        await self._settle(self._placements.put(name, value=Placement(followers, min_in_sync)))

    async def _settle(self, next_offset: int) -> None:
        await self._world.durable(self._placements.journal.partition, next_offset)

    def _refuse_internal(self, name: str) -> None:
        if name.startswith(INTERNAL_PREFIX):
            raise BrokerError(
                Reason.INVALID_TOPIC_NAME, f"names that begin with {INTERNAL_PREFIX!r} are the broker's own"
            )

    def close(self) -> None:
        for hosted in self._hosted.values():
            hosted.log.close()
        self._hosted.clear()
