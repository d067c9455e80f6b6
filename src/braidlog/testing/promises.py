"""What a simulated cluster has promised, and whether it keeps it: checked at every step that could break it.

Knows: acknowledged and read records by offset, who led which epoch, what each entry of the metadata made. `BrokenPromise` says
which promise does not hold, and how it showed itself.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from braidlog.cluster.image import Image
from braidlog.replication.assignment import Assignment
from braidlog.replication.messages import EpochBegun, Message
from braidlog.storage.partition import PartitionLog
from braidlog.testing.virtual_time import US_PER_SECOND

if TYPE_CHECKING:
    from braidlog.testing.simulated_messages import Produce
    from braidlog.testing.simulated_node import SimulatedNode
    from braidlog.testing.universe import Universe

WEAK: Final = b"w"
"""Values that begin so have no number: doubled on their way, they may be there twice."""


class BrokenPromise(Exception):  # noqa: N818 - a promise that does not hold
    """A promise was broken."""


class Promises:
    """The memory that no node has."""

    def __init__(self, universe: "Universe", topic: str) -> None:
        self._universe = universe
        self._topic = topic
        self.records: dict[int, bytes] = {}
        """By offset: what was acknowledged, or read. It is the same for everyone, for ever."""
        self.offsets: dict[bytes, int] = {}
        """Where an acknowledged or read value is: nothing is there twice."""
        self._entries: dict[int, tuple[bytes, Assignment | None]] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._watermarks: dict[tuple[int, int], int] = {}
        self._elected_us = -US_PER_SECOND

    # -- records -----------------------------------------------------------------------------------------------

    def acknowledged(self, node: "SimulatedNode", message: "Produce", end: int) -> None:
        values = self._universe.values_of(message)
        self._universe.note(node.number, f"acknowledges {len(values)} records below {end}: {_text(values)}")
        for offset, value in zip(range(end - len(values), end), values, strict=True):
            self._promise(node.number, "acknowledged", offset, value)

    def found_gap(self, node: "SimulatedNode", message: "Produce") -> None:
        """A producer sends a batch when the one before it is acknowledged: only a deposed leader can miss that one.

        A batch that its producer does not ask for any more is a copy that comes late, when its number is forgotten.
        """
        assert node.partition is not None
        epoch = node.partition.replica.epoch
        values = self._universe.values_of(message)
        if not self._universe.is_asked_for(message):
            self._universe.count("late copy refused")
            return
        if epoch >= self._latest_epoch():
            raise BrokenPromise(f"node {node.number} leads epoch {epoch}, and misses what is before {values[0]!r}")
        self._universe.count("gap found by a deposed leader")

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

    def opened(self, node: "SimulatedNode", log: PartitionLog) -> None:
        """A crash leaves no damage; what a leader of several lives promised is checked when it leads."""
        if log.damages:
            raise BrokenPromise(f"node {node.number} finds damage after a crash: {log.damages[0]}")

    def stepped(self, node: "SimulatedNode", message: Message) -> None:
        partition = node.partition
        assert partition is not None
        replica, log = partition.replica, partition.log
        summary = replica.log
        if (summary.start, summary.end) != (log.start_offset, log.end_offset):
            raise BrokenPromise(
                f"node {node.number} takes its log for {summary.start} to {summary.end}, "
                f"it is {log.start_offset} to {log.end_offset}"
            )
        if summary.end > summary.start and summary.last_record_epoch != log.state.epochs.at(summary.end - 1):
            raise BrokenPromise(f"node {node.number} has epochs {log.state.epochs.entries()}, not {summary.epochs}")
        life = (node.number, node.life)
        if replica.watermark < self._watermarks.get(life, 0):
            raise BrokenPromise(f"node {node.number}: watermark {replica.watermark} after {self._watermarks[life]}")
        self._watermarks[life] = replica.watermark
        if isinstance(message, EpochBegun) and partition.is_leader and message.epoch == replica.epoch:
            self._leads(node)

    def _leads(self, node: "SimulatedNode") -> None:
        assert node.partition is not None
        replica = node.partition.replica
        one = (node.number, replica.incarnation)
        if self._leaders.setdefault(replica.epoch, one) != one:
            raise BrokenPromise(f"epoch {replica.epoch} is led by {self._leaders[replica.epoch]} and by {one}")
        if replica.epoch == max(self._latest_epoch(), replica.epoch):
            self.has_all(node)

    def has_all(self, node: "SimulatedNode") -> None:
        """A leader of the latest epoch has everything that was promised."""
        assert node.partition is not None
        log = node.partition.log
        held = dict(node.records(log.start_offset, log.end_offset))
        for offset, value in self.records.items():
            if offset >= log.start_offset and held.get(offset) != value:
                raise BrokenPromise(
                    f"node {node.number} leads epoch {node.partition.replica.epoch} with {held.get(offset)!r} at {offset}, "
                    f"but {value!r} was promised there"
                )

    # -- metadata ----------------------------------------------------------------------------------------------

    def _latest_epoch(self) -> int:
        latest = self._entries[max(self._entries)][1] if self._entries else None
        return latest.leader_epoch if latest is not None else 0

    def applied(self, node: "SimulatedNode", seq: int, image: Image) -> None:
        """All nodes make the same of the same entries."""
        made = msgspec.json.encode(image, order="sorted")
        there = image.topics.get(self._topic)
        assignment = there.assignments[0] if there else None
        known = self._entries.get(seq)
        if known is not None:
            if known[0] != made:
                raise BrokenPromise(f"node {node.number} makes another image of entry {seq} than others did")
            return
        self._entries[seq] = (made, assignment)
        if assignment is not None:
            self._check(assignment)
            self._compare(seq, assignment)

    def _check(self, assignment: Assignment) -> None:
        parts = assignment.in_sync + assignment.eligible + assignment.torn
        if len(set(parts)) != len(parts) or not set(parts) <= set(assignment.replicas):
            raise BrokenPromise(f"sets that overlap or leave the replicas: {assignment}")

    def _compare(self, seq: int, after: Assignment) -> None:
        known = self._entries.get(seq - 1)
        if known is None or known[1] is None or known[1] == after:
            return
        before = known[1]
        note = self._universe.note
        note(0, f"entry {seq}: leader {after.leader} epoch {after.leader_epoch}, {_sets(after)}")
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
