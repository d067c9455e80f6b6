"""One replica on a node of a simulated cluster: the product's own over real storage, watched, with crashes between its deeds.

Knows: its clients' requests under way, the log's upkeep. Refuses to know: the node's other replicas, and which faults come.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.sent_records import BATCH_BYTES_MAX, read_records
from tests.simulation.simulated_messages import Delete, ForReplica, Produce, Produced, Read, ReadAnswer

from braidlog.codec.errors import ProtocolError
from braidlog.model.errors import Reason, StorageFault
from braidlog.partition.replica_runner import ReplicaRunner
from braidlog.replication import replica as replica_steps
from braidlog.replication.assignment import InSyncSetChange
from braidlog.replication.messages import Answer, Complaint, Damaged, DeleteBelow, Fetch, Message
from braidlog.replication.ready import (
    Apply,
    BeginEpoch,
    Done,
    Effect,
    Failed,
    Proposal,
    ResetLogTo,
    Resync,
    Stopped,
    Sync,
    Trim,
    Truncate,
)
from braidlog.storage.compaction.compaction import Compaction
from braidlog.storage.compaction.retention import retain
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.open_files import FilePool

if TYPE_CHECKING:
    from tests.simulation.simulated_node import SimulatedNode


CRC_FROM = 21
"""What a batch's checksum is about begins there."""


