"""Transaction coordinator: records in several partitions, and committed offsets, that commit together or not at all.

Invariants: a partition is durably in the journal before it holds a transactional record (`verify` precedes the first
append). The outcome is durable before the first marker, and never changes afterwards. Transactions that end together
are decided in one journal entry. Producers with an old epoch are fenced. A transaction records a group's name before
the group stores its commits (`pending_commits.py`). Each transactional id has one request at a time.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from braidlog.codec.batch.header import NO_PRODUCER
from braidlog.coordinator.journal import NOTHING, Key, Mark, Table, put_atomically
from braidlog.coordinator.offsets import Offsets, Place, check_group_name
from braidlog.coordinator.state_limits import NODE, StateKind, StateUsage
from braidlog.coordinator.transactions.markers import MarkerWriter, abort_hanging
from braidlog.coordinator.transactions.producer_ids import ProducerIds
from braidlog.coordinator.transactions.transaction import (
    ABORTS,
    DECIDED,
    ENDED,
    NO_EPOCH,
    ProducerIdentity,
    Transaction,
    TxnState,
    after,
    check_transactional_id,
    end_of,
    ended,
    fenced,
    is_over,
    to_end,
)
from braidlog.model.clock import SteadyClock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.cooperative import in_slices
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.partition_registry import PartitionRegistry, refuse_published
from braidlog.partition.produce.transaction_verification import Verified

TIMEOUT_MS = 60_000
TIMEOUT_MS_MAX = 900_000
EPOCH_MAX = 2**15 - 2
RESUMED_AT_ONCE = 50
"""Number of decided transactions that end with one request per node; more would delay other requests."""


class Transactions:
    """The transaction coordinator of one shard."""

    def __init__(
        self,
        table: Table,
        ids: ProducerIds,
        hosting: PartitionRegistry,
        offsets: Offsets,
        runtime: Runtime,
        holdings: StateUsage,
        markers: MarkerWriter,
    ) -> None:
        self._table = table
        self._holdings = holdings
        self._ids = ids
        self._hosting = hosting
        self._offsets = offsets
        self._markers = markers
        self._runtime = runtime
        self._turns = KeyedLock(runtime)
        self._added: dict[str, dict[Place, Mark]] = {}
        """By open transaction: its partitions, each with the mark that must be settled before the partition belongs to
        it.

        A later partition must not delay writes to earlier ones. One without an entry was settled at the start.
        """
        self._steady = SteadyClock(runtime)
        self._opened_ms = self._steady.now_ms()
        self._by_producer = {txn.producer_id: str(name) for (name,), txn in table.items()}
        self._decided = {str(name) for (name,), txn in table.items() if txn.state in DECIDED}
        """Transactions with a decided end that is not carried out yet."""
        self._in_doubt: dict[str, Mark] = {}
        """Transactions whose last change is written but not known to be settled."""
        self._never_begun: set[str] = set()
        """Transactions whose last begin failed because the disk was full."""
        for (name,), txn in table.items():
            if txn.state is TxnState.ONGOING:
                self._added[str(name)] = {}

    def find(self, name: str) -> Transaction:
        found: Transaction | None = self._table.get(name)
        if found is None:
            raise BrokerError(Reason.TRANSACTION_NOT_FOUND, f"unknown transactional id {name[:60]!r}")
        return found

    def names(self) -> list[str]:
        return sorted(str(key[0]) for key, _ in self._table.items())

    def id_of(self, producer_id: int) -> str | None:
        """The transactional id of a producer id; None if it has none."""
        return self._by_producer.get(producer_id)

    def topics_of(self, names: Iterable[str]) -> set[str]:
        """The topics in these transactions; unknown transactions have none."""
        known = (self._table.get(name) for name in names)
        return {topic for found in known if found is not None for topic, _ in found.partitions}

    def open_names(self) -> list[str]:
        """Names of the open transactions."""
        return list(self._added)

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Lock for one request of an id, after its previous write is settled. A decision that may still be lost is
        neither carried out nor reported.
        """
        async with self._turns.acquire(name):
            if name in self._in_doubt:
                await self._table.journal.wait_committed(self._in_doubt[name])
                del self._in_doubt[name]
            yield

    # -- a producer's requests -------------------------------------------------------------------------------

    async def begin_producer(
        self,
        name: str,
        timeout_ms: int = TIMEOUT_MS,
        *,
        expected: tuple[int, int] | None = None,
        by: str = NODE,
    ) -> Transaction:
        """Start or restart a producer: abort its open transaction, and fence its predecessor by a new epoch.

        With `expected`, the producer's current (producer id, epoch), it only moves to its next epoch; it is fenced if
        another producer has started since.
        """
        check_transactional_id(name)
        if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
            raise BrokerError(
                Reason.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction timeout must be 1 to {TIMEOUT_MS_MAX} ms, not {timeout_ms}",
            )
        async with self._turn(name):
            with self._holdings.admit(StateKind.TRANSACTIONAL_IDS, name, by):
                return await self._begin_producer(name, timeout_ms, expected)

    async def _begin_producer(self, name: str, timeout_ms: int, expected: tuple[int, int] | None) -> Transaction:
        known: Transaction | None = self._table.get(name)
        if known is None:
            return await self._keep(name, Transaction(await self._ids.allocate(), 0, timeout_ms))
        if expected is not None and self._is_retry(name, known, expected) and known.state is TxnState.EMPTY:
            return known
        last_epoch = expected[1] if expected else NO_EPOCH
        if known.state is TxnState.ONGOING:
            known = await self._keep(name, fenced(known, last_epoch))
        known = await self._finish(name, known)
        begun = Transaction(known.producer_id, known.epoch + 1, timeout_ms, last_epoch=last_epoch, number=known.number)
        if known.epoch >= EPOCH_MAX:
            begun = msgspec.structs.replace(begun, producer_id=await self._ids.allocate(), epoch=0)
        last_id = expected[0] if expected else NO_PRODUCER
        return await self._keep(name, msgspec.structs.replace(begun, last_producer_id=last_id))

    def _is_retry(self, name: str, known: Transaction, expected: tuple[int, int]) -> bool:
        """Whether a producer repeats the request for its new epoch. Raises if another producer has replaced it."""
        if known.replaced(*expected):
            return True
        self._check(name, *expected)
        return False

    async def begin_transaction(self, name: str, producer_id: int, epoch: int) -> Transaction:
        """Begin a transaction explicitly, before anything is added. Raises if one is already open."""
        async with self._turn(name):
            found = self._open(name, producer_id, epoch)
            if found.state is TxnState.ONGOING:
                raise BrokerError(Reason.INVALID_TRANSACTION_STATE, f"transaction {name!r} is already open")
            return await self._extend(name, found)

    def require_ongoing(self, name: str, producer_id: int, epoch: int) -> Transaction:
        """The open transaction; raises if there is none."""
        found = self._check(name, producer_id, epoch)
        if found.state is not TxnState.ONGOING:
            raise BrokerError(
                Reason.INVALID_TRANSACTION_STATE, f"transaction {name!r} is {found.state}; nothing can be added to it"
            )
        return found

    async def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> Transaction:
        """Add partitions before the transaction writes there; begins it if necessary."""
        for topic, number in partitions:
            refuse_published(topic)
            self._hosting.check_partition(topic, number)
        async with self._turn(name):
            found = self._open(name, producer_id, epoch)
            return await self._extend(name, found, partitions=sorted({*found.partitions, *partitions}))

    async def add_group(self, name: str, producer_id: int, epoch: int, group: str) -> Transaction:
        """Add a group before the transaction commits its offsets; begins it if necessary."""
        check_group_name(group)
        async with self._turn(name):
            found = self._open(name, producer_id, epoch)
            return await self._extend(name, found, groups=sorted({*found.groups, group}))

    async def verify_added(
        self, name: str, producer_id: int, epoch: int, of: Place | str, *, begins: bool = False
    ) -> Verified:
        """Add a partition or a group to an open transaction, and confirm that it will end there.

        The transaction must have begun, so that a late request does not begin another. `begins` allows it to begin,
        for producers that get a new epoch with every end, which fences late requests.
        """
        async with self._turn(name):
            found = (self._open if begins else self.require_ongoing)(name, producer_id, epoch)
            if isinstance(of, str):
                added: dict[str, object] = {"groups": sorted({*found.groups, of})}
            else:
                refuse_published(of[0])
                self._hosting.check_partition(*of)
                added = {"partitions": sorted({*found.partitions, of})}
            found = await self._confirmed(name, await self._extend(name, found, **added))
            return Verified(self._table.journal.epoch, found.number)

    async def _extend(self, name: str, found: Transaction, **changes: object) -> Transaction:
        if found.state is not TxnState.ONGOING:
            changes |= {"started_ms": self._steady.now_ms(), "number": found.number + 1, "last_epoch": NO_EPOCH}
            self._never_begun.add(name)
        changed: Transaction = msgspec.structs.replace(found, state=TxnState.ONGOING, **changes)
        return found if changed == found else await self._keep(name, changed)

    async def end_transaction(
        self, name: str, producer_id: int, epoch: int, *, commit: bool, bump: bool = False
    ) -> Transaction:
        """Commit or abort. Repeating the same end succeeds, and so does ending a transaction that never began.

        `bump`: the producer gets a new epoch; a retry names the previous one.
        """
        async with self._turn(name):
            found = self.find(name)
            may_be_again = found.state is not TxnState.EMPTY and not (commit and found.state in ABORTS)  # it timed out
            if not (bump and may_be_again and found.replaced(producer_id, epoch)):
                found = self._check(name, producer_id, epoch)
                if bump and found.state in ENDED:
                    found = after(found)
            over = TxnState.COMMITTED if commit else TxnState.ABORTED
            if found.state is over:
                return await self._confirmed(name, found)
            if not commit and name in self._never_begun:
                return msgspec.structs.replace(found, state=over)
            if found.state in (TxnState.EMPTY, TxnState.ONGOING):
                found = await self._keep(name, to_end(found, commit=commit, bump=bump))
            if found.state is not (TxnState.COMMITTING if commit else TxnState.ABORTING):
                raise BrokerError(
                    Reason.INVALID_TRANSACTION_STATE, f"transaction {name!r} is {found.state}; it cannot be {over}"
                )
            return await self._finish(name, found)

    async def end_atomically(
        self,
        commits: Sequence[ProducerIdentity],
        aborts: Sequence[str],
        beside: Sequence[tuple[Table, Key, msgspec.Struct]] = (),
    ) -> None:
        """Commit some transactions, abort others, and write the entries `beside`, all in one decision or not at all.

        Their ids exist for this decision only and are then deleted. Every transaction to commit must be open; those to
        abort are skipped if not.
        """
        async with AsyncExitStack() as turns:
            # Always in the same order: otherwise two calls with common ids could wait for each other.
            for name in sorted({*(each.name for each in commits), *aborts}):
                await turns.enter_async_context(self._turn(name))
            decided = {
                each.name: msgspec.structs.replace(self.require_ongoing(*each), state=TxnState.COMMITTING, once=True)
                for each in commits
            }
            for name in aborts:
                found: Transaction | None = self._table.get(name)
                if found is not None and found.state is TxnState.ONGOING:
                    decided[name] = msgspec.structs.replace(fenced(found), once=True)
            await self._keep_together(decided, beside)
            for failure in (await self._carry_out(decided))[1].values():
                raise failure

    async def abort_in(self, producer_id: int, epoch: int, topic: str, number: int) -> None:
        """Abort a producer's transaction in all its partitions; if no transaction is known, only in this partition."""
        name = self._by_producer.get(producer_id, "")
        async with self._turn(name):
            found: Transaction | None = self._table.get(name)
            if found is None or (topic, number) not in found.partitions:
                await abort_hanging(self._hosting.partition(topic, number), producer_id, epoch, self._runtime)
            else:
                await self._finish(
                    name, await self._keep(name, fenced(found)) if found.state is TxnState.ONGOING else found
                )

    async def finish(self, names: Sequence[str]) -> None:
        """Carry out decided ends of these transactions; raises if that is not possible yet."""
        for name in names:
            async with self._turn(name):
                found: Transaction | None = self._table.get(name)
                if found is not None:
                    await self._finish(name, found)

    def verify(self, name: str, producer_id: int, epoch: int, topic: str, partition: int) -> Verified:
        """Confirm to a partition leader that this transaction is open and includes the partition."""
        found = self._check(name, producer_id, epoch)
        place = (topic, partition)
        is_settled = self._table.journal.is_settled(self._added.get(name, {}).get(place, NOTHING))
        if found.state is not TxnState.ONGOING or place not in found.partitions or not is_settled:
            raise BrokerError(
                Reason.INVALID_TRANSACTION_STATE,
                f"{topic}/{partition} is not in transaction {name!r}, which is {found.state}; add it first",
            )
        return Verified(self._table.journal.epoch, found.number)

    def _check(self, name: str, producer_id: int, epoch: int) -> Transaction:
        found = self.find(name)
        if found.producer_id != producer_id:
            raise BrokerError(
                Reason.PRODUCER_ID_MISMATCH,
                f"transactional id {name!r} is producer {found.producer_id}, not {producer_id}",
            )
        if epoch != found.epoch:
            raise BrokerError(
                Reason.STALE_PRODUCER_EPOCH,
                f"transactional id {name!r} is producer {found.producer_id} epoch {found.epoch}, "
                f"not {producer_id} epoch {epoch}",
            )
        return found

    def _open(self, name: str, producer_id: int, epoch: int) -> Transaction:
        """The transaction to add to: the open one, or a new one."""
        found = self._check(name, producer_id, epoch)
        if found.state in DECIDED:
            raise BrokerError(Reason.CONCURRENT_TRANSACTIONS, f"transaction {name!r} is {found.state}; try again")
        return after(found) if found.state in ENDED else found

    # -- completing ------------------------------------------------------------------------------------------

    async def _finish(self, name: str, found: Transaction) -> Transaction:
        if found.state not in DECIDED:
            return found
        kept, failed = await self._carry_out({name: found})
        if failed:
            raise failed[name]
        return kept[name]

    async def _carry_out(
        self, decided: Mapping[str, Transaction], *, patient: bool = True
    ) -> tuple[dict[str, Transaction], dict[str, BrokerError | StorageFault]]:
        """Carry out decisions, also again after a crash: markers, then offsets, then the end. Returns the ended ones,
        and errors by name.
        """
        epoch = self._table.journal.epoch
        ends = {name: end_of(each, epoch) for name, each in decided.items() if each.partitions or each.groups}
        failures = await self._markers.write(list(ends.values()), patient=patient)
        refused = ((name, [failures[each] for each in end.targets if each in failures]) for name, end in ends.items())
        failed = {name: errors[0] for name, errors in refused if errors}
        over = {name: found for name, found in decided.items() if name not in failed}
        if not over:
            return {}, failed
        committed = (found for found in over.values() if found.state is TxnState.COMMITTING)
        staged = [each for found in committed for each in found.offsets]
        if staged:
            await self._table.journal.wait_committed(self._offsets.put_staged(staged))
        return await self._keep_together({name: await self._ended(found) for name, found in over.items()}), failed

    async def _ended(self, found: Transaction) -> Transaction:
        """The ended transaction. Its producer gets another id if it requested a new epoch and none is left."""
        if found.epoch <= EPOCH_MAX or found.last_epoch == NO_EPOCH:
            return ended(found)
        renamed = {"producer_id": await self._ids.allocate(), "epoch": 0, "last_producer_id": found.producer_id}
        return msgspec.structs.replace(ended(found), **renamed)

    async def _confirmed(self, name: str, found: Transaction) -> Transaction:
        """Confirm an earlier result. With several replicas the transaction is written once more, which a replaced
        coordinator cannot do.
        """
        return found if self._table.journal.is_sole else await self._keep(name, found)

    async def _keep(self, name: str, transaction: Transaction) -> Transaction:
        return (await self._keep_together({name: transaction}))[name]

    async def _keep_together(
        self, changed: Mapping[str, Transaction], beside: Sequence[tuple[Table, Key, msgspec.Struct]] = ()
    ) -> dict[str, Transaction]:
        """Write several transactions, and the entries `beside`, as one journal entry; durable when this returns."""
        now_ms = self._runtime.now_ms()
        kept = {name: msgspec.structs.replace(each, used_ms=now_ms) for name, each in changed.items()}
        known: dict[str, Transaction | None] = {name: self._table.get(name) for name in kept}
        entries = [(self._table, (name,), None if is_over(each) else each) for name, each in kept.items()]
        mark = put_atomically([*entries, *beside])
        for name, each in kept.items():
            self._note(name, known[name], each, mark)
            self._in_doubt[name] = mark
        await self._table.journal.wait_committed(mark)
        for name in kept:
            self._in_doubt.pop(name, None)
        return kept

    def _note(self, name: str, before: Transaction | None, after: Transaction, mark: Mark) -> None:
        """Update the indexes by name and by producer after a table change."""
        self._never_begun.discard(name)
        (self._decided.add if after.state in DECIDED else self._decided.discard)(name)
        self._note_added(name, before, after, mark)
        if before is not None and (before.producer_id != after.producer_id or is_over(after)):
            self._by_producer.pop(before.producer_id, None)
        if not is_over(after):
            self._by_producer[after.producer_id] = name

    def _note_added(self, name: str, before: Transaction | None, after: Transaction, mark: Mark) -> None:
        if after.state is not TxnState.ONGOING:
            self._added.pop(name, None)
            return
        was_in = set(before.partitions) if before is not None and before.state is TxnState.ONGOING else set()
        added = self._added.setdefault(name, {})
        for place in after.partitions:
            added.setdefault(place, NOTHING if place in was_in else mark)

    # -- upkeep ----------------------------------------------------------------------------------------------

    async def resume(self) -> dict[str, str]:
        """Carry out decided ends after a restart and periodically; returns those that could not end yet, with the
        reason.

        A partition that takes no markers (damaged, led elsewhere) delays only its own transactions.
        """
        held_up: dict[str, str] = {}
        names = sorted(self._decided)
        for at in range(0, len(names), RESUMED_AT_ONCE):
            held_up |= await self._resume_together(names[at : at + RESUMED_AT_ONCE])
        return held_up

    async def _resume_together(self, names: Sequence[str]) -> dict[str, str]:
        held_up: dict[str, str] = {}
        decided: dict[str, Transaction] = {}
        async with AsyncExitStack() as turns:
            for name in names:
                if self._turns.is_held(name):
                    continue  # a request is ending it, or waits for that
                try:
                    await turns.enter_async_context(self._turn(name))
                except (BrokerError, StorageFault) as error:
                    held_up[name] = str(error)
                    continue
                found: Transaction | None = self._table.get(name)
                if found is not None and found.state in DECIDED:
                    decided[name] = found
            try:
                failed = (await self._carry_out(decided, patient=False))[1]
            except (BrokerError, StorageFault) as error:
                failed = dict.fromkeys(decided, error)
        return held_up | {name: str(error) for name, error in failed.items()}

    async def expire(self) -> list[str]:
        """Abort transactions that exceed their timeout, in an epoch that their producer may request; carry out decided
        ends.
        """
        overdue = []
        async for name in in_slices(self._added):
            found: Transaction | None = self._table.get(name)
            if found is None or not self._is_overdue(found):
                continue
            async with self._turn(name):
                found = self._table.get(name)  # checked again, as it may have changed during the wait
                if found is not None and self._is_overdue(found):
                    overdue.append(name)
                    await self._keep(name, fenced(found, found.epoch))
        await self.resume()
        return overdue

    async def forget_unused(self) -> None:
        """Delete ids that were unused for a long time and have nothing open."""
        async for (_, word), seen in in_slices(self._table.values.items()):
            name = str(word)
            if self._is_unused(seen) and not self._turns.is_held(name):
                async with self._turn(name):
                    found: Transaction | None = self._table.get(name)
                    if found is not None and self._is_unused(found):
                        await self._forget(name, found)

    def _is_overdue(self, found: Transaction) -> bool:
        if found.state is not TxnState.ONGOING:
            return False
        now_ms = self._steady.now_ms()
        # From an earlier run whose clock was ahead: the timeout counts from this run's start.
        started_ms = found.started_ms if found.started_ms <= now_ms else self._opened_ms
        return now_ms - started_ms > found.timeout_ms

    def _is_unused(self, found: Transaction) -> bool:
        idle_ms = self._runtime.now_ms() - found.used_ms
        is_idle = found.state is TxnState.EMPTY or found.state in ENDED
        return is_idle and idle_ms > self._holdings.limits.transactional_id_expiration_ms

    async def _forget(self, name: str, found: Transaction) -> None:
        mark = self._table.drop(name)
        self._by_producer.pop(found.producer_id, None)
        self._never_begun.discard(name)
        await self._table.journal.wait_committed(mark)
