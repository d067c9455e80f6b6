"""A slot over its partition: the leader's state follows its own log to the end, a follower's what is committed.

Knows: when the state has to be made anew, what an operation waits for, which mutations of a tail are kept before it is cut.
Refuses to know: who waits, how requests and salvaged mutations travel.
Invariants: a state that holds something which was not committed when its leader was deposed is thrown away; a tail is cut only
after its mutations of level ONE are durable in a file of their own.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from braidlog.codec.batch import iter_batches
from braidlog.codec.records import decode_batch, encode_batch
from braidlog.kv import salvage
from braidlog.kv.levels import Level
from braidlog.kv.operations import Operation
from braidlog.kv.salvage import Verdict
from braidlog.kv.settings import KeyValueSettings
from braidlog.kv.slot import DELETE_RETENTION_MS, Slot
from braidlog.kv.slot_records import Origin, SlotRecord, unpack_record
from braidlog.kv.tail_files import keep_tail
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.partition.replicated import ReplicatedPartition
from braidlog.replication.messages import Await, Reach, ReadIndex
from braidlog.storage.files import Disk
from braidlog.storage.partition import PartitionLog

R = TypeVar("R")
READ_BYTES: Final = 1024 * 1024
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
REACHES: Final = {Level.ONE: Reach.IN_SYNC, Level.QUORUM: Reach.MAJORITY, Level.ALL: Reach.EVERY}
_NOT_DONE: Final = frozenset({Reason.NOT_LEADER, Reason.NOT_ENOUGH_REPLICAS, Reason.UNAVAILABLE})
"""The log refused: nothing was decided by what the keys hold, so there is nothing to be sure of."""


class Performed(NamedTuple):
    """What an operation gives, if what it waits for comes true."""

    result: Any
    """Or the `BrokerError` with which it is refused."""
    end: int | None
    """Where what it wrote ends; None if it wrote nothing: then it is a read, also one that was to write."""
    is_certain: bool = False
    """It waits for nothing."""

    def waits_for(self, token: int, level: Level) -> Await | ReadIndex | None:
        """What the replica is to be told, and to answer, before the result is."""
        if self.end is not None:
            return Await(token, self.end, needs_all=level is not Level.ONE, reach=REACHES[level])
        return None if self.is_certain or level is Level.ONE else ReadIndex(token, REACHES[level])


class TailFolder(NamedTuple):
    """Where cut tails are kept."""

    disk: Disk
    path: str


class ReplicatedSlot:
    """`follow` after each step of the replica; everything else as it is asked for. It is its slot's `SlotLog`."""

    def __init__(
        self,
        number: int,
        node: bytes,
        partition: ReplicatedPartition,
        write: Callable[[bytes, Level], None],
        tails: TailFolder,
        settings: KeyValueSettings,
        *,
        delete_retention_ms: int = DELETE_RETENTION_MS,
    ) -> None:
        self.number = number
        self._node = node
        self._partition = partition
        self._write = write
        self._tails = tails
        self._settings = settings
        self._delete_retention_ms = delete_retention_ms
        self._led_epoch: int | None = None
        self.is_whole = False
        """Whether the state has had all that was committed, since it was made: before that keys are missing in it."""
        self.kept = 0
        """Tails that were kept since this was opened: there is something to send."""
        self.slot = self._made_anew()
        partition.before_cut = self._keep_tail

    def _made_anew(self) -> Slot:
        return Slot(self._node, self, self._settings, delete_retention_ms=self._delete_retention_ms)

    @property
    def is_leader(self) -> bool:
        """Whether the state has all of this log, in an epoch that it leads."""
        return self._partition.is_leader and self._led_epoch == self._partition.replica.epoch

    def follow(self, records_max: int = sys.maxsize) -> bool:
        """The replica has taken a step: apply what may be applied now, at most so many records; return whether more is left."""
        replica, log = self._partition.replica, self._partition.log
        if not self._partition.is_leader:
            self._led_epoch = None
            if self.slot.applied > replica.watermark:
                # It led, and is deposed: what it wrote last may be cut. No stamp is given twice for it.
                last = self.slot.clock.stamp
                self.slot = self._made_anew()
                self.slot.observe(last)
                self.is_whole = False
            return self._apply(log, replica.watermark, records_max)
        if self._led_epoch == replica.epoch:
            return False
        is_behind = self._apply(log, log.end_offset, records_max)
        self._led_epoch = None if is_behind else replica.epoch
        return is_behind

    def _apply(self, log: PartitionLog, end: int, records_max: int) -> bool:
        for origin, record in islice(records_in(log, self.slot.applied, end), records_max):
            self.slot.apply(origin.offset, record)
        is_behind = self.slot.applied < end
        self.is_whole = self.is_whole or not is_behind
        return is_behind

    # -- on the leader -----------------------------------------------------------------------------------------

    def perform(self, operation: Operation[R], level: Level, now_ms: int) -> Performed:
        """Carry out an operation as things stand here; it is answered when what it `waits_for` has come true."""
        before = self.slot.applied
        try:
            result: Any = self.slot.execute(operation, level, now_ms)
        except BrokerError as error:
            result = error
        is_certain = isinstance(result, BrokerError) and result.reason in _NOT_DONE
        return Performed(result, self.slot.applied if self.slot.applied != before else None, is_certain)

    def salvage(self, record: SlotRecord, now_ms: int) -> tuple[Verdict, int]:
        """What becomes of a salvaged mutation, if everything below the offset is committed in this epoch."""
        return salvage.salvage(self.slot, record, now_ms), self._partition.log.end_offset

    def append(self, record: SlotRecord) -> int:
        data = encode_batch([record.pack()], keys=[record.key], base_timestamp=record.stamp.wall_ms)
        end = self._partition.log.end_offset + 1
        self._write(data, record.level)
        assert self._partition.log.end_offset == end, "a record is in the log before it is applied"
        return end

    def holds(self, origin: Origin) -> bool | None:
        log = self._partition.replica.log
        if origin.offset < log.start:
            return None
        return origin.offset < log.end and log.epoch_at(origin.offset) == origin.epoch

    # -- before a cut ------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Beside the loop, before the log is removed from this node."""
        keep_uncommitted(self._partition.log, self.number, self._tails)

    def _keep_tail(self, end: int) -> None:
        """Beside the loop: of the log, from `end` on."""
        self.kept += keep_from(self._partition.log, self.number, self._tails, end)


