"""Which coordinator keeps a name: that of a shard, if this node leads it.

Knows: which coordinator is asked for what. Does not know: what coordinators do, how a shard is led.
Invariants: what coordinators keep is in shards only; no caller hears what is in a shard before it is settled.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from braidlog.broker.coordination.coordinator import Coordinator, CoordinatorFactory, refuse_unknown
from braidlog.broker.routing import Routing
from braidlog.broker.topics import Topics
from braidlog.coordinator.groups.service import Groups
from braidlog.coordinator.journal import Journal, JournalLog, load_tables
from braidlog.coordinator.shards import SHARDS, STATE_SETTINGS, STATE_TOPIC, Shards, Spawn, shard_for_name, unreadable
from braidlog.coordinator.transactions.markers import End, abort_hanging
from braidlog.model.errors import BrokerError, NotCoordinatorError, StorageFault
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.hosted_log import Role
from braidlog.partition.internal.coordinator_log import CoordinatorLog
from braidlog.partition.partition import Partition
from braidlog.security.resource_owners import Owners

log = logging.getLogger("braidlog.coordinator")

EXPIRE_SECONDS: Final = 1.0


class Coordinators:
    """`begin` it with what coordinators are made with; it hears of partitions of `STATE_TOPIC` by `on_leadership_change`."""

    def __init__(self, routing: Routing, topics: Topics, runtime: Runtime, spawn: Spawn) -> None:
        self._routing = routing
        self._topics = topics
        self._runtime = runtime
        self._spawn = spawn
        self._turns = KeyedLock(runtime)
        self._shards = Shards(self._load, Coordinator.discard, runtime, spawn)

    def begin(self, making: CoordinatorFactory) -> None:
        self._making = making

    # -- shards ------------------------------------------------------------------------------------------------

    def on_leadership_change(self, partition: Partition) -> None:
        """A partition of `STATE_TOPIC` has another leader, or the same in another epoch."""
        if partition.role is Role.LEADER and not partition.is_gone:
            self._shards.lead(partition.number, CoordinatorLog(partition, self._runtime))
        else:
            self._shards.unload(partition.number)

    async def _load(self, number: int, led: JournalLog) -> Coordinator:
        journal = Journal(led, self._runtime)
        start = journal.write_start()
        tables = self._making.tables(journal)
        try:
            await load_tables(journal, list(tables.values()), refuse_unknown)
            await journal.wait_committed(start)
            coordinator = self._making.coordinator(journal, tables, number, led.epoch)
        except (BrokerError, StorageFault):
            for table in tables.values():
                await table.forget()
            raise
        level = logging.DEBUG if journal.is_sole else logging.INFO  # where no other node could, it says nothing new
        log.log(level, "node %d coordinates shard %d in epoch %d", self._routing.own_number, number, led.epoch)
        self._spawn(self._tend(coordinator, led), f"tend shard {number}")
        return coordinator

    async def _tend(self, coordinator: Coordinator, led: JournalLog) -> None:
        """Each shard by itself: one whose replicas are away does not hold up the others."""
        why = ""
        while led.is_led:
            try:
                await _expire(coordinator)
            except (BrokerError, StorageFault) as error:
                if str(error) != why:
                    why = str(error)
                    level = logging.ERROR if isinstance(error, StorageFault) else logging.INFO
                    log.log(level, "shard %d: nothing has expired: %s", coordinator.number, why)
            await self._runtime.wakeup().wait(EXPIRE_SECONDS)

    @property
    def has_shards(self) -> bool:
        return STATE_TOPIC in self._topics.hosting.topics

    async def ensure_shards(self) -> None:
        """Make the shards when they are first needed: then most nodes are there, to hold replicas and to lead some of them."""
        if not self.has_shards:
            try:
                await self._topics.create_internal(STATE_TOPIC, SHARDS, STATE_SETTINGS)
            except BrokerError as error:
                log.warning("the coordinators' topic cannot be made yet: %s", error)

    async def wait_read(self) -> None:
        """Return when every shard whose only replica is here was read, or could not be."""
        for number in range(SHARDS):
            await self._shards.wait_read(number)

    # -- which coordinator keeps what --------------------------------------------------------------------------

    def coordinator_for(self, name: str) -> Coordinator:
        """The one that keeps a group, a transactional id, a sink or a producer's name; refused if another node does."""
        return self.in_shard(shard_for_name(name))

    def in_shard(self, number: int) -> Coordinator:
        """The one of a shard; refused unless this node leads it and has read it."""
        is_offline = (STATE_TOPIC, number) in self._topics.hosting.offline
        if is_offline and self._routing.leader_of_shard(number) == self._routing.own_number:
            raise unreadable(number)
        return self._shards.shard(number)

    def keeps(self, name: str) -> bool:
        """Whether this node serves a name now."""
        return self._shards.find(shard_for_name(name)) is not None

    async def reach(self, name: str) -> Coordinator:
        """As `of`; makes the shards if there are none, and waits for one that only this node can read. In the order in which
        callers come: no later one overtakes those that wait."""
        number = shard_for_name(name)
        if not self._turns.is_busy and (found := self._shards.find(number)) is not None:
            return found
        async with self._turns.acquire(STATE_TOPIC):
            await self.ensure_shards()
            await self._shards.wait_read(number)
            return self.in_shard(number)

    def local_coordinators(self) -> list[Coordinator]:
        """Those that this node serves now."""
        return list(self._shards.served())

    def groups(self) -> dict[str, Groups]:
        """The groups that this node serves now, by name and in its order, each with the service that keeps it."""
        there = {name: each.groups for each in self.local_coordinators() for name in each.groups.names()}
        return dict(sorted(there.items()))

    async def all_led(self) -> list[Coordinator]:
        """The same, for lists of all that this node keeps: refused while it reads a shard that it leads."""
        await self.wait_read()
        return self._shards.all_led()

    def id_of(self, producer_id: int) -> str | None:
        """The transactional id whose producer that is, if it is kept here."""
        return next(
            (name for each in self.local_coordinators() if (name := each.transactions.id_of(producer_id)) is not None),
            None,
        )

    async def abort_in(self, producer_id: int, epoch: int, topic: str, number: int) -> None:
        """End what a producer has open in one partition: its transaction, in every partition; if none is known, there alone."""
        name = self.id_of(producer_id)
        if name is None:
            await abort_hanging(self._topics.hosting.partition(topic, number), producer_id, epoch, self._runtime)
        else:
            await self.coordinator_for(name).transactions.abort_in(producer_id, epoch, topic, number)

    async def end_commits(self, group: str, ends: Sequence[End]) -> None:
        """Count or drop what transactions commit for a group that is kept here."""
        await (await self.reach(group)).pending_commits.complete(ends)

    def owners_of(self, name: str) -> Owners | None:
        """Who says whose a name is; None: another node."""
        try:
            return self.coordinator_for(name).owners
        except NotCoordinatorError:
            return None

    async def find(self, name: str) -> int | None:
        """The node that keeps a name; None if nobody does now."""
        await self.ensure_shards()
        return self._routing.coordinator_of(name)

    def settled_after(self, name: str) -> "SettledAfter":
        """The coordinator of a name, for a caller that answers from what it keeps, be it by a refusal: all is settled then."""
        return SettledAfter(self.reach, name)

    # -- upkeep ------------------------------------------------------------------------------------------------

    async def forget_unused(self, offsets_retention_ms: int) -> None:
        for each in self.local_coordinators():
            try:
                await _forget_unused(each, offsets_retention_ms)
            except (
                BrokerError
            ) as error:  # led by another node by now, or without enough replicas: here or there, it is tried again
                log.info("shard %d: not all that is unused is forgotten: %s", each.number, error)
            except StorageFault as fault:
                log.error("shard %d: not all that is unused is forgotten: %s", each.number, fault)  # noqa: TRY400 - it says where

    async def topic_made(self, topic: str) -> None:
        """A topic is there: it may match what members of consumer groups want to read."""
        for each in self.local_coordinators():
            with _tolerant():
                await each.groups.consumer.topic_changed(topic)

    async def topic_changed(self, topic: str) -> None:
        """A topic has more partitions, or is gone."""
        for each in self.local_coordinators():
            with _tolerant():
                await each.offsets.topic_changed(topic)
                await each.snapshots.topic_changed(topic)
                await each.groups.topic_changed(topic)


