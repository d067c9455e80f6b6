"""Creates, deletes, grows and alters topics.

Does not handle: records; finding a partition (`partition/partition_registry.py`); replication
(`topic_placement.py`).
Invariant: after a crash, an acknowledged new topic exists, and an acknowledged deleted topic does not.
"""

import contextlib
import logging
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from braidlog.broker.topic_leaders import TopicLeaders
from braidlog.cluster.metadata.events import AddPartitions, AlterTopic, CreateTopic, DeleteTopic, Event
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX
from braidlog.cluster.metadata.topic_state import Topic
from braidlog.cluster.replica_placement import MIN_IN_SYNC, live, place, replica_count
from braidlog.coordinator.state_limits import NODE, StateUsage
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.model.names import check_topic_name
from braidlog.model.runtime.runtime import Runtime
from braidlog.model.settings import TopicSettings, settings_from
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PUBLISHED, PartitionRegistry, is_hidden, refuse_internal
from braidlog.partition.reconciler import Reconciler
from braidlog.replication.assignment import Nodes
from braidlog.security.quotas import Buckets

log = logging.getLogger("braidlog.topics")


class Placed(NamedTuple):
    """Placement of a new topic's partitions in a cluster."""

    replicas: int | None = None
    """Replicas of each partition; None: the default."""
    nodes: tuple[Nodes, ...] = ()
    """The nodes of each partition, if the client chooses them."""
    first: int | None = None
    """The preferred leader of all partitions, if that node is live."""


ANYWHERE = Placed()


