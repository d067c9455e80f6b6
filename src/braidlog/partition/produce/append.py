"""Append a producer's batch to a partition: check it, write it, acknowledge it as the producer requested.

Invariants:

- `LEADER` acknowledges what is kept as the topic's `flush` says; `ALL` acknowledges what every in-sync replica has,
  if there are enough of them.
- A transactional batch is written only after the coordinator has confirmed its transaction (`verify`).
- One request decompresses at most `decompressed_bytes_max`, one batch at most `decompressed_ratio_max` times its size.
  At most `HERE_BYTES_MAX` of that run on the event loop, the rest in the worker.
- Requests of one connection are appended in order, however long the check of a batch takes.
- A producer that a partition remembers is never rejected; a new one is rejected at the limit. A flood of new producers
  evicts none that wrote within `SILENT_MS`: no client retries a batch after that time.
"""

from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from braidlog.cluster.metadata.local_store import INTERNAL_PREFIX
from braidlog.codec.batch.header import HEADER_BYTES, NO_PRODUCER, TRANSACTIONAL, BatchHeader, read_header, read_headers
from braidlog.codec.batch.kernel import encode_records
from braidlog.codec.batch.records import (
    SchemaIds,
    Sealed,
    check_section,
    heads_of,
    read_section,
    sealed_batch,
    sealed_section,
)
from braidlog.codec.compression import DecompressedTooLarge
from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.model.limits import LONG_POLL_MS_MAX
from braidlog.model.runtime.cooperative import in_slices
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.model.settings import UNLIMITED, Flush, TopicSettings
from braidlog.partition.opening import wake
from braidlog.partition.partition import Acknowledgement, Partition
from braidlog.partition.partition_registry import PartitionRegistry, refuse_published
from braidlog.partition.produce.schema_check import SchemaCheck, heads_of_batches
from braidlog.partition.produce.transaction_verification import Ask, Verification
from braidlog.partition.replica_runner import Produced
from braidlog.replication.ready import Failed
from braidlog.storage.log.partition_log import Appended as Appended  # noqa: PLC0414 - what an append gives back
from braidlog.storage.log.partition_log import PartitionLog, check_produced
from braidlog.storage.state.producer_table import last_sequence
from braidlog.worker.jobs import CheckRecords, Worker

