"""Topics: create, delete, grow, alter.

Knows: what a request may ask for. Refuses to know: records; finding a partition (`partition/partition_registry.py`);
who replicates one (`topic_placement.py`). Invariant: a topic that was acknowledged as created is there after a crash;
one that was deleted is not.
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
    """Where a new topic's partitions are to be, in a cluster."""

    replicas: int | None = None
    """How many of each; None: as many as usual."""
    nodes: tuple[Nodes, ...] = ()
    """Of each partition, if somebody wants to say so."""
    first: int | None = None
    """Who should lead at first, if that node is there."""


ANYWHERE = Placed()


class Topics:
    """The use case."""

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
        """How fast each principal may have topics made by using them."""
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
        """Create a topic for the principal `by`; it is durable when this returns. In a cluster it is placed on nodes, as many as
        there would be with `followers`."""
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
            image.check(created)  # first: what makes no sense is refused as that
            if not places and placed.replicas not in (None, len(replicas)):
                text = f"{placed.replicas} replicas need as many nodes; {len(replicas)} are registered"
                raise BrokerError(Reason.INVALID_SETTING, text)
            if not name.startswith(INTERNAL_PREFIX):
                self._check_room(image, partitions, by)
            return [created]

        try:
            await self._reconciler.change(name, decide)
        except StorageFault:
            # The folder cannot be made: who asked is told that the topic was not created, so it must not come up later.
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
        """Where new partitions are placed; nowhere in particular while this node is alone."""
        if image.cluster.member(self.hosting.number) is None or not numbers:
            return ()
        places = placed.nodes or place(image.cluster, name, numbers, placed.replicas)
        if placed.first not in live(image.cluster):
            return places
        first = placed.first
        return tuple((first, *[node for node in nodes if node != first])[: len(nodes)] for nodes in places)

    def _check_room(self, image: Image, more: int, by: str) -> None:
        """Refuse partitions beyond what the node, or the principal, may have."""
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
        """The topic if it is there, else a new one that is made by being used: that has a rate."""
        found = self.hosting.find(name)
        if found is not None:
            return found
        if name in self._being_made:  # by another who was faster: one topic counts once
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
        """The partition of a topic that the broker writes for others to read; made if it is not there."""
        assert name in PUBLISHED
        if not self.hosting.exists(name):
            try:
                await self._create(name, 1, settings)
            except BrokerError as error:
                if error.reason is not Reason.TOPIC_EXISTS:  # another was faster
                    raise
        return self.hosting.partition(name, 0)

    async def create_internal(self, name: str, partitions: int, settings: TopicSettings) -> None:
        """A topic of the cluster's own, which several nodes hold and no request sees; made if it is not there."""
        if name not in self.hosting.topics:
            try:
                await self._create(name, partitions, settings)
            except BrokerError as error:
                if error.reason is not Reason.TOPIC_EXISTS:  # another node was faster
                    raise

    async def served(self, name: str) -> None:
        """Wait, for a while, until the nodes of a topic have made it and its leaders serve it: its clients ask them next."""
        if self._leaders is not None:
            await self._leaders.wait(name, followers=True)

    def check_new_name(self, name: str) -> None:
        """Refuse a name that a new topic cannot have."""
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
        """The topic if it is there, else a new one; two who ask at once get the same.

        One that is there gets the `settings` that differ and, with `grow`, the partitions it lacks; it never loses any.
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
        """Delete a topic and what is kept of it; it is gone for good when this returns."""
        refuse_internal(name)
        await self._delete(name)

    async def _delete(self, name: str, topic_id: str | None = None) -> None:
        def decide(image: Image) -> list[Event]:
            found = image.topic(name, topic_id)
            return [DeleteTopic(topic=name, topic_id=found.topic_id, deleted_ms=self._runtime.now_ms())]

        await self._reconciler.change(name, decide)

    async def grow(self, name: str, partitions: int, placed: tuple[Nodes, ...] = ()) -> Topic:
        """More partitions, with as many replicas as the others have, or on the nodes that are named. They count for who made the
        topic, whoever asks for them."""

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
        """Also a topic of the broker's own."""

        def decide(image: Image) -> list[Event]:
            topic = image.topic(name)
            settings = topic.settings.altered(changes)
            return [AlterTopic(topic=name, topic_id=topic.topic_id, settings=settings)]

        await self._reconciler.change(name, decide)
        return self.hosting.meta(name)
