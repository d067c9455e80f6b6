"""A follower in one epoch: fetches from its leader, truncates records the leader lacks, appends the fetched batches.

Invariants: at most one fetch is in flight, and only its own response counts. A fetch at offset n states that
everything below n is safe here. Records below the high watermark are truncated only after an unclean election.
"""

import msgspec

from braidlog.replication.leader import required_sync
from braidlog.replication.log_summary import LogSummary
from braidlog.replication.messages import (
    Answer,
    Assigned,
    Batch,
    Complaint,
    CorruptAnswer,
    Diverging,
    Fetch,
    Fetched,
    Refused,
    ResetLog,
)
from braidlog.replication.ready import (
    NOTHING,
    Apply,
    DiscardAbove,
    Effect,
    LossPossible,
    Ready,
    ResetLogTo,
    Trim,
    Truncate,
    Watermark,
    Write,
)
from braidlog.replication.replica_state import Follower, Replica, Stepped, counted_end

CORRUPT_ANSWERS_MAX = 2
"""After this many consecutive responses with a wrong checksum, the follower asks the leader to check its file."""


def become_follower(replica: Replica, message: Assigned) -> Stepped:
    leader = message.assignment.leader
    assert leader is not None
    after, ready = fetch_request(replica, Follower(leader))
    return after, Ready(apply=(DiscardAbove(replica.watermark),)).then(ready)


def fetch_request(replica: Replica, follower: Follower) -> Stepped:
    if follower.asked is not None:
        return replica, NOTHING
    if not is_synced_to_end(replica):
        return replica.now(role=follower), Ready(required_sync(replica))
    question = Fetch(
        node=replica.node,
        incarnation=replica.incarnation,
        leader=follower.leader,
        epoch=replica.epoch,
        offset=replica.log.end,
        last_epoch=replica.log.last_record_epoch,
        start=replica.log.start,
        round=follower.round,
    )
    return replica.now(role=msgspec.structs.replace(follower, asked=question)), Ready(send=(question,))


def is_synced_to_end(replica: Replica) -> bool:
    """Whether everything up to the log end is safe here, because the leader relies on the fetch offset."""
    return counted_end(replica) == replica.log.end


def retry_fetch(replica: Replica, follower: Follower) -> Stepped:
    """Fetch again after a lost fetch, a lost response or a refusal."""
    return fetch_request(replica, msgspec.structs.replace(follower, asked=None))


def on_fetch_response(replica: Replica, follower: Follower, answer: Answer) -> Stepped:
    if not is_for_my_question(follower, answer):
        return replica, NOTHING
    follower = msgspec.structs.replace(follower, asked=None)
    match answer:
        case Fetched():
            heard = max(follower.round, answer.round)
            agreed = msgspec.structs.replace(follower, agrees=True, corrupt_answers=0, round=heard)
            return _fetched(replica, agreed, answer)
        case Diverging():
            return _cut(replica, follower, truncation_point(replica, answer))
        case ResetLog(start=start):
            return _log_reset(replica, follower, start)
        case Refused():
            # The next tick or a metadata change triggers the next fetch. An immediate retry would loop.
            return replica.now(role=follower), NOTHING


def is_for_my_question(follower: Follower, answer: Answer) -> bool:
    """Whether this response answers the fetch in flight. A late response describes a log that may have changed here."""
    return answer.question == follower.asked


# ── Diverging logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def truncation_point(replica: Replica, answer: Diverging) -> int:
    """KIP-279: the lower end, on leader or follower, of the leader's last epoch that is not above the follower's."""
    _, our_end = replica.log.end_of(answer.epoch)
    return max(replica.log.start, min(answer.end, our_end))


def _cut(replica: Replica, follower: Follower, end: int) -> Stepped:
    lowered = _loss_effects(replica, end)
    replica = replica.now(log=replica.log.truncated(end), watermark=min(replica.watermark, end))
    after, ready = fetch_request(replica, follower)
    return after, Ready((Truncate(end),), apply=(*lowered, DiscardAbove(end))).then(ready)


def _log_reset(replica: Replica, follower: Follower, start: int) -> Stepped:
    lowered = _loss_effects(replica, start)
    # Everything below the leader's log start was committed: only committed records can be deleted.
    replica = replica.now(log=replica.log.reset_to(start), watermark=start)
    after, ready = fetch_request(replica, follower)
    return after, Ready((ResetLogTo(start),), apply=(*lowered, DiscardAbove(start), Watermark(start))).then(ready)


def _loss_effects(replica: Replica, end: int) -> tuple[Apply, ...]:
    """Assert that no committed record is truncated, unless an unclean election already lost it."""
    if end >= replica.watermark:
        return ()
    assert is_after_unclean(replica), f"truncation to {end} is below the high watermark {replica.watermark}"
    return (LossPossible(end, replica.watermark),)


def is_after_unclean(replica: Replica) -> bool:
    """Whether an unclean election happened after this log's last record."""
    return replica.assignment.unclean_epoch > max(replica.log.last_record_epoch, 0)


# ── Records ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fetched(replica: Replica, follower: Follower, answer: Fetched) -> Stepped:
    log, persist = replica.log, list[Effect]()
    for batch in answer.batches:
        if batch.end <= log.end:
            continue
        if has_idle_epoch(log, batch):
            log = log.truncated(log.end)
            persist.append(Truncate(log.end))
        fitting = clipped_batch(log.start, log.end, batch)
        log = log.appended(fitting.end, fitting.epoch)
        persist.append(Write(fitting))
    if follows_start(log, answer.start):
        log = log.trimmed(answer.start)
        persist.append(Trim(answer.start))
    watermark = learned_watermark(replica.watermark, answer.watermark, log.end)
    advanced: tuple[Apply, ...] = (Watermark(watermark),) if watermark > replica.watermark else ()
    after, ready = fetch_request(replica.now(log=log, watermark=watermark), follower)
    return after, Ready(tuple(persist), apply=advanced).then(ready)


def follows_start(log: LogSummary, start: int) -> bool:
    return log.start < start <= log.end


def has_idle_epoch(log: LogSummary, batch: Batch) -> bool:
    """Whether the latest epoch here wrote no record. The leader's history lacks that epoch, so this log drops it."""
    return log.latest_epoch > batch.epoch and log.epochs[-1][1] >= log.end


def clipped_batch(start: int, end: int, batch: Batch) -> Batch:
    """The batch as it fits this log end. The leader sends whole batches, so the first may begin below the end."""
    assert batch.base <= end, f"a batch begins at {batch.base}, the log ends at {end}"
    if end in (batch.base, start):
        return batch
    assert batch.is_empty, f"a batch from {batch.base} to {batch.end} has records on both sides of our end {end}"
    return msgspec.structs.replace(batch, base=end)


def learned_watermark(known: int, sent: int, end: int) -> int:
    """The new high watermark. A new leader may know a lower one, but committed records stay committed."""
    return max(known, min(sent, end))


# ── Damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def corrupt(replica: Replica, follower: Follower, message: CorruptAnswer) -> Stepped:
    if message.question != follower.asked:
        return replica, NOTHING
    count = follower.corrupt_answers + 1
    follower = msgspec.structs.replace(follower, asked=None, corrupt_answers=count % CORRUPT_ANSWERS_MAX)
    if count < CORRUPT_ANSWERS_MAX:
        return fetch_request(replica, follower)
    complaint = Complaint(replica.node, replica.epoch, replica.log.end)
    return replica.now(role=follower), Ready(send=(complaint,))
