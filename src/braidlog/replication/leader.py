"""The leader of a partition in one epoch: appends records, serves follower fetches, advances the high watermark.

Invariants: nothing is written before the epoch is durable. A follower counts by its fetch offset in this epoch and
incarnation. The high watermark waits for every in-sync replica and for one that is about to join; it does not move
while the set is below `min_in_sync`.
"""

import msgspec

from braidlog.model.errors import Reason
from braidlog.replication import external, read_index
from braidlog.replication.assignment import InSyncSetChange
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
    EpochStarted,
    Fetch,
    Reach,
    ReadIndex,
    Refusal,
    Refused,
    ResetLog,
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
    InSyncSet,
    Leader,
    Progress,
    Read,
    Replica,
    Stepped,
    Waiter,
    counted_end,
    waited_for,
)

# ── Epoch start and end ───────────────────────────────────────────────────────────────────────────────────────────────────────


def become_leader(replica: Replica, message: Assigned, now_ms: int) -> Stepped:
    """Start to lead. The high watermark keeps its last known value; follower fetches show which records above it are
    committed.
    """
    leader = Leader(
        start=replica.log.end,
        members=InSyncSet(message.assignment.in_sync),
        followers=_followers(replica, message, (), now_ms),
        external=external.placed(message, replica.external),
    )
    log = replica.log.begun(replica.epoch)
    persist: tuple[Effect, ...] = (BeginEpoch(replica.epoch),)
    is_unclean = message.assignment.unclean_epoch == replica.epoch
    events = (UncleanLeader(replica.log.end),) if is_unclean else ()
    return replica.now(log=log, role=leader), Ready(persist + required_sync(replica), apply=events)


def epoch_started(replica: Replica, leader: Leader, message: EpochStarted) -> Stepped:
    if message.epoch != replica.epoch:
        return replica, NOTHING
    return advanced(replica, msgspec.structs.replace(leader, has_begun=True))


def ended(replica: Replica, leader: Leader) -> Stepped:
    """Stop to lead. All waiters fail, because their epoch ended."""
    waiting: tuple[Waiter | Read, ...] = (*leader.waiting, *leader.deleting, *leader.reads)
    failed = tuple(Failed(each.token, Reason.NOT_LEADER) for each in waiting)
    refused = tuple(
        Refused(each.parked, Refusal.FENCED_EPOCH, replica.epoch)
        for each in leader.followers
        if each.parked is not None
    )
    return replica.now(role=None, external=external.counted(replica, leader)), Ready(send=refused, apply=failed)


def deposed(replica: Replica, leader: Leader, _: Assigned) -> Stepped:
    """An operator moved leadership away on a single node: no other node leads, and the epoch stays."""
    return ended(replica, leader)


def reassigned(replica: Replica, leader: Leader, message: Assigned) -> Stepped:
    """Apply a metadata change within this epoch, which settles the pending in-sync change."""
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
    """Progress per follower. A restarted follower starts over: the log of its earlier incarnation does not count."""
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
        # A newer epoch exists, and this leader did not know about it.
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
    """Whether the fetch is from an earlier epoch: it describes a log that may have been truncated since (KIP-320)."""
    return fetch.epoch < replica.epoch


def is_registered(progress: Progress, fetch: Fetch) -> bool:
    return progress.incarnation is not None and progress.incarnation == fetch.incarnation


def compared(log: LogSummary, fetch: Fetch) -> Diverging | ResetLog | None:
    """Where a follower's log diverges from the leader's; None if it is a prefix of the leader's log."""
    if fetch.last_epoch == NO_EPOCH:
        return None if log.start <= fetch.offset <= log.end else ResetLog(fetch, log.start)
    if fetch.offset < log.start:
        return ResetLog(fetch, log.start)
    if fetch.offset == log.start:
        # The follower's last record was deleted here. Its epoch is unknown, but cannot be later than the epoch at the
        # log start.
        in_force = max(log.epoch_at(log.start), NO_EPOCH)
        return None if fetch.last_epoch <= in_force else ResetLog(fetch, log.start)
    if fetch.offset <= log.end and log.epoch_at(fetch.offset - 1) == fetch.last_epoch:
        return None
    epoch, end = log.end_of(fetch.last_epoch)
    if end == log.start > fetch.start:
        # The point of divergence was deleted here, so the follower's records up to this log start may differ.
        return ResetLog(fetch, log.start)
    return Diverging(fetch, epoch, end)