HERE_BYTES_MAX = 1024 * 1024
"""The most that one request may decompress on the event loop."""
HERE_COMPRESSED_BYTES_MAX = 256 * 1024
"""A larger payload is never decompressed on the event loop: it may consist of block headers only."""
TURN_SECONDS_MAX = 3600.0
LINE_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of requests waiting for their turn; further ones are rejected."""

Buffer = bytes | bytearray | memoryview


class DecompressionLimits(msgspec.Struct, frozen=True):
    """How much a client may make a node decompress."""

    decompressed_bytes_max: int = 48 * 1024 * 1024
    """By one request. Batches that were stored under a larger limit are still read."""
    decompressed_ratio_max: int = 2000
    """Times its size, of one batch; a few megabytes are free. Gzip can make a thousand bytes of one, zstd thirty thousand."""

    def for_batch(self, compressed_bytes: int) -> int:
        return min(self.decompressed_bytes_max, max(RATIO_FREE_BYTES, compressed_bytes * self.decompressed_ratio_max))


RATIO_FREE_BYTES = 4 * 1024 * 1024


class Allowance:
    """The remaining limits of one request."""

    __slots__ = ("bytes_left", "here_left")

    def __init__(self, limits: DecompressionLimits) -> None:
        self.bytes_left = limits.decompressed_bytes_max
        self.here_left = HERE_BYTES_MAX

    def spend(self, size: int, *, here: bool) -> None:
        self.bytes_left -= size
        self.here_left -= size if here else 0


class DecompressionCheck:
    """Check a client's compressed batches before they are appended, and keep a connection's requests in order."""

    def __init__(
        self, hosting: PartitionRegistry, runtime: Runtime, worker: Worker, limits: DecompressionLimits
    ) -> None:
        self._hosting = hosting
        self._runtime = runtime
        self._worker = worker
        self._limits = limits
        self._turns: dict[object, deque[Wakeup] | None] = {}
        self._line_bytes = 0

    # -- order -------------------------------------------------------------------------------------------------

    def is_idle(self, source: object) -> bool:
        """Return whether everything that `source` sent before is in the log.

        If so, a caller that appends without an await need not call `begin_batch`.
        """
        return source not in self._turns

    def begin_batch(self, source: object) -> bool:
        """Return whether everything that `source` sent before is in the log; then `end_batch` must follow.

        Otherwise call `wait`.
        """
        if source in self._turns:
            return False
        self._turns[source] = None
        return True

    async def wait(self, source: object, size: int) -> None:
        """Wait until everything that `source` sent before is in the log; then `end_batch` must follow.

        `size`: the request's bytes.
        """
        line = self._turns[source]
        if line is None:
            line = self._turns[source] = deque()
        if self._line_bytes + size > LINE_BYTES_MAX and self._line_bytes:
            text = f"{self._line_bytes} bytes of requests wait for their turn, {LINE_BYTES_MAX} may; try again"
            raise BrokerError(Reason.TIMED_OUT, text)
        wakeup = self._runtime.wakeup()
        line.append(wakeup)
        self._line_bytes += size
        has_come = False
        try:
            has_come = await wakeup.wait(TURN_SECONDS_MAX)
        finally:
            self._line_bytes -= size
            # A request that leaves (its client disconnected) gives up its place, or the turn that it has just received.
            if wakeup in line:
                line.remove(wakeup)
            elif not has_come:
                self.end_batch(source)
        if not has_come:
            raise BrokerError(Reason.TIMED_OUT, f"requests before this one took {TURN_SECONDS_MAX:g} s; try again")

    def end_batch(self, source: object) -> None:
        """Finish the request of `source`, whether appended or rejected; the next one may start."""
        line = self._turns[source]
        if line:
            line.popleft().wake()
        else:
            del self._turns[source]

    # -- content -----------------------------------------------------------------------------------------------

    def allowance(self) -> Allowance:
        return Allowance(self._limits)

    async def check(
        self, topic: str, partition: int, batch: Buffer, header: BatchHeader, allowance: Allowance
    ) -> SchemaIds | None:
        """Raise unless a compressed batch is complete and every record in it is valid; cheap checks come first.

        Returns the schema ids of its values if the topic checks schemas.
        """
        hosted = self._hosting.partition(topic, partition)
        hosted.require_leader()
        settings = self._hosting.meta(topic).settings
        check_produced(header, memoryview(batch), 0, settings, records_checked=True)
        keyed, schemas = settings.compact, settings.value_schema_check
        compressed_bytes = header.size_bytes - HEADER_BYTES
        bytes_max = min(self._limits.for_batch(compressed_bytes), allowance.bytes_left)
        if compressed_bytes <= HERE_COMPRESSED_BYTES_MAX and allowance.here_left > 0:
            section = _check_here(batch, header, min(bytes_max, allowance.here_left), keyed=keyed)
            if section is not None:
                allowance.spend(len(section), here=True)
                return heads_of(section, header) if schemas else None
        if bytes_max <= 0:
            raise BrokerError(Reason.RECORD_TOO_LARGE, _too_large(self._limits.decompressed_bytes_max))
        with await self._worker.do(CheckRecords(bytes_max, keyed, schemas), batch) as answer:
            allowance.spend(answer.number, here=False)
            return msgspec.msgpack.decode(answer.payload, type=SchemaIds) if schemas else None


def _check_here(batch: Buffer, header: BatchHeader, bytes_max: int, *, keyed: bool) -> Buffer | None:
    """Return the decompressed records; None if they exceed `bytes_max`."""
    try:
        section = read_section(batch, 0, header, decompressed_bytes_max=bytes_max)
        check_section(section, header, keyed=keyed)
    except DecompressedTooLarge:
        return None
    except ProtocolError as error:
        raise BrokerError(Reason.INVALID_RECORD, str(error)) from error
    return section


def _too_large(bytes_max: int) -> str:
    return f"the batches of this request grow past {bytes_max} bytes when decompressed (limits.decompressed_bytes_max)"


SILENT_MS = 15 * 60 * 1000
COUNT_SECONDS = 10.0
COUNT_SECONDS_MIN = 1.0
"""At the limit, where every new producer triggers a count."""
_ROOM = 7 / 8


class ProducerLimit:
    """Limit the idempotent producers that the open partitions of a node remember together.

    They are counted at intervals and new ones are added between. So partitions need not report when they open, close
    or expire producers.
    """

    def __init__(self, hosting: PartitionRegistry, runtime: Runtime, producers_max: int) -> None:
        self._hosting = hosting
        self._runtime = runtime
        self._max = producers_max
        self._count = 0
        self._counted_at = float("-inf")

    def count(self) -> int:
        """Count the producers of all open partitions."""
        logs = (hosted.open_log for hosted in self._hosting.opened())
        self._count = sum(len(log.state.producers) for log in logs if log is not None)
        self._counted_at = self._runtime.monotonic()
        return self._count

    def admit(self, log: PartitionLog, producer_id: int) -> None:
        """Raise if `log` does not know the producer and the limit is reached."""
        if log.state.producers.find(producer_id) is not None:
            return
        is_full = self._count >= self._max
        if self._runtime.monotonic() - self._counted_at >= (COUNT_SECONDS_MIN if is_full else COUNT_SECONDS):
            is_full = self.count() >= self._max
        if is_full:
            raise BrokerError(
                Reason.QUOTA_EXCEEDED,
                f"the partitions of this node remember {self._max} idempotent producers and no more: use producers for longer, "
                "lower the topics' producer_expiry_ms, or raise state.producers_max",
            )
        self._count += 1

    async def make_room(self) -> None:
        """Expire producers that have been idle for `SILENT_MS`, if the limit is nearly reached."""
        if self.count() < self._max * _ROOM:
            return
        async for hosted in in_slices(self._hosting.opened()):
            if (log := hosted.open_log) is not None and len(log.state.producers):
                await self._runtime.blocking(
                    partial(log.expire_producers, self._runtime.now_ms(), silent_ms_max=SILENT_MS)
                )
        self.count()


ACKS_TIMEOUT_MS = 2_000
SEQUENCES = 2**31


class Acks(IntEnum):
    """How many replicas must have a record before its producer gets an acknowledgement.

    Each dialect translates its own values.
    """

    NONE = 0
    LEADER = 1
    ALL = -1


_ALL: Final = Acks.ALL
_ACK: Final = Flush.ACK


class Written(NamedTuple):
    """A batch that is in the log and not acknowledged yet."""

    hosted: Partition
    appended: Appended
    append_time_ms: int | None
    """The timestamp that the log assigned to its records, if the topic uses append time."""
    leader_epoch: int
    """The leader epoch of the append: commits in a later epoch do not acknowledge it."""
    acknowledgement: Acknowledgement | None = None
    """The replica's steps settle it. None: no step is involved, because an only replica commits what it has."""


