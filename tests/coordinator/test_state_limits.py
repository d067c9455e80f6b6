"""What a node keeps is counted as it is kept, and limited by node, by principal and by bytes."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
from tests.broker.node import Node, batch_of

from braidlog.codec.batch.records import encode_batch
from braidlog.coordinator.event_streams import VERSION_HEADER
from braidlog.coordinator.groups.messages import Joining, MemberIdRequired
from braidlog.coordinator.offsets import Commit
from braidlog.coordinator.snapshot_store import Snapshot
from braidlog.coordinator.state_limits import NODE, StateKind, StateLimits, StateUsage
from braidlog.coordinator.transactions.transaction import ProducerIdentity
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.stage_ids import stage_name

SESSION_MS = 2_000


def node_with(*, share: float | None = None, **limits: int) -> Node:
    wanted = StateLimits(principal_share=share or 1.0, **limits)
    made = Node(holdings=StateUsage(wanted, is_shared=share is not None))
    made.create("a", 4)
    made.create("events", 2, settings={"event_streams": True})
    return made


def asking(member: str = "", *, id_required: bool = False, metadata: bytes = b"") -> Joining:
    return Joining(
        member=member,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[("range", metadata)],
        id_required=id_required,
    )


def commit(node: Node, group: str, *partitions: int, by: str = NODE) -> None:
    node.run(node.offsets.commit(group, [Commit("a", p, 1) for p in partitions or (0,)], by=by))


def join_classic(node: Node, group: str, by: str = NODE) -> None:
    job = node.spawn(node.groups.classic.join(group, asking(), by=by))
    node.runtime.advance(SESSION_MS // 4)
    job.result()


def ask_for_id(node: Node, group: str, by: str = NODE) -> None:
    with pytest.raises(MemberIdRequired):
        node.run(node.groups.classic.join(group, asking(id_required=True), by=by))


def save_snapshot(node: Node, name: str, by: str) -> None:
    streams = node.services.streams
    if not node.run(streams.version("events", name.encode())):
        node.run(streams.append("events", name.encode(), 0, b"made"))
    node.run(streams.save_snapshot("events", name.encode(), Snapshot(1, b"state"), by=by))


def decide(node: Node, sink: str, by: str) -> None:
    transactions = node.transactions
    name = stage_name(sink, 1, "0")
    if name not in transactions.names():
        begun = node.run(transactions.begin_producer(name))
        node.run(transactions.add_partitions(name, begun.producer_id, begun.epoch, [("a", 0)]))
    found = transactions.find(name)
    node.run(node.staging.commit(sink, 1, [ProducerIdentity(name, found.producer_id, found.epoch)], owner=by))


def refusal(call: Callable[..., object], *args: object) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        call(*args)
    return caught.value


WAYS: dict[str, tuple[StateKind, Callable[[Node, str, str], None]]] = {
    "commit": (StateKind.GROUPS, lambda node, name, by: commit(node, name, by=by)),
    "join": (StateKind.GROUPS, lambda node, name, by: void(node, node.groups.join(name, "m", ["a"], by=by))),
    "register": (StateKind.GROUPS, lambda node, name, by: void(node, node.groups.register(name, by=by))),
    "join classic": (StateKind.GROUPS, join_classic),
    "ask for an id": (StateKind.GROUPS, ask_for_id),
    "begin": (
        StateKind.TRANSACTIONAL_IDS,
        lambda node, name, by: void(node, node.transactions.begin_producer(name, by=by)),
    ),
    "name a producer": (
        StateKind.NAMED_PRODUCERS,
        lambda node, name, by: void(node, node.named_producers.resolve(name, 0, by=by)),
    ),
    "snapshot": (StateKind.SNAPSHOTS, save_snapshot),
    "decide": (StateKind.SINKS, decide),
}


def void(node: Node, work: Awaitable[object]) -> None:
    node.run(work)


@pytest.mark.parametrize("way", WAYS)
def test_a_node_keeps_no_more_than_its_limit_and_what_is_there_goes_on(way: str) -> None:
    kind, make = WAYS[way]
    node = node_with(**{f"{kind}_max": 2})
    make(node, "x", "alice")
    make(node, "y", "alice")
    error = refusal(make, node, "z", "bob")
    assert error.reason is Reason.QUOTA_EXCEEDED
    assert f"state.{kind}_max" in str(error)
    assert node.services.holdings.used(kind) == 2
    if way not in ("decide", "join classic"):  # what was decided is decided; one who joins again waits for the others
        make(node, "x", "alice")
    assert node.services.holdings.used(kind) == 2


@pytest.mark.parametrize("way", WAYS)
def test_no_principal_uses_up_more_than_its_share(way: str) -> None:
    kind, make = WAYS[way]
    node = node_with(share=0.5, **{f"{kind}_max": 4})
    make(node, "x", "alice")
    make(node, "y", "alice")
    error = refusal(make, node, "z", "alice")
    assert error.reason is Reason.QUOTA_EXCEEDED
    assert "'alice' has 2" in str(error)
    make(node, "z", "bob")
    assert (node.services.holdings.used_by(kind, "alice"), node.services.holdings.used_by(kind, "bob")) == (2, 1)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_new_is_kept_when_memory_is_used_up(way: str) -> None:
    kind, make = WAYS[way]
    node = node_with()
    make(node, "x", "alice")
    node.services.holdings.bytes_max = node.services.holdings.bytes_held
    error = refusal(make, node, "y", "alice")
    assert error.reason is Reason.QUOTA_EXCEEDED
    assert "limits.memory_bytes_max" in str(error)
    if way in ("commit", "join", "begin"):
        make(node, "x", "alice")
    assert node.services.holdings.used(kind) == 1


def test_what_was_there_before_a_restart_is_theirs_who_use_it_again() -> None:
    node = node_with()
    commit(node, "g", by="alice")
    again = node.restarted()
    assert again.services.holdings.used_by(StateKind.GROUPS, "alice") == 0
    assert again.services.holdings.used(StateKind.GROUPS) == 1
    commit(again, "g", by="alice")
    assert again.services.holdings.used_by(StateKind.GROUPS, "alice") == 1


def test_a_group_has_so_many_commits() -> None:
    node = node_with(commits_per_group_max=2)
    commit(node, "g", 0, 1)
    assert "use another group, or raise state.commits_per_group_max" in str(refusal(commit, node, "g", 2))
    assert "state.commits_per_group_max" in str(refusal(commit, node, "h", 0, 1, 2))
    assert node.services.holdings.used(StateKind.GROUPS) == 1, "what was refused is not counted"
    commit(node, "g", 0, 1)


def test_who_was_handed_an_id_has_a_seat() -> None:
    node = node_with(members_per_group_max=2)
    ask_for_id(node, "g")
    ask_for_id(node, "g")
    assert refusal(lambda: void(node, node.groups.classic.join("g", asking()))).reason is Reason.GROUP_FULL
    error = refusal(lambda: void(node, node.groups.classic.join("g", asking(id_required=True))))
    assert error.reason is Reason.GROUP_FULL
    assert str(error).endswith("remove some, use another group, or raise state.members_per_group_max")
    node.runtime.advance(SESSION_MS + 1)
    node.run(node.groups.expire())
    assert node.services.holdings.used(StateKind.GROUPS) == 0, "nobody came, so there is no group"
    assert node.services.holdings.bytes_held == 0


def test_commits_that_a_transaction_stages_are_refused_before_it_is_decided() -> None:
    node = node_with(groups_max=1)
    commit(node, "there")
    transactions = node.transactions
    begun = node.run(transactions.begin_producer("t"))

    def stage(group: str) -> None:
        producer = ProducerIdentity("t", begun.producer_id, begun.epoch)
        pending = node.pending_commits
        void(node, pending.stage(group, producer, [Commit("a", 0, 1)], guard=lambda: None, by="alice"))

    node.run(transactions.begin_transaction("t", begun.producer_id, begun.epoch))

    stage("there")
    assert refusal(stage, "new").reason is Reason.QUOTA_EXCEEDED


# -- streams -----------------------------------------------------------------------------------------------------


def append_event(node: Node, key: bytes) -> None:
    node.run(node.services.streams.append("events", key, 0, b"x"))


def test_a_node_knows_so_many_streams_and_goes_on_with_those() -> None:
    node = node_with(streams_max=2)
    append_event(node, b"x")
    append_event(node, b"y")
    assert "state.streams_max" in str(refusal(append_event, node, b"z"))
    node.run(node.services.streams.append("events", b"x", 1, b"more"))
    assert node.run(node.services.streams.version("events", b"x")) == 2
    node.run(node.services.topics.delete("events"))
    assert (node.services.streams.count, node.services.holdings.bytes_held) == (0, 0)


def test_streams_that_another_door_wrote_are_bounded_too() -> None:
    node = node_with(streams_max=3)
    keys = [b"%d" % number for number in range(10)]
    version = ((VERSION_HEADER, b"1"),)
    batch = encode_batch([b"x"] * 10, keys=keys, headers=[version] * 10, base_timestamp=1_700_000_000_000)
    node.run(node.services.append.append("events", 0, batch))
    error = refusal(node.run, node.services.streams.version("events", b"0"))
    assert error.reason is Reason.QUOTA_EXCEEDED
    assert node.services.streams.count == 3


# -- what is counted is what is kept -------------------------------------------------------------------------------


def forget_all(node: Node) -> None:
    """What is pending of a group is kept as long as its transaction is open."""
    for name in node.transactions.names():
        node.run(node.transactions.begin_producer(name))
    for name in node.groups.names():
        node.run(node.groups.delete(name))


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_as_a_restarted_node_counts(seed: int) -> None:
    rng = Random(seed)
    node = node_with()
    services = node.services
    names = ["g", "h", "i"]

    def drop_out() -> None:
        node.runtime.advance(rng.choice([SESSION_MS // 4, 3 * SESSION_MS]))
        node.run(node.groups.expire())

    def end(name: str) -> None:
        begun = node.run(node.transactions.begin_producer(name))
        producer = (name, begun.producer_id, begun.epoch)
        node.run(node.transactions.add_partitions(*producer, [("a", 1)]))
        batch = batch_of(b"x", producer=(*producer[1:], 0), transactional=True)
        node.run(services.append.append("a", 1, batch, transactional_id=name))
        staging = node.pending_commits.stage(
            rng.choice(names), ProducerIdentity(*producer), [Commit("a", 2, 5)], guard=lambda: None
        )
        node.run(staging)
        if rng.random() < 0.7:
            node.run(node.transactions.end_transaction(*producer, commit=rng.random() < 0.5))

    steps: list[Callable[[], object]] = [
        lambda: commit(node, rng.choice(names), rng.randrange(4)),
        lambda: node.spawn(node.groups.classic.join(rng.choice(names), asking(metadata=b"m" * rng.randrange(99)))),
        lambda: node.run(node.groups.join(rng.choice(names), rng.choice("mn"), ["a"])),
        lambda: node.run(node.groups.leave(rng.choice(names), rng.choice("mn"))),
        lambda: node.run(node.groups.delete(rng.choice(names))),
        lambda: end(rng.choice("tu")),
        lambda: save_snapshot(node, rng.choice("pq"), NODE),
        lambda: node.run(node.named_producers.resolve(rng.choice("vw"), rng.randrange(2))),
        drop_out,
    ]
    for _ in range(40):
        try:
            rng.choice(steps)()
        except BrokerError:
            continue
    while any(node.groups.describe(name).members for name in node.groups.names()):
        drop_out()
    after = node.restarted()
    again = after.services
    for key in (b"p", b"q"):  # streams are counted when they are first asked for
        known = node.run(services.streams.version("events", key))
        assert after.run(again.streams.version("events", key)) == known
    for kind in StateKind:
        assert services.holdings.used(kind) == again.holdings.used(kind), f"{kind}, seed {seed}"
    assert services.holdings.bytes_held == again.holdings.bytes_held, f"seed {seed}"
    forget_all(node)
    assert services.holdings.used(StateKind.GROUPS) == 0, f"seed {seed}"