class SimulatedReplica(ReplicaRunner):
    """Its own `ReplicaPort`."""

    def __init__(self, node: "SimulatedNode", name: str, log: PartitionLog, pool: FilePool) -> None:
        self.name = name
        self.node = node
        self.universe = node.universe
        self.copy = node.next_copy()
        self._pool = pool
        self._tokens: dict[int, Produce | Delete] = {}
        self._tokens_made = 0
        self.proposed: InSyncSetChange | None = None
        self._syncing: tuple[int, int] | None = None
        super().__init__(log, node.number, self, flush_on_ack=self.universe.mix.flush_on_ack)
        self.replica = self.replica.now(lag_ms_max=self.universe.mix.lag_ms_max)
        if log.start_offset < self.replica.watermark < log.end_offset:
            self.universe.count("opened with a kept watermark")

    # -- the product's, watched --------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        if not self._is_here:
            return
        super().step(message)
        if self._is_here:
            self.universe.promises[self.name].stepped(self, message)

    def _persist(self, effect: Effect) -> None:
        universe, number = self.universe, self.node.number
        match effect:
            case Truncate(end) if end < self.log.end_offset:
                universe.count("truncation")
                universe.note(number, f"cuts {self.name} from {self.log.end_offset} to {end}")
                universe.happened(self.node, "truncation")
            case ResetLogTo(offset):
                universe.count("restart")
                universe.note(number, f"begins {self.name} anew at {offset}, it was {self._range}")
                universe.happened(self.node, "truncation")
            case Trim(start):
                universe.count("start moved" if self.is_leader else "start followed")
                universe.note(number, f"lets {self.name} begin at {start}, it was {self._range}")
                universe.happened(self.node, "truncation")
            case Resync():
                universe.count("copied anew")
                universe.note(number, f"gives up its copy of {self.name}, it was {self._range}")
                universe.happened(self.node, "truncation")
                universe.promises[self.name].begins_anew(self)
                self.copy = self.node.next_copy()
            case Sync():
                universe.happened(self.node, "write")
            case BeginEpoch(epoch):
                universe.note(number, f"begins epoch {epoch} of {self.name} at {self.log.end_offset}")
        super()._persist(effect)
        if isinstance(effect, Resync | ResetLogTo):  # a crash half-way leaves the old files, with the bit that turned
            universe.gives_up(self, copies=isinstance(effect, Resync))

    @property
    def _is_here(self) -> bool:
        """Its process lives, and its folder is not removed or made anew."""
        return self.node.is_alive and self.node.replicas.get(self.name) is self

    @property
    def _range(self) -> str:
        return f"{self.log.start_offset} to {self.log.end_offset}"

    # -- clients -----------------------------------------------------------------------------------------------

    def request(self, message: Produce | Delete | Read) -> None:
        if isinstance(message, Read):
            self._read(message)
            return
        self._tokens_made += 1
        token = self._tokens_made
        self._tokens[token] = message
        if isinstance(message, Produce):
            self.append(token, message.data, needs_all=message.needs_all)
        else:
            self.step(DeleteBelow(token, message.offset))

    def _read(self, message: Read) -> None:
        """Below what is committed as far as we know, from a leader and from a follower alike."""
        if self.replica.role is None:
            return
        start, end = self.log.start_offset, replica_steps.readable_end(self.replica)
        records: tuple[tuple[int, bytes], ...] = ()
        try:
            if message.offset < end:
                records = tuple(self.records(max(message.offset, start), end))
        except StorageFault:
            self.step(Damaged())
            return
        except ProtocolError:
            self.universe.count("reader got a bad checksum")
            return
        self.universe.promises[self.name].read(self.node.number, f"reader {message.client}", records)
        answer = ReadAnswer(message.number, start, end, records, self.copy)
        self.universe.network.send(self.node.number, message.client, answer)

    def records(self, offset: int, end: int) -> list[tuple[int, bytes]]:
        """What the log holds there."""
        found: list[tuple[int, bytes]] = []
        while offset < min(end, self.log.end_offset):
            data = self.log.read(offset, BATCH_BYTES_MAX, upto=end)
            if not data:
                break
            more, offset = read_records(data, offset, end)
            found += more
        return found

    # -- by itself ---------------------------------------------------------------------------------------------

    def maintain_log(self) -> None:
        """Retention and compaction, as this replica decides by itself."""
        settings = self.log.settings
        if settings.compact or settings.retention_ms > 0:
            self.beside(self._kept_up)

    def _kept_up(self) -> Message | None:
        try:
            self._retain_and_compact()
        except StorageFault:
            return Damaged()
        self.universe.happened(self.node, "write")
        return None

    def _retain_and_compact(self) -> None:
        log, now_ms = self.log, self.wall_ms()
        start = log.start_offset
        if retain(log, now_ms, upto=self.universe.deletable_end(self.name)) > start:
            self.universe.count("retention")
            self.universe.note(self.node.number, f"retains {self.name} from {log.start_offset} on, it was {start}")
        if log.settings.compact:
            with log.lock:
                log.roll(now_ms)
            done = Compaction(self.node.disk, self._pool, log, now_ms=now_ms).run()
            if done.records_removed:
                self.universe.count("compaction")
                self.universe.note(self.node.number, f"compacts {self.name} below {done.upto}")

    def sync_by_itself(self) -> None:
        self.log.sync()

    def scrub(self) -> None:
        """Read all of it again, from the disk."""
        if not self.replica.is_damaged:
            self.beside(self._scrubbed)

    def _scrubbed(self) -> Message | None:
        self.log.forget_checks()
        try:
            self.records(self.log.start_offset, self.log.end_offset)
        except StorageFault:
            self.universe.count("damage found by a leader" if self.is_leader else "damage found by a follower")
            self.universe.note(self.node.number, f"finds damage in {self.name}")
            return Damaged()
        self.universe.is_flip_out_of_reach = self.universe.has_flipped(self)
        return None

    def flip_bit(self, draw: Random) -> bool:
        """In a record that is on the disk; False if there is none."""
        start, end = self.log.start_offset, self.log.durable_offset
        found = self.log.slice_at(draw.randrange(start, end), 1) if start < end else None
        if found is None:
            return False
        at = draw.randrange(CRC_FROM, found.size)
        self.universe.note(self.node.number, f"a bit of {self.name} turns in the batch at {found.offset}")
        segment = next(each for each in self.log.segments if each.base_offset <= found.offset < each.next_offset)
        self.node.disk.flip_bit(segment.path, (found.position + at) * 8 + draw.randrange(8))
        return True

    # -- what it asks for (`ReplicaPort`) ----------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.node.runtime.monotonic_ms()

    def wall_ms(self) -> int:
        return self.node.runtime.now_ms()

    def send(self, node: int, message: Fetch | Answer | Complaint) -> None:
        self.universe.network.send(self.node.number, node, ForReplica(self.name, message))

    def sync(self, end: int, cuts: int) -> None:
        if self._syncing == (end, cuts):
            return  # one sync serves all who wait for it
        self._syncing = (end, cuts)
        self.beside(partial(self._synced, end, cuts))

    def _synced(self, end: int, cuts: int) -> Message:
        if self._syncing == (end, cuts):
            self._syncing = None
        return self.synced(end, cuts)

    def begin_epoch(self, epoch: int) -> None:
        self.beside(partial(self.epoch_started, epoch))

    def propose(self, proposal: Proposal) -> None:
        self.node.propose(self, proposal)

    def beside(self, work: Callable[[], Message | None]) -> None:
        def act() -> None:
            if not self._is_here:
                return
            result = work()
            if result is not None:
                self.step(result)

        self.node.beside(act)

    def outcome(self, outcome: Apply) -> None:
        match outcome:
            case Done(token, end):
                self._done(self._tokens.pop(token), end)
            case Failed(token, reason):
                message = self._tokens.pop(token)
                if reason is Reason.OUT_OF_ORDER_SEQUENCE and isinstance(message, Produce):
                    self.universe.promises[self.name].found_gap(self, message)
                self._answer(message, Produced(message.number, None, reason))
            case Stopped():
                self.node.replaced()

    def _done(self, message: Produce | Delete, end: int) -> None:
        promises = self.universe.promises[self.name]
        if isinstance(message, Delete):
            promises.deleted_below(self, message.offset)
        elif message.needs_all:
            promises.acknowledged(self, message, end)
        self._answer(message, Produced(message.number, end))
        self.universe.happened(self.node, "acknowledgement")

    def _answer(self, message: Produce | Delete, answer: Produced) -> None:
        self.universe.network.send(self.node.number, message.client, answer)
