"""One replica by hand: what the model's three small logs do not reach."""

import pytest

from braidlog.model.errors import Reason
from braidlog.replication.assignment import Assignment, InSyncSetChange, TornEnd
from braidlog.replication.log_summary import LogSummary
from braidlog.replication.messages import (
    Append,
    Assigned,
    Await,
    Batch,
    ChangeRefused,
    Complaint,
    CorruptAnswer,
    Damaged,
    DeleteBelow,
    Diverging,
    EpochStarted,
    Fetch,
    Fetched,
    Message,
    Refusal,
    Refused,
    ResetLog,
    Synced,
    Tick,
)
from braidlog.replication.ready import (
    BeginEpoch,
    CheckFile,
    DiscardAbove,
    Done,
    Failed,
    LossPossible,
    ProposeChange,
    Ready,
    ReportLogEnd,
    ResetLogTo,
    Resign,
    Respond,
    Resync,
    Stopped,
    Sync,
    Trim,
    Truncate,
    UncleanLeader,
    Watermark,
    Write,
)
from braidlog.replication.replica import step
from braidlog.replication.replica_state import (
    FETCH_WAIT_MS_MAX,
    LAG_MS_MAX,
    QUIET_WAIT_MS_MAX,
    UNREGISTERED,
    Follower,
    Leader,
    Replica,
    opened,
)

INCARNATIONS = ((1, 10), (2, 20), (3, 30))


def assigned(leader: int | None, epoch: int = 1, in_sync: tuple[int, ...] = (1, 2, 3), **fields: object) -> Assigned:
    assignment = Assignment(replicas=(1, 2, 3), in_sync=in_sync, leader=leader, leader_epoch=epoch, **fields)  # type: ignore[arg-type]
    return Assigned(assignment, INCARNATIONS, 2)


class Driver:
    """One replica, and what it last said."""

    def __init__(self, node: int, log: LogSummary = LogSummary(), watermark: int = 0) -> None:  # noqa: B008 - frozen
        self.replica: Replica = opened(node, node * 10, log, watermark, flush_on_ack=True)
        self.now_ms = 0

    def told(self, *messages: Message) -> Ready:
        ready = Ready()
        for message in messages:
            self.replica, last = step(self.replica, message, self.now_ms)
            ready = ready.then(last)
        return ready

    def fetch(
        self, node: int, offset: int, last_epoch: int = 1, start: int = 0, incarnation: int | None = None
    ) -> Ready:
        number = node * 10 if incarnation is None else incarnation
        return self.told(Fetch(node, number, 1, self.replica.epoch, offset, last_epoch if offset else -1, start))

    def synced(self) -> Ready:
        return self.told(Synced(self.replica.log.end, self.replica.log.cuts))


def leader(records: int = 0, in_sync: tuple[int, ...] = (1, 2, 3)) -> Driver:
    one = Driver(1)
    one.told(assigned(1, in_sync=in_sync), EpochStarted(1))
    if records:
        one.told(Append(0, records))
        one.synced()
    return one


def follower(log: LogSummary = LogSummary(), watermark: int = 0, epoch: int = 1) -> tuple[Driver, Fetch]:  # noqa: B008 - frozen
    two = Driver(2, log, watermark)
    ready = two.told(assigned(1, epoch))
    question = ready.send[0]
    assert isinstance(question, Fetch)
    return two, question


# ── A leader ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_life_of_an_append() -> None:
    one = Driver(1)
    assert one.told(assigned(1)).persist == (BeginEpoch(1),)
    assert one.told(Append(7, 2)).apply == (Failed(7, Reason.NOT_LEADER),), "the epoch is not durable yet"
    one.told(EpochStarted(1))
    for node in (2, 2, 3, 3):
        one.fetch(node, 0)  # the first question is answered at once, the second waits
    written = one.told(Append(7, 2, b"records"))
    assert written.persist == (Write(Batch(0, 2, 1, b"records")), Sync(2, 0))
    answers = [each for each in written.send if isinstance(each, Respond)]
    assert [(each.question.node, each.end, each.watermark) for each in answers] == [(2, 2, 0), (3, 2, 0)]
    one.fetch(2, 2)
    one.fetch(3, 2)
    done = one.synced()
    assert done.apply == (Watermark(2), Done(7, 2)), "and not before our own sync"
    assert [each.watermark for each in done.send if isinstance(each, Respond)] == [2, 2]


