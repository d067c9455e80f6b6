"""A replica over a real log: what its steps ask for is done to the log, in order."""

from collections.abc import Callable

from braidlog.codec.batch.records import encode_batch
from braidlog.model.settings import TopicSettings
from braidlog.partition.replica_runner import ReplicaRunner
from braidlog.replication.assignment import Assignment
from braidlog.replication.messages import Answer, Assigned, Complaint, Diverging, Fetch, Message
from braidlog.replication.ready import Apply, Done, Proposal, Resign, Watermark
from braidlog.storage.log.partition_log import PartitionLog, create_partition
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.segment_files import Identity
from braidlog.testing.disk import SimulatedDisk

FOLDER, IDENTITY = "/p", Identity(b"0123456789abcdef", 0)


class Node:
    """One replica and what it wants of the world; `ReplicaPort`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.disk = SimulatedDisk()
        pool = FilePool(self.disk)
        create_partition(self.disk, FOLDER, IDENTITY, TopicSettings(), pool, now_ms=0)
        log = PartitionLog(self.disk, FOLDER, IDENTITY, TopicSettings(), pool)
        self.sent: list[Fetch | Answer | Complaint] = []
        self.proposed: list[Proposal] = []
        self.outcomes: list[Apply] = []
        self.work: list[Callable[[], Message | None]] = []
        self.is_disk_busy = False
        self.partition = ReplicaRunner(log, number, self, flush_on_ack=True)
        self.partition.replica = self.partition.replica.registered_as(number)

    def now_ms(self) -> int:
        return 0

    wall_ms = now_ms

    def sync(self, end: int, cuts: int) -> None:
        self.beside(lambda: self.partition.synced(end, cuts))

    def begin_epoch(self, epoch: int) -> None:
        self.beside(lambda: self.partition.epoch_started(epoch))

    def send(self, node: int, message: Fetch | Answer | Complaint) -> None:
        assert node != self.number
        self.sent.append(message)

    def propose(self, proposal: Proposal) -> None:
        self.proposed.append(proposal)

    def beside(self, work: Callable[[], Message | None]) -> None:
        self.work.append(work)

    def outcome(self, outcome: Apply) -> None:
        self.outcomes.append(outcome)

    def worked(self) -> None:
        while self.work and not self.is_disk_busy:
            message = self.work.pop(0)()
            if message is not None:
                self.partition.step(message)

    def assigned(self, leader: int, epoch: int) -> None:
        assignment = Assignment(
            replicas=(1, 2), in_sync=(1, 2), leader=leader, leader_epoch=epoch, partition_epoch=epoch
        )
        self.partition.step(Assigned(assignment, ((1, 1), (2, 2)), 2))
        self.worked()


def batch(*values: bytes, sequence: int = 0) -> bytes:
    return encode_batch(list(values), base_timestamp=0, producer_id=7, producer_epoch=0, base_sequence=sequence)


def exchange(one: Node, other: Node) -> None:
    """Carry what they say to each other until they have nothing new to say, with their syncs done."""
    quiet = False
    while not quiet:
        quiet = True
        for sender, receiver in ((one, other), (other, one)):
            messages, sender.sent = sender.sent, []
            for message in messages:
                quiet = False
                receiver.partition.step(message)
                receiver.worked()


def pair() -> tuple[Node, Node]:
    leader, follower = Node(1), Node(2)
    for node in (leader, follower):
        node.assigned(1, 1)
    exchange(leader, follower)
    return leader, follower


def test_an_append_is_acknowledged_when_both_have_it_durably() -> None:
    leader, follower = pair()
    leader.is_disk_busy = True
    leader.partition.append(5, batch(b"a", b"b"))
    exchange(leader, follower)
    assert follower.partition.log.durable_offset == 2
    assert not leader.outcomes, "its own sync is still to come"
    leader.is_disk_busy = False
    leader.worked()
    exchange(leader, follower)
    assert leader.outcomes == [Watermark(2), Done(5, 2)]
    assert follower.outcomes[-1] == Watermark(2)
    assert follower.partition.log.read(0, 1000) == leader.partition.log.read(0, 1000) != b""


def test_a_retry_is_answered_with_what_it_repeats() -> None:
    leader, follower = pair()
    leader.partition.append(5, batch(b"a"))
    leader.partition.append(6, batch(b"a"))
    leader.worked()
    exchange(leader, follower)
    assert [each for each in leader.outcomes if isinstance(each, Done)] == [Done(5, 1), Done(6, 1)]
    assert leader.partition.log.end_offset == 1


def test_a_follower_cuts_what_its_leader_does_not_have() -> None:
    old, new = pair()
    old.partition.append(5, batch(b"nobody else has this"))
    old.worked()
    old.sent.clear()
    for node in (new, old):
        node.assigned(2, 2)
    new.partition.append(6, batch(b"this is"))
    new.worked()
    exchange(old, new)
    assert old.partition.log.read(0, 1000) == new.partition.log.read(0, 1000)
    assert old.partition.log.state.epochs.entries() == [(2, 0)] == list(new.partition.replica.log.epochs)


def test_a_cut_inside_of_a_batch_is_made_where_it_begins() -> None:
    """Its leader's epoch ended there: over other batches. The next question says where the log ends, and nothing else."""
    old, new = pair()
    old.partition.append(5, batch(b"a", b"b", b"c"))
    old.worked()
    new.assigned(2, 2)
    new.partition.append(6, batch(b"x"))
    new.worked()
    old.assigned(1, 3)
    old.partition.append(7, batch(b"d", sequence=3))
    old.worked()
    old.sent.clear()
    new.sent.clear()
    for node in (new, old):
        node.assigned(2, 4)
    new.partition.step(old.sent.pop())
    answer = new.sent.pop()
    assert isinstance(answer, Diverging)
    assert (answer.epoch, answer.end) == (2, 1)
    old.partition.step(answer)
    question = old.sent[-1]
    assert isinstance(question, Fetch)
    assert old.partition.log.end_offset == old.partition.replica.log.end == question.offset == 0
    exchange(old, new)
    assert old.partition.log.read(0, 1000) == new.partition.log.read(0, 1000)


