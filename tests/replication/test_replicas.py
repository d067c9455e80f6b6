"""In-sync sets and the high watermark, by hand and against a model."""

from random import Random

import pytest

from braidlog.model.errors import BrokerError, Reason
from braidlog.replication.replicas import (
    Expire,
    LeaderLog,
    Message,
    Placed,
    Ready,
    ReplicaFetched,
    ReplicaSet,
    SetInSync,
)


def reason_of(replicas: ReplicaSet, message: Message, end: int = 10) -> Reason:
    before = (replicas.in_sync, replicas.version, replicas.high_watermark)
    with pytest.raises(BrokerError) as caught:
        replicas.step(message, LeaderLog(end, end), 0)
    assert (replicas.in_sync, replicas.version, replicas.high_watermark) == before
    return caught.value.reason


def fetched(replicas: ReplicaSet, node: str, offset: int, end: int, now_ms: int = 1) -> Ready:
    """A follower asks; of the leader's log nothing more counts than before."""
    return replicas.step(ReplicaFetched(node, offset), LeaderLog(end, replicas.high_watermark), now_ms)


def set_in_sync(replicas: ReplicaSet, node: str, *, in_sync: bool, version: int | None = None) -> Ready:
    return replicas.step(SetInSync(node, in_sync, version), LeaderLog(0, 0), 0)


def test_alone_the_leader_is_all_there_is() -> None:
    alone = ReplicaSet("0")
    assert (alone.in_sync, alone.replication_factor, alone.is_under_replicated, alone.has_enough) == (
        ["0"],
        1,
        False,
        True,
    )
    assert alone.advance(7) == 7
    assert alone.advance(5) == 7, "it never goes back"


def test_a_follower_joins_when_it_has_caught_up_and_then_holds_the_watermark() -> None:
    replicas = ReplicaSet("0", ["1", "2"], min_in_sync=2)
    assert not replicas.has_enough
    fetched(replicas, "1", 3, 10, now_ms=1)
    assert replicas.in_sync == ["0"]
    assert replicas.advance(10) == 10
    fetched(replicas, "1", 10, 10, now_ms=2)
    assert replicas.in_sync == ["0", "1"]
    assert replicas.has_enough
    assert replicas.is_under_replicated
    assert replicas.advance(20) == 10
    fetched(replicas, "1", 15, 20, now_ms=3)
    assert replicas.advance(20) == 15


def test_a_follower_that_lost_what_was_committed_is_out() -> None:
    """A new disk behind an old name: it must not count as a copy of what it does not have (KIP-903)."""
    replicas = ReplicaSet("0", ["1"])
    fetched(replicas, "1", 0, 0, now_ms=1)
    fetched(replicas, "1", 10, 10, now_ms=2)
    assert replicas.advance(10) == 10
    fetched(replicas, "1", 9, 12, now_ms=3)
    assert replicas.in_sync == ["0"]
    fetched(replicas, "1", 12, 12, now_ms=4)
    assert replicas.in_sync == ["0", "1"]


def test_a_follower_that_goes_back_above_the_watermark_stays() -> None:
    replicas = ReplicaSet("0", ["1", "2"])
    for node in ("1", "2"):
        fetched(replicas, node, 0, 0, now_ms=1)
    fetched(replicas, "1", 8, 10, now_ms=2)
    fetched(replicas, "2", 5, 10, now_ms=2)
    assert replicas.advance(10) == 5
    fetched(replicas, "1", 6, 10, now_ms=3)
    assert replicas.in_sync == ["0", "1", "2"]
    assert replicas.advance(10) == 5


def test_claims_that_cannot_be_true() -> None:
    replicas = ReplicaSet("0", ["1"])
    assert reason_of(replicas, ReplicaFetched("1", 11)) is Reason.OFFSET_OUT_OF_RANGE
    assert reason_of(replicas, ReplicaFetched("9", 0)) is Reason.REPLICA_NOT_FOUND
    assert reason_of(replicas, ReplicaFetched("0", 0)) is Reason.REPLICA_NOT_FOUND
    replicas.advance(10)
    assert reason_of(replicas, SetInSync("1", in_sync=True)) is Reason.OFFSET_OUT_OF_RANGE
    assert replicas.in_sync == ["0"]


