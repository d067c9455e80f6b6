"""The slots that this node holds, as a service: operations in, results out, each answered as its level says.

Knows: which slot a key is in, how long an answer is waited for, what goes on in the background. Refuses to know: how requests and
salvaged mutations travel, where leaders are (a slot that is led elsewhere is `NotLeaderError`).
Invariants: operations of a slot take effect in the order in which they come, at once; a result is given when what it waits for
has come true in the epoch in which it was asked, or not at all; a kept tail goes when all of it is committed elsewhere.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from braidlog.codec.batch import read_headers
from braidlog.kv import operations as o
from braidlog.kv.hlc import HybridClock
from braidlog.kv.levels import Level
from braidlog.kv.salvage import Verdict
from braidlog.kv.scanning import Scan, Scanned, scan
from braidlog.kv.settings import KeyValueSettings
from braidlog.kv.slot_records import SlotRecord
from braidlog.kv.slots import LOG_TOPIC, SLOTS, slot_of
from braidlog.kv.tail_files import Tail, forget_tail, kept_tails
from braidlog.model.clock import SteadyClock
from braidlog.model.errors import BrokerError, NotLeaderError, Reason, StorageFault
from braidlog.model.world import World
from braidlog.partition.acknowledgements import Acknowledgement, settled_together
from braidlog.partition.partition import Partition
from braidlog.partition.replicated import Produced
from braidlog.partition.replicated_slot import REACHES, Performed, ReplicatedSlot, TailFolder
from braidlog.replication.messages import Await, ReadIndex

R = TypeVar("R")
log = logging.getLogger("braidlog.kv")
ANSWER_SECONDS_MAX: Final = 2.0
RECORDS_PER_TURN: Final = 200
"""Applied at once; then others have their turn."""
EXPIRE_KEYS: Final = 100
_READS: Final = frozenset((o.Get, o.Exists, o.TimeToLive, o.ListRange, o.ListLength, o.HashGet, o.HashGetAll))

Send = Callable[[int, SlotRecord], Awaitable[Verdict]]
"""To the leader of a slot, on whatever node; returns its verdict when that is committed."""
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class _Writer:
    """A `SlotWriter`: into a partition that is led here."""

    def __init__(self, partition: Partition, world: World) -> None:
        self._partition = partition
        self._world = world
        self.asked = Acknowledgement()
        """By which what was written last is waited for."""

    def check(self, level: Level) -> None:
        self._partition.require_room(needs_all=level is not Level.ONE, reach=REACHES[level])

    def write(self, data: bytes, level: Level) -> None:
        produced = Produced(data, list(read_headers(data)), self._world.now_ms())
        _, self.asked = self._partition.produce(
            produced, needs_all=level is not Level.ONE, is_awaited=True, reach=REACHES[level]
        )


Awaited = tuple[Partition, bool]
"""What is waited for together: of a slot the writes, or (True) the reads."""


class _Burst:
    """Operations that came together: what each has given, and what that waits for."""

    def __init__(self, count: int) -> None:
        self.results: list[Any] = [None] * count
        self.latest: dict[Awaited, Performed] = {}
        self._rows: dict[Awaited, list[int]] = {}
        self._gathered: dict[Partition, tuple[ReplicatedSlot, list[int]]] = {}

    def gather(self, row: int, partition: Partition, slot: ReplicatedSlot) -> None:
        """What it writes becomes one batch with what others write to its slot."""
        gathered = self._gathered.get(partition)
        if gathered is None:
            slot.gather()
            gathered = self._gathered[partition] = slot, []
        gathered[1].append(row)

    def note(self, row: int, partition: Partition, performed: Performed, level: Level) -> None:
        self.results[row] = performed.result
        if performed.waits_for(0, level) is not None:
            kind = partition, performed.end is None
            self._rows.setdefault(kind, []).append(row)
            self.latest[kind] = performed

    def write(self) -> list[tuple[Partition, ReplicatedSlot]]:
        """Write what was gathered; return the slots whose log has not taken it, and of which nothing is answered with more."""
        failed = []
        for partition, (slot, rows) in self._gathered.items():
            error = slot.write_gathered()
            if error is not None:
                log.error("%s", error)
                failed.append((partition, slot))
                for row in rows:
                    self.results[row] = error
                for is_read in (False, True):
                    self.latest.pop((partition, is_read), None)
        return failed

    def conclude(self, kind: Awaited, asked: Acknowledgement) -> None:
        """Nobody waits for it any longer: what has not come true is no result."""
        try:
            kind[0].conclude(asked)
        except BrokerError as error:
            refused = _not_true(kind[0], error, is_written=not kind[1])
            for row in self._rows[kind]:
                self.results[row] = refused


class Slots:
    """The use case. A partition of the slots' log is attached when it is opened here."""

    def __init__(self, world: World, node: bytes, settings: KeyValueSettings, tails: TailFolder, spawn: Spawn) -> None:
        self._world = world
        self._node = node
        self._settings = settings
        self._tails = tails
        self._spawn = spawn
        self._steady = SteadyClock(world)
        self._held: dict[int, tuple[Partition, ReplicatedSlot]] = {}
        self._writers: dict[int, _Writer] = {}
        self._following: set[int] = set()
        self.clock = HybridClock(node)
        """What this node has heard, and written last in any slot: what is written next, in whatever slot, is later."""
        self._used_bytes = 0
        """By all slots here, led or not, when it was last counted."""
        self.peak_bytes = 0
        """The most that `used_bytes` has been."""
        self.checkpoints = 0
        self.differed = 0
        """Comparisons in which a replica here was not what its leader has."""
        self.left: list[Tail] = []
        """Kept tails that a person has to decide about."""

    def led_anew(self, partition: Partition) -> None:
        """A partition of `LOG_TOPIC` was opened here, has another leader, or is gone."""
        held = self._held.get(partition.number)
        if partition.is_gone:
            if held is not None and held[0] is partition:
                del self._held[partition.number]
        elif held is None or held[0] is not partition:
            self.attach(partition)

    def attach(self, partition: Partition) -> None:
        """This node holds a slot from now on: its state is made from what is committed."""

        writer = _Writer(partition, self._world)
        slot = ReplicatedSlot(partition.number, self._node, partition.replicated, writer, self._tails, self._settings)
        self._held[partition.number] = partition, slot
        self._writers[partition.number] = writer
        partition.followed = lambda: self._follow(partition, slot)
        self._follow(partition, slot)

    def here(self) -> dict[int, ReplicatedSlot]:
        """The slots that this node holds, by number."""
        return {number: slot for number, (partition, slot) in self._held.items() if not partition.is_gone}

    def held(self, number: int) -> tuple[Partition, ReplicatedSlot] | None:
        """A slot that this node holds, with its log."""
        found = self._held.get(number)
        return None if found is None or found[0].is_gone else found

    # -- operations --------------------------------------------------------------------------------------------

    async def execute(self, operation: o.Operation[R], level: Level) -> R:
        """Carry out an operation, or raise why not; TIMED_OUT: a write may have happened, and a read has no answer."""
        await self._let_hand_over((operation,))
        partition, slot = self._slot(slot_of(operation.key))
        performed = self._perform(partition, slot, operation, level)
        if performed.waits_for(0, level) is not None:
            try:
                await partition.come_true(self._asked(partition, performed, level), self._world, ANSWER_SECONDS_MAX)
            except BrokerError as error:
                raise _not_true(partition, error, is_written=performed.end is not None) from None
        if isinstance(performed.result, BrokerError):
            raise performed.result
        return performed.result  # type: ignore[no-any-return]

    async def execute_all(self, operations: Sequence[o.Operation[Any]], level: Level) -> list[Any]:
        """Carry out several, in order and at once, and wait for all of them together. In the place of each is its result, or the
        `BrokerError` with which it is refused: `NotLeaderError` if its slot is led elsewhere."""
        await self._let_hand_over(operations)
        burst = _Burst(len(operations))
        try:
            for row, operation in enumerate(operations):
                try:
                    partition, slot = self._slot(slot_of(operation.key))
                    burst.gather(row, partition, slot)
                    burst.note(row, partition, self._perform(partition, slot, operation, level), level)
                except BrokerError as error:
                    burst.results[row] = error
        finally:
            for partition, slot in burst.write():
                self._follow(partition, slot)
        # What the last write of a slot waits for is true of those before it, and so it is with its reads.
        asked = {kind: self._asked(kind[0], last, level) for kind, last in burst.latest.items()}
        try:
            await settled_together(asked.values(), self._world, ANSWER_SECONDS_MAX)
        finally:
            for kind, each in asked.items():
                burst.conclude(kind, each)
        return burst.results

    async def execute_columns(self, columns: o.Columns, level: Level) -> o.Results:
        """The same of columns."""
        found = await self.execute_all([columns.operation(row) for row in range(len(columns.keys))], level)
        refused = []
        for row, result in enumerate(found):
            if not isinstance(result, BrokerError):
                found[row] = True if columns.kinds[row] == o.Kind.DELETE else result
            elif result.reason is Reason.KEY_NOT_FOUND:
                found[row] = None
            else:
                refused.append(row)
        return o.Results(found, refused)

    async def scan(self, asked: Scan, level: Level) -> Scanned:
        """Some names of the keys of a slot that is led here; answered as a read of that level."""
        if asked.slot >= SLOTS:
            return Scanned([], 0, b"", SLOTS)
        partition, slot = self._slot(asked.slot)
        if not slot.is_leader:
            raise _led_elsewhere(asked.slot)
        found = scan(slot.slot.keyspace, asked, self._steady.now_ms())._replace(slots=SLOTS)
        if level is not Level.ONE:
            try:
                reading = partition.ask_for(lambda token: ReadIndex(token, REACHES[level]))
                await partition.come_true(reading, self._world, ANSWER_SECONDS_MAX)
            except BrokerError as error:
                raise _not_true(partition, error, is_written=False) from None
        return found

    async def _let_hand_over(self, operations: Sequence[o.Operation[Any]]) -> None:
        """What is asked of a slot while another node is about to lead it waits until one does: nobody is left in doubt."""
        for operation in operations:
            held = self._held.get(slot_of(operation.key))
            if held is not None and held[0].held_writes.is_holding:
                await held[0].held_writes.wait(self._world)

    def _asked(self, partition: Partition, performed: Performed, level: Level) -> Acknowledgement:
        """What tells when the result may be given: of a write that was just made, its own acknowledgement."""
        if performed.end is not None:
            return self._writers[partition.number].asked
        return partition.ask_for(lambda token: ReadIndex(token, REACHES[level]))

    def _perform(
        self, partition: Partition, slot: ReplicatedSlot, operation: o.Operation[Any], level: Level
    ) -> Performed:
        now_ms = self._steady.now_ms()
        if not slot.is_leader:
            if level is Level.ONE and type(operation) in _READS and slot.is_whole:
                return Performed(slot.look(operation, now_ms), None, is_certain=True)
            raise _led_elsewhere(partition.number)
        keyspace = slot.slot.keyspace
        before = keyspace.used_bytes
        if self._settings.memory_bytes_max:
            slot.slot.store.limit_to(max(self._settings.memory_bytes_max - self._used_bytes + before, 1))
        own = slot.slot.clock
        if self.clock.wall_ms >= now_ms:
            own.follow(self.clock.stamp)
        performed = slot.perform(operation, level, now_ms)
        if own.wall_ms >= now_ms:
            self.clock.follow(own.stamp)
        self._used_bytes += keyspace.used_bytes - before
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)
        return performed

    async def replicate(self, number: int, record: SlotRecord) -> Verdict:
        """Take what another node has cut from its log; return when the verdict is final, or stands without being so."""
        partition, slot = self._slot(number)
        if not slot.is_leader:
            raise _led_elsewhere(number)
        verdict, end = slot.salvage(record, self._steady.now_ms())
        if verdict.is_final:
            asked = partition.ask_for(lambda token: Await(token, end))
            await partition.come_true(asked, self._world, ANSWER_SECONDS_MAX)
        return verdict

    def _slot(self, number: int) -> tuple[Partition, ReplicatedSlot]:
        held = self.held(number)
        if held is not None and held[1].fault is not None:
            raise BrokerError(Reason.UNAVAILABLE, f"slot {number} is offline on this node: {held[1].fault}")
        if held is None:
            raise _led_elsewhere(number)
        return held

    # -- in the background -------------------------------------------------------------------------------------

    def _follow(self, partition: Partition, slot: ReplicatedSlot) -> None:
        """A few records at once; a long log beside whatever else is to be done."""
        number = partition.number
        if number in self._following or partition.is_gone or partition.is_cutting:
            return
        if self._apply_some(partition, slot):
            self._following.add(number)
            self._spawn(self._catch_up(partition, slot), f"slot {number}")

    async def _catch_up(self, partition: Partition, slot: ReplicatedSlot) -> None:
        try:
            is_behind = True
            while is_behind and not partition.is_gone:
                await self._pause()
                is_behind = partition.is_cutting or self._apply_some(partition, slot)
        finally:
            self._following.discard(partition.number)

    def _apply_some(self, partition: Partition, slot: ReplicatedSlot) -> bool:
        """A log that cannot be read takes its slot offline here, and nothing else: other nodes have it."""
        if slot.fault is not None:
            return False
        try:
            return slot.follow(RECORDS_PER_TURN)
        except StorageFault as fault:
            slot.fault = fault
            log.error("slot %d is offline on this node: %s", partition.number, fault)  # noqa: TRY400 - the fault says where
            return False

    def go_on(self, number: int) -> None:
        """A slot that was held may apply more now."""
        self._follow(*self._held[number])

    def _pause(self) -> Awaitable[bool]:
        return self._world.wakeup().wait(0)

    async def write_checkpoints(self) -> int:
        """Of the slots that are led here and whose logs have outgrown their keys; return how many. Called every now and then."""
        wanted = [number for number, slot in self.here().items() if slot.is_leader and slot.wants_checkpoint]
        return sum([await self.checkpoint(number) for number in wanted])

    async def snapshot(self) -> o.SnapshotDone:
        """A checkpoint of each slot that is led here."""
        led = {number: slot for number, slot in self.here().items() if slot.is_leader}
        before = sum(slot.log_bytes for slot in led.values())
        for number in led:
            await self.checkpoint(number)
        size, ends = sum(slot.log_bytes for slot in led.values()), sum(slot.slot.applied for slot in led.values())
        keys = sum(len(slot.slot.keyspace) for slot in led.values())
        return o.SnapshotDone(ends, keys, size, self._world.now_ms(), max(before - size, 0))

    async def checkpoint(self, number: int) -> bool:
        """Write the keys of a slot into its log, in slices that are each committed before the next, and let go what is before
        them; return whether that was done: not if another node leads the slot by then, or too few replicas are there."""
        held = self.held(number)
        if held is None or not held[1].is_leader:
            return False
        partition, slot = held
        try:
            writing = slot.begin_checkpoint()
            is_left = True
            while is_left and writing.is_under_way:
                is_left = writing.write_some()
                await partition.made_durable(partition.end_offset, self._world)
            if not writing.is_under_way:
                return False
            await partition.made_durable(writing.end(), self._world)
            await partition.delete_below(writing.begin, self._world)
        except BrokerError as error:
            slot.end_checkpoint(is_trimmed=False)
            log.info("slot %d: its log is not trimmed: %s", number, error)
            return False
        slot.end_checkpoint(is_trimmed=True)
        self.checkpoints += 1
        return True

    async def send_tails(self, send: Send) -> list[Tail]:
        """Hand what was cut here to whoever leads, each tail in its order; return those that are left for a person to decide.

        One whose leader cannot be asked now is tried again by the next call. What is sent twice counts once.
        """
        left = []
        for tail in await self.tails():
            verdicts = []
            for record in tail.records:
                verdicts.append(await self._sent(send, tail.slot, record))
                if verdicts[-1] is None:
                    break
            if all(each is not None and each.is_final for each in verdicts):
                await self._world.blocking(lambda tail=tail: forget_tail(self._tails.disk, tail))  # type: ignore[misc]
            elif None not in verdicts:
                left.append(tail)
        self.left = left
        return left

    async def tails(self) -> list[Tail]:
        """What is kept of logs that were cut here."""
        return await self._world.blocking(lambda: kept_tails(self._tails.disk, self._tails.path))

    async def _sent(self, send: Send, number: int, record: SlotRecord) -> Verdict | None:
        try:
            return await (self.replicate if self._leads(number) else send)(number, record)
        except BrokerError:
            return None

    def _leads(self, number: int) -> bool:
        held = self.here().get(number)
        return held is not None and held.is_leader

    async def expire(self) -> int:
        """Let keys go whose time has come, of the slots that are led here; return how many went."""
        count = 0
        for slot in self.here().values():
            if slot.is_leader:
                with contextlib.suppress(BrokerError):  # too few replicas are there: it goes later
                    count += slot.slot.expire(self._steady.now_ms(), EXPIRE_KEYS)
                await self._pause()
        self.used_bytes()
        return count

    def used_bytes(self) -> int:
        """Count what all slots here take; followers' slots grow without a request to this node."""
        self._used_bytes = sum(slot.slot.keyspace.used_bytes for slot in self.here().values())
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)
        return self._used_bytes


def _not_true(partition: Partition, error: BrokerError, *, is_written: bool) -> BrokerError:
    """What is said of what has not come true."""
    if is_written:
        # It is in the log here, and may be committed yet: whoever asks again may do it twice.
        return BrokerError(Reason.TIMED_OUT, f"{error}; it may have been written all the same")
    return _led_elsewhere(partition.number) if error.reason is Reason.NOT_LEADER else error


def _led_elsewhere(number: int) -> NotLeaderError:
    return NotLeaderError(LOG_TOPIC, number, f"this node does not lead slot {number}: ask the metadata who does")
