"""The leader of a partition, in one epoch: takes records, answers followers, knows what is committed.

Invariants: nothing is written before the epoch is durable; a follower counts by what it asked for in this epoch and incarnation;
the watermark waits for everyone in the set and for whoever is about to join it, and stands while the set is too small.
"""

import msgspec

from braidlog.model.errors import Reason
from braidlog.replication import external, read_index
from braidlog.replication.assignment import SetChange
from braidlog.replication.in_sync import InSyncSet, waited_for
from braidlog.replication.log_summary import NO_EPOCH, LogSummary
from braidlog.replication.messages import (
    Append,
    Assigned,
    Await,
    Batch,
    ChangeRefused,
    Complaint,
    DeleteBelow,
    Diverging,
    EpochBegun,
    Fetch,
    Reach,
    ReadIndex,
    Refusal,
    Refused,
    StartAnew,
)
from braidlog.replication.ready import (
    NOTHING,
    BeginEpoch,
    CheckFile,
    Done,
    Effect,
    Failed,
    ProposeChange,
    Ready,
    Resign,
    Respond,
    Sync,
    Trim,
    UncleanLeader,
    Watermark,
    Write,
)
from braidlog.replication.replica_state import (
    FETCH_WAIT_MS_MAX,
    QUIET_WAIT_MS_MAX,
    UNKNOWN_END,
    WAITING_MAX,
    Leader,
    Progress,
    Read,
    Replica,
    Stepped,
    Waiter,
    counted_end,
)

# ── Its beginning and end ─────────────────────────────────────────────────────────────────────────────────────────────────────


def begin(replica: Replica, message: Assigned, now_ms: int) -> Stepped:
    """The watermark stays as it was last known: what is above it may be committed, and the followers will tell."""
    leader = Leader(
        start=replica.log.end,
        members=InSyncSet(message.assignment.in_sync),
        followers=_followers(replica, message, (), now_ms),
        external=external.placed(message, replica.external),
    )
    log = replica.log.begun(replica.epoch)
    persist: tuple[Effect, ...] = (BeginEpoch(replica.epoch),)
    is_unclean = message.assignment.unclean_epoch == replica.epoch
    told = (UncleanLeader(replica.log.end),) if is_unclean else ()
    return replica.now(log=log, role=leader), Ready(persist + wanted_sync(replica), apply=told)


def epoch_begun(replica: Replica, leader: Leader, message: EpochBegun) -> Stepped:
    if message.epoch != replica.epoch:
        return replica, NOTHING
    return advanced(replica, msgspec.structs.replace(leader, has_begun=True))


def ended(replica: Replica, leader: Leader) -> Stepped:
    """Whoever waits began to wait in this epoch: no later one answers him."""
    waiting: tuple[Waiter | Read, ...] = (*leader.waiting, *leader.deleting, *leader.reads)
    failed = tuple(Failed(each.token, Reason.NOT_LEADER) for each in waiting)
    refused = tuple(
        Refused(each.parked, Refusal.FENCED_EPOCH, replica.epoch)
        for each in leader.followers
        if each.parked is not None
    )
    return replica.now(role=None, external=external.counted(replica, leader)), Ready(send=refused, apply=failed)


def deposed(replica: Replica, leader: Leader, _: Assigned) -> Stepped:
    """An administrator has said so, on a node that is alone: no other leads, and the epoch stays."""
    return ended(replica, leader)


def reassigned(replica: Replica, leader: Leader, message: Assigned) -> Stepped:
    """The metadata of our own epoch has changed: that settles the change that was pending."""
    pending = leader.members.pending
    if pending is not None and pending.partition_epoch != message.assignment.partition_epoch:
        pending = None
    leader = msgspec.structs.replace(
        leader,
        members=InSyncSet(message.assignment.in_sync, pending),
        followers=_followers(replica, message, leader.followers, 0),
        external=external.placed(message, leader.external),
    )
    return advanced(replica, leader)