@pytest.mark.parametrize(("is_awaited", "wait_ms_max"), [(True, FETCH_WAIT_MS_MAX), (False, QUIET_WAIT_MS_MAX)])
def test_a_follower_that_asks_again_and_again_is_answered_after_the_longest_wait(
    is_awaited: bool,
    wait_ms_max: int,
) -> None:
    """Its last answer was lost, with the watermark in it: only the wait that ran out tells it again. Sooner if somebody waits."""
    one = leader(records=1)
    for node in (2, 3, 2):
        one.fetch(node, 1)
    one.now_ms = 100
    one.fetch(2, 1)
    one.now_ms = 400
    assert not one.fetch(2, 1).send
    if is_awaited:
        one.told(Await(9, 5))
    one.now_ms = 100 + wait_ms_max - 1
    assert not one.told(Tick()).send
    one.now_ms += 1
    assert [each.watermark for each in one.told(Tick()).send if isinstance(each, Respond)] == [1]


def test_a_watermark_that_is_not_urgent_goes_with_the_next_records_or_by_the_clock() -> None:
    one = leader(records=1)
    one.replica = one.replica.now(is_watermark_urgent=False)
    sent = [each for node in (2, 3, 2) for each in one.fetch(node, 1).send]
    assert (one.replica.watermark, sent) == (1, [])
    assert [(each.question.node, each.watermark) for each in one.told(Tick()).send if isinstance(each, Respond)] == [
        (2, 1),
        (3, 1),
    ]
    for node in (2, 3):
        one.fetch(node, 1)
    assert not one.told(Tick()).send, "it was told"


def test_a_retry_waits_for_the_commit_of_what_it_repeats() -> None:
    one = leader(records=1)
    assert one.told(Await(9, 1)).apply == ()
    one.fetch(2, 1)
    assert one.fetch(3, 1).apply == (Watermark(1), Done(0, 1), Done(9, 1))


def test_too_few_in_sync_are_refused_before_anything_is_written() -> None:
    one = leader(in_sync=(1,))
    assert one.told(Append(1, 1)) == Ready(apply=(Failed(1, Reason.NOT_ENOUGH_REPLICAS),))
    assert one.told(Append(2, 1, needs_all=False)).apply == ()
    assert one.synced().apply == (Done(2, 1),), "acks=1 asks nobody else"
    assert one.replica.watermark == 0


def test_whoever_waits_is_told_that_the_epoch_is_over() -> None:
    one = leader(records=1)
    one.fetch(2, 1)
    ready = one.told(assigned(2, 2, (2, 3), partition_epoch=1))
    assert Failed(0, Reason.NOT_LEADER) in ready.apply
    assert isinstance(one.replica.role, Follower)


def test_a_later_epoch_in_a_question_ends_a_leader_that_nobody_told() -> None:
    one = leader(records=1)
    ready = one.told(Fetch(2, 20, 1, 2, 0, -1, 0))
    assert one.replica.role is None
    assert ready.apply == (Failed(0, Reason.NOT_LEADER),)
    one.told(assigned(1))
    assert one.replica.role is None, "an epoch that is over does not come back"


def test_questions_of_other_lives_and_epochs_are_refused() -> None:
    one = leader()
    refused = one.fetch(2, 0, incarnation=19).send[0]
    assert isinstance(refused, Refused)
    assert refused.refusal is Refusal.UNKNOWN_REPLICA
    stale = one.told(Fetch(2, 20, 1, 0, 0, -1, 0)).send[0]
    assert isinstance(stale, Refused)
    assert stale.refusal is Refusal.FENCED_EPOCH


def test_a_change_of_the_set_is_pending_until_it_is_known() -> None:
    one = leader(records=1, in_sync=(1, 2))
    change = InSyncSetChange(3, True, 30, 1, 0)
    assert ProposeChange(change) in one.fetch(3, 1).send
    assert one.told(Tick()).send == (ProposeChange(change),), "nobody answered: unknown, so asked again"
    one.told(Append(1, 1))
    one.synced()
    one.fetch(2, 2)
    assert one.replica.watermark == 1, "who is about to join is waited for"
    assert Watermark(2) in one.told(ChangeRefused(change)).apply
    assert isinstance(one.replica.role, Leader)
    assert one.replica.role.members.pending is None


def test_a_follower_that_lags_is_asked_to_leave_and_counts_until_it_has() -> None:
    one = leader(records=1)
    one.now_ms = LAG_MS_MAX - 1
    one.fetch(2, 1)
    one.now_ms = LAG_MS_MAX + 1
    assert one.told(Tick()).send == (ProposeChange(InSyncSetChange(3, False, 30, 1, 0)),)
    assert one.replica.watermark == 0
    assert Watermark(1) in one.told(assigned(1, in_sync=(1, 2), partition_epoch=1)).apply