class SettledAfter:
    """`async with` it. A class and no generator: a request may end while it waits for its coordinator."""

    __slots__ = ("_coordinator", "_name", "_reach")

    def __init__(self, reach: Callable[[str], Awaitable[Coordinator]], name: str) -> None:
        self._reach = reach
        self._name = name

    async def __aenter__(self) -> Coordinator:
        self._coordinator = await self._reach(self._name)
        return self._coordinator

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or isinstance(error, BrokerError):
            await self._coordinator.journal.all_settled()


def _tolerant() -> contextlib.AbstractContextManager[None]:
    """A shard may be led by another node meanwhile, or lack replicas: it is tried again, here or there."""
    return contextlib.suppress(BrokerError)


async def _forget_unused(coordinator: Coordinator, offsets_retention_ms: int) -> None:
    for name in await coordinator.groups.forget_unused(offsets_retention_ms):
        log.info("group %r deleted: empty beyond retention", name)
    await coordinator.transactions.forget_unused()
    await coordinator.named_producers.expire()
    for sink in await coordinator.staging.expire():
        log.info("sink %r deleted: no commit beyond retention", sink)
    await coordinator.owners.forget_unused()


async def _expire(coordinator: Coordinator) -> None:
    await coordinator.groups.expire()
    for name in await coordinator.transactions.expire():
        log.info("transaction %r was open for longer than its time-out: it is aborted, and its producer fenced", name)