def change_refused(replica: Replica, leader: Leader, message: ChangeRefused) -> Stepped:
    if leader.members.pending != message.change:
        return replica, NOTHING
    leader = msgspec.structs.replace(leader, members=InSyncSet(leader.members.committed))
    return advanced(replica, leader)


def _followers(replica: Replica, message: Assigned, known: tuple[Progress, ...], now_ms: int) -> tuple[Progress, ...]:
    """One that has started anew since is another one: what its former life had does not count."""
    found = []
    for node in message.assignment.replicas:
        incarnation = message.incarnation_of(node)
        same = next((each for each in known if (each.node, each.incarnation) == (node, incarnation)), None)
        if node != replica.node:
            found.append(same or Progress(node, incarnation, caught_up_ms=now_ms))
    return tuple(found)


# ── Followers ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fetched(replica: Replica, leader: Leader, fetch: Fetch, now_ms: int) -> Stepped:
    if fetch.epoch > replica.epoch:
        # Somebody else leads already: we are the last to know.
        return _then_refused(ended(replica, leader), fetch, Refusal.UNKNOWN_EPOCH)
    if is_stale(replica, fetch):
        return _then_refused((replica, NOTHING), fetch, Refusal.FENCED_EPOCH)
    if not leader.has_begun:
        return _then_refused((replica, NOTHING), fetch, Refusal.UNKNOWN_EPOCH)
    progress = leader.progress(fetch.node)
    if progress is None or not is_registered(progress, fetch):
        return _then_refused((replica, NOTHING), fetch, Refusal.UNKNOWN_REPLICA)
    parting = compared(replica.log, fetch)
    if parting is not None:
        return replica, Ready(send=(parting,))
    leader = leader.with_progress(noted(progress, fetch, replica.log.end, now_ms))
    return _joined(replica, leader, fetch.node)


def is_stale(replica: Replica, fetch: Fetch) -> bool:
    """A question of an earlier epoch tells of a log that may have been cut since (KIP-320)."""
    return fetch.epoch < replica.epoch


def is_registered(progress: Progress, fetch: Fetch) -> bool:
    return progress.incarnation is not None and progress.incarnation == fetch.incarnation


def compared(log: LogSummary, fetch: Fetch) -> Diverging | StartAnew | None:
    """Where a follower's log parts from ours; None if it is a beginning of ours."""
    if fetch.last_epoch == NO_EPOCH:
        return None if log.start <= fetch.offset <= log.end else StartAnew(fetch, log.start)
    if fetch.offset < log.start:
        return StartAnew(fetch, log.start)
    if fetch.offset == log.start:
        # Its last record is one that we have deleted: which epoch wrote it we have forgotten, but none later than ours.
        in_force = max(log.epoch_at(log.start), NO_EPOCH)
        return None if fetch.last_epoch <= in_force else StartAnew(fetch, log.start)
    if fetch.offset <= log.end and log.epoch_at(fetch.offset - 1) == fetch.last_epoch:
        return None
    epoch, end = log.end_of(fetch.last_epoch)
    if end == log.start > fetch.start:
        # Where the logs part is deleted here: what it has from there on up to our start may be other records than ours were.
        return StartAnew(fetch, log.start)
    return Diverging(fetch, epoch, end)


def noted(progress: Progress, fetch: Fetch, log_end: int, now_ms: int) -> Progress:
    """It was caught up now, if it asks from our end; or when it last asked, if it asks from where our end was then."""
    caught_up_ms = progress.caught_up_ms
    if fetch.offset >= log_end:
        caught_up_ms = now_ms
    elif fetch.offset >= progress.leader_end and progress.end != UNKNOWN_END:
        caught_up_ms = max(caught_up_ms, progress.asked_ms)
    return Progress(
        node=progress.node,
        incarnation=progress.incarnation,
        end=fetch.offset,
        start=fetch.start,
        caught_up_ms=caught_up_ms,
        asked_ms=now_ms,
        leader_end=log_end,
        watermark_sent=progress.watermark_sent,
        round_sent=progress.round_sent,
        round=read_index.echoed(progress, fetch),
        parked=fetch,
        parked_ms=progress.parked_ms if progress.parked == fetch else now_ms,
    )