class Append:
    """The produce service."""

    def __init__(
        self,
        hosting: PartitionRegistry,
        runtime: Runtime,
        producers: ProducerLimit,
        ask: Ask,
        schemas: SchemaCheck | None = None,
    ) -> None:
        """`schemas`: the check of schema ids, on a node with a registry."""
        self._hosting = hosting
        self._runtime = runtime
        self._verification = Verification(ask, runtime)
        self.producers = producers
        self._waking = KeyedLock(runtime)
        self._schemas = schemas
        self.no_room: StorageFault | None = None
        """The fault with which producers are rejected while the disk has too little space."""
        self.records_written = 0
        self.batches_written = 0
        self.bytes_written = 0

    async def append(
        self,
        topic: str,
        partition: int,
        batch: bytes,
        *,
        acks: Acks = Acks.ALL,
        timeout_ms: int = ACKS_TIMEOUT_MS,
        in_sync_min: int = 1,
        transactional_id: str = "",
    ) -> Appended:
        """Append one batch; return when it is acknowledged as `acks` says."""
        schemas_checked = self.checks_schemas(topic)
        if schemas_checked:
            await self.check_schemas(topic, heads_of_batches(batch, read_headers(batch)))
        if not self.is_ready(topic, partition):
            await self.ready(topic, partition)
        if transactional_id:
            await self.verify(topic, partition, read_header(batch), transactional_id)
        written = self.write(topic, partition, batch, acks=acks, schemas_checked=schemas_checked)
        return await self.acknowledge(written, acks=acks, timeout_ms=timeout_ms, in_sync_min=in_sync_min)

    def append_own(
        self, topic: str, partition: int, batches: Sequence[Sealed], *, acks: Acks
    ) -> Appended | Coroutine[Any, Any, Appended]:
        """Append batches that this node sealed; returns a coroutine only if it must wait."""
        if not self.is_ready(topic, partition) or self.checks_schemas(topic):
            return self.append(topic, partition, b"".join([each.data for each in batches]), acks=acks)
        headers = [each.header for each in batches]
        data = batches[0].data if len(batches) == 1 else b"".join([each.data for each in batches])
        written = self.write(topic, partition, data, acks=acks, headers=headers, own=True)
        if self.is_acknowledged(written, acks=acks):
            return written.appended
        return self._acknowledged(written, acks)

    def append_records(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        *,
        acks: Acks,
    ) -> Appended | Coroutine[Any, Any, Appended]:
        """Append records without a batch, with the current time; returns a coroutine only if it must wait.

        This method has a fast path for the plain case: an open partition with its only replica here and nothing to
        verify. All other cases use the general path, which defines the behaviour.
        """
        hosted = self._hosting.hosted(topic, partition)
        now_ms = self._runtime.now_ms()
        if (
            hosted is None
            or not (hosted.is_sole and values)
            or hosted.held_writes.is_holding
            or topic.startswith(INTERNAL_PREFIX)
            or self.no_room is not None
            or self._waking.is_busy
            or self.checks_schemas(topic)
        ):
            self._hosting.partition(topic, partition).require_leader()  # before a batch is built
            sealed = sealed_batch(values, keys=keys, base_timestamp=now_ms)
            return self.append_own(topic, partition, (sealed,), acks=acks)
        replicated = hosted.replicated
        try:
            section = encode_records(values, keys, None, None, now_ms)
            written = hosted.append_section_alone(section, len(values), now_ms, now_ms)
        except StorageFault as fault:
            fault.place = str(hosted)
            raise
        if written is None:
            sealed = sealed_section(section, len(values), now_ms)
            del section  # a large section is not kept beside its batch
            return self.append_own(topic, partition, (sealed,), acks=acks)
        appended, size = written
        self.records_written += len(values)
        self.batches_written += 1
        self.bytes_written += size
        if replicated.log.settings.flush is _ACK or not replicated.acknowledges_alone:
            kept = Written(hosted, appended, None, hosted.leader_epoch)
            return appended if self.is_acknowledged(kept, acks=acks) else self._acknowledged(kept, acks)
        self._runtime.appended(replicated.log)
        hosted.advance()
        return appended

    async def _acknowledged(self, written: Written, acks: Acks) -> Appended:
        await self.wait_until_acknowledged(written, acks=acks, timeout_ms=ACKS_TIMEOUT_MS)
        return written.appended

    def is_ready(self, topic: str, partition: int) -> bool:
        """Return whether `ready` need not wait, which is the usual case."""
        hosted = self._hosting.hosted(topic, partition)
        if hosted is None:
            return True
        hosted.is_used = True  # keeps it from being closed before the write
        if hosted.held_writes.is_holding:
            return False
        return hosted.is_open and not (self._waking.is_busy and self._waking.is_held(str(hosted)))

    def checks_schemas(self, topic: str) -> bool:
        """Return whether the topic's values must name schemas: then call `check_schemas` before `ready`."""
        return self._hosting.checks_schemas(topic)

    async def check_schemas(self, topic: str, found: SchemaIds) -> None:
        """Raise unless the values of a batch name schemas of the topic's subject."""
        await self._schema_check().check(topic, found)

    def _schema_check(self) -> SchemaCheck:
        assert self._schemas is not None, "a node has one"
        return self._schemas

    async def ready(self, topic: str, *partitions: int) -> None:
        """Open logs that were closed as idle, and wait until a leadership transfer ends.

        Later requests queue behind this one, so a client's requests keep their order. For a topic that checks
        schemas, read the current ones. Call it before `write`, without an await between them.
        """
        if self.checks_schemas(topic):
            await self._schema_check().learn()
        hosted = [each for number in {*partitions} if (each := self._hosting.hosted(topic, number)) is not None]
        for each in hosted:
            if each.held_writes.is_holding:
                await each.held_writes.wait(self._runtime)
        for each in hosted:
            each.is_used = True  # keeps it from being closed before the write
        if all(each.is_open for each in hosted) and not self._waking.are_held(map(str, hosted)):
            return
        async with AsyncExitStack() as turns:
            # Always in the same order, so that two requests for the same partitions cannot deadlock.
            for each in sorted(hosted, key=lambda each: each.number):
                await turns.enter_async_context(self._waking.acquire(str(each)))
            await wake(hosted, self._hosting, self._runtime)

    def is_verified(self, topic: str, partition: int, header: BatchHeader) -> bool:
        """Return whether `verify` need not ask the coordinator."""
        hosted = self._hosting.hosted(topic, partition)
        return hosted is not None and self._verification.is_done(hosted, header)

    async def verify(
        self, topic: str, partition: int, header: BatchHeader, transactional_id: str, *, adds: bool = False
    ) -> None:
        """Raise unless a transactional batch belongs to an open transaction of this id that includes this partition.

        With `adds`, add the partition, and begin a transaction if none is open. Call it before `write`, without an
        await between them.
        """
        hosted = self._hosting.partition(topic, partition)
        if self._verification.is_done(hosted, header):
            return
        await self._verification.verify(hosted, header, transactional_id, adds=adds)
        # A leadership transfer may have begun during the wait: verifications before it are void then.
        while not self.is_ready(topic, partition):
            await self.ready(topic, partition)
            await self._verification.verify(hosted, header, transactional_id, adds=adds)

    def write(  # noqa: PLR0913 - one parameter per check that the caller has done
        self,
        topic: str,
        partition: int,
        batch: Buffer,
        *,
        acks: Acks = Acks.ALL,
        records_checked: bool = True,
        headers: Sequence[BatchHeader] | None = None,
        own: bool = False,
        schemas_checked: bool = False,
    ) -> Written:
        """Append one batch to the log.

        A caller with several partitions writes all of them before it awaits an acknowledgement.

        `acks` must be the same as for `acknowledge`: on a replicated partition a batch that cannot be acknowledged
        so is not written. `headers`: those of `batch`, if the caller has parsed them. `own`: this node sealed the
        batch. `schemas_checked`: `check_schemas` has accepted it; otherwise the known schemas decide.
        """
        refuse_published(topic)
        if self.no_room is not None:
            raise self.no_room.again()
        hosted = self._hosting.partition(topic, partition)
        hosted.require_leader()
        log = hosted.log
        if headers is None:
            headers = read_headers(batch)
        if log.settings.value_schema_check and not schemas_checked:
            self._schema_check().check_now(topic, heads_of_batches(batch, headers))
        now_ms = self._runtime.now_ms()
        self._admit(hosted, log, headers, now_ms)
        acknowledgement = None
        try:
            produced = Produced(batch, headers, now_ms, records_checked, own)
            if hosted.is_sole:
                appended = hosted.append_alone(produced)
            else:
                appended, acknowledgement = hosted.produce(
                    produced, needs_all=acks is Acks.ALL, is_awaited=acks is not Acks.NONE
                )
        except StorageFault as fault:
            fault.place = str(hosted)
            raise
        if not appended.duplicate:
            self.records_written += appended.next_offset - appended.base_offset
            self.batches_written += 1
            self.bytes_written += len(batch)
        # The append time of a retried batch is not known any longer.
        stamp = now_ms if log.settings.append_time and not appended.duplicate else None
        return Written(hosted, appended, stamp, hosted.leader_epoch, acknowledgement)

    def _admit(self, hosted: Partition, log: PartitionLog, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Raise unless the producers, transactions and timestamps of the batches are allowed."""
        for header in headers:
            if header.attributes & TRANSACTIONAL:
                self._check_transaction(hosted, header)
            if header.producer_id != NO_PRODUCER:
                self.producers.admit(log, header.producer_id)
            if header.max_timestamp > now_ms:
                _check_time(header.max_timestamp, now_ms, log.settings)

    @staticmethod
    def _check_transaction(hosted: Partition, header: BatchHeader) -> None:
        if hosted.verified.get(header.producer_id) != header.producer_epoch:
            raise BrokerError(
                Reason.INVALID_TRANSACTION_STATE,
                f"producer {header.producer_id} epoch {header.producer_epoch} has no open transaction in {hosted}: add it first",
            )

    def sync_together(self, written: Sequence[Written]) -> None:
        """Start the syncs of several partitions together, so that the caller does not wait for them one by one."""
        for hosted in {each.hosted: None for each in written if each.acknowledgement is None}:
            if hosted.log.settings.flush is Flush.ACK:
                self._runtime.sync_soon(hosted.log, hosted.advance)

    async def acknowledge(
        self, written: Written, *, acks: Acks, timeout_ms: int = ACKS_TIMEOUT_MS, in_sync_min: int = 1
    ) -> Appended:
        """Return when the batch is kept as `acks` says.

        `in_sync_min` is the minimum for `ALL`, if the topic's is lower.
        """
        if not self.is_acknowledged(written, acks=acks, in_sync_min=in_sync_min):
            await self.wait_until_acknowledged(written, acks=acks, timeout_ms=timeout_ms, in_sync_min=in_sync_min)
        return written.appended

    async def wait_until_acknowledged(
        self, written: Written, *, acks: Acks, timeout_ms: int, in_sync_min: int = 1
    ) -> None:
        """Wait as `acknowledge` does, after `is_acknowledged` has returned False."""
        hosted, next_offset, epoch = written.hosted, written.appended.next_offset, written.leader_epoch
        acknowledgement, is_all = written.acknowledgement, acks is _ALL
        if acknowledgement is None:
            if await hosted.durable_alone(next_offset, epoch, self._runtime) and not (
                is_all and not _has_replicas(hosted, next_offset, in_sync_min)
            ):
                return
            acknowledgement = hosted.committed_later(next_offset, epoch, in_sync_min=in_sync_min if is_all else 0)
        outcome = await acknowledgement.wait(self._runtime, min(timeout_ms, LONG_POLL_MS_MAX) / 1000)
        if isinstance(outcome, Failed):
            hosted.require_hosted()
            raise hosted.failed(outcome.reason)
        if outcome is None or (is_all and len(hosted.replicas.in_sync) < in_sync_min):
            raise _timed_out(hosted, next_offset, timeout_ms, in_sync_min)

    def is_acknowledged(self, written: Written, *, acks: Acks, in_sync_min: int = 1) -> bool:
        """Return whether a batch is kept as `acks` says already. Call it once per batch."""
        hosted, appended = written.hosted, written.appended
        if written.acknowledgement is not None or not hosted.is_sole or hosted.leader_epoch != written.leader_epoch:
            return acks is Acks.NONE
        log = hosted.replicated.log
        if log.settings.flush is not _ACK:
            self._runtime.appended(log)
            hosted.advance()
            return acks is not _ALL or _has_replicas(hosted, appended.next_offset, in_sync_min)
        if acks is Acks.NONE:
            # No producer waits, but consumers see only durable records: without this sync they would never see the
            # batch.
            self._runtime.sync_soon(log, hosted.advance)
            return True
        return False

    def stored_before(self, topic: str, partition: int, header: BatchHeader) -> int:
        """Return how many records at the start of an idempotent producer's batch the log has, if it lacks the rest.

        A producer without an answer may send the same records again, with more behind them. A caller that drops
        these records must append before its next await.
        """
        producer = self._hosting.partition(topic, partition).log.state.producers.find(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch or not producer.batches:
            return 0
        overlap = (producer.batches[-1].last_sequence - header.base_sequence + 1) % SEQUENCES
        return overlap if overlap < header.record_count else 0

    def written_before(self, topic: str, partition: int, header: BatchHeader) -> Written | None:
        """Return the last batch of an idempotent producer if the log has had all of this one, however long ago.

        The log remembers a producer's last few batches: Kafka's producers cannot repeat older ones. For other
        dialects the answer is that of the last batch: if that is kept, all before it are.
        """
        hosted = self._hosting.partition(topic, partition)
        producer = hosted.log.state.producers.find(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch or not producer.batches:
            return None
        this = (header.base_sequence, last_sequence(header))
        if any((each.base_sequence, each.last_sequence) == this for each in producer.batches):
            return None  # the log knows its offsets
        last = producer.batches[-1]
        behind = (last.last_sequence - header.base_sequence + 1) % SEQUENCES
        if not header.record_count <= behind < SEQUENCES // 2:
            return None
        return Written(hosted, Appended(last.base_offset, last.last_offset, duplicate=True), None, hosted.leader_epoch)


def _has_replicas(hosted: Partition, next_offset: int, in_sync_min: int) -> bool:
    """Return whether all in-sync replicas have it, external followers included, and there are enough of them."""
    if hosted.high_watermark < next_offset:
        return False
    if hosted.replicated.acknowledges_alone and in_sync_min <= 1:
        return True
    replicas = hosted.replicas
    return len(replicas.in_sync) >= max(replicas.min_in_sync, in_sync_min)


def _timed_out(hosted: Partition, next_offset: int, timeout_ms: int, in_sync_min: int) -> BrokerError:
    replicas = hosted.replicas
    return BrokerError(
        Reason.ACKS_TIMED_OUT,
        f"{len(replicas.in_sync)} of {replicas.replication_factor} replicas of {hosted} are in sync "
        f"({max(replicas.min_in_sync, in_sync_min)} must be), "
        f"and not all of them have offset {next_offset - 1} after {timeout_ms} ms",
    )


def _check_time(timestamp_ms: int, now_ms: int, settings: TopicSettings) -> None:
    """Reject records with a timestamp too far in the future: they would delay retention and break searches by time."""
    limit_ms = settings.timestamp_after_max_ms
    if limit_ms != UNLIMITED and timestamp_ms - now_ms > limit_ms and not settings.append_time:
        raise BrokerError(
            Reason.INVALID_TIMESTAMP,
            f"a record's time, {timestamp_ms}, is {timestamp_ms - now_ms} ms ahead of this node's clock, {limit_ms} are allowed; "
            "set the writer's clock, or the topic's timestamp_after_max_ms (message.timestamp.after.max.ms)",
        )
