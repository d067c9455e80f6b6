"""Followers outside the metadata: on a node alone they count, and the watermark waits for those in sync."""

from random import Random

import msgspec
import pytest

from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.assignment import Assignment
from braidlog.replication.log_summary import LogSummary
from braidlog.replication.messages import (
    Assigned,
    Await,
    ExpireExternal,
    ExternalFetched,
    Message,
    SetExternalInSync,
    Synced,
)
from braidlog.replication.ready import Done, Ready
from braidlog.replication.replica import step
from braidlog.replication.replica_state import Leader, Replica, opened
from braidlog.replication.replicas import described
from braidlog.replication.sole import resumed

ASSIGNMENT = Assignment(replicas=(0,), in_sync=(0,), leader=0, leader_epoch=1)


class Alone:
    """A leader that has the only replica, with followers by name."""

    def __init__(self, *names: str, min_in_sync: int = 1) -> None:
        log = LogSummary(epochs=((1, 0),))
        fresh = opened(0, 0, log, 0, flush_on_ack=True)
        self.replica: Replica = resumed(fresh, Assigned(ASSIGNMENT, ((0, 0),), min_in_sync, names), 1)

    def tell(self, message: Message, now_ms: int = 1) -> Ready:
        self.replica, ready = step(self.replica, message, now_ms)
        return ready

    def grow(self, end: int, durable: int) -> None:
        self.replica = self.replica.now(log=msgspec.structs.replace(self.replica.log, end=end))
        self.tell(Synced(durable, 0))

    def refusal(self, message: Message) -> Reason:
        before = self.replica
        with pytest.raises(BrokerError) as caught:
            self.tell(message)
        assert self.replica == before
        return caught.value.reason

    @property
    def in_sync(self) -> list[str]:
        return described(self.replica.assigned, self.replica, "0").in_sync


def test_a_follower_joins_when_it_has_caught_up_and_then_holds_the_watermark() -> None:
    alone = Alone("1", "2", min_in_sync=2)
    alone.grow(10, 10)
    alone.tell(ExternalFetched("1", 3))
    assert (alone.in_sync, alone.replica.watermark) == (["0"], 10)
    alone.tell(ExternalFetched("1", 10))
    assert alone.in_sync == ["0", "1"]
    alone.grow(20, 20)
    assert alone.replica.watermark == 10
    alone.tell(ExternalFetched("1", 15))
    assert alone.replica.watermark == 15


def test_a_waiter_for_all_waits_until_enough_are_in_sync() -> None:
    alone = Alone("1", "2", min_in_sync=2)
    alone.grow(5, 5)
    assert alone.tell(Await(7, 5, in_sync_min=1)).apply == ()
    assert alone.tell(ExternalFetched("2", 5)).apply == (Done(7, 5),)


def test_a_follower_that_lost_what_was_committed_is_out() -> None:
    """A new disk behind an old name: it must not count as a copy of what it does not have (KIP-903)."""
    alone = Alone("1")
    alone.grow(10, 10)
    alone.tell(ExternalFetched("1", 10))
    alone.grow(12, 12)
    alone.tell(ExternalFetched("1", 9))
    assert alone.in_sync == ["0"]
    alone.tell(ExternalFetched("1", 12))
    assert alone.in_sync == ["0", "1"]


def test_claims_that_cannot_be_true() -> None:
    alone = Alone("1")
    alone.grow(10, 10)
    assert alone.refusal(ExternalFetched("1", 11)) is Reason.OFFSET_OUT_OF_RANGE
    assert alone.refusal(ExternalFetched("9", 0)) is Reason.REPLICA_NOT_FOUND
    assert alone.refusal(SetExternalInSync("9", in_sync=False)) is Reason.REPLICA_NOT_FOUND
    assert alone.refusal(SetExternalInSync("1", in_sync=True)) is Reason.OFFSET_OUT_OF_RANGE


def test_another_placement_keeps_progress() -> None:
    alone = Alone("1", "2")
    alone.grow(5, 5)
    alone.tell(ExternalFetched("1", 5))
    alone.tell(Assigned(ASSIGNMENT, ((0, 0),), 2, ("1", "3")))
    shown = described(alone.replica.assigned, alone.replica, "0")
    assert [(each.node, each.end_offset, each.in_sync) for each in shown.followers] == [("1", 5, True), ("3", 0, False)]
    assert (shown.min_in_sync, shown.is_under_replicated) == (2, True)


@pytest.mark.parametrize("seed", range(50))
def test_the_watermark_never_passes_the_slowest_in_sync_member(seed: int) -> None:
    rng, nodes = Random(seed), ["1", "2", "3"]
    alone, end, durable, watermark, has = Alone(*nodes), 0, 0, 0, dict.fromkeys(nodes, 0)
    for now_ms in range(400):
        node, kind = rng.choice(nodes), rng.randrange(6)
        if kind < 2:
            end += rng.randrange(5)
            durable = rng.randint(durable, end)
            alone.grow(end, durable)
        elif kind in (2, 3):
            has[node] = rng.choice([end, rng.randint(0, end)])
            alone.tell(ExternalFetched(node, has[node]), now_ms)
        elif kind == 4:
            message = SetExternalInSync(node, in_sync=rng.random() < 0.5)
            try:
                alone.tell(message)
            except BrokerError:
                assert message.in_sync
                assert has[node] < watermark
        else:
            alone.tell(ExpireExternal(10), now_ms)
        assert alone.replica.watermark >= watermark, f"seed {seed} step {now_ms}: it went back"
        watermark = alone.replica.watermark
        assert isinstance(alone.replica.role, Leader)
        for member in alone.in_sync[1:]:
            assert has[member] >= watermark, f"seed {seed} step {now_ms}: {member} is in sync without {watermark}"
        assert watermark <= durable
