"""Finds the coordinator of a name: that of its shard, if this node leads the shard.

Invariants: coordinators keep their state in shards only; a caller sees a shard's state only after it is
committed.
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
    """Loads and runs the coordinators that this node leads. Call `begin` first; `on_leadership_change` reports
    partitions of `STATE_TOPIC`."""

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
        """Load or unload a shard: its partition of `STATE_TOPIC` has a new leader or leader epoch."""
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
        level = logging.DEBUG if journal.is_sole else logging.INFO  # without a cluster, not worth an INFO line
        log.log(level, "node %d coordinates shard %d in epoch %d", self._routing.own_number, number, led.epoch)
        self._spawn(self._tend(coordinator, led), f"tend shard {number}")
        return coordinator

    async def _tend(self, coordinator: Coordinator, led: JournalLog) -> None:
        """Expire the state of one shard periodically. Each shard has its own task, so that an unavailable one does
        not delay the rest."""
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
        """Create the shards when they are first needed. By then most nodes have registered, and can hold replicas
        and lead shards."""
        if not self.has_shards:
            try:
                await self._topics.create_internal(STATE_TOPIC, SHARDS, STATE_SETTINGS)
            except BrokerError as error:
                log.warning("the coordinators' topic cannot be made yet: %s", error)

    async def wait_read(self) -> None:
        """Wait until every shard whose only replica is on this node has been read, or has failed to load."""
        for number in range(SHARDS):
            await self._shards.wait_read(number)

    # -- which coordinator keeps what --------------------------------------------------------------------------

    def coordinator_for(self, name: str) -> Coordinator:
        """Return the coordinator of a group, transactional id, sink or producer name. Raise if another node leads
        its shard."""
        return self.in_shard(shard_for_name(name))

    def in_shard(self, number: int) -> Coordinator:
        """Return the coordinator of a shard. Raise unless this node leads the shard and has read it."""
        is_offline = (STATE_TOPIC, number) in self._topics.hosting.offline
        if is_offline and self._routing.leader_of_shard(number) == self._routing.own_number:
            raise unreadable(number)
        return self._shards.shard(number)

    def keeps(self, name: str) -> bool:
        """Return whether this node is the coordinator of a name now."""
        return self._shards.find(shard_for_name(name)) is not None

    async def reach(self, name: str) -> Coordinator:
        """Return the coordinator of a name. Unlike `coordinator_for`, create missing shards, and wait for a shard
        that only this node can read. Callers are served in their order of arrival."""
        number = shard_for_name(name)
        if not self._turns.is_busy and (found := self._shards.find(number)) is not None:
            return found
        async with self._turns.acquire(STATE_TOPIC):
            await self.ensure_shards()
            await self._shards.wait_read(number)
            return self.in_shard(number)

    def local_coordinators(self) -> list[Coordinator]:
        """Return the coordinators that this node runs now."""
        return list(self._shards.served())

    def groups(self) -> dict[str, Groups]:
        """Return the groups that this node serves now, sorted by name, each with its service."""
        there = {name: each.groups for each in self.local_coordinators() for name in each.groups.names()}
        return dict(sorted(there.items()))

    async def all_led(self) -> list[Coordinator]:
        """Return the coordinators of all shards led here, for complete lists. Raise while this node still reads one
        of them."""
        await self.wait_read()
        return self._shards.all_led()

    def id_of(self, producer_id: int) -> str | None:
        """Return the transactional id of a producer id, if this node keeps it."""
        return next(
            (name for each in self.local_coordinators() if (name := each.transactions.id_of(producer_id)) is not None),
            None,
        )

    async def abort_in(self, producer_id: int, epoch: int, topic: str, number: int) -> None:
        """End a producer's open transaction in one partition. A known transaction is aborted in every partition, an
        unknown one only in this one."""
        name = self.id_of(producer_id)
        if name is None:
            await abort_hanging(self._topics.hosting.partition(topic, number), producer_id, epoch, self._runtime)
        else:
            await self.coordinator_for(name).transactions.abort_in(producer_id, epoch, topic, number)

    async def end_commits(self, group: str, ends: Sequence[End]) -> None:
        """Apply or drop the pending commits that transactions have for a group of this node."""
        await (await self.reach(group)).pending_commits.complete(ends)

    def owners_of(self, name: str) -> Owners | None:
        """Return the owners of names in the shard of a name; None if another node leads it."""
        try:
            return self.coordinator_for(name).owners
        except NotCoordinatorError:
            return None

    async def find(self, name: str) -> int | None:
        """Return the node that coordinates a name; None if its shard has no leader now."""
        await self.ensure_shards()
        return self._routing.coordinator_of(name)

    def settled_after(self, name: str) -> "SettledAfter":
        """Return a context manager with the coordinator of a name. On exit, also after a refusal, it waits until the
        journal is committed: the caller answers from state that cannot be lost."""
        return SettledAfter(self.reach, name)

    # -- upkeep ------------------------------------------------------------------------------------------------

    async def forget_unused(self, offsets_retention_ms: int) -> None:
        for each in self.local_coordinators():
            try:
                await _forget_unused(each, offsets_retention_ms)
            except BrokerError as error:  # the leader changed or replicas are missing: the next run retries
                log.info("shard %d: not all that is unused is forgotten: %s", each.number, error)
            except StorageFault as fault:
                log.error("shard %d: not all that is unused is forgotten: %s", each.number, fault)  # noqa: TRY400 - it says where

    async def topic_made(self, topic: str) -> None:
        """A topic was created: subscription patterns of consumer groups may match it."""
        for each in self.local_coordinators():
            with _tolerant():
                await each.groups.consumer.topic_changed(topic)

    async def topic_changed(self, topic: str) -> None:
        """A topic got more partitions, or was deleted."""
        for each in self.local_coordinators():
            with _tolerant():
                await each.offsets.topic_changed(topic)
                await each.snapshots.topic_changed(topic)
                await each.groups.topic_changed(topic)


class SettledAfter:
    """An async context manager. A class, not a generator: a request may be cancelled while it waits for its
    coordinator."""

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
    """Suppress refusals: the shard may have another leader by now, or lack replicas. The next run retries."""
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