def test_an_epoch_that_wrote_nothing_is_forgotten_with_what_is_cut() -> None:
    """Its leader came and went; the next one has records of the epoch before it."""
    leader, follower = pair()
    leader.partition.append(5, batch(b"a"))
    leader.worked()
    leader.sent.clear()
    follower.assigned(2, 2)
    assert follower.partition.log.state.epochs.latest == 2
    for node in (leader, follower):
        node.assigned(1, 3)
    exchange(leader, follower)
    assert follower.partition.log.end_offset == 1
    disk = follower.disk.after_kill()
    again = PartitionLog(disk, FOLDER, IDENTITY, TopicSettings(), FilePool(disk))
    assert again.state.epochs.entries()[0] == (1, 0)


def test_the_log_keeps_what_is_committed_and_how_far_every_replica_is() -> None:
    leader, follower = pair()
    leader.partition.append(5, batch(b"a", b"b"))
    leader.worked()
    exchange(leader, follower)
    leader.partition.append(6, batch(b"c", sequence=2))
    leader.worked()
    for node in (leader, follower):
        log = node.partition.log
        assert (log.watermark, log.common_end) == (2, 2)
        log.checkpoint()
        disk = node.disk.after_kill()
        again = PartitionLog(disk, FOLDER, IDENTITY, TopicSettings(), FilePool(disk))
        assert ReplicaRunner(again, node.number, node, flush_on_ack=True).replica.watermark == 2
    assert leader.partition.log.end_offset == 3


def test_the_common_end_falls_when_a_replica_comes_back_with_nothing() -> None:
    """Else a tombstone could be dropped that it still needs, while nothing is written and the watermark stands."""
    leader, follower = pair()
    leader.partition.append(5, batch(b"a"))
    leader.worked()
    exchange(leader, follower)
    wiped = Node(2)
    for node in (leader, wiped):
        node.assigned(1, 2)
    assert (leader.partition.log.watermark, leader.partition.log.common_end) == (1, 0)
    exchange(leader, wiped)
    assert leader.partition.log.common_end == 1


def test_a_log_that_cannot_be_written_gives_up_its_place() -> None:
    leader, follower = pair()
    follower.disk.fail_at[len(follower.disk.operations) + 1] = 5
    leader.partition.append(5, batch(b"a"))
    leader.worked()
    exchange(leader, follower)
    assert follower.proposed == [Resign(2, 1)]
    assert follower.partition.replica.role is None
    assert not any(isinstance(each, Done) for each in leader.outcomes)