def test_who_left_comes_back_when_it_has_caught_up_and_not_before() -> None:
    one = leader(records=1)
    one.fetch(3, 0)
    one.fetch(2, 1)
    moved = one.told(assigned(1, in_sync=(1, 2), partition_epoch=1))
    assert Watermark(1) in moved.apply
    assert not any(isinstance(each, ProposeChange) for each in moved.send), "it would hold the watermark up again"
    assert not any(isinstance(each, ProposeChange) for each in one.fetch(3, 0).send)
    assert ProposeChange(InSyncSetChange(3, True, 30, 1, 1)) in one.fetch(3, 1).send


def test_a_deletion_is_answered_when_all_have_followed() -> None:
    one = leader(records=5)
    one.fetch(2, 5)
    one.fetch(3, 5)
    assert one.told(DeleteBelow(9, 6)).apply == (Failed(9, Reason.OFFSET_OUT_OF_RANGE),)
    assert one.told(DeleteBelow(8, 3)).persist == (Trim(3),)
    one.fetch(2, 5, start=3)
    assert one.fetch(3, 5, start=3).apply == (Done(8, 3),)


def test_a_deletion_is_not_answered_while_somebody_outside_the_set_may_lead() -> None:
    """Below the minimum who left the set stays eligible, and its log begins where it did."""
    one = leader(records=5)
    one.fetch(2, 5)
    one.fetch(3, 5)
    one.told(assigned(1, in_sync=(1,), partition_epoch=1, eligible=(2, 3)))
    assert one.told(DeleteBelow(8, 3)).apply == ()
    one.fetch(2, 5, start=3)
    assert Done(8, 3) in one.told(assigned(1, in_sync=(1, 2), partition_epoch=2)).apply


def test_who_has_not_followed_a_deletion_does_not_join() -> None:
    """It would show records that are deleted, or ones that were never committed, as soon as it leads."""
    one = leader(records=5)
    one.fetch(2, 5)
    one.fetch(3, 5)
    one.told(assigned(1, in_sync=(1, 2), partition_epoch=1), DeleteBelow(8, 3))
    assert not any(isinstance(each, ProposeChange) for each in one.fetch(3, 5).send)
    assert any(isinstance(each, ProposeChange) for each in one.fetch(3, 5, start=3).send)


def test_a_follower_of_whose_epochs_nothing_is_left_starts_anew() -> None:
    """Cut to the end of the last common epoch, of which there is none, it would lose what is committed below our start."""
    one = leader(records=5)
    one.fetch(2, 5)
    one.fetch(3, 5)
    one.told(assigned(1, epoch=3, partition_epoch=1), EpochStarted(3), DeleteBelow(8, 5), Append(1, 2))
    asked = Fetch(3, 30, 1, 3, 7, 1, 0)
    assert ResetLog(asked, 5) in one.told(asked).send


def test_a_follower_that_parts_below_our_start_starts_anew() -> None:
    """Up to our start it has other records than we had: cut there, it would keep them, or half a batch."""
    one = Driver(1, LogSummary(start=8, end=9, durable=9, epochs=((1, 0), (2, 5))), watermark=9)
    one.told(assigned(1, epoch=3), EpochStarted(3))
    asked = Fetch(3, 30, 1, 3, 10, 1, 0)
    assert one.told(asked).send == (ResetLog(asked, 8),)


def test_a_leader_looks_at_its_file_before_it_resigns() -> None:
    one = leader(records=1)
    assert one.told(Complaint(2, 1, 0)).persist == (CheckFile(0),)
    assert one.told(Damaged()).send == (Resign(1, 1),)
    assert one.told(Append(1, 1)).apply == (Failed(1, Reason.UNAVAILABLE),)


def test_a_damaged_copy_is_given_up_in_an_epoch_in_which_no_set_has_it() -> None:
    """A question from before could count for the copy that takes its place, and a damaged one must not follow anybody."""
    two, _ = follower(LogSummary(end=5, durable=5, epochs=((1, 0),)), watermark=5)
    assert two.told(Damaged()).send == (Resign(2, 1),)
    assert two.told(Tick()).send == (Resign(2, 1),), "nobody knows what became of it"
    assert two.told(assigned(1, epoch=2, partition_epoch=1)).send == (Resign(2, 2),), "it counts still"
    after = two.told(assigned(1, epoch=3, in_sync=(1, 3), partition_epoch=2))
    assert after.persist == (Resync(),)
    assert [(each.offset, each.last_epoch, each.epoch) for each in after.send if isinstance(each, Fetch)] == [
        (0, -1, 3)
    ]
    assert (two.replica.watermark, two.replica.is_damaged) == (0, False)