def noted(progress: Progress, fetch: Fetch, log_end: int, now_ms: int) -> Progress:
    """Progress after this fetch.

    The follower is caught up now if it fetches from the leader's end. It was caught up at its previous fetch if it now
    fetches from where the leader ended then.
    """
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
        round=read_index.confirmed_round(progress, fetch),
        parked=fetch,
        parked_ms=progress.parked_ms if progress.parked == fetch else now_ms,
    )


def _then_refused(stepped: Stepped, fetch: Fetch, write_refusal: Refusal) -> Stepped:
    replica, ready = stepped
    return replica, ready.then(Ready(send=(Refused(fetch, write_refusal, replica.epoch),)))


# ── The in-sync set ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _joined(replica: Replica, leader: Leader, node: int) -> Stepped:
    """Propose to add the follower that just fetched. A follower that fetched long ago may be dead and would block
    commits.

    The high watermark advances first: a follower that held it back must catch up before it joins again.
    """
    replica, ready = advanced(replica, leader)
    leader = replica.role if isinstance(replica.role, Leader) else leader
    follower = leader.progress(node)
    if follower is None or not may_join(replica, leader, follower):
        return replica, ready
    leader, proposal = _proposed(replica, leader, follower, joins_set=True)
    return replica.now(role=leader), ready.then(proposal)


def may_join(replica: Replica, leader: Leader, follower: Progress) -> bool:
    """Whether a follower holds every committed record, everything earlier epochs left here, and no deleted records."""
    return (
        leader.has_begun
        and leader.members.pending is None
        and follower.node not in leader.members.committed
        and follower.incarnation is not None
        and follower.end >= max(replica.watermark, leader.start)
        and follower.start >= replica.log.start
    )


def _proposed(replica: Replica, leader: Leader, follower: Progress, *, joins_set: bool) -> tuple[Leader, Ready]:
    change = InSyncSetChange(
        node=follower.node,
        joins=joins_set,
        incarnation=follower.incarnation or 0,
        leader_epoch=replica.epoch,
        partition_epoch=replica.assignment.partition_epoch,
    )
    leader = msgspec.structs.replace(leader, members=InSyncSet(leader.members.committed, change))
    return leader, Ready(send=(ProposeChange(change),))


def tick(replica: Replica, leader: Leader, now_ms: int) -> Stepped:
    """Respond to fetches that waited long enough, propose to remove a lagging follower, repeat a pending proposal."""
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
    """The log end that every in-sync replica has reached; the current high watermark if the set is below
    `min_in_sync`.
    """
    outside = external.counted(replica, leader)
    may_move = external.counts(replica) or leader.members.has_enough(replica.min_in_sync)
    if not (leader.has_begun and may_move):
        return replica.watermark
    ends = [each.end for each in leader.followers if each.node in waited_for(leader.members)]
    ends += [each.end for each in outside if each.in_sync]
    return max(replica.watermark, min([counted_end(replica), *ends]))


def advanced(replica: Replica, leader: Leader) -> Stepped:
    """Advance the high watermark, complete the waiters it reaches, and respond to followers that have news."""
    watermark = committed_end(replica, leader)
    advance: tuple[Watermark, ...] = (Watermark(watermark),) if watermark > replica.watermark else ()
    replica = replica.now(watermark=watermark)
    done = tuple(each for each in leader.waiting if is_done(replica, each) and meets_requirement(replica, leader, each))
    deleted = tuple(each for each in leader.deleting if is_deleted(replica, leader, each))
    if done or deleted:
        leader = msgspec.structs.replace(
            leader,
            waiting=tuple(each for each in leader.waiting if each not in done),
            deleting=tuple(each for each in leader.deleting if each not in deleted),
        )
    leader, answered = read_index.completed(replica, leader) if leader.reads else (leader, ())
    reached: tuple[Waiter | Read, ...] = (*done, *deleted, *answered)
    ready = Ready(apply=(*advance, *(Done(each.token, each.end) for each in reached)))
    for each in leader.followers:
        if each.parked is not None and has_news(replica, leader, each):
            leader, answer = _responded(replica, leader, each)
            ready = ready.then(answer)
    return replica.now(role=leader), ready


def is_done(replica: Replica, waiter: Waiter) -> bool:
    return waiter.end <= (replica.watermark if waiter.needs_all else counted_end(replica))


