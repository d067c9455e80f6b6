"""Bugs planted on purpose: each replaces one rule of `replication/` by a wrong one, in a test and nowhere else.

The numbers are those of the table in `docs/guides/durability.md`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Protocol
from unittest import mock

import msgspec
from tests.replication import test_read_index, test_replica
from tests.replication.control import test_controller
from tests.replication.model import Bounds

from braidlog.replication import assignment, follower, leader, read_index, replica, replica_state
from braidlog.replication.assignment import Assignment, Nodes, Registered
from braidlog.replication.control import controller, election, incarnation
from braidlog.replication.messages import Answer, Assigned, Await, Batch, Diverging, Fetch, Fetched
from braidlog.replication.ready import Done, Ready, Truncate
from braidlog.replication.replica_state import Follower, Leader, Replica, Stepped

Patch = tuple[object, str, object]


class Bug(NamedTuple):
    what: str
    patches: tuple[Patch, ...]
    bounds: Bounds


PLAIN = Bounds(faults=4)
LAZY = Bounds(faults=4, lazy_syncs=True, kinds=("kill", "power", "accuse", "lag"))
CACHED = Bounds(faults=5, flush_on_ack=False, kinds=("kill", "power", "accuse", "lag", "wipe"))
UNCLEAN = CACHED._replace(allows_unclean=True, epochs=4)
CRASHES = Bounds(faults=4, kinds=("kill", "power", "accuse", "lag", "deaf"))
JOINING = Bounds(faults=4, first_in_sync=(1, 2))
WIPES = Bounds(faults=4, kinds=("wipe", "kill", "accuse", "lag", "late"))
WEAK = Bounds(faults=5, epochs=5, acks_one=True, first_in_sync=(1, 2), kinds=("kill", "accuse", "deaf"))
READS = Bounds(records=2, epochs=4, faults=5, reads=8, kinds=("kill", "accuse", "lag", "late", "deaf"))
_was = election.registered


def _end(of: Replica) -> int:
    return of.log.end


def _truncate_to_watermark(of: Replica, message: Assigned) -> Stepped:
    cut = of.now(log=of.log.truncated(max(of.watermark, of.log.start)))
    after, ready = _begin(cut, message)
    return after, Ready((Truncate(cut.log.end),)).then(ready)


_begin = follower.become_follower


def _cut_without_repeat(of: Replica, role: Follower, end: int) -> Stepped:
    """Asks on as if it had no records that the leader could compare."""
    after, ready = _cut(of, role, end)
    now = after.role
    if not isinstance(now, Follower) or now.asked is None:
        return after, ready
    asked = msgspec.structs.replace(now.asked, last_epoch=-1)
    return after.now(role=msgspec.structs.replace(now, asked=asked)), msgspec.structs.replace(ready, send=(asked,))


_cut = follower._cut


def _takes_late(kind: type) -> Callable[[Follower, Answer], bool]:
    def is_for_my_question(role: Follower, answer: Answer) -> bool:
        return isinstance(answer, kind) or answer.question == role.asked

    return is_for_my_question


def _readable_on(kind: type) -> Callable[[Replica], int]:
    return lambda of: of.log.end if isinstance(of.role, kind) else of.watermark


def _registered_still_leading(
    known: Assignment, node: int, nodes: Registered, min_in_sync: int, *, is_whole: bool
) -> Assignment:
    if known.leader == node and is_whole:
        return known
    return _was(known, node, nodes, min_in_sync, is_whole=is_whole)


def _registered_in_epoch(
    known: Assignment, node: int, nodes: Registered, min_in_sync: int, *, is_whole: bool
) -> Assignment:
    """Whatever it has lost meanwhile."""
    if known.leader == node:
        return known
    return _was(known, node, nodes, min_in_sync, is_whole=is_whole)


def _registered_whole_again(
    known: Assignment, node: int, nodes: Registered, min_in_sync: int, *, is_whole: bool
) -> Assignment:
    if node in known.torn and is_whole and known.leader is None:
        healed = known.with_changes(
            torn=tuple(each for each in known.torn if each != node), in_sync=(*known.in_sync, node)
        )
        return _was(healed, node, nodes, min_in_sync, is_whole=True)
    return _was(known, node, nodes, min_in_sync, is_whole=is_whole)


def _without_leaver(members: replica_state.InSyncSet) -> Nodes:
    waited = replica_state.waited_for(members)
    if members.pending is not None and not members.pending.joins:
        return tuple(node for node in waited if node != members.pending.node)
    return waited


def _elect_anybody(known: Assignment, nodes: Registered) -> Assignment:
    after = _elect(known, nodes)
    if after.leader is not None:
        return after
    live = election.may_lead(nodes, known.replicas)
    return known.with_leader(live[0], in_sync=(live[0],), eligible=()) if live else after


_elect = election.elect


def _torn_into_eligible(known: Assignment, node: int) -> Assignment:
    after = _torn_out(known, node)
    if after == known:
        return known
    return msgspec.structs.replace(after, torn=known.torn, eligible=(*after.eligible, node))


_torn_out = assignment.with_torn_replica


def _left_without_eligible(known: Assignment, node: int, min_in_sync: int) -> Assignment:
    after = _left(known, node, min_in_sync)
    return msgspec.structs.replace(after, eligible=known.eligible)


_left = assignment.left


def _committed_below_minimum(of: Replica, role: Leader) -> int:
    assert of.assigned is not None
    return _committed_end(of.now(assigned=msgspec.structs.replace(of.assigned, min_in_sync=0)), role)


_committed_end = leader.committed_end


def _whole_in_its_folder(before: incarnation.Registration, now: incarnation.Life, **_: bool) -> bool:
    return incarnation.is_same_folder(before, now)


def _fetched_counts(of: Replica, role: Leader, fetch: Fetch, now_ms: int) -> Stepped:
    """Whatever it names: it came after the read."""
    return _fetched(of, role, msgspec.structs.replace(fetch, round=role.round), now_ms)


_fetched = leader.fetched


def _never(*_: object) -> bool:
    return False


def _always(*_: object) -> bool:
    return True


BUGS: dict[int, Bug] = {
    1: Bug(
        "ack before the set has it",
        ((leader, "is_done", lambda of, waiter: waiter.end <= of.log.end),),
        PLAIN,
    ),
    2: Bug("ack before own sync", ((leader, "counted_end", _end),), LAZY),
    3: Bug("follower asks before its sync", ((follower, "counted_end", _end),), LAZY),
    4: Bug("lazy fsync", ((follower, "counted_end", _end), (leader, "counted_end", _end)), LAZY),
    5: Bug("watermark = end at opening", ((replica_state, "first_watermark", lambda log, saved: log.end),), PLAIN),
    6: Bug("read to the end", ((replica, "readable_end", _readable_on(Leader)),), PLAIN),
    7: Bug("truncate to the watermark (KIP-101)", ((follower, "become_follower", _truncate_to_watermark),), CRASHES),
    8: Bug("no repeat of the epoch question (KIP-279)", ((follower, "_cut", _cut_without_repeat),), WEAK),
    9: Bug("late truncation answer applied", ((follower, "is_for_my_question", _takes_late(Diverging)),), PLAIN),
    10: Bug(
        "truncate below the watermark",
        ((follower, "truncation_point", lambda of, answer: min(answer.end, max(of.watermark - 1, 0))),),
        CRASHES,
    ),
    11: Bug("fetch without epoch fence (KIP-320)", ((leader, "is_stale", _never),), JOINING._replace(epochs=4)),
    12: Bug("stale incarnation counted (KIP-903)", ((leader, "is_registered", _always),), WIPES),
    13: Bug(
        "act before own registration",
        ((replica, "is_own_registration", lambda of, registered: registered is not None),),
        CRASHES,
    ),
    14: Bug("same epoch after restart", ((election, "registered", _registered_still_leading),), CRASHES),
    15: Bug("shrink before the commit (KIP-497)", ((leader, "waited_for", _without_leaver),), PLAIN),
    16: Bug(
        "watermark by the committed set while an expand is pending",
        ((leader, "waited_for", lambda members: members.committed),),
        JOINING,
    ),
    17: Bug("set change without compare-and-set", ((assignment, "is_current", _always),), JOINING),
    18: Bug(
        "expand before the epoch's start",
        (
            (
                leader,
                "may_join",
                lambda of, role, each: (
                    role.has_begun
                    and role.members.pending is None
                    and each.node not in role.members.committed
                    and each.incarnation is not None
                    and each.end >= of.watermark
                ),
            ),
        ),
        PLAIN,
    ),
    19: Bug("watermark moves below min_in_sync", ((leader, "committed_end", _committed_below_minimum),), PLAIN),
    20: Bug(
        "no eligible replicas (KIP-966)",
        ((assignment, "left", _left_without_eligible), (election, "left", _left_without_eligible)),
        UNCLEAN,
    ),
    21: Bug(
        "unclean restart with flush=os stays eligible",
        ((incarnation, "is_whole", _whole_in_its_folder),),
        CACHED,
    ),
    22: Bug("boot id ignored", ((incarnation, "is_same_boot", _always),), CACHED),
    23: Bug("new folder keeps eligibility", ((incarnation, "is_same_folder", _always),), WIPES),
    24: Bug("unclean election by default", ((election, "elect", _elect_anybody),), CRASHES),
    46: Bug("strong read without asking the set", ((read_index, "has_confirmed", _always),), READS),
    50: Bug("follower serves above its watermark", ((replica, "readable_end", _readable_on(Follower)),), PLAIN),
    51: Bug("eligible replicas not emptied", ((assignment, "_still_eligible", lambda eligible, *_: eligible),), PLAIN),
    52: Bug(
        "min_in_sync asked of the pending set",
        ((replica_state, "counted_for_minimum", replica_state.waited_for),),
        Bounds(faults=4, first_in_sync=(1, 2), kinds=("kill", "power", "accuse", "lag")),
    ),
    53: Bug(
        "torn node becomes eligible",
        ((assignment, "with_torn_replica", _torn_into_eligible), (election, "with_torn_replica", _torn_into_eligible)),
        WIPES,
    ),
    54: Bug("leader registers again in its epoch", ((election, "registered", _registered_in_epoch),), CACHED),
    55: Bug("second restart makes whole", ((election, "registered", _registered_whole_again),), WIPES),
    61: Bug(
        "read answered by a Fetch that was under way",
        ((leader, "fetched", _fetched_counts),),
        READS,
    ),
    63: Bug(
        "QUORUM read by a set of one beside eligible replicas",
        ((read_index, "may_answer", _always),),
        READS._replace(kinds=("kill", "accuse", "lag", "deaf"), faults=6),
    ),
    66: Bug("epoch that wrote nothing kept at the end", ((follower, "has_idle_epoch", _never),), CRASHES),
    70: Bug("records of an old fetcher", ((follower, "is_for_my_question", _takes_late(Fetched)),), PLAIN),
    71: Bug("unclean election stops its followers", ((follower, "is_after_unclean", _never),), UNCLEAN),
    74: Bug(
        "follower's watermark follows a lower one",
        ((follower, "learned_watermark", lambda known, told, end: min(told, end)),),
        CRASHES,
    ),
}


class RuleBug(NamedTuple):
    """A bug that one replica or one controller shows by itself, in the test that is named."""

    what: str
    patches: tuple[Patch, ...]
    killer: Callable[[], None]


def _fits_exactly(start: int, end: int, batch: Batch) -> Batch:
    assert batch.base == end
    return batch


def _fits_unless_spanning(start: int, end: int, batch: Batch) -> Batch:
    assert batch.base == end or batch.is_empty
    return msgspec.structs.replace(batch, base=end)


def _answers_at_once(of: Replica, role: Leader, message: Await) -> Stepped:
    return of, Ready(apply=(Done(message.token, message.end),))


RULE_BUGS: dict[int, RuleBug] = {
    27: RuleBug(
        "empty batch across the follower's end refused",
        ((follower, "clipped_batch", _fits_exactly),),
        test_replica.test_an_empty_batch_across_our_end_is_cut_to_it,
    ),
    28: RuleBug(
        "deletion above the watermark",
        ((leader, "may_delete", _always),),
        test_replica.test_a_deletion_is_answered_when_all_have_followed,
    ),
    29: RuleBug(
        "start offset not followed",
        ((follower, "follows_start", _never),),
        test_replica.test_a_follower_follows_the_start,
    ),
    31: RuleBug(
        "duplicate answered before it is committed",
        ((leader, "await_commit", _answers_at_once),),
        test_replica.test_a_retry_waits_for_the_commit_of_what_it_repeats,
    ),
    42: RuleBug(
        "proposal retried without looking again",
        ((controller, "_applied", lambda state, view, now_ms: state.now(in_flight=None)),),
        test_controller.test_a_proposal_that_lost_is_made_anew_at_the_entry_that_won,
    ),
    43: RuleBug(
        "a controller that lost the race acts all the same",
        ((controller, "_is_open", _always),),
        test_controller.test_whoever_sees_the_entry_drops_his,
    ),
    62: RuleBug(
        "QUORUM read of an uncommitted value",
        ((read_index, "is_committed", _always),),
        test_read_index.test_what_a_reader_is_shown_is_committed,
    ),
    68: RuleBug(
        "waiter of an old epoch",
        ((leader, "ended", lambda of, role: (of.now(role=None), Ready())),),
        test_replica.test_whoever_waits_is_told_that_the_epoch_is_over,
    ),
    72: RuleBug(
        "start inside a batch",
        ((follower, "clipped_batch", _fits_unless_spanning),),
        test_replica.test_a_follower_starts_anew_where_its_leader_begins,
    ),
    75: RuleBug(
        "damaged leader stays",
        ((replica, "_damaged", lambda of: (of, Ready())),),
        test_replica.test_a_leader_looks_at_its_file_before_it_resigns,
    ),
}


class Patched(Protocol):
    """Any bug of any table."""

    @property
    def patches(self) -> tuple[Patch, ...]: ...


@contextmanager
def planted(bug: Patched) -> Iterator[None]:
    with ExitStack() as patches:
        for where, name, wrong in bug.patches:
            patches.enter_context(mock.patch.object(where, name, wrong))
        yield