def _then_refused(stepped: Stepped, fetch: Fetch, refusal: Refusal) -> Stepped:
    replica, ready = stepped
    return replica, ready.then(Ready(send=(Refused(fetch, refusal, replica.epoch),)))


# ── The in-sync set ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _joined(replica: Replica, leader: Leader, node: int) -> Stepped:
    """Ask that a follower join which has just asked: who asked long ago may be dead, and would be waited for in vain.

    The watermark moves first: whoever was in its way must not come back before he has caught up.
    """
    replica, ready = advanced(replica, leader)
    leader = replica.role if isinstance(replica.role, Leader) else leader
    follower = leader.progress(node)
    if follower is None or not may_join(replica, leader, follower):
        return replica, ready
    leader, proposal = _proposed(replica, leader, follower, joins_set=True)
    return replica.now(role=leader), ready.then(proposal)


def may_join(replica: Replica, leader: Leader, follower: Progress) -> bool:
    """Whether a follower has all that is committed, all that earlier epochs have left here, and nothing that was deleted."""
    return (
        leader.has_begun
        and leader.members.pending is None
        and follower.node not in leader.members.committed
        and follower.incarnation is not None
        and follower.end >= max(replica.watermark, leader.start)
        and follower.start >= replica.log.start
    )


def _proposed(replica: Replica, leader: Leader, follower: Progress, *, joins_set: bool) -> tuple[Leader, Ready]:
    change = SetChange(
        node=follower.node,
        joins=joins_set,
        incarnation=follower.incarnation or 0,
        leader_epoch=replica.epoch,
        partition_epoch=replica.assignment.partition_epoch,
    )
    leader = msgspec.structs.replace(leader, members=InSyncSet(leader.members.committed, change))
    return leader, Ready(send=(ProposeChange(change),))


def tick(replica: Replica, leader: Leader, now_ms: int) -> Stepped:
    """Answer who has waited long enough; ask that who lags behind leave; ask again for what is still pending."""
    ready, wait_ms_max = NOTHING, fetch_wait_ms_max(replica, leader)
    for each in leader.followers:
        if each.parked is None:
            continue
        if now_ms - each.parked_ms >= wait_ms_max or each.watermark_sent != replica.watermark:
            leader, answer = _responded(replica, leader, each)
            ready = ready.then(answer)
    if replica.is_damaged:
        ready = ready.then(Ready(send=(Resign(replica.node, replica.epoch),)))
    pending = leader.members.pending
    if pending is not None:
        return replica.now(role=leader), ready.then(Ready(send=(ProposeChange(pending),)))
    lagging = next((each for each in leader.followers if _lags(replica, leader, each, now_ms)), None)
    if lagging is not None:
        leader, proposal = _proposed(replica, leader, lagging, joins_set=False)
        ready = ready.then(proposal)
    return replica.now(role=leader), ready