def meets_requirement(replica: Replica, leader: Leader, waiter: Waiter) -> bool:
    """Whether the replicas that the writer requires beyond the in-sync set also hold the records."""
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
    """Whether the follower lacks records, the current high watermark, or a round that readers wait for."""
    return (
        follower.end < replica.log.end
        or (replica.is_watermark_urgent and follower.watermark_sent != replica.watermark)
        or follower.round_sent < leader.round
    )


def is_deleted(replica: Replica, leader: Leader, waiter: Waiter) -> bool:
    """Whether every possible next leader applied the deletion. Below `min_in_sync` a replica outside the set may be
    elected.
    """
    return leader.members.has_enough(replica.min_in_sync) and all(
        each.start >= waiter.end for each in leader.followers if each.node in waited_for(leader.members)
    )


def common_end(replica: Replica, leader: Leader) -> int:
    """The log end that every replica has reached, absent ones included; 0 until every replica has fetched in this
    epoch.
    """
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
    """Append records. Refuses before any write if the append could not be acknowledged now."""
    refused = write_refusal(replica, leader, needs_all=message.needs_all, reach=message.reach)
    if refused is not None:
        return replica, Ready(apply=(Failed(message.token, refused),))
    end = replica.log.end + message.count
    batch = Batch(replica.log.end, end, replica.epoch, message.records)
    replica = replica.now(log=replica.log.appended(end, replica.epoch))
    waiter = Waiter(message.token, end, message.needs_all, message.reach)
    leader = msgspec.structs.replace(leader, waiting=(*leader.waiting, waiter))
    persist: tuple[Effect, ...] = (Write(batch),)
    after, ready = advanced(replica, leader)
    return after, Ready(persist + required_sync(replica)).then(ready)


def await_commit(replica: Replica, leader: Leader, message: Await) -> Stepped:
    refused = write_refusal(replica, leader, needs_all=False)
    if refused is not None:
        return replica, Ready(apply=(Failed(message.token, refused),))
    waiter = Waiter(message.token, message.end, message.needs_all, message.reach, message.in_sync_min)
    return advanced(replica, msgspec.structs.replace(leader, waiting=(*leader.waiting, waiter)))


def read(replica: Replica, leader: Leader, message: ReadIndex) -> Stepped:
    """Read up to the current log end, once that is committed. While the set is below `min_in_sync` the reader waits
    until it withdraws.
    """
    refused = write_refusal(replica, leader, needs_all=False)
    if refused is not None:
        return replica, Ready(apply=(Failed(message.token, refused),))
    leader = read_index.with_unsent_round(leader)
    one = Read(message.token, replica.log.end, leader.round, message.reach)
    return advanced(replica, msgspec.structs.replace(leader, reads=(*leader.reads, one)))


def cancel_wait(replica: Replica, leader: Leader, token: int) -> Stepped:
    leader = msgspec.structs.replace(
        leader,
        waiting=tuple(each for each in leader.waiting if each.token != token),
        reads=tuple(each for each in leader.reads if each.token != token),
    )
    return replica.now(role=leader), NOTHING


def delete_below(replica: Replica, leader: Leader, message: DeleteBelow) -> Stepped:
    refused = write_refusal(replica, leader, needs_all=False)
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
    """Whether the offset is committed. Uncommitted records may be truncated, and their offsets reused."""
    return offset <= replica.watermark


def write_refusal(replica: Replica, leader: Leader, *, needs_all: bool, reach: Reach = Reach.IN_SYNC) -> Reason | None:
    """Why the leader rejects writes now; None if it accepts them."""
    if not leader.has_begun:
        return Reason.NOT_LEADER
    if replica.is_damaged or len(leader.waiting) + len(leader.deleting) + len(leader.reads) >= WAITING_MAX:
        return Reason.UNAVAILABLE
    if needs_all and not leader.members.has_enough(replica.min_in_sync):
        return Reason.NOT_ENOUGH_REPLICAS
    if reach is not Reach.IN_SYNC and not read_index.has_majority(replica, leader):
        return Reason.NOT_ENOUGH_REPLICAS
    return None


def required_sync(replica: Replica) -> tuple[Effect, ...]:
    if replica.flush_on_ack and replica.log.durable < replica.log.end:
        return (Sync(replica.log.end, replica.log.cuts),)
    return ()


# ── Damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def handle_complaint(replica: Replica, leader: Leader, message: Complaint) -> Stepped:
    """Check this leader's own file after a follower's checksum complaint. The follower or network may be at fault."""
    if message.epoch != replica.epoch or leader.progress(message.node) is None:
        return replica, NOTHING
    return replica, Ready((CheckFile(message.offset),))