def test_a_replica_that_left_and_returns_in_the_same_epoch_follows_again() -> None:
    two, question = follower()
    away = Assignment(replicas=(1, 3), in_sync=(1, 3), leader=1, leader_epoch=1, partition_epoch=1)
    assert two.told(Assigned(away, INCARNATIONS, 2)).send == ()
    assert two.replica.role is None
    assert two.told(assigned(1, in_sync=(1, 3), partition_epoch=2, adding=(2,))).send == (question,)
    one = leader()
    one.told(Fetch(2, 20, 1, 2, 0, -1, 0))  # it hears that its epoch is over
    assert one.told(assigned(1, partition_epoch=2)).send == ()
    assert one.replica.role is None


def test_nobody_acts_on_metadata_of_another_life() -> None:
    old = Driver(1)
    old.replica = old.replica.registered_as(11)
    assert old.told(assigned(1)) == Ready()
    assert old.replica.role is None
    young = Driver(1)
    young.replica = young.replica.registered_as(9)
    assert young.told(assigned(1)).apply == (Stopped(),), "somebody else has our number"


def test_a_sync_from_before_a_truncation_says_nothing() -> None:
    log = LogSummary(end=3, durable=1, epochs=((1, 0),))
    two = Driver(2, log)
    two.told(assigned(1, 2))
    before = two.replica.log.cuts
    two.synced()
    question = two.replica.role.asked if isinstance(two.replica.role, Follower) else None
    assert question is not None
    two.told(Diverging(question, 1, 1))
    two.told(Synced(3, before))
    assert two.replica.log.durable == 1


# ── A follower ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_asks_again_only_after_its_sync() -> None:
    two, question = follower()
    ready = two.told(Fetched(question, (Batch(0, 2, 1, b""),), 1, 0))
    assert ready == Ready((Write(Batch(0, 2, 1, b"")), Sync(2, 0)), (), (Watermark(1),))
    asked = two.synced().send[0]
    assert isinstance(asked, Fetch)
    assert (asked.offset, asked.last_epoch) == (2, 1)


def test_an_answer_to_another_question_is_dropped() -> None:
    two, question = follower()
    two.told(Fetched(question, (Batch(0, 1, 1, b""),), 0, 0))
    two.synced()
    assert two.told(Fetched(question, (Batch(0, 1, 1, b"else"),), 0, 0), Diverging(question, -1, 0)) == Ready()


def test_the_watermark_follows_the_leader_but_never_back() -> None:
    two, question = follower(LogSummary(end=5, durable=5, epochs=((1, 0),)), watermark=4)
    assert two.told(Fetched(question, (), 3, 0)).apply == ()
    assert two.replica.watermark == 4


def test_logs_part_at_the_end_of_the_last_common_epoch() -> None:
    log = LogSummary(end=9, durable=9, epochs=((1, 0), (2, 4), (4, 7)))
    two, question = follower(log, watermark=3, epoch=6)
    assert (question.offset, question.last_epoch) == (9, 4)
    ready = two.told(Diverging(question, 3, 8))
    assert ready.persist == (Truncate(7),), "the leader's epoch 3 is above our 2, which ended at 7"
    question = ready.send[0]  # type: ignore[assignment]
    assert (question.offset, question.last_epoch) == (7, 2)
    assert two.told(Diverging(question, 1, 5)).persist == (Truncate(4),)


def test_committed_records_are_cut_after_an_unclean_election_only() -> None:
    log = LogSummary(end=5, durable=5, epochs=((1, 0),))
    two = Driver(2, log, watermark=5)
    question = two.told(assigned(1, 3, (1,), unclean_epoch=2)).send[0]
    assert isinstance(question, Fetch)
    ready = two.told(Diverging(question, 1, 2))
    assert ready.apply == (LossPossible(2, 5), DiscardAbove(2))
    assert two.replica.watermark == 2


