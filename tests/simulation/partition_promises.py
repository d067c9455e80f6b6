"""What one partition of a simulated cluster has promised, and whether it keeps it: checked at every step that could break it.

Knows: acknowledged and read records by offset, what was deleted, who led which epoch. Refuses to know: how a node works.
"""

from typing import TYPE_CHECKING, Final

from tests.simulation.virtual_time import US_PER_SECOND

from braidlog.replication.assignment import Assignment
from braidlog.replication.messages import EpochStarted, Message

if TYPE_CHECKING:
    from tests.simulation.simulated_messages import Produce
    from tests.simulation.simulated_replica import SimulatedReplica
    from tests.simulation.universe import Universe

WEAK: Final = b"w"
"""Values that begin so have no number: doubled on their way, they may be there twice."""


class BrokenPromise(Exception):  # noqa: N818 - a promise that does not hold
    """A promise was broken."""


class PartitionPromises:
    """Of one partition."""

    def __init__(self, universe: "Universe", name: str) -> None:
        self._universe = universe
        self._name = name
        self.records: dict[int, bytes] = {}
        """By offset: what was acknowledged, or read. It is the same for everyone, for ever."""
        self.offsets: dict[bytes, int] = {}
        """Where an acknowledged or read value is: nothing is there twice."""
        self._entries: dict[int, Assignment] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._watermarks: dict[SimulatedReplica, int] = {}
        self._elected_us = -US_PER_SECOND
        self._deleted = 0
        """Every leader begins there or later: its deletion was answered."""

    # -- records -----------------------------------------------------------------------------------------------

    def acknowledged(self, replica: "SimulatedReplica", message: "Produce", end: int) -> None:
        values = self._universe.records.values(message.data)
        self._universe.note(
            replica.node.number, f"acknowledges {len(values)} records of {self._name} below {end}: {_text(values)}"
        )
        for offset, value in zip(range(end - len(values), end), values, strict=True):
            self._promise(replica.node.number, "acknowledged", offset, value)

    def found_gap(self, at: "SimulatedReplica", message: "Produce") -> None:
        """A producer sends a batch when the one before it is acknowledged: only a deposed leader can miss that one.

        A batch that its producer does not ask for any more is a copy that comes late, when its number is forgotten.
        """
        epoch = at.replica.epoch
        values = self._universe.records.values(message.data)
        if not self._universe.is_asked_for(message):
            self._universe.count("late copy refused")
            return
        if epoch >= self._latest_epoch():
            raise BrokenPromise(f"node {at.node.number} leads epoch {epoch}, and misses what is before {values[0]!r}")
        self._universe.count("gap found by a deposed leader")

    def deleted_below(self, at: "SimulatedReplica", offset: int) -> None:
        self._universe.note(at.node.number, f"has deleted {self._name} below {offset}")
        self._universe.count("deletion")
        self._deleted = max(self._deleted, offset)

    def read(self, node: int, reader: str, records: tuple[tuple[int, bytes], ...]) -> None:
        for offset, value in records:
            self._promise(node, f"shown to {reader}", offset, value)

    def _promise(self, node: int, how: str, offset: int, value: bytes) -> None:
        known = self.records.setdefault(offset, value)
        if known != value:
            raise BrokenPromise(f"node {node}: {value!r} at {offset} {how}, but {known!r} was promised there")
        at = self.offsets.setdefault(value, offset)
        if at != offset and not value.startswith(WEAK):
            raise BrokenPromise(f"node {node}: {value!r} {how} at {offset}, and it is at {at} too")

    # -- nodes -------------------------------------------------------------------------------------------------

    def begins_anew(self, at: "SimulatedReplica") -> None:
        """Its copy counts for nothing, and neither does what it knew to be committed."""
        self._watermarks.pop(at, None)

    def stepped(self, at: "SimulatedReplica", message: Message) -> None:
        node, replica, log = at.node, at.replica, at.log
        summary = replica.log
        if (summary.start, summary.end) != (log.start_offset, log.end_offset):
            raise BrokenPromise(
                f"node {node.number} takes its log for {summary.start} to {summary.end}, "
                f"it is {log.start_offset} to {log.end_offset}"
            )
        if summary.end > summary.start and summary.last_record_epoch != log.state.epochs.at(summary.end - 1):
            raise BrokenPromise(f"node {node.number} has epochs {log.state.epochs.entries()}, not {summary.epochs}")
        if replica.watermark < self._watermarks.get(at, 0):
            raise BrokenPromise(f"node {node.number}: watermark {replica.watermark} after {self._watermarks[at]}")
        self._watermarks[at] = replica.watermark
        if summary.start > replica.watermark:
            raise BrokenPromise(f"node {node.number} begins at {summary.start}, committed is {replica.watermark}")
        if isinstance(message, EpochStarted) and at.is_leader and message.epoch == replica.epoch:
            self._leads(at)

    def _leads(self, at: "SimulatedReplica") -> None:
        epoch, one = at.replica.epoch, (at.node.number, at.replica.incarnation)
        if self._leaders.setdefault(epoch, one) != one:
            raise BrokenPromise(f"epoch {epoch} is led by {self._leaders[epoch]} and by {one}")
        if at.replica.assignment.unclean_epoch == epoch:
            self._lost_from(at.log.end_offset)
        if epoch >= self._latest_epoch():
            self.has_all(at)

    def _lost_from(self, end: int) -> None:
        """All who had everything are torn, and the longest leads: what it lacks is lost, what it has is as it was."""
        for offset in [each for each in self.records if each >= end]:
            self.offsets.pop(self.records.pop(offset), None)

    def has_all(self, at: "SimulatedReplica") -> None:
        """A leader of the latest epoch has everything that was promised, and nothing that was deleted."""
        log = at.log
        if self._universe.has_flipped(at):
            return  # it finds that out by itself, and somebody else leads then
        if not self._deleted <= log.start_offset:
            raise BrokenPromise(
                f"node {at.node.number} begins at {log.start_offset}, all below {self._deleted} was deleted"
            )
        held = dict(at.records(log.start_offset, log.end_offset))
        latest = self._universe.records.latest(held)
        for offset, value in self.records.items():
            if (
                offset >= log.start_offset
                and held.get(offset) != value
                and not self._may_be_deleted(offset, held, latest)
            ):
                raise BrokenPromise(
                    f"node {at.node.number} leads epoch {at.replica.epoch} with {held.get(offset)!r} at {offset}, "
                    f"but {value!r} was promised there"
                )

    def _may_be_deleted(self, offset: int, held: dict[int, bytes], latest: dict[bytes, int]) -> bool:
        """Compaction takes what has a later record of its key; and a tombstone that all replicas have had."""
        if offset in held or not self._universe.mix.settings.compact:
            return False
        sent = self._universe.records
        key = sent.key_of(self.records[offset])
        return latest.get(key, -1) > offset or any(
            self.offsets.get(tombstone, offset) >= offset for tombstone in sent.tombstones(key)
        )

    def same_records(self, replicas: list["SimulatedReplica"]) -> None:
        """Where all of them begin; of a compacted log, what each key has at last."""
        start = max(each.log.start_offset for each in replicas)
        held = [dict(each.records(start, each.log.end_offset)) for each in replicas]
        if self._universe.mix.settings.compact:
            held = [self._universe.records.state(each) for each in held]
        if any(each != held[0] for each in held):
            raise BrokenPromise(f"the logs of {self._name} differ after all is healed")

    # -- metadata ----------------------------------------------------------------------------------------------

    def _latest_epoch(self) -> int:
        return self._entries[max(self._entries)].leader_epoch if self._entries else 0

    def assigned(self, seq: int, assignment: Assignment) -> None:
        self._entries[seq] = assignment
        self._check(assignment)
        self._compare(seq, assignment)

    def _check(self, assignment: Assignment) -> None:
        parts = assignment.in_sync + assignment.eligible + assignment.torn
        if len(set(parts)) != len(parts) or not set(parts) <= set(assignment.replicas):
            raise BrokenPromise(f"sets that overlap or leave the replicas: {assignment}")

    def _compare(self, seq: int, after: Assignment) -> None:
        before = self._entries.get(seq - 1)
        if before is None or before == after:
            return
        note = self._universe.note
        note(0, f"entry {seq}: {self._name} leader {after.leader} epoch {after.leader_epoch}, {_sets(after)}")
        if after.leader_epoch < before.leader_epoch or after.partition_epoch != before.partition_epoch + 1:
            raise BrokenPromise(f"epochs go wrong from {before} to {after}")
        if after.leader != before.leader and after.leader_epoch == before.leader_epoch:
            raise BrokenPromise(f"another leader in the same epoch: {before}, {after}")
        count = self._universe.count
        if len(after.in_sync) < len(before.in_sync):
            count("shrink")
        if len(after.in_sync) > len(before.in_sync):
            count("expand")
        if after.leader is not None and after.leader_epoch > before.leader_epoch:
            count("election")
            if self._universe.time.now_us - self._elected_us < US_PER_SECOND:
                count("re-election within a second")
            self._elected_us = self._universe.time.now_us
            if after.leader in before.eligible:
                count("election of an eligible replica")


def _text(values: list[bytes]) -> str:
    return b" ".join(values).decode()


def _sets(assignment: Assignment) -> str:
    return f"in sync {assignment.in_sync}, eligible {assignment.eligible}, torn {assignment.torn}"
