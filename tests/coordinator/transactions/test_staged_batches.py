"""Staged batches: all stages or none, each batch once, whatever crashes, races or comes again."""

from random import Random

import pytest
from tests.broker.node import Node, batch_of, node_with
from tests.refusals import reason_of, refused_with
from tests.sampling import FULL

from braidlog.coordinator.transactions.staged_batches import NO_BATCH, STAGES_MAX, UNUSED_MS_MAX, Decided
from braidlog.coordinator.transactions.transaction import ProducerIdentity, TxnState
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.stage_ids import SINK_CHARS_MAX, StageName, read_stage_name, stage_name
from braidlog.partition.hosted_log import Role
from braidlog.testing.faults import Crash

ME = "User:me"
PLACES = [("a", 0), ("a", 1)]


@pytest.fixture
def node() -> Node:
    return node_with(a=2)


def stage(node: Node, value: bytes, *, batch: int = 0, task: str = "0-0", sink: str = "s") -> ProducerIdentity:
    """One value in each partition, staged."""
    name = stage_name(sink, batch, task)
    txn = node.run(node.transactions.begin_producer(name, 900_000))
    node.run(node.transactions.add_partitions(name, txn.producer_id, txn.epoch, PLACES))
    for topic, number in PLACES:
        data = batch_of(value, producer=(txn.producer_id, txn.epoch, 0), transactional=True)
        node.run(node.services.append.append(topic, number, data, transactional_id=name))
    return ProducerIdentity(name, txn.producer_id, txn.epoch)


def commit(
    node: Node, *stages: ProducerIdentity, batch: int = 0, sink: str = "s", writer: str = "", owner: str = ME
) -> Decided:
    return node.run(node.staging.commit(sink, batch, stages, owner=owner, writer=writer))


def abort(node: Node, *stages: ProducerIdentity, batch: int = 0, all_of_it: bool = False) -> Decided:
    return node.run(node.staging.abort("s", batch, None if all_of_it else stages, owner=ME))


def last(node: Node, sink: str = "s") -> int:
    return node.staging.last_batch(sink, owner=ME)


def seen(node: Node) -> tuple[list[bytes | None], list[bytes | None]]:
    return node.values("a", 0), node.values("a", 1)


def assert_nothing_hangs(node: Node, where: str = "") -> None:
    for _, number in PLACES:
        hosted = node.services.hosting.partition("a", number)
        assert hosted.last_stable_offset == hosted.end_offset, f"{where}: readers of a/{number} wait for something"


def test_a_batch_counts_when_it_is_decided_and_not_before(node: Node) -> None:
    stages = [stage(node, b"x", task="0-0"), stage(node, b"y", task="1-1")]
    assert seen(node) == ([], [])
    assert last(node) == NO_BATCH
    assert commit(node, *stages) == Decided(0, already=False)
    for each in (node, node.restarted()):
        assert seen(each) == ([b"x", b"y"], [b"x", b"y"])
        assert last(each) == 0
        assert each.transactions.names() == [], "ids that come once are not kept"
        assert_nothing_hangs(each)


def test_a_batch_without_records_counts_too(node: Node) -> None:
    assert commit(node, batch=7) == Decided(7, already=False)
    assert last(node.restarted()) == 7


@pytest.mark.parametrize("restart", [False, True])
def test_a_replay_changes_nothing(node: Node, restart: bool) -> None:
    first = stage(node, b"x")
    commit(node, first)
    if restart:
        node = node.restarted()
    assert commit(node, first) == Decided(0, already=True), "the answer was lost, the same request again"
    replay = stage(node, b"x again", task="0-9")
    assert commit(node, replay) == Decided(0, already=True)
    assert seen(node) == ([b"x"], [b"x"])
    assert node.transactions.names() == []
    assert_nothing_hangs(node)
    assert commit(node, stage(node, b"z", batch=1), batch=1) == Decided(1, already=False)
    assert commit(node, batch=0) == Decided(1, already=True)
    assert seen(node) == ([b"x", b"z"], [b"x", b"z"])


def test_an_abort_after_a_commit_undoes_nothing(node: Node) -> None:
    done = stage(node, b"x")
    commit(node, done)
    assert abort(node, done) == Decided(0, already=True)
    assert abort(node, all_of_it=True) == Decided(0, already=True)
    assert seen(node) == ([b"x"], [b"x"])


