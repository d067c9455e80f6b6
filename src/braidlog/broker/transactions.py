"""Transactions: records in several partitions, and committed offsets, that count together or not at all.

Knows: who has a transaction open, where it wrote, how it ended. Refuses to know: how records are appended, any dialect.
Invariants: a partition is in the journal before a transactional record is in it; how a transaction ends is durable before its
first marker is written, and from then on it ends that way, crash or no crash; a producer of an old epoch is fenced.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from braidlog.broker.offsets import Commit, Offsets
from braidlog.broker.ports import World
from braidlog.broker.producers import ProducerIds
from braidlog.broker.topics import Topics
from braidlog.cluster.journal import Table
from braidlog.codec.records import control_batch
from braidlog.model.errors import BrokerError, Reason

TIMEOUT_MS = 60_000
TIMEOUT_MS_MAX = 900_000
EPOCH_MAX = 2**15 - 2


class TxnState(StrEnum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction(msgspec.Struct, frozen=True):
    """One transactional id's present state."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    partitions: list[tuple[str, int]] = []
    offsets: list[tuple[str, Commit]] = []
    """Staged commits: group and commit."""
    started_ms: int = 0


class Transactions:
    """The coordinator."""

    def __init__(self, table: Table, ids: ProducerIds, topics: Topics, offsets: Offsets, world: World) -> None:
        self._table = table
        self._ids = ids
        self._topics = topics
        self._offsets = offsets
        self._world = world

    def find(self, name: str) -> Transaction:
        found: Transaction | None = self._table.get(name)
        if found is None:
            raise BrokerError(Reason.TRANSACTION_NOT_FOUND, f"transactional id {name[:60]!r} is not known")
        return found

    def names(self) -> list[str]:
        return sorted(str(key[0]) for key, _ in self._table.items())

    async def begin_producer(self, name: str, timeout_ms: int = TIMEOUT_MS) -> Transaction:
        """A producer starts (again): what it left open is aborted, and its earlier self is fenced by a new epoch."""
        if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
            raise BrokerError(
                Reason.INVALID_TRANSACTION_STATE,
                f"a transaction's timeout is 1 to {TIMEOUT_MS_MAX} ms, not {timeout_ms}",
            )
        known: Transaction | None = self._table.get(name)
        if known is None:
            return await self._keep(name, Transaction(await self._ids.take(), 0, timeout_ms))
        if known.state is TxnState.ONGOING:
            # The abort's markers carry the new epoch, so that the earlier self cannot append behind them.
            known = await self._keep(
                name, msgspec.structs.replace(known, epoch=known.epoch + 1, state=TxnState.ABORTING)
            )
        known = await self._finish(name, known)
        if known.epoch >= EPOCH_MAX:
            return await self._keep(name, Transaction(await self._ids.take(), 0, timeout_ms))
        return await self._keep(name, Transaction(known.producer_id, known.epoch + 1, timeout_ms))

    async def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> Transaction:
        """The transaction is about to write there; begins it if it has not begun."""
        for topic, number in partitions:
            self._topics.partition(topic, number)
        found = self._check(name, producer_id, epoch)
        return await self._extend(name, found, partitions=sorted({*found.partitions, *partitions}))

    async def add_offsets(
        self, name: str, producer_id: int, epoch: int, group: str, commits: Sequence[Commit]
    ) -> Transaction:
        """Stage commits that count if and when the transaction does."""
        found = self._check(name, producer_id, epoch)
        return await self._extend(name, found, offsets=[*found.offsets, *((group, commit) for commit in commits)])

    async def _extend(self, name: str, found: Transaction, **changes: object) -> Transaction:
        if found.state is not TxnState.ONGOING:
            changes["started_ms"] = self._world.now_ms()
        changed: Transaction = msgspec.structs.replace(found, state=TxnState.ONGOING, **changes)
        return found if changed == found else await self._keep(name, changed)

    async def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> Transaction:
        """Commit or abort. Asking again for the same end is fine: a retry must not fail."""
        found = self._check(name, producer_id, epoch, ending=True)
        ended = TxnState.COMMITTED if commit else TxnState.ABORTED
        if found.state is ended:
            return found
        if found.state is not TxnState.ONGOING:
            raise BrokerError(
                Reason.INVALID_TRANSACTION_STATE, f"transaction {name!r} is {found.state}, it cannot end so"
            )
        decided = TxnState.COMMITTING if commit else TxnState.ABORTING
        return await self._finish(name, await self._keep(name, msgspec.structs.replace(found, state=decided)))

    def _check(self, name: str, producer_id: int, epoch: int, *, ending: bool = False) -> Transaction:
        found = self.find(name)
        if found.producer_id != producer_id or epoch != found.epoch:
            raise BrokerError(
                Reason.STALE_PRODUCER_EPOCH,
                f"transactional id {name!r} is producer {found.producer_id} epoch {found.epoch}, "
                f"not {producer_id} epoch {epoch}",
            )
        if found.state in (TxnState.COMMITTING, TxnState.ABORTING):
            raise BrokerError(Reason.INVALID_TRANSACTION_STATE, f"transaction {name!r} is {found.state}; try again")
        if found.state in (TxnState.COMMITTED, TxnState.ABORTED) and not ending:
            return Transaction(found.producer_id, found.epoch, found.timeout_ms)
        return found

    async def _finish(self, name: str, found: Transaction) -> Transaction:
        """Do what was decided: markers, then offsets, then the end. Repeatable: after a crash it is done again."""
        if found.state not in (TxnState.COMMITTING, TxnState.ABORTING):
            return found
        commit = found.state is TxnState.COMMITTING
        for topic, number in found.partitions:
            if self._topics.exists(topic):
                await self._mark(topic, number, found, commit=commit)
        if commit:
            for group in sorted({group for group, _ in found.offsets}):
                await self._offsets.commit(group, [staged for owner, staged in found.offsets if owner == group])
        ended = TxnState.COMMITTED if commit else TxnState.ABORTED
        return await self._keep(name, Transaction(found.producer_id, found.epoch, found.timeout_ms, ended))

    async def _mark(self, topic: str, number: int, found: Transaction, *, commit: bool) -> None:
        hosted = self._topics.partition(topic, number)
        now_ms = self._world.now_ms()
        marker = control_batch(
            base_offset=0,
            leader_epoch=hosted.leader_epoch,
            producer_id=found.producer_id,
            producer_epoch=found.epoch,
            commit=commit,
            timestamp_ms=now_ms,
        )
        appended = hosted.log.append_marker(marker, leader_epoch=hosted.leader_epoch, now_ms=now_ms)
        await self._world.durable(hosted.log, appended.next_offset)
        hosted.advance()

    async def _keep(self, name: str, transaction: Transaction) -> Transaction:
        next_offset = self._table.put(name, value=transaction)
        await self._world.durable(self._table.journal.partition, next_offset)
        return transaction

    # -- upkeep ----------------------------------------------------------------------------------------------

    async def resume(self) -> None:
        """After a restart: end what was decided before."""
        for name in self.names():
            await self._finish(name, self.find(name))

    async def expire(self) -> list[str]:
        """Abort what has been open for longer than its timeout, fencing the producer that left it."""
        now_ms = self._world.now_ms()
        overdue = []
        for name in self.names():
            found = self.find(name)
            if found.state is TxnState.ONGOING and now_ms - found.started_ms > found.timeout_ms:
                overdue.append(name)
                fenced = msgspec.structs.replace(found, epoch=found.epoch + 1, state=TxnState.ABORTING)
                await self._finish(name, await self._keep(name, fenced))
        return overdue