def test_what_follows_from_a_message_is_a_value() -> None:
    replicas = ReplicaSet("0", ["1", "2"])
    assert replicas.step(ReplicaFetched("1", 5), LeaderLog(9, 7), 1) == Ready((), 7, wakes=True)
    assert replicas.step(ReplicaFetched("1", 6), LeaderLog(9, 7), 2) == Ready((), 7, wakes=False)
    assert replicas.step(ReplicaFetched("1", 9), LeaderLog(9, 7), 3) == Ready((("1", True),), 7, wakes=True)
    assert replicas.step(ReplicaFetched("2", 9), LeaderLog(9, 9), 50) == Ready((("2", True),), 9, wakes=True)
    assert replicas.step(Expire(30), LeaderLog(12, 12), 60) == Ready((("1", False),), 9, wakes=True)
    assert replicas.step(Expire(30), LeaderLog(12, 12), 60) == Ready((), 9, wakes=False)
    assert replicas.step(Placed(["1"], 1), LeaderLog(12, 12), 61) == Ready((("2", False),), 12, wakes=True)


def test_a_change_is_fenced_by_the_version() -> None:
    replicas = ReplicaSet("0", ["1", "2"])
    set_in_sync(replicas, "1", in_sync=True, version=0)
    assert replicas.version == 1
    assert reason_of(replicas, SetInSync("2", in_sync=True, version=0)) is Reason.STALE_LEADER_EPOCH
    set_in_sync(replicas, "1", in_sync=True)
    assert replicas.version == 1, "nothing changed"
    set_in_sync(replicas, "1", in_sync=False, version=1)
    assert (replicas.version, replicas.in_sync) == (2, ["0"])


def test_who_does_not_fetch_is_out() -> None:
    replicas = ReplicaSet("0", ["1", "2"])
    fetched(replicas, "1", 0, 0, now_ms=100)
    fetched(replicas, "2", 0, 0, now_ms=200)
    for gone in ((("1", False),), ()):
        assert replicas.step(Expire(150), LeaderLog(0, 0), 300).changed == gone
    assert replicas.in_sync == ["0", "2"]


def test_reshaping_keeps_progress_and_never_takes_the_version_back() -> None:
    replicas = ReplicaSet("0", ["1", "2"])
    fetched(replicas, "1", 5, 5, now_ms=1)
    version = replicas.version
    replicas.step(Placed(["1", "3"], 2), LeaderLog(5, 0), 1)
    assert replicas.version > version
    assert replicas.in_sync == ["0", "1"]
    assert [replica.node for replica in replicas.followers] == ["1", "3"]
    assert replicas.min_in_sync == 2


@pytest.mark.parametrize("seed", range(50))
def test_the_watermark_never_passes_the_slowest_in_sync_member(seed: int) -> None:
    rng = Random(seed)
    nodes = ["1", "2", "3"]
    replicas = ReplicaSet("0", nodes)
    end = durable = watermark = version = 0
    has = dict.fromkeys(nodes, 0)
    for step in range(400):
        node = rng.choice(nodes)
        kind = rng.randrange(6)
        if kind == 0:
            end += rng.randrange(5)
        elif kind == 1:
            durable = rng.randint(durable, end)
        elif kind in (2, 3):
            has[node] = rng.choice([end, rng.randint(0, end)])
            fetched(replicas, node, has[node], end, now_ms=step)
        elif kind == 4:
            if has[node] >= watermark or rng.random() < 0.5:
                try:
                    set_in_sync(replicas, node, in_sync=rng.random() < 0.5)
                except BrokerError:
                    assert has[node] < watermark
        else:
            replicas.step(Expire(10), LeaderLog(end, durable), step)
        after = replicas.advance(durable)
        assert after >= watermark, f"seed {seed} step {step}: it went back"
        watermark = after
        for member in replicas.in_sync[1:]:
            assert has[member] >= watermark, f"seed {seed} step {step}: {member} is in sync without {watermark}"
        assert watermark <= durable
        assert replicas.version >= version
        version = replicas.version