def test_an_abort_lets_go_of_what_it_names_or_of_everything(node: Node) -> None:
    mine, other, next_one = stage(node, b"x"), stage(node, b"y", task="1-1"), stage(node, b"z", batch=1)
    assert abort(node, mine) == Decided(NO_BATCH, already=False)
    assert node.transactions.open_names() == [other.name, next_one.name]
    abort(node, mine)  # again: there is nothing to let go
    abort(node, all_of_it=True)
    assert node.transactions.open_names() == [next_one.name], "a later batch is not an earlier one's affair"
    assert reason_of(commit, node, other) is Reason.TRANSACTION_NOT_FOUND
    commit(node, next_one, batch=1)
    assert seen(node) == ([b"z"], [b"z"])
    assert_nothing_hangs(node)


def test_one_stage_that_is_not_open_refuses_the_whole_batch(node: Node) -> None:
    fine = stage(node, b"x", task="0-0")
    never = ProducerIdentity(stage_name("s", 0, "9-9"), 12345, 0)
    fenced = stage(node, b"y", task="1-1")
    node.run(node.transactions.begin_producer(fenced.name))
    gone = stage(node, b"y", task="2-2")
    node.run(node.transactions.end_transaction(*gone, commit=False))
    empty_txn = node.run(node.transactions.begin_producer(stage_name("s", 0, "3-3")))
    empty = ProducerIdentity(stage_name("s", 0, "3-3"), empty_txn.producer_id, empty_txn.epoch)
    for wrong, reason in (
        (never, Reason.TRANSACTION_NOT_FOUND),
        (fenced, Reason.STALE_PRODUCER_EPOCH),
        (ProducerIdentity(fine.name, fine.producer_id + 1, 0), Reason.PRODUCER_ID_MISMATCH),
        (gone, Reason.INVALID_TRANSACTION_STATE),
        (empty, Reason.INVALID_TRANSACTION_STATE),
    ):
        stages = (wrong,) if wrong.name == fine.name else (fine, wrong)
        assert reason_of(commit, node, *stages) is reason
        assert (seen(node), last(node)) == (([], []), NO_BATCH)
        assert node.transactions.find(fine.name).state is TxnState.ONGOING, "nothing happened to the others"
    commit(node, fine)
    assert seen(node) == ([b"x"], [b"x"])


def test_what_is_left_open_of_a_sink_ends_with_its_next_batch(node: Node) -> None:
    """A losing attempt's stage, and a dead driver's: readers must not wait until they expire."""
    stage(node, b"dead", batch=0, task="0-1")
    stage(node, b"loser", batch=1, task="0-2")
    winner = stage(node, b"winner", batch=1, task="0-3")
    later, others = stage(node, b"later", batch=2), stage(node, b"others", batch=0, sink="t")
    commit(node, winner, batch=1)
    assert node.transactions.open_names() == [later.name, others.name]
    commit(node, others, sink="t")
    commit(node, later, batch=2)
    assert seen(node)[0] == [b"winner", b"later", b"others"]
    assert_nothing_hangs(node)


def test_a_losing_attempt_cannot_write_any_more(node: Node) -> None:
    loser, winner = stage(node, b"loser", task="0-2"), stage(node, b"winner", task="0-3")
    commit(node, winner)
    for name, producer_id, epoch in (loser, winner):
        late = batch_of(b"late", producer=(producer_id, epoch, 1), transactional=True)
        with pytest.raises(BrokerError):
            node.run(node.services.append.append("a", 0, late, transactional_id=name))
        with pytest.raises(BrokerError):
            node.run(node.transactions.add_partitions(name, producer_id, epoch, PLACES))
    assert seen(node) == ([b"winner"], [b"winner"])


def test_stages_expire(node: Node) -> None:
    left = stage(node, b"x")
    node.clock.advance(900_001)
    assert node.run(node.transactions.expire()) == [left.name]
    assert_nothing_hangs(node)
    with refused_with(
        Reason.STALE_PRODUCER_EPOCH, match=r"batch 0 of sink 's' was not committed: .* ends by its timeout"
    ):
        commit(node, left)
    assert last(node) == NO_BATCH


def test_a_name_belongs_to_who_committed_first_and_to_one_writer(node: Node) -> None:
    commit(node, writer="q1")
    assert reason_of(commit, node, batch=1, owner="User:other") is Reason.NOT_AUTHORIZED
    assert reason_of(commit, node, batch=0, writer="q2") is Reason.INVALID_TRANSACTION_STATE
    assert reason_of(commit, node, batch=1, writer="q2") is Reason.INVALID_TRANSACTION_STATE
    with pytest.raises(BrokerError, match="another sinkId"):
        node.staging.last_batch("s", owner=ME, writer="q2")
    with pytest.raises(BrokerError, match="another user"):
        node.staging.last_batch("s", owner="User:other")
    assert commit(node.restarted(), batch=1, writer="q1") == Decided(1, already=False)


