"""A partition that has one replica, then several, then one: a random walk over real nodes, their logs and services.

Every step may come between any two others: appends, held syncs, metadata that each node hears later, messages, elections. What is
promised: what was acknowledged by all in-sync replicas stays at its offset, and what a reader has seen at an offset stays.
"""

from random import Random

from tests.model.manual_world import Job
from tests.partition.peers import TOPIC, Peers

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.partition.hosted_log import Role
from braidlog.partition.produce.append import Acks
from braidlog.replication import messages as m
from braidlog.replication.assignment import Assignment, InSyncSetChange, Node, may_change, with_change
from braidlog.replication.control.reassignment import finish, reassign
from braidlog.replication.ready import ProposeChange
from braidlog.storage.log.partition_log import Appended

NODES = (1, 2, 3)
STEPS = 150
PACE_MS = 300


class PromiseBrokenError(AssertionError):
    pass


class Walk:
    """`run` takes the steps, and raises `PromiseBrokenError`; `counts` says what has happened."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        flush = self._draw.choice([Flush.ACK, Flush.INTERVAL])
        self._flushes = flush is Flush.ACK
        self.peers = Peers(TopicSettings(flush=flush), min_in_sync=1, first=(1,))
        self._nodes = {number: Node(incarnation=number) for number in NODES}
        self._versions = [self.peers.assignment]
        self._heard = dict.fromkeys(NODES, 0)
        self._written: set[InSyncSetChange] = set()
        self._jobs: list[tuple[bytes, Acks, Job[Appended], int]] = []
        self._waits: list[Job[None]] = []
        self._values = 0
        self._acknowledged: dict[int, bytes] = {}
        self._seen: dict[int, bytes | None] = {}
        self.counts: dict[str, int] = {}

    def run(self) -> None:
        steps = (self._append, self._append, self._sync, self._hear, self._deliver, self._deliver, self._propose)
        rare = (self._wait, self._move, self._elect, self._tick, self._read, self._hear, self._propose, self._sync)
        with self.peers.runtime.holding_syncs():
            for _ in range(STEPS):
                self._draw.choice(self._draw.choice([steps, rare]))()
                self._look()
        self._heal()

    # -- steps -------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        leaders = [number for number in NODES if self.peers[number].partition.role is Role.LEADER]
        if leaders:
            number, value = self._draw.choice(leaders), b"%d" % self._values
            self._values += 1
            acks = self._draw.choice([Acks.ALL, Acks.ALL, Acks.LEADER, Acks.NONE])
            self._count("append alone" if self.peers[number].partition.is_sole else "append")
            self._jobs.append((value, acks, self.peers[number].append(value, acks=acks), number))

    def _wait(self) -> None:
        """As a key and a marker wait for what is in the log."""
        for number in NODES:
            partition = self.peers[number].partition
            if partition.role is Role.LEADER:
                runtime, end = self.peers.runtime, partition.end_offset
                asked = partition.submit(lambda token, end=end: m.Await(token, end))  # type: ignore[misc]
                for waiting in (partition.wait_committed(asked, runtime, 60), partition.wait_durable(end, runtime)):
                    self._waits.append(runtime.spawn(waiting))

    def _sync(self) -> None:
        self.peers.runtime.sync()

    def _hear(self) -> None:
        """One node hears of one more change of the metadata."""
        behind = [number for number in NODES if self._heard[number] < len(self._versions) - 1]
        if behind:
            number = self._draw.choice(behind)
            self._heard[number] += 1
            self._tell(number)
        self._begin()

    def _tell(self, number: int) -> None:
        was_sole = self.peers[number].partition.is_sole
        has_waiters = any(not job.is_done for _, _, job, _ in self._jobs)
        self.peers[number].partition.step(self.peers.assigned(self._versions[self._heard[number]]))
        if was_sole and not self.peers[number].partition.is_sole and has_waiters:
            self._count("one replica no more, with waiters")
        if self.peers[number].partition.is_sole and not was_sole and has_waiters:
            self._count("one replica again, with waiters")

    def _begin(self) -> None:
        self.peers[self._draw.choice(NODES)].begin()

    def _deliver(self) -> None:
        under_way = self.peers.under_way
        self.peers.runtime.settle()
        for _ in range(min(len(under_way), self._draw.choice([1, 4]))):
            _, to, message = under_way.popleft()
            self.peers[to].partition.step(message)
        self._begin()

    def _propose(self) -> None:
        """The metadata takes what a leader proposes, or refuses it for certain."""
        for number in NODES:
            peer = self.peers[number]
            while peer.proposed:
                proposal = peer.proposed.pop(0)
                if not isinstance(proposal, ProposeChange):
                    continue
                if may_change(self._latest, proposal.change, self._nodes):
                    self._written.add(proposal.change)
                    self._change(finish(with_change(self._latest, proposal.change, 1), self._nodes, 1))
                elif proposal.change not in self._written:
                    peer.partition.step(m.ChangeRefused(proposal.change))

    def _move(self) -> None:
        order = self._draw.sample(NODES, 3)
        self._change(finish(reassign(self._latest, tuple(order[: self._draw.choice([1, 1, 2])])), self._nodes, 1))

    def _elect(self) -> None:
        others = [number for number in self._latest.in_sync if number != self._latest.leader]
        if others:
            self._count("election")
            self._change(self._latest.with_leader(self._draw.choice(others)))

    def _tick(self) -> None:
        self.peers.runtime.advance(PACE_MS)
        for number in NODES:
            self.peers[number].partition.tick()

    def _read(self) -> None:
        for number in NODES:
            partition = self.peers[number].partition
            if partition.role is Role.LEADER and partition.is_settled and not partition.is_cutting:
                self._see(self.peers[number].values())

    # -- promises ----------------------------------------------------------------------------------------------

    def _see(self, values: list[bytes | None]) -> None:
        for offset, value in enumerate(values):
            if self._seen.setdefault(offset, value) != value:
                raise PromiseBrokenError(f"a reader saw {self._seen[offset]!r} at {offset}, and now {value!r}")

    def _look(self) -> None:
        for number in NODES:
            partition = self.peers[number].partition
            if self._flushes and partition.is_sole and partition.high_watermark > partition.log.durable_offset:
                raise PromiseBrokenError(f"readers of {partition} see what a power cut can take")
        left = []
        for value, acks, job, number in self._jobs:
            if not job.is_done:
                left.append((value, acks, job, number))
                continue
            try:
                offset = job.result().base_offset
            except (BrokerError, StorageFault):
                self._count("refused")
                continue
            partition = self.peers[number].partition
            is_kept = acks is Acks.NONE or not self._flushes or partition.log.durable_offset > offset
            if partition.role is Role.LEADER and not is_kept:
                raise PromiseBrokenError(f"{value!r} was acknowledged at {offset}, and a power cut can take it")
            if acks is Acks.ALL:
                self._count("acknowledged")
                if self._acknowledged.setdefault(offset, value) != value:
                    raise PromiseBrokenError(f"{value!r} and {self._acknowledged[offset]!r} are both at {offset}")
        self._jobs = left if len(left) < len(self._jobs) else self._jobs

    def _heal(self) -> None:
        """All hear of everything, and follow; then the leader has what was acknowledged, and what was seen."""
        self.peers.runtime.sync()
        for _ in range(20):
            for number in NODES:
                while self._heard[number] < len(self._versions) - 1:
                    self._heard[number] += 1
                    self._tell(number)
            self.peers.carry()
            self.peers.tick()
            self._propose()
        self._look()
        leader = self.peers[self._latest.leader or 0]
        values = leader.values()
        self._see(values)
        for offset, value in self._acknowledged.items():
            if offset >= len(values) or values[offset] != value:
                raise PromiseBrokenError(f"{value!r} was acknowledged at {offset} of {TOPIC}; its leader has {values}")
        self.peers.runtime.settle()
        if waiting := [*self._jobs, *(job for job in self._waits if not job.is_done)]:
            raise PromiseBrokenError(f"nothing is under way, and {waiting} still wait")

    # --------------------------------------------------------------------------------------------------------------

    @property
    def _latest(self) -> Assignment:
        return self._versions[-1]

    def _change(self, assignment: Assignment) -> None:
        if assignment != self._latest:
            self._versions.append(assignment)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