class Topics:
    """Creates, deletes, grows and alters topics."""

    def __init__(
        self,
        reconciler: Reconciler,
        hosting: PartitionRegistry,
        runtime: Runtime,
        defaults: TopicSettings,
        holdings: StateUsage | None = None,
        leaders: TopicLeaders | None = None,
    ) -> None:
        self._reconciler = reconciler
        self._leaders = leaders
        self._runtime = runtime
        self._holdings = holdings or StateUsage()
        self._rates: Buckets[str] = Buckets()
        """The rate at which each principal may create topics by using them."""
        self._being_made: set[str] = set()
        self.hosting = hosting
        self.defaults = defaults

    async def create(
        self,
        name: str,
        partitions: int,
        *,
        settings: dict[str, Any] | None = None,
        followers: Sequence[str] | None = None,
        min_in_sync: int | None = None,
        placed: Placed = ANYWHERE,
        by: str = NODE,
    ) -> Topic:
        """Create a topic for the principal `by`; durable on return. In a cluster, `followers` only sets the number
        of replicas."""
        self.check_new_name(name)
        chosen = settings_from({**msgspec.to_builtins(self.defaults), **(settings or {})})
        if followers and placed == ANYWHERE:
            placed = Placed(len(followers) + 1)
        topic = await self._create(name, partitions, chosen, followers or (), min_in_sync, by, placed)
        await self.served(name)
        return topic

    async def _create(
        self,
        name: str,
        partitions: int,
        settings: TopicSettings,
        followers: Sequence[str] = (),
        min_in_sync: int | None = None,
        by: str = NODE,
        placed: Placed = ANYWHERE,
    ) -> Topic:
        topic_id = uuid.uuid4().hex

        def decide(image: Image) -> list[Event]:
            places = self._places(image, name, range(min(partitions, PARTITIONS_PER_TOPIC_MAX)), placed)
            replicas = (self.hosting.node,) if places else dict.fromkeys((self.hosting.node, *followers))
            counts_places = placed.nodes or not places or name.startswith(INTERNAL_PREFIX)
            factor = (
                min(map(len, places), default=0) if counts_places else replica_count(image.cluster, placed.replicas)
            )
            created = CreateTopic(
                topic=name,
                topic_id=topic_id,
                partitions=partitions,
                settings=settings,
                created_ms=self._runtime.now_ms(),
                replicas=tuple(replicas),
                min_in_sync=min(MIN_IN_SYNC, factor or 1) if min_in_sync is None else min_in_sync,
                created_by=by,
                placement=places,
                replication_factor=factor,
            )
            image.check(created)  # first, so that invalid requests get their specific error
            if not places and placed.replicas not in (None, len(replicas)):
                text = f"{placed.replicas} replicas need as many nodes; {len(replicas)} are registered"
                raise BrokerError(Reason.INVALID_SETTING, text)
            if not name.startswith(INTERNAL_PREFIX):
                self._check_room(image, partitions, by)
            return [created]

        try:
            await self._reconciler.change(name, decide)
        except StorageFault:
            # The folder cannot be created. The client gets an error, so the topic must not appear later.
            with contextlib.suppress(StorageFault, BrokerError):
                await self._delete(name, topic_id)
            raise
        topic = self.hosting.topics.get(name)
        if topic is None:
            raise BrokerError(Reason.TOPIC_NOT_FOUND, f"topic {name!r} was deleted while it was created")
        if topic.min_in_sync == topic.desired_replicas > 1:
            log.warning(
                "topic %r has %d replicas and needs all of them in sync: while one node is away, acks=all is refused",
                name,
                topic.min_in_sync,
            )
        return topic

    def _places(self, image: Image, name: str, numbers: range, placed: Placed) -> tuple[Nodes, ...]:
        """Return the nodes of new partitions; empty while this node belongs to no cluster."""
        if image.cluster.member(self.hosting.number) is None or not numbers:
            return ()
        places = placed.nodes or place(image.cluster, name, numbers, placed.replicas)
        if placed.first not in live(image.cluster):
            return places
        first = placed.first
        return tuple((first, *[node for node in nodes if node != first])[: len(nodes)] for nodes in places)

    def _check_room(self, image: Image, more: int, by: str) -> None:
        """Raise if the node's or the principal's limit of partitions would be exceeded."""
        limit = self._holdings.limits.partitions_max
        used = sum(topic.partitions for topic in image.topics.values() if not is_hidden(topic.name))
        if used + more > limit:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"this node has {used} partitions and may have {limit}, not {more} more: delete topics, or raise "
                "state.partitions_max",
            )
        own = sum(topic.partitions for topic in image.topics.values() if topic.created_by == by)
        self._holdings.check_share("partitions", by, own, more, limit)

    async def use(self, name: str, partitions: int, followers: Sequence[str] = (), *, by: str) -> Topic:
        """Return a topic, or create it by its use; the rate of such creations is limited."""
        found = self.hosting.find(name)
        if found is not None:
            return found
        if name in self._being_made:  # a concurrent caller creates it: one topic counts once
            return await self.ensure(name, partitions, followers=followers, by=by)
        self.check_new_name(name)
        self._check_rate(name, by)
        self._being_made.add(name)
        try:
            return await self.ensure(name, partitions, followers=followers, by=by)
        finally:
            self._being_made.discard(name)

    def _check_rate(self, name: str, by: str) -> None:
        limits, now = self._holdings.limits, self._runtime.monotonic()
        seconds = self._rates.get(by, limits.topics_per_second, now, limits.topics_burst).take_whole(now)
        if seconds:
            raise BrokerError(
                Reason.UNAVAILABLE,
                f"topic {name!r} is not made now: {by!r} has made many by using them (state.topics_per_second); "
                f"try again in {seconds:.1f} s, or create it by request",
            )

    async def publish(self, name: str, settings: TopicSettings) -> Partition:
        """Return the partition of a topic that the broker publishes; created if missing."""
        assert name in PUBLISHED
        if not self.hosting.exists(name):
            try:
                await self._create(name, 1, settings)
            except BrokerError as error:
                if error.reason is not Reason.TOPIC_EXISTS:  # a concurrent caller created it
                    raise
        return self.hosting.partition(name, 0)

    async def create_internal(self, name: str, partitions: int, settings: TopicSettings) -> None:
        """Create a cluster-internal topic if it is missing. It has replicas on several nodes, and clients do not see
        it."""
        if name not in self.hosting.topics:
            try:
                await self._create(name, partitions, settings)
            except BrokerError as error:
                if error.reason is not Reason.TOPIC_EXISTS:  # another node created it
                    raise

    async def served(self, name: str) -> None:
        """Wait a limited time until the nodes of a topic have created it and its leaders serve it: clients connect
        to them next."""
        if self._leaders is not None:
            await self._leaders.wait(name, followers=True)

    def check_new_name(self, name: str) -> None:
        """Raise if a new topic cannot have this name."""
        refuse_internal(name)
        check_topic_name(name)
        if self.hosting.exists(name):
            raise BrokerError(Reason.TOPIC_EXISTS, f"topic {name!r} exists")

    async def ensure(
        self,
        name: str,
        partitions: int,
        *,
        settings: dict[str, Any] | None = None,
        followers: Sequence[str] = (),
        placed: Placed = ANYWHERE,
        grow: bool = False,
        by: str = NODE,
    ) -> Topic:
        """Return a topic, created if missing; concurrent callers get the same topic.

        An existing topic gets the `settings` that differ and, with `grow`, the partitions that it lacks; it never
        loses partitions.
        """
        try:
            topic = self.hosting.find(name) or await self.create(
                name, partitions, settings=settings, followers=followers, placed=placed, by=by
            )
        except BrokerError as error:
            if error.reason is not Reason.TOPIC_EXISTS or not self.hosting.exists(name):
                raise
            topic = self.hosting.meta(name)
        if grow and topic.partitions < partitions:
            topic = await self.grow(name, partitions)
        if settings and topic.settings.altered(settings) != topic.settings:
            topic = await self.alter(name, settings)
        return topic

    async def delete(self, name: str) -> None:
        """Delete a topic and its data. This cannot be undone."""
        refuse_internal(name)
        await self._delete(name)

    async def _delete(self, name: str, topic_id: str | None = None) -> None:
        def decide(image: Image) -> list[Event]:
            found = image.topic(name, topic_id)
            return [DeleteTopic(topic=name, topic_id=found.topic_id, deleted_ms=self._runtime.now_ms())]

        await self._reconciler.change(name, decide)

    async def grow(self, name: str, partitions: int, placed: tuple[Nodes, ...] = ()) -> Topic:
        """Add partitions, with the topic's number of replicas or on the given nodes. They count towards the limit of
        the topic's creator."""

        def decide(image: Image) -> list[Event]:
            topic = image.topic(name)
            numbers = range(topic.partitions, min(partitions, PARTITIONS_PER_TOPIC_MAX))
            copies = min(topic.desired_replicas, len(image.cluster.members))
            places = () if topic.holder else self._places(image, name, numbers, Placed(copies, placed))
            grown = AddPartitions(topic=name, topic_id=topic.topic_id, partitions=partitions, placement=places)
            image.check(grown)
            self._check_room(image, partitions - topic.partitions, topic.created_by)
            return [grown]

        refuse_internal(name)
        await self._reconciler.change(name, decide)
        await self.served(name)
        return self.hosting.meta(name)

    async def alter(self, name: str, changes: dict[str, Any]) -> Topic:
        refuse_internal(name)
        return await self.alter_internal(name, changes)

    async def alter_internal(self, name: str, changes: dict[str, Any]) -> Topic:
        """Change settings of any topic, internal ones too."""

        def decide(image: Image) -> list[Event]:
            topic = image.topic(name)
            settings = topic.settings.altered(changes)
            return [AlterTopic(topic=name, topic_id=topic.topic_id, settings=settings)]

        await self._reconciler.change(name, decide)
        return self.hosting.meta(name)