def test_an_epoch_that_wrote_nothing_here_is_forgotten_when_older_records_come() -> None:
    log = LogSummary(end=2, durable=2, epochs=((1, 0), (2, 2)))
    two, question = follower(log, epoch=3)
    ready = two.told(Fetched(question, (Batch(2, 3, 1, b""), Batch(3, 4, 3, b"")), 0, 0))
    assert ready.persist[:3] == (Truncate(2), Write(Batch(2, 3, 1, b"")), Write(Batch(3, 4, 3, b"")))
    assert two.replica.log.epochs == ((1, 0), (3, 3))


def test_an_empty_batch_across_our_end_is_cut_to_it() -> None:
    two, question = follower(LogSummary(end=5, durable=5, epochs=((1, 0),)))
    ready = two.told(Fetched(question, (Batch(3, 9, 1, None, is_empty=True),), 9, 0))
    assert ready.persist[0] == Write(Batch(5, 9, 1, None, is_empty=True))


def test_a_follower_starts_anew_where_its_leader_begins() -> None:
    two, question = follower(LogSummary(end=2, durable=2, epochs=((1, 0),)))
    ready = two.told(ResetLog(question, 7))
    assert ready.persist == (ResetLogTo(7),)
    question = ready.send[0]  # type: ignore[assignment]
    assert (question.offset, question.last_epoch, question.start) == (7, -1, 7)
    inside = two.told(Fetched(question, (Batch(6, 9, 1, b""),), 9, 7))
    assert inside.persist[0] == Write(Batch(6, 9, 1, b"")), "the leader's log begins inside this batch"
    assert two.replica.watermark == 9


def test_a_follower_follows_the_start() -> None:
    two, question = follower(LogSummary(end=5, durable=5, epochs=((1, 0),)), watermark=5)
    assert two.told(Fetched(question, (), 5, 3)).persist == (Trim(3),)
    assert two.replica.log.start == 3


def test_two_bad_checksums_are_a_complaint() -> None:
    two, question = follower()
    assert two.told(CorruptAnswer(question)).send == (question,)
    assert two.told(CorruptAnswer(question)).send == (Complaint(2, 1, 0),)
    assert two.told(Tick()).send == (question,)
    assert two.told(Damaged()).send == (Resign(2, 1),)


def test_a_leader_whose_log_was_trimmed_compares_what_is_left() -> None:
    one = leader(records=5)
    one.fetch(2, 5)
    one.fetch(3, 5)
    one.told(DeleteBelow(8, 3))
    assert one.fetch(2, 2).send == (ResetLog(Fetch(2, 20, 1, 1, 2, 1, 0), 3),)
    assert not any(isinstance(each, ResetLog) for each in one.fetch(2, 3).send)
    assert isinstance(one.fetch(2, 3, last_epoch=2).send[0], ResetLog)


def test_a_replica_whose_node_is_not_registered_yet_does_nothing() -> None:
    one = Driver(1)
    one.replica = one.replica.now(incarnation=UNREGISTERED)
    assert one.told(assigned(1)) == Ready()
    one.replica = one.replica.registered_as(10)
    assert one.told(assigned(1)).persist == (BeginEpoch(1),)


def test_a_torn_copy_says_how_far_it_reaches_where_nobody_is_whole() -> None:
    log = LogSummary(end=5, durable=5, epochs=((1, 0), (3, 4), (4, 5)))
    two = Driver(2, log, watermark=4)
    told = TornEnd(2, 20, 3, 5)
    lost = {"in_sync": (), "torn": (1, 2)}
    assert two.told(assigned(None, 5, **lost)).send == (ReportLogEnd(told),)
    assert two.told(Tick()).send == (ReportLogEnd(told),), "until it is known"
    assert two.told(assigned(None, 5, **lost, partition_epoch=1, torn_ends=(told,)), Tick()).send == ()
    for others in ({"in_sync": (3,), "torn": (1, 2)}, {"in_sync": (), "torn": (1,)}):
        assert Driver(2, log).told(assigned(None, 5, **others), Tick()).send == ()
    damaged = Driver(2, log)
    damaged.told(Damaged())
    sent = damaged.told(assigned(None, 5, **lost), Tick()).send
    assert not any(isinstance(each, ReportLogEnd) for each in sent), "what it has cannot be read"


def test_who_leads_after_all_were_torn_says_so() -> None:
    log = LogSummary(end=5, durable=5, epochs=((1, 0),))
    clean, unclean = Driver(1, log), Driver(1, log)
    assert clean.told(assigned(1, 6, (1,), unclean_epoch=5)).apply == ()
    assert unclean.told(assigned(1, 6, (1,), unclean_epoch=6)).apply == (UncleanLeader(5),)
