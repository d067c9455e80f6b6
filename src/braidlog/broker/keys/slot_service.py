"""The key logs that this node holds, as a service: executes operations and answers each according to its consistency
level.

Does not handle: transport of requests and salvaged changes, the addresses of leaders (another node's log is
`NotLeaderError`).
Invariants: operations on a log take effect in their order of arrival, before the caller waits. A result is
returned only after the acknowledgements of its level, all from the epoch of the request. A salvaged tail is
deleted only when all of it is committed on its leader.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from braidlog.broker.keys.key_writes import Burst, LogWriter, WrittenLogs, led_elsewhere, not_committed
from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import HybridClock
from braidlog.kv.engine.key_scan import Scan, Scanned, scan
from braidlog.kv.engine.operations import Level
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.replicated.log_columns import execute_rows, look_at_rows
from braidlog.kv.replicated.log_kernel import read_rows
from braidlog.kv.replicated.log_keyspace import LogKeyspace
from braidlog.kv.replicated.log_records import SlotRecord
from braidlog.kv.replicated.salvage import Verdict
from braidlog.kv.replicated.salvage_files import Tail, forget_tail, kept_tails
from braidlog.kv.replicated.slots import KEY_LOGS, log_of, slot_of, slots_in
from braidlog.model.clock import SteadyClock
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.key_log import REACHES, KeyLog, Performed, TailFolder
from braidlog.partition.partition import Partition
from braidlog.replication.messages import ReadIndex

R = TypeVar("R")
log = logging.getLogger("braidlog.kv")
ANSWER_SECONDS_MAX: Final = 2.0
RECORDS_PER_TURN: Final = 200
"""Records applied in one turn of the event loop."""
EXPIRE_KEYS: Final = 100
_READS: Final = frozenset((o.Get, o.Exists, o.TimeToLive, o.ListRange, o.ListLength, o.HashGet, o.HashGetAll))

Send = Callable[[int, SlotRecord], Awaitable[Verdict]]
"""Sends a record to the leader of its slot, on any node; returns the verdict once it is committed."""
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class SlotService:
    """Executes operations on slots. A partition of the slots' log is attached when this node opens it."""

    def __init__(
        self,
        runtime: Runtime,
        node: bytes,
        settings: KeyValueSettings,
        tails: TailFolder,
        spawn: Spawn,
        *,
        logs: Callable[[], int] = lambda: KEY_LOGS,
    ) -> None:
        """`logs` returns the number of logs that share the slots."""
        self._runtime = runtime
        self._settings = settings
        self._tails = tails
        self._spawn = spawn
        self._logs = logs
        self._steady = SteadyClock(runtime)
        self._held: dict[int, tuple[Partition, KeyLog]] = {}
        self._writers: dict[int, LogWriter] = {}
        self._written = WrittenLogs(settings)
        self._following: set[int] = set()
        self.clock = HybridClock(node)
        """Shared by all logs here: the next write is later than everything that this node has written or applied."""
        self._used_bytes = 0
        """Bytes used by all slots here, led or not, as of the last count."""
        self.peak_bytes = 0
        """The highest value of `used_bytes`."""
        self.reads = self.hits = 0
        """Reads that waited for nothing, and those of them that found their key. Stores count all other reads."""
        self.checkpoints = 0
        self.differed = 0
        """Comparisons in which a replica here differed from its leader."""
        self.left: list[Tail] = []
        """Salvaged tails that need an operator's decision."""

    def on_leadership_change(self, partition: Partition) -> None:
        """Attach or detach a log: its partition of `LOG_TOPIC` was opened here, has another leader, or was deleted."""
        held = self._held.get(partition.number)
        if partition.is_gone:
            if held is not None and held[0] is partition:
                del self._held[partition.number]
        elif held is None or held[0] is not partition:
            self.attach(partition)

    def attach(self, partition: Partition) -> None:
        """Start to hold a log: its state is rebuilt from the committed records."""

        writer = LogWriter(partition, self._written, self._runtime)
        slot = KeyLog(partition.number, self.clock, partition.replicated, writer, self._tails, self._settings)
        self._held[partition.number] = partition, slot
        self._writers[partition.number] = writer
        partition.followed = partial(self._follow, partition, slot)
        self._follow(partition, slot)

    def local_logs(self) -> dict[int, KeyLog]:
        """Return the logs that this node holds, by number."""
        return {number: slot for number, (partition, slot) in self._held.items() if not partition.is_gone}

    def held(self, number: int) -> tuple[Partition, KeyLog] | None:
        """Return a log that this node holds, with its partition."""
        found = self._held.get(number)
        return None if found is None or found[0].is_gone else found

    def log_of(self, key: bytes) -> int:
        """Return the number of the log that a key is in."""
        return log_of(slot_of(key), self._logs())

    @property
    def led_slots(self) -> int:
        """Return the count of slots that this node leads."""
        logs = self._logs()
        return sum(slots_in(number, logs) for number, slot in self.local_logs().items() if slot.is_leader)

    # -- operations --------------------------------------------------------------------------------------------

    async def execute(self, operation: o.Operation[R], level: Level) -> R:
        """Execute an operation, or raise. TIMED_OUT: a write may have happened, a read has no answer."""
        number = self.log_of(operation.key)
        await self._let_hand_over((number,))
        partition, slot = self._slot(number)
        performed, burst = self._perform(partition, slot, operation, level), Burst(1)
        burst.results[0] = performed.result
        if performed.waits_for(0, level) is not None:
            wrote = performed.end is not None
            writer, end = self._writers[number], slot.slot.applied
            burst.await_log(partition, writer, end, (0,), level, wrote=wrote, reads=not wrote)
            await burst.settle(self._written, self._runtime, ANSWER_SECONDS_MAX)
        if isinstance(burst.results[0], BrokerError):
            raise burst.results[0]
        return burst.results[0]  # type: ignore[no-any-return]

    async def execute_columns(self, columns: o.Columns, level: Level) -> o.Results:
        """Execute many operations, those of each log in order, and wait for all of them together.

        Each result is a value or the `BrokerError` of the refusal: `NotLeaderError` if another node leads the
        log. One log's changes are one batch and one replication step. Reads that need not wait are executed
        together.
        """
        burst, now_ms = Burst(len(columns.keys)), max(self._steady.now_ms(), self.clock.wall_ms)
        left, hits = read_rows(self._readable(columns, level), columns.keys, None, now_ms, burst.results)
        if not columns.mutates:
            self.reads += len(columns.keys) - sum(map(len, left))
            self.hits += hits
        if not left:
            return o.Results(burst.results, [])
        parts = [(number, rows) for number, rows in enumerate(left) if rows]
        await self._let_hand_over(number for number, _ in parts)
        now_ms = self._steady.now_ms()
        for number, rows in parts:
            try:
                self._perform_rows(*self._slot(number), columns, rows, level, now_ms, burst)
            except BrokerError as error:
                burst.refuse(rows, error)
        await burst.settle(self._written, self._runtime, ANSWER_SECONDS_MAX)
        return o.Results(burst.results, sorted(burst.refused))

    def _readable(self, columns: o.Columns, level: Level) -> list[tuple[Any, ...] | None]:
        """Return the keyspaces, by log number, whose reads need not wait now. None for every other log, and if the
        operations change keys."""
        found: list[tuple[Any, ...] | None] = [None] * self._logs()
        for number in range(0 if columns.mutates else len(found)):
            held = self._held.get(number)
            if held is None:
                continue
            partition, slot = held
            if not slot.is_leader or partition.is_gone or partition.held_writes.is_holding:
                continue
            if level is Level.ONE or (partition.is_sole and partition.high_watermark >= slot.slot.applied):
                found[number] = slot.slot.containers
        return found

    def _perform_rows(
        self,
        partition: Partition,
        slot: KeyLog,
        columns: o.Columns,
        rows: list[int],
        level: Level,
        now_ms: int,
        burst: Burst,
    ) -> None:
        if not slot.is_leader:
            if level is not Level.ONE or columns.mutates or not slot.is_whole:
                raise led_elsewhere(partition.number)
            burst.refused.update(look_at_rows(slot.slot, columns, rows, now_ms, burst.results))
            return
        state = slot.slot
        before = state.applied
        if not columns.mutates and not state.keyspace.deadlines:  # a read may write an expiry
            refused = execute_rows(state, columns, rows, level, now_ms, burst.results)
        else:
            used_bytes = self._lend(state)
            slot.gather(level)
            try:
                refused = execute_rows(state, columns, rows, level, now_ms, burst.results)
            finally:
                error = slot.write_gathered()
                self._account(slot, used_bytes)
            if error is not None:
                log.error("%s", error)
                self._keep_in_time(partition)
                self._follow(partition, slot)
                raise error
        if refused:
            burst.refused.update(refused)
        wrote = state.applied != before
        # A committed write also proves that this node leads, as a read index does; it does not prove that every
        # replica knows it (ALL).
        reads = any(map(burst.found_nothing, rows)) if wrote and level is Level.ALL else not wrote
        reads = reads and level is not Level.ONE and (partition.is_sole or any(map(burst.waits, rows)))
        if reads or wrote:
            writer = self._writers[partition.number]
            burst.await_log(partition, writer, state.applied, rows, level, wrote=wrote, reads=reads)

    async def scan(self, asked: Scan, level: Level) -> Scanned:
        """Return some names of the keys of a log that this node leads, as a read of that level.

        The log count is the number of slots to scan: each of the first slots is in a different log, and its scan
        covers the whole log.
        """
        logs = self._logs()
        if asked.slot >= logs:
            return Scanned([], 0, b"", logs)
        partition, slot = self._slot(asked.slot)
        if not slot.is_leader:
            raise led_elsewhere(asked.slot)
        found = scan(slot.slot.keyspace, asked, self._steady.now_ms())._replace(slots=logs)
        if level is not Level.ONE:
            try:
                reading = partition.submit(lambda token: ReadIndex(token, REACHES[level]))
                await partition.wait_committed(reading, self._runtime, ANSWER_SECONDS_MAX)
            except BrokerError as error:
                raise not_committed(partition, error, wrote=False) from None
        return found

    async def _let_hand_over(self, numbers: Iterable[int]) -> None:
        """Wait during a transfer of these logs' leadership, so that no caller gets an uncertain result."""
        for number in numbers:
            held = self._held.get(number)
            if held is not None and held[0].held_writes.is_holding:
                await held[0].held_writes.wait(self._runtime)

    def _keep_in_time(self, partition: Partition) -> None:
        """Have the written changes committed and synced although no caller waits for them."""
        if partition.is_sole:
            if partition.advance() < partition.end_offset:
                self._runtime.sync_soon(partition.replicated.log, partition.advance)
            else:
                self._runtime.appended(self._written)

    def _perform(self, partition: Partition, slot: KeyLog, operation: o.Operation[Any], level: Level) -> Performed:
        now_ms = self._steady.now_ms()
        if not slot.is_leader:
            if level is Level.ONE and type(operation) in _READS and slot.is_whole:
                return Performed(slot.read(operation, now_ms), None, is_certain=True)
            raise led_elsewhere(partition.number)
        used_bytes = self._lend(slot.slot)
        try:
            return slot.perform(operation, level, now_ms)
        finally:
            self._account(slot, used_bytes)

    def _lend(self, slot: LogKeyspace) -> int:
        """Let a log's keys use the memory that the node has left; return the bytes that they use now."""
        used_bytes = slot.keyspace.used_bytes
        if self._settings.memory_bytes_max:
            slot.store.limit_to(max(self._settings.memory_bytes_max - self._used_bytes + used_bytes, 1))
        return used_bytes

    def _account(self, slot: KeyLog, used_bytes_before: int) -> None:
        self._used_bytes = used_bytes = self._used_bytes + slot.slot.keyspace.used_bytes - used_bytes_before
        if used_bytes > self.peak_bytes:  # noqa: PLR1730 - on the path of every burst, eight times
            self.peak_bytes = used_bytes

    async def replicate(self, number: int, record: SlotRecord) -> Verdict:
        """Apply a change that another node truncated from its log; return the verdict, a final one once the log is
        committed."""
        partition, slot = self._slot(number)
        if not slot.is_leader:
            raise led_elsewhere(number)
        verdict, end = slot.salvage(record, self._steady.now_ms())
        if verdict.is_final:
            await partition.wait_durable(end, self._runtime)
        return verdict

    def _slot(self, number: int) -> tuple[Partition, KeyLog]:
        held = self._held.get(number)
        if held is None or held[0].is_gone:
            raise led_elsewhere(number)
        if held[1].fault is not None:
            raise BrokerError(Reason.UNAVAILABLE, f"log {number} of keys is offline on this node: {held[1].fault}")
        return held

    # -- in the background -------------------------------------------------------------------------------------

    def _follow(self, partition: Partition, slot: KeyLog) -> None:
        """Apply a few records directly; apply a long log in a background task."""
        number = partition.number
        if slot.is_leader:
            return  # a leader has applied all of its log
        if number in self._following or partition.is_gone or partition.is_cutting:
            return
        if self._apply_some(partition, slot):
            self._following.add(number)
            self._spawn(self._catch_up(partition, slot), f"log {number} of keys")

    async def _catch_up(self, partition: Partition, slot: KeyLog) -> None:
        try:
            is_behind = True
            while is_behind and not partition.is_gone:
                await self._pause()
                is_behind = partition.is_cutting or self._apply_some(partition, slot)
        finally:
            self._following.discard(partition.number)

    def _apply_some(self, partition: Partition, slot: KeyLog) -> bool:
        """Apply some records. A log that cannot be read goes offline on this node only; other nodes still serve it."""
        if slot.fault is not None:
            return False
        try:
            return slot.apply_committed(RECORDS_PER_TURN)
        except StorageFault as fault:
            slot.fault = fault
            log.error("log %d of keys is offline on this node: %s", partition.number, fault)  # noqa: TRY400 - fault names the file
            return False

    def resume_applying(self, number: int) -> None:
        """Apply further records of a log that was on hold."""
        self._follow(*self._held[number])

    def _pause(self) -> Awaitable[bool]:
        return self._runtime.wakeup().wait(0)

    async def write_checkpoints(self) -> int:
        """Write a checkpoint for each led log that has outgrown its keys; return their count. Called periodically."""
        wanted = [number for number, slot in self.local_logs().items() if slot.is_leader and slot.wants_checkpoint]
        return sum([await self.checkpoint(number) for number in wanted])

    async def snapshot(self) -> o.SnapshotDone:
        """Write a checkpoint of each log that is led here."""
        led = {number: slot for number, slot in self.local_logs().items() if slot.is_leader}
        before = sum(slot.log_bytes for slot in led.values())
        for number in led:
            await self.checkpoint(number)
        size, ends = sum(slot.log_bytes for slot in led.values()), sum(slot.slot.applied for slot in led.values())
        keys = sum(len(slot.slot.keyspace) for slot in led.values())
        return o.SnapshotDone(ends, keys, size, self._runtime.now_ms(), max(before - size, 0))

    async def checkpoint(self, number: int) -> bool:
        """Write the keys of a log into it as a checkpoint, and trim the records before it. Followers confirm each
        slice before the next. Return whether that succeeded: not if the leader changed or replicas are missing."""
        held = self.held(number)
        if held is None or not held[1].is_leader:
            return False
        partition, slot = held
        try:
            writing = slot.begin_checkpoint()
            is_left = True
            while is_left and writing.is_under_way:
                is_left = writing.write_some()
                if partition.is_sole and partition.advance() >= partition.end_offset:
                    self._runtime.appended(self._written)  # no change waits for a sync that this slice would delay
                    await self._pause()
                else:
                    await partition.wait_durable(partition.end_offset, self._runtime)
            if not writing.is_under_way:
                return False
            await partition.wait_durable(writing.end(), self._runtime)
            await partition.delete_below(writing.begin, self._runtime)
        except BrokerError as error:
            slot.end_checkpoint(is_trimmed=False)
            log.info("log %d of keys is not trimmed: %s", number, error)
            return False
        slot.end_checkpoint(is_trimmed=True)
        self.checkpoints += 1
        return True

    async def send_tails(self, send: Send) -> list[Tail]:
        """Send the salvaged tails to the current leaders, each in order; return those that need an operator's
        decision.

        A tail whose leader is unreachable is retried by the next call. A change sent twice is applied once.
        """
        left = []
        for tail in await self.tails():
            verdicts = []
            for record in tail.records:
                verdicts.append(await self._sent(send, tail.log, record))
                if verdicts[-1] is None:
                    break
            if all(each is not None and each.is_final for each in verdicts):
                await self._runtime.blocking(lambda tail=tail: forget_tail(self._tails.disk, tail))  # type: ignore[misc]
            elif None not in verdicts:
                left.append(tail)
        self.left = left
        return left

    async def tails(self) -> list[Tail]:
        """Return the tails of logs that were truncated here."""
        return await self._runtime.blocking(lambda: kept_tails(self._tails.disk, self._tails.path))

    async def _sent(self, send: Send, number: int, record: SlotRecord) -> Verdict | None:
        try:
            return await (self.replicate if self._leads(number) else send)(number, record)
        except BrokerError:
            return None

    def _leads(self, number: int) -> bool:
        held = self.local_logs().get(number)
        return held is not None and held.is_leader

    async def expire(self) -> int:
        """Delete expired keys of the slots led here; return their count."""
        count = 0
        for number, slot in self.local_logs().items():
            if slot.is_leader:
                with contextlib.suppress(BrokerError):  # too few replicas: retried later
                    count += slot.slot.expire(self._steady.now_ms(), EXPIRE_KEYS)
                    self._keep_in_time(self._held[number][0])
                await self._pause()
        self.used_bytes()
        return count

    def used_bytes(self) -> int:
        """Count the bytes that all slots here use; followers' slots grow without requests to this node."""
        self._used_bytes = sum(slot.slot.keyspace.used_bytes for slot in self.local_logs().values())
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)
        return self._used_bytes