def test_only_stages_of_this_batch_are_decided(node: Node) -> None:
    mine, others = stage(node, b"x"), stage(node, b"y", sink="t")
    earlier = stage(node, b"z", batch=3)
    txn = node.run(node.transactions.begin_producer("plain"))
    plain = ProducerIdentity("plain", txn.producer_id, txn.epoch)
    for wrong in (others, earlier, plain):
        assert reason_of(commit, node, mine, wrong) is Reason.INVALID_TRANSACTION_STATE
        assert reason_of(abort, node, mine, wrong) is Reason.INVALID_TRANSACTION_STATE
    assert reason_of(commit, node, mine, mine) is Reason.INVALID_TRANSACTION_STATE
    assert reason_of(commit, node, *([mine] * (STAGES_MAX + 1))) is Reason.INVALID_TRANSACTION_STATE
    for sink in ("", "x" * (SINK_CHARS_MAX + 1), "a\nb"):
        assert reason_of(commit, node, sink=sink) is Reason.INVALID_TRANSACTION_STATE
    for batch in (-1, 2**63):
        assert reason_of(commit, node, batch=batch) is Reason.INVALID_TRANSACTION_STATE
    assert last(node) == NO_BATCH


def test_sinks_nobody_uses_are_forgotten(node: Node) -> None:
    commit(node, batch=5)
    node.clock.advance(UNUSED_MS_MAX)
    commit(node, sink="used")
    assert node.run(node.staging.expire()) == []
    node.clock.advance(1)
    assert node.run(node.staging.expire()) == ["s"]
    for each in (node, node.restarted()):
        assert each.staging.names() == ["used"]
        assert last(each) == NO_BATCH


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("braidlog.sink/s/0/0-0", StageName("s", 0, "0-0")),
        ("braidlog.sink/a/b/12/3-4", StageName("a/b", 12, "3-4")),
        ("braidlog.sink/s/0", None),
        ("braidlog.sink/s/x/0-0", None),
        ("braidlog.sink/s/-1/0-0", None),
        ("braidlog.sink/s/" + "9" * 5000 + "/0", None),
        ("other/s/0/0-0", None),
    ],
)
def test_names_of_stages(name: str, wanted: StageName | None) -> None:
    assert read_stage_name(name) == wanted
    assert wanted is None or str(wanted) == stage_name(*wanted) == name


def test_a_task_of_a_name_is_checked() -> None:
    for task in ("", "a/b", "x" * 41, "\n"):
        assert reason_of(stage_name, "s", 0, task) is Reason.INVALID_TRANSACTION_STATE


def test_a_partition_that_takes_no_marker_yet_does_not_undecide(node: Node) -> None:
    staged = stage(node, b"x")
    node.run(node.services.placement.set_role("a", 1, Role.FOLLOWER))
    assert reason_of(commit, node, staged) is Reason.NOT_LEADER
    assert last(node) == 0, "it was decided"
    assert reason_of(commit, node, staged) is Reason.NOT_LEADER, "and what was decided is tried again"
    again = node.restarted()
    again.run(again.services.placement.set_role("a", 1, Role.LEADER))
    assert commit(again, staged) == Decided(0, already=True)
    assert seen(again) == ([b"x"], [b"x"])
    assert_nothing_hangs(again)


# -- races ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_whoever_races_each_batch_counts_once(seed: int) -> None:
    """Two drivers, of which one is a zombie, commit, abort and replay the same batches at once."""
    rng = Random(seed)
    node = Node(rng=rng)
    node.create("a", 2)
    staging = node.staging

    async def driver(number: int) -> None:
        for batch in range(3):
            try:
                stages = []
                for task in range(2):
                    name = stage_name("s", batch, f"{task}-{number}")
                    txn = await node.transactions.begin_producer(name)
                    await node.transactions.add_partitions(name, txn.producer_id, txn.epoch, PLACES)
                    data = batch_of(
                        b"%d/%d" % (batch, task), producer=(txn.producer_id, txn.epoch, 0), transactional=True
                    )
                    await node.services.append.append("a", task, data, transactional_id=name)
                    stages.append(ProducerIdentity(name, txn.producer_id, txn.epoch))
                await staging.commit("s", batch, stages, owner=ME)
                await staging.abort("s", batch, stages if rng.random() < 0.5 else None, owner=ME)
            except BrokerError as error:
                expected = (Reason.TRANSACTION_NOT_FOUND, Reason.STALE_PRODUCER_EPOCH, Reason.INVALID_TRANSACTION_STATE)
                if error.reason not in expected:
                    raise
                await staging.commit("s", batch, [], owner=ME)  # as a replay that finds nothing left to write

    jobs = [node.spawn(driver(number)) for number in range(2)]
    node.runtime.settle()
    for job in jobs:
        job.result()
    node.run(staging.abort("s", 99, owner=ME))
    assert_nothing_hangs(node, f"seed {seed}")
    for task in range(2):
        values = node.values("a", task)
        assert len(values) == len(set(values)), f"seed {seed}: {values}"
    assert len(node.values("a", 0)) == len(node.values("a", 1)), f"seed {seed}: half a batch counts"
    assert last(node) == 2