def keep_from(log: PartitionLog, number: int, tails: TailFolder, end: int) -> bool:
    """Keep what a slot's log holds from `end` on and may count elsewhere; return whether there is anything."""
    kept = salvage.worth_keeping(records_in(log, max(end, log.start_offset), log.end_offset))
    if kept:
        keep_tail(tails.disk, tails.path, number, kept)
    return bool(kept)


def keep_uncommitted(log: PartitionLog, number: int, tails: TailFolder) -> bool:
    """Before a log is removed from a node that holds it no more, also if it moved away while the node was down: what may not be
    committed is kept. What is committed all the same, a leader knows by its origin."""
    return keep_from(log, number, tails, log.replicate())


def records_in(log: PartitionLog, start: int, end: int) -> Iterator[tuple[Origin, SlotRecord]]:
    """What a slot's log holds from `start` on and below `end`, and where each was written."""
    at = start
    while at < end:
        data = log.read(at, READ_BYTES, upto=end)
        if not data:
            raise StorageFault(f"a slot's log has nothing at {at}, though it goes on to {end}", log.folder)
        for position, header in iter_batches(data):
            for offset, _, key, value, *_ in decode_batch(data, position, decompressed_bytes_max=RECORD_BYTES_MAX):
                if at <= offset < end:
                    yield Origin(header.leader_epoch, offset), unpack_record(key, value)
            at = header.next_offset