def fetch_wait_ms_max(replica: Replica, leader: Leader) -> int:
    is_quiet = not (leader.waiting or leader.deleting or leader.reads)
    return min(QUIET_WAIT_MS_MAX, max(replica.lag_ms_max // 4, FETCH_WAIT_MS_MAX)) if is_quiet else FETCH_WAIT_MS_MAX


def _lags(replica: Replica, leader: Leader, follower: Progress, now_ms: int) -> bool:
    return follower.node in leader.members.committed and now_ms - follower.caught_up_ms > replica.lag_ms_max


# ── What is committed ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def committed_end(replica: Replica, leader: Leader) -> int:
    """How far everybody in the set has got; where the watermark was, while there are too few of them."""
    outside = external.counted(replica, leader)
    may_move = external.counts(replica) or leader.members.has_enough(replica.min_in_sync)
    if not (leader.has_begun and may_move):
        return replica.watermark
    ends = [each.end for each in leader.followers if each.node in waited_for(leader.members)]
    ends += [each.end for each in outside if each.in_sync]
    return max(replica.watermark, min([counted_end(replica), *ends]))


def advanced(replica: Replica, leader: Leader) -> Stepped:
    """Move the watermark, tell those who waited for it, and answer the followers that have something to learn."""
    watermark = committed_end(replica, leader)
    told: tuple[Watermark, ...] = (Watermark(watermark),) if watermark > replica.watermark else ()
    replica = replica.now(watermark=watermark)
    done = tuple(each for each in leader.waiting if is_done(replica, each) and has_reached(replica, leader, each))
    deleted = tuple(each for each in leader.deleting if is_deleted(replica, leader, each))
    if done or deleted:
        leader = msgspec.structs.replace(
            leader,
            waiting=tuple(each for each in leader.waiting if each not in done),
            deleting=tuple(each for each in leader.deleting if each not in deleted),
        )
    leader, answered = read_index.settled(replica, leader) if leader.reads else (leader, ())
    reached: tuple[Waiter | Read, ...] = (*done, *deleted, *answered)
    ready = Ready(apply=(*told, *(Done(each.token, each.end) for each in reached)))
    for each in leader.followers:
        if each.parked is not None and has_news(replica, leader, each):
            leader, answer = _responded(replica, leader, each)
            ready = ready.then(answer)
    return replica.now(role=leader), ready


def is_done(replica: Replica, waiter: Waiter) -> bool:
    return waiter.end <= (replica.watermark if waiter.needs_all else counted_end(replica))


def has_reached(replica: Replica, leader: Leader, waiter: Waiter) -> bool:
    """Whether those have it, too, whom the writer asks for beside the set."""
    wanted = max(waiter.in_sync_min, replica.min_in_sync)
    if waiter.in_sync_min and external.in_sync_count(replica, leader) < wanted:
        return False
    match waiter.reach:
        case Reach.MAJORITY:
            return read_index.has_majority(replica, leader)
        case Reach.EVERY:
            return all(each.end >= waiter.end for each in leader.followers)
    return True


def has_news(replica: Replica, leader: Leader, follower: Progress) -> bool:
    """Records, another watermark, or a round that readers wait for."""
    return (
        follower.end < replica.log.end
        or (replica.is_watermark_urgent and follower.watermark_sent != replica.watermark)
        or follower.round_sent < leader.round
    )


def is_deleted(replica: Replica, leader: Leader, waiter: Waiter) -> bool:
    """For whoever may lead next: while the set is too small that is also somebody who is not in it any more."""
    return leader.members.has_enough(replica.min_in_sync) and all(
        each.start >= waiter.end for each in leader.followers if each.node in waited_for(leader.members)
    )


def common_end(replica: Replica, leader: Leader) -> int:
    """Every replica has all below, also one that is away: nothing, until it has asked in this epoch."""
    ends = [max(each.end, 0) for each in leader.followers]
    ends += [each.end for each in external.counted(replica, leader)]
    return min([replica.log.end, *ends])


def _responded(replica: Replica, leader: Leader, follower: Progress) -> tuple[Leader, Ready]:
    assert follower.parked is not None
    end = common_end(replica, leader)
    answer = Respond(follower.parked, replica.log.end, replica.watermark, replica.log.start, end, leader.round)
    sent = msgspec.structs.replace(follower, parked=None, watermark_sent=replica.watermark, round_sent=leader.round)
    return leader.with_progress(sent), Ready(send=(answer,))


# ── Clients ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def append(replica: Replica, leader: Leader, message: Append) -> Stepped:
    """Refused before anything is written, if it could not be acknowledged as things stand."""
    refused = refusal(replica, leader, needs_all=message.needs_all, reach=message.reach)
    if refused is not None:
        return replica, Ready(apply=(Failed(message.token, refused),))
    end = replica.log.end + message.count
    batch = Batch(replica.log.end, end, replica.epoch, message.records)
    replica = replica.now(log=replica.log.appended(end, replica.epoch))
    waiter = Waiter(message.token, end, message.needs_all, message.reach)
    leader = msgspec.structs.replace(leader, waiting=(*leader.waiting, waiter))
    persist: tuple[Effect, ...] = (Write(batch),)
    after, ready = advanced(replica, leader)
    return after, Ready(persist + wanted_sync(replica)).then(ready)


def await_commit(replica: Replica, leader: Leader, message: Await) -> Stepped:
    refused = refusal(replica, leader, needs_all=False)
    if refused is not None:
        return replica, Ready(apply=(Failed(message.token, refused),))
    waiter = Waiter(message.token, message.end, message.needs_all, message.reach, message.in_sync_min)
    return advanced(replica, msgspec.structs.replace(leader, waiting=(*leader.waiting, waiter)))


def read(replica: Replica, leader: Leader, message: ReadIndex) -> Stepped:
    """Of what we have up to our end now, once that is committed. While the set is too small he waits, until he withdraws."""
    refused = refusal(replica, leader, needs_all=False)
    if refused is not None:
        return replica, Ready(apply=(Failed(message.token, refused),))
    leader = read_index.in_new_round(leader)
    one = Read(message.token, replica.log.end, leader.round, message.reach)
    return advanced(replica, msgspec.structs.replace(leader, reads=(*leader.reads, one)))


def withdrawn(replica: Replica, leader: Leader, token: int) -> Stepped:
    leader = msgspec.structs.replace(
        leader,
        waiting=tuple(each for each in leader.waiting if each.token != token),
        reads=tuple(each for each in leader.reads if each.token != token),
    )
    return replica.now(role=leader), NOTHING


def delete_below(replica: Replica, leader: Leader, message: DeleteBelow) -> Stepped:
    refused = refusal(replica, leader, needs_all=False)
    if refused is None and not may_delete(replica, message.offset):
        refused = Reason.OFFSET_OUT_OF_RANGE
    if refused is not None:
        return replica, Ready(apply=(Failed(message.token, refused),))
    start = max(message.offset, replica.log.start)
    replica = replica.now(log=replica.log.trimmed(start))
    leader = msgspec.structs.replace(leader, deleting=(*leader.deleting, Waiter(message.token, message.offset)))
    ready = Ready((Trim(start),))
    for each in leader.followers:
        if each.parked is not None:
            leader, answer = _responded(replica, leader, each)
            ready = ready.then(answer)
    after, rest = advanced(replica, leader)
    return after, ready.then(rest)


def may_delete(replica: Replica, offset: int) -> bool:
    """What is not committed may yet be cut, and then written again at the same offsets."""
    return offset <= replica.watermark


def refusal(replica: Replica, leader: Leader, *, needs_all: bool, reach: Reach = Reach.IN_SYNC) -> Reason | None:
    """Why nothing is written now."""
    if not leader.has_begun:
        return Reason.NOT_LEADER
    if replica.is_damaged or len(leader.waiting) + len(leader.deleting) + len(leader.reads) >= WAITING_MAX:
        return Reason.UNAVAILABLE
    if needs_all and not leader.members.has_enough(replica.min_in_sync):
        return Reason.NOT_ENOUGH_REPLICAS
    if reach is not Reach.IN_SYNC and not read_index.has_majority(replica, leader):
        return Reason.NOT_ENOUGH_REPLICAS
    return None


def wanted_sync(replica: Replica) -> tuple[Effect, ...]:
    if replica.flush_on_ack and replica.log.durable < replica.log.end:
        return (Sync(replica.log.end, replica.log.cuts),)
    return ()


# ── Damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def complained(replica: Replica, leader: Leader, message: Complaint) -> Stepped:
    """A follower may be wrong, or the network: look at our own file before giving anything up."""
    if message.epoch != replica.epoch or leader.progress(message.node) is None:
        return replica, NOTHING
    return replica, Ready((CheckFile(message.offset),))