# -- crashes -------------------------------------------------------------------------------------------------


class Script:
    """Batch 0 is committed, batch 1 is committed, batch 2 is staged and left; what was acknowledged is noted."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.create("a", 2)
        self.node.begin_shards()
        self.acknowledged = NO_BATCH
        self.asked = NO_BATCH

    def run(self) -> None:
        for batch in range(2):
            stages = [stage(self.node, b"%d/%d" % (batch, task), batch=batch, task=f"{task}-0") for task in range(2)]
            self.asked = batch
            commit(self.node, *stages, batch=batch)
            self.acknowledged = batch
        stage(self.node, b"left open", batch=2)


def check(script: Script, again: Node, where: str) -> int:
    """Whole batches only, in step with what the sink remembers; then a replay of everything makes it complete."""
    assert again.run(again.transactions.resume()) == {}, where
    if "a" not in again.services.hosting.names():
        return NO_BATCH
    found = last(again)
    wanted = [b"%d/%d" % (batch, task) for batch in range(found + 1) for task in range(2)]
    assert seen(again) == (wanted, wanted), f"{where}: last batch {found}, {seen(again)}"
    assert script.acknowledged <= found <= script.asked, where
    for batch in range(3):
        stages = [stage(again, b"%d/%d" % (batch, task), batch=batch, task=f"{task}-1") for task in range(2)]
        assert commit(again, *stages, batch=batch).already is (batch <= found), where
    wanted = [b"%d/%d" % (batch, task) for batch in range(3) for task in range(2)]
    assert seen(again) == (wanted, wanted), f"{where}: replayed: {seen(again)}"
    assert_nothing_hangs(again, where)
    return found


def test_every_crash_point_gives_whole_batches_and_a_replay_completes_them() -> None:
    rng = Random(5)
    states = 0
    seen_states: set[int] = set()
    outcomes = set()
    number = 0
    while True:
        number += 1
        script = Script()
        script.node.disk.stop_at = len(script.node.disk.operations) + number
        try:
            script.run()
        except Crash:
            pass
        else:
            break
        outcomes.add((script.acknowledged, check(script, script.node.restarted(), f"killed at operation {number}")))
        for label, disk in script.node.disk.crash_states(limit=20 if FULL else 4, rng=rng, seen=seen_states):
            found = check(script, script.node.restarted(disk), f"operation {number}, {label}")
            outcomes.add((script.acknowledged, found))
            states += 1
    print(f"{number - 1} operations, {states} crash states, outcomes {sorted(outcomes)}")
    assert states > 100
    assert {(-1, -1), (-1, 0), (0, 0), (0, 1), (1, 1)} <= outcomes, (
        "both outcomes of both decisions must have been seen"
    )


def test_a_crash_while_the_markers_are_written_is_resumed() -> None:
    """The batch was decided, its markers were not written: kill at every operation of the recovery, then recover again."""
    script = Script()
    node = script.node
    stages = [stage(node, b"0/%d" % task, task=f"{task}-0") for task in range(2)]
    node.run(node.services.placement.set_role("a", 0, Role.FOLLOWER))
    assert reason_of(commit, node, *stages) is Reason.NOT_LEADER
    node.run(node.services.placement.set_role("a", 0, Role.LEADER))
    script.asked = script.acknowledged = 0
    rng = Random(6)
    number = states = 0
    while True:
        number += 1
        again = node.restarted()
        again.disk.stop_at = len(again.disk.operations) + number
        try:
            again.run(again.transactions.resume())
        except Crash:
            pass
        else:
            break
        for label, disk in again.disk.crash_states(limit=20, rng=rng):
            assert check(script, again.restarted(disk), f"recovery killed at {number}, {label}") == 0
            states += 1
    assert states > 20
