"""Which coordinator keeps a name: the node's own if it is alone, else that of a shard, if this node leads it.

Knows: who is asked for what. Refuses to know: what coordinators do, how a shard is led.
Invariants: what a node of a cluster is asked to keep is in shards only; nobody is told what is in a shard before it is settled.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from braidlog.broker.access.owners import Owners
from braidlog.broker.coordinator import Coordinator, Making, refuse_unknown
from braidlog.broker.routing import Routing
from braidlog.broker.topics import Topics
from braidlog.coordinator.journal import Journal, load_tables_in_slices
from braidlog.coordinator.markers import End
from braidlog.coordinator.shards import SHARDS, STATE_SETTINGS, STATE_TOPIC, ShardLog, Shards, place_of
from braidlog.model.errors import BrokerError, NotCoordinatorError, StorageFault
from braidlog.model.world import World
from braidlog.partition.hosted_log import Role
from braidlog.partition.partition import Partition
from braidlog.partition.replicated_log import ReplicatedLog

log = logging.getLogger("braidlog.coordinator")

EXPIRE_SECONDS: Final = 1.0

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Coordinators:
    """`begin` it with the one of a node that is alone, and what others are made with."""

    def __init__(self, routing: Routing, topics: Topics, world: World) -> None:
        self._routing = routing
        self._topics = topics
        self._world = world
        self._spawn: Spawn | None = None
        self._shards: Shards[Coordinator] | None = None
        self._is_making_topic = False

    def begin(self, own: Coordinator, making: Making) -> None:
        self._own = own
        self._making = making

    # -- in a cluster ------------------------------------------------------------------------------------------

    @property
    def is_sharded(self) -> bool:
        return self._shards is not None

    def take_part(self, spawn: Spawn) -> None:
        """This node is one of several: from now on what is kept is kept in shards."""
        self._spawn = spawn
        self._shards = Shards(self._load, Coordinator.discard, self._world, spawn)

    def led_anew(self, partition: Partition) -> None:
        """A partition of `STATE_TOPIC` has another leader, or the same in another epoch."""
        assert self._shards is not None
        if partition.role is Role.LEADER and not partition.is_gone:
            self._shards.lead(partition.number, ReplicatedLog(partition, self._world))
        else:
            self._shards.let_go(partition.number)

    async def _load(self, number: int, led: ShardLog) -> Coordinator:
        journal = Journal(led, self._world, led.epoch)
        start = journal.write_start()
        tables = self._making.tables(journal)
        try:
            await load_tables_in_slices(journal, list(tables.values()), refuse_unknown)
            await journal.settled(start)
            coordinator = self._making.coordinator(journal, tables, number, led.epoch)
        except (BrokerError, StorageFault):
            for table in tables.values():
                await table.forget()
            raise
        log.info("node %d coordinates shard %d in epoch %d", self._routing.own_number, number, led.epoch)
        assert self._spawn is not None
        self._spawn(self._tend(coordinator, led), f"tend shard {number}")
        return coordinator

    async def _tend(self, coordinator: Coordinator, led: ShardLog) -> None:
        """Each shard by itself: one whose replicas are away does not hold up the others."""
        why = ""
        while led.is_led:
            try:
                await _expire(coordinator)
            except BrokerError as error:
                if str(error) != why:
                    why = str(error)
                    log.info("shard %d: nothing has expired: %s", coordinator.number, why)
            await self._world.wakeup().wait(EXPIRE_SECONDS)

    # -- who keeps what ----------------------------------------------------------------------------------------

    def of(self, name: str) -> Coordinator:
        """The one that keeps a group, a transactional id, a sink or a producer's name; refused if another node does."""
        if self._shards is None:
            return self._own
        try:
            return self._shards.of(place_of(name))
        except NotCoordinatorError:
            self._make_topic_soon()
            raise

    def here(self) -> list[Coordinator]:
        """Those that this node serves now."""
        return [self._own] if self._shards is None else list(self._shards.served())

    def all_led(self) -> list[Coordinator]:
        """The same, for lists of all that this node keeps: refused while it reads a shard that it leads."""
        return [self._own] if self._shards is None else self._shards.all_led()

    def in_shard(self, number: int) -> Coordinator:
        """The one of a shard; refused unless this node leads it and has read it."""
        return self._own if self._shards is None else self._shards.of(number)

    def of_producer(self, producer_id: int) -> Coordinator:
        """The one that knows a transactional id's producer, else any."""
        here = self.here()
        known = (each for each in here if each.transactions.id_of(producer_id) is not None)
        return next(known, here[0] if here else self._own)

    async def end_commits(self, group: str, ends: Sequence[End]) -> None:
        """Count or drop what transactions commit for a group that is kept here."""
        await self.of(group).pending_commits.end(ends)

    def owners_of(self, name: str) -> Owners | None:
        """Who says whose a name is; None: another node."""
        try:
            return self.of(name).owners
        except NotCoordinatorError:
            return None

    @property
    def has_shards(self) -> bool:
        """Whether there is a place for what is kept: always on a node that is alone."""
        return self._shards is None or STATE_TOPIC in self._topics.hosting.topics

    async def ensure_shards(self) -> None:
        if not self.has_shards:
            await self._make_topic()

    async def find(self, name: str) -> int | None:
        """The node that keeps a name; None if nobody does now."""
        await self.ensure_shards()
        return self._routing.coordinator_of(name)

    @asynccontextmanager
    async def settled_after(self, name: str) -> AsyncIterator[Coordinator]:
        """The coordinator of a name, for whoever tells of what it keeps, be it by a refusal: all of it is settled after this."""
        coordinator = self.of(name)
        try:
            yield coordinator
        except BrokerError:
            await self._settled(coordinator)
            raise
        await self._settled(coordinator)

    async def _settled(self, coordinator: Coordinator) -> None:
        """A single node tells what it has."""
        if self._shards is not None:
            await coordinator.journal.all_settled()

    def _make_topic_soon(self) -> None:
        if STATE_TOPIC not in self._topics.hosting.topics and not self._is_making_topic:
            assert self._spawn is not None
            self._is_making_topic = True
            self._spawn(self._make_topic(), "make the coordinators' topic")

    async def _make_topic(self) -> None:
        """When it is first needed: then most nodes are there, to hold its replicas and to lead some of it."""
        try:
            await self._topics.create_internal(STATE_TOPIC, SHARDS, STATE_SETTINGS)
        except BrokerError as error:
            log.warning("the coordinators' topic cannot be made yet: %s", error)
        finally:
            self._is_making_topic = False

    # -- what is done now and then -----------------------------------------------------------------------------

    async def resume(self) -> None:
        """Before anyone is served: end what was decided. In a cluster that is done when a shard is read."""
        for name, why in (await self._own.transactions.resume()).items():
            log.error("transaction %r was decided and cannot be ended yet: %s", name, why)

    async def expire(self) -> None:
        """Take out overdue members, end what is overdue; called every now and then. Shards are tended by tasks of their own."""
        if not self.is_sharded:
            await _expire(self._own)

    async def forget_unused(self, offsets_retention_ms: int) -> None:
        for each in self.here():
            with self._tolerant():
                for name in await each.groups.forget_unused(offsets_retention_ms):
                    log.info("group %r was empty for long, and is forgotten", name)
                await each.transactions.forget_unused()
                await each.named_producers.expire()
                for sink in await each.staging.expire():
                    log.info("sink %r committed nothing for long, and is forgotten", sink)
                await each.owners.forget_unused()

    def _tolerant(self) -> contextlib.AbstractContextManager[None]:
        """A shard may be led by another node meanwhile, or lack replicas: it is tried again, here or there."""
        return contextlib.suppress(BrokerError) if self.is_sharded else contextlib.nullcontext()

    async def topic_made(self, topic: str) -> None:
        """A topic is there: it may match what members of consumer groups want to read."""
        for each in self.here():
            with self._tolerant():
                await each.groups.consumer.topic_changed(topic)

    async def topic_changed(self, topic: str) -> None:
        """A topic has more partitions, or is gone."""
        for each in self.here():
            with self._tolerant():
                await each.offsets.topic_changed(topic)
                await each.snapshots.topic_changed(topic)
                await each.groups.topic_changed(topic)


async def _expire(coordinator: Coordinator) -> None:
    await coordinator.groups.expire()
    for name in await coordinator.transactions.expire():
        log.info("transaction %r was open for longer than its time-out: it is aborted, and its producer fenced", name)
