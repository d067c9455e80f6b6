"""Topics: create, delete, grow, alter, and who replicates them.

Knows: how topics are made, changed and replicated. Refuses to know: records; finding a partition (`partition/hosting.py`).
Invariants: a topic that was acknowledged as created is there after a crash; one that was deleted is not; the folder changes
one topic at a time; what is kept of a topic elsewhere (commits, groups, snapshots) hears of its end before its name is free.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from braidlog.coordinator.journal import Table
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import NAME_CHARS_MAX
from braidlog.model.names import check_topic_name
from braidlog.model.settings import TopicSettings, settings_from
from braidlog.model.turns import Turns
from braidlog.model.world import World
from braidlog.partition.hosted import HostedPartition, Role
from braidlog.partition.hosting import PUBLISHED, Hosting, refuse_internal
from braidlog.replication.replicas import ReplicaSet
from braidlog.storage.folder import DataFolder, TopicMeta

FIRST_LEADER_EPOCH = 1
FOLLOWERS_PER_TOPIC_MAX = 32
_FOLDER = "the data folder"

TopicChanged = Callable[[str], Awaitable[None]]
"""Called with the name of a topic that was deleted or got more partitions."""


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
        self._turns = Turns(world)
        self._listeners: list[TopicChanged] = []
        self.hosting = Hosting(folder.topics(), folder.broken_topics, self._open)
        self.node = node
        self.defaults = defaults
        for table in (placements, roles):
            for name in {str(key[0]) for key, _ in table.items()}:
                if self.hosting.is_forgotten(name):
                    self._forget(name)

    def when_changed(self, listener: TopicChanged) -> None:
        """Tell `listener` of every topic that was deleted or has grown, before the change is acknowledged."""
        self._listeners.append(listener)

    @property
    def data_dir(self) -> str:
        return self._folder.path

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
        self.check_new_name(name)
        wanted = settings_from({**msgspec.to_builtins(self.defaults), **(settings or {})})
        async with self._turns.take(_FOLDER):
            if self.hosting.exists(name):
                raise BrokerError(Reason.TOPIC_EXISTS, f"topic {name!r} exists")
            self._forget(name)
            if followers or min_in_sync != 1:
                # Before the topic: a crash between the two leaves a placement nobody reads, never a topic that lost its
                # followers.
                await self._placements.journal.settled(
                    self._placements.put(name, value=Placement(followers or [], min_in_sync))
                )
            try:
                meta = await self._world.blocking(lambda: self._folder.create_topic(name, partitions, wanted))
            except BaseException:
                self._forget(name)
                raise
            self.hosting.put(meta)
        return meta

    async def publish(self, name: str, settings: TopicSettings) -> HostedPartition:
        """The partition of a topic that the broker writes for others to read; made if it is not there."""
        assert name in PUBLISHED
        async with self._turns.take(_FOLDER):
            if not self.hosting.exists(name):
                self.hosting.put(await self._world.blocking(lambda: self._folder.create_topic(name, 1, settings)))
        return self.hosting.partition(name, 0)

    def check_new_name(self, name: str) -> None:
        """Refuse a name that a new topic cannot have."""
        refuse_internal(name)
        check_topic_name(name)
        if self.hosting.exists(name):
            raise BrokerError(Reason.TOPIC_EXISTS, f"topic {name!r} exists")

    async def ensure(
        self, name: str, partitions: int, *, settings: dict[str, Any] | None = None, grow: bool = False
    ) -> TopicMeta:
        """The topic if it is there, else a new one; two who ask at once get the same.

        One that is there gets the `settings` that differ and, with `grow`, the partitions it lacks; it never loses any.
        """
        try:
            meta = self.hosting.find(name) or await self.create(name, partitions, settings=settings)
        except BrokerError as error:
            if error.reason is not Reason.TOPIC_EXISTS or not self.hosting.exists(name):
                raise
            meta = self.hosting.meta(name)
        if grow and meta.partitions < partitions:
            meta = await self.grow(name, partitions)
        if settings and meta.settings.altered(settings) != meta.settings:
            meta = await self.alter(name, settings)
        return meta

    async def delete(self, name: str) -> None:
        """Delete a topic and what is kept of it; it is gone for good when this returns."""
        refuse_internal(name)
        async with self._turns.take(_FOLDER):
            meta = self.hosting.meta(name)
            hosted = self.hosting.remove(name)
            try:
                await self._world.blocking(lambda: self._take_apart(name, hosted))
            except BaseException:
                if any(left.name == name for left in self._folder.topics()):
                    self.hosting.put(meta)  # the disk refused: it is all there still, and can be asked for again
                raise
            self._forget(name)
            await self._tell(name)

    def _take_apart(self, name: str, hosted: list[HostedPartition]) -> None:
        for partition in hosted:
            with contextlib.suppress(StorageFault):  # what cannot be closed well goes all the same
                partition.log.close()
        self._folder.delete_topic(name)

    def _forget(self, name: str) -> None:
        """Drop a topic's placement and roles. Not waited for: until it is durable, opening does it again."""
        if self._placements.get(name) is not None:
            self._placements.drop(name)
        for number in [int(key[1]) for key, _ in self._roles.items() if key[0] == name]:
            self._roles.drop(name, number)

    async def _tell(self, name: str) -> None:
        for listener in self._listeners:
            await listener(name)

    async def grow(self, name: str, partitions: int) -> TopicMeta:
        refuse_internal(name)
        async with self._turns.take(_FOLDER):
            self.hosting.meta(name)
            meta = await self._world.blocking(lambda: self._folder.grow_topic(name, partitions))
            self.hosting.put(meta)
            await self._tell(name)
        return meta

    async def alter(self, name: str, changes: dict[str, Any]) -> TopicMeta:
        refuse_internal(name)
        async with self._turns.take(_FOLDER):
            settings = self.hosting.meta(name).settings.altered(changes)
            meta = await self._world.blocking(lambda: self._folder.alter_topic(name, settings))
            self.hosting.put(meta)
            for hosted in self.hosting.opened(name):
                hosted.log.settings = meta.settings
                hosted.advance()  # `flush` may have changed, and with it what counts as committed
        return meta

    def min_in_sync(self, name: str) -> int:
        """How many replicas must be in sync for an append that asks for all of them."""
        self.hosting.meta(name)
        placement: Placement = self._placements.get(name) or Placement()
        return placement.min_in_sync

    async def set_min_in_sync(self, name: str, count: int) -> None:
        if not 1 <= count <= FOLLOWERS_PER_TOPIC_MAX + 1:
            raise BrokerError(
                Reason.INVALID_SETTING, f"min_in_sync must be 1 to {FOLLOWERS_PER_TOPIC_MAX + 1}, not {count}"
            )
        placement: Placement = self._placements.get(name) or Placement()
        await self.set_followers(name, placement.followers, count)

    async def set_role(self, name: str, number: int, role: Role) -> HostedPartition:
        """Make this node leader or follower of a partition. Each leadership is a new epoch, durable before it begins."""
        refuse_internal(name)
        async with self._turns.take(_FOLDER):
            hosted = self.hosting.partition(name, number)
            begins = role is Role.LEADER and hosted.role is Role.FOLLOWER
            epoch = hosted.leader_epoch + 1 if begins else hosted.leader_epoch
            if role is Role.FOLLOWER:
                hosted.role = role  # at once: who was told to follow must not append while that becomes durable
                hosted.wake()
            await self._placements.journal.settled(self._roles.put(name, number, value=PartitionRole(role, epoch)))
            if begins:
                await self._world.blocking(lambda: hosted.log.begin_epoch(epoch))
                hosted.leader_epoch = epoch
                hosted.role = role
                hosted.wake()
        return hosted

    async def set_followers(self, name: str, followers: list[str], min_in_sync: int) -> None:
        """Change which nodes follow a topic's partitions."""
        refuse_internal(name)
        async with self._turns.take(_FOLDER):
            self.hosting.meta(name)
            await self._placements.journal.settled(self._placements.put(name, value=Placement(followers, min_in_sync)))
            for hosted in self.hosting.opened(name):
                hosted.replicas.reshape(followers, min_in_sync)
                hosted.advance()
                hosted.wake()

    def expire_replicas(self, lag_ms_max: int) -> list[tuple[HostedPartition, str]]:
        """Take followers that have not fetched for so long out of their in-sync sets; called every now and then."""
        before_ms = self._world.now_ms() - lag_ms_max
        gone = []
        for hosted in self.hosting.opened():
            nodes = hosted.replicas.expire(before_ms)
            if nodes:
                hosted.advance()
                hosted.wake()
            gone += [(hosted, node) for node in nodes]
        return gone

    async def set_in_sync(self, name: str, number: int, node: str, *, in_sync: bool) -> None:
        """A follower is in sync, or no longer. A node that was none becomes one, and is in sync once it has caught up."""
        hosted = self.hosting.partition(name, number)
        hosted.require_leader()
        followers = [replica.node for replica in hosted.replicas.followers]
        if in_sync and node not in followers:
            self._check_follower(node, followers)
            await self.set_followers(name, sorted([*followers, node]), hosted.replicas.min_in_sync)
        else:
            hosted.replicas.set_in_sync(node, in_sync=in_sync)
        hosted.advance()
        hosted.wake()

    def _check_follower(self, node: str, followers: list[str]) -> None:
        if not 1 <= len(node) <= NAME_CHARS_MAX or node == self.node:
            raise BrokerError(Reason.REPLICA_NOT_FOUND, f"node {node[:60]!r} cannot follow")
        if len(followers) >= FOLLOWERS_PER_TOPIC_MAX:
            raise BrokerError(Reason.INVALID_SETTING, f"a topic has at most {FOLLOWERS_PER_TOPIC_MAX} followers")

    def choose_followers(self, count: int) -> list[str]:
        """`count` of the nodes that follow some topic already: in the model there are no others to know of."""
        if count > FOLLOWERS_PER_TOPIC_MAX:
            raise BrokerError(
                Reason.INVALID_SETTING, f"a topic has at most {FOLLOWERS_PER_TOPIC_MAX} followers, not {count}"
            )
        known = sorted({node for _, placement in self._placements.items() for node in placement.followers})
        if count > len(known):
            raise BrokerError(
                Reason.NOT_ENOUGH_REPLICAS, f"{count} followers need {count + 1} nodes, {len(known) + 1} are known"
            )
        return known[:count]
