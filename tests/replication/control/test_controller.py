"""What a node proposes, and when."""

from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from braidlog.replication.assignment import Assignment, Node, TornEnd, joined
from braidlog.replication.control.controller import (
    PARTITIONS_PER_ENTRY_MAX,
    PENALTY_MS,
    PREFERRED_LEADER_DELAY_MS,
    PROPOSAL_MS_MAX,
    STAGGER_MS,
    TORN_WAIT_MS,
    Applied,
    ChangePartition,
    Controller,
    ControllerMessage,
    FenceNode,
    LeaseLost,
    NotWritten,
    Partition,
    PartitionKey,
    Propose,
    Tick,
    View,
    step,
)
from braidlog.replication.control.reassignment import reassign
from braidlog.replication.control.swim import Verdict

NODES = {number: Node(incarnation=1) for number in (1, 2, 3)}
LED_BY_3 = Assignment(replicas=(3, 1, 2), in_sync=(3, 1, 2), leader=3)
KEY = ("orders", 0)
DEAD = Verdict(3, 1, "silent")
SETS = ((3, 1, 2), (3, 1), (1,), (2, 3))


def view(seq: int = 1, nodes: dict[int, Node] | None = None, *assignments: Assignment) -> View:
    partitions = {("orders", at): Partition(each, 2) for at, each in enumerate(assignments or (LED_BY_3,))}
    return View(seq, NODES if nodes is None else nodes, partitions)


def fenced(*numbers: int) -> dict[int, Node]:
    return {number: Node(incarnation=1, is_fenced=number in numbers) for number in NODES}


class Driver:
    def __init__(self, node: int, first: View | None = None) -> None:
        self.controller = Controller(node=node)
        self.told(Applied(view() if first is None else first), 0)

    def told(self, message: ControllerMessage, now_ms: int) -> Propose | None:
        self.controller, proposal = step(self.controller, message, now_ms)
        return proposal


def changes(proposal: Propose | None) -> dict[PartitionKey, Assignment]:
    assert proposal is not None
    return {each.key: each.after for each in proposal.events if isinstance(each, ChangePartition)}


def test_the_lowest_number_proposes_at_once_the_next_one_later() -> None:
    first, second = Driver(1), Driver(2)
    proposal = first.told(DEAD, 10)
    assert proposal is not None
    assert (proposal.after, proposal.events[0]) == (1, FenceNode(3, 1))
    after = changes(proposal)[KEY]
    assert (after.leader, after.leader_epoch, after.in_sync, after.partition_epoch) == (1, 2, (1, 2), 1)
    assert second.told(DEAD, 10) is None
    assert second.told(Tick(), 10 + STAGGER_MS - 1) is None
    assert second.told(Tick(), 10 + STAGGER_MS) == proposal


def test_whoever_sees_the_entry_drops_his() -> None:
    second = Driver(2)
    second.told(DEAD, 10)
    moved = LED_BY_3.with_leader(1, in_sync=(1, 2))
    assert second.told(Applied(view(2, fenced(3), moved)), 100) is None
    assert second.told(Tick(), 1000) is None


def test_a_node_that_registered_again_is_no_suspect_any_more() -> None:
    second = Driver(2)
    second.told(DEAD, 10)
    back = {**NODES, 3: Node(incarnation=5)}
    second.told(Applied(view(2, back)), 20)
    assert second.told(Tick(), 1000) is None
    assert second.told(DEAD, 1000) is None, "the verdict is about another life"


def test_a_proposal_that_lost_is_made_anew_at_the_entry_that_won() -> None:
    first = Driver(1)
    assert first.told(DEAD, 0) is not None
    assert first.told(NotWritten(1), 5) is None
    assert first.told(Tick(), 6) is None, "not at the entry that lost"
    other = LED_BY_3.with_changes(in_sync=(3, 2))
    proposal = first.told(Applied(view(2, None, other)), 10)
    assert proposal is not None
    assert proposal.after == 2
    assert changes(proposal)[KEY].leader == 2, "decided at the newer state: 1 is not in sync there"


def test_silence_about_a_proposal_is_not_an_answer() -> None:
    first = Driver(1)
    proposal = first.told(DEAD, 0)
    assert first.told(Tick(), PROPOSAL_MS_MAX - 1) is None
    assert first.told(Tick(), PROPOSAL_MS_MAX) == proposal, "the same, at the same entry: written once"


def test_two_deaths_are_one_entry_and_one_epoch() -> None:
    first = Driver(1, view(1, None, LED_BY_3, Assignment(replicas=(2, 1, 3), in_sync=(2, 1, 3), leader=2)))
    first.controller = step(first.controller, Verdict(2, 1, "silent"), 0)[0].now(in_flight=None)
    proposal = first.told(DEAD, 0)
    assert proposal is not None
    assert proposal.events[:2] == (FenceNode(2, 1), FenceNode(3, 1))
    for after in changes(proposal).values():
        assert (after.leader, after.leader_epoch, after.in_sync) == (1, 2, (1,))
        assert len(after.eligible) == 1, "who left when the set became too small"


def test_more_partitions_than_an_entry_holds_are_several() -> None:
    first = Driver(1, view(1, None, *[LED_BY_3] * (PARTITIONS_PER_ENTRY_MAX + 5)))
    proposal = first.told(DEAD, 0)
    assert len(changes(proposal)) == PARTITIONS_PER_ENTRY_MAX
    done = changes(proposal)
    rest = [done.get(("orders", at), LED_BY_3) for at in range(PARTITIONS_PER_ENTRY_MAX + 5)]
    assert len(changes(first.told(Applied(view(2, fenced(3), *rest)), 10))) == 5


def test_a_node_without_a_lease_gives_up_its_leaderships_to_who_has_one() -> None:
    first = Driver(1)
    after = changes(first.told(LeaseLost(3, 1, (2,)), 0))[KEY]
    assert (after.leader, after.in_sync) == (2, LED_BY_3.in_sync), "it keeps its place in the set"
    nobody = Driver(1)
    assert nobody.told(LeaseLost(3, 1, ()), 0) is None, "the metadata's own outage: nothing moves"


def fenced_too_often(led: Assignment) -> Driver:
    """Node 3, twice within a minute, the second time at 3 s; it is back at 4 s."""
    first = Driver(1, view(1, NODES, led))
    first.controller = Controller(node=1)
    for seq, (nodes, now_ms) in enumerate([(NODES, 0), (fenced(3), 1000), (NODES, 2000), (fenced(3), 3000)], 1):
        first.told(Applied(view(seq, nodes, led)), now_ms)
    return first


def test_who_is_fenced_again_leads_nothing_for_a_while() -> None:
    led = Assignment(replicas=(3, 1, 2), in_sync=(3, 2), leader=None, leader_epoch=7)
    back = changes(fenced_too_often(led).told(Applied(view(9, NODES, led)), 4000))[KEY]
    assert back.leader == 2, "not the preferred one"
    eligible = Assignment(replicas=(3, 1, 2), in_sync=(3,), leader=None, eligible=(1,))
    assert changes(fenced_too_often(eligible).told(Applied(view(9, NODES, eligible)), 4000))[KEY].leader == 1
    later = fenced_too_often(led).told(Applied(view(9, NODES, led)), 3000 + PENALTY_MS)
    assert changes(later)[KEY].leader == 3


def test_who_is_fenced_again_leads_where_nobody_else_can() -> None:
    led = Assignment(replicas=(3, 1, 2), in_sync=(3,), leader=None, leader_epoch=7)
    first = fenced_too_often(led)
    after = changes(first.told(Applied(view(9, NODES, led)), 4000))[KEY]
    assert after.leader == 3
    joining = after.with_changes(in_sync=(3, 2))
    assert changes(first.told(Applied(view(10, NODES, joining)), 5000))[KEY].leader == 2, "as soon as somebody else can"


def test_a_death_leaves_to_who_was_fenced_again_what_nobody_else_can_lead() -> None:
    led = Assignment(replicas=(2, 3, 1), in_sync=(2, 3), leader=2)
    first = fenced_too_often(led)
    assert first.told(Applied(view(9, NODES, led)), 4000) is None
    after = changes(first.told(Verdict(2, 1, "silent"), 4500))[KEY]
    assert (after.leader, after.in_sync, after.eligible) == (3, (3,), (2,))


def test_a_move_to_who_was_fenced_again_is_finished() -> None:
    moving = joined(reassign(Assignment(replicas=(1, 2), in_sync=(1, 2), leader=2), (3,)), 3, 1)
    first = fenced_too_often(Assignment(replicas=(1, 2), in_sync=(1, 2), leader=2))
    after = changes(first.told(Applied(view(9, NODES, moving)), 4000))[KEY]
    assert (after.replicas, after.leader, after.removing) == ((3,), 3, ())


def test_the_longest_torn_log_leads_when_all_are_known_or_after_a_while() -> None:
    torn = Assignment(replicas=(3, 1, 2), in_sync=(), leader=None, torn=(1, 2, 3), leader_epoch=7)
    some = torn.with_changes(torn_ends=(TornEnd(1, 1, 5, 10), TornEnd(3, 1, 5, 12)))
    every = some.with_changes(torn_ends=(*some.torn_ends, TornEnd(2, 1, 6, 3)))
    first = Driver(1, view(1, NODES, torn))
    assert first.told(Applied(view(2, NODES, every), (KEY,)), 100) is not None
    assert changes(Driver(1, view(1, NODES, every)).told(Tick(), PROPOSAL_MS_MAX))[KEY].leader == 2
    first = Driver(1, view(1, NODES, torn))
    assert first.told(Applied(view(2, NODES, some), (KEY,)), 100) is None
    assert first.told(Tick(), TORN_WAIT_MS - 1) is None
    after = changes(first.told(Tick(), TORN_WAIT_MS))[KEY]
    assert (after.leader, after.unclean_epoch) == (3, 8)


def test_a_leader_that_must_go_and_has_no_successor_does_not_hold_up_the_rest() -> None:
    draining = {
        1: Node(incarnation=1),
        2: Node(incarnation=1, is_fenced=True),
        3: Node(incarnation=1, is_draining=True),
    }
    led = Assignment(replicas=(3, 2, 1), in_sync=(3, 2), leader=3)
    after = changes(Driver(1).told(Applied(view(2, draining, led)), 10))[KEY]
    assert (after.leader, after.in_sync, after.eligible) == (3, (3,), (2,))


def test_a_draining_node_hands_over_what_it_leads() -> None:
    draining = {**NODES, 3: Node(incarnation=1, is_draining=True)}
    first = Driver(1)
    after = changes(first.told(Applied(view(2, draining)), 10))[KEY]
    assert (after.leader, after.in_sync) == (1, (3, 1, 2))


def test_a_finished_move_and_the_preferred_leader_are_upkeep() -> None:
    moving = joined(reassign(LED_BY_3.with_changes(replicas=(3, 1), in_sync=(3, 1)), (1, 2)), 2, 2)
    first = Driver(1, view(0, NODES, LED_BY_3))
    after = changes(first.told(Applied(view(2, NODES, moving)), 10))[KEY]
    assert (after.replicas, after.leader) == ((1, 2), 1)
    led_by_1 = LED_BY_3.with_leader(1)
    calm = Driver(1, view(1, NODES, led_by_1))
    assert calm.told(Tick(), PREFERRED_LEADER_DELAY_MS - 1) is None
    assert changes(calm.told(Tick(), PREFERRED_LEADER_DELAY_MS))[KEY].leader == 3


def test_a_fenced_node_proposes_nothing() -> None:
    one = Driver(1, view(1, fenced(1)))
    assert one.told(DEAD, 0) is None


class Counted(dict[PartitionKey, Partition]):
    """Counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Iterator[PartitionKey]:
        self.walks += 1
        return super().__iter__()


def test_ticks_cost_nothing_while_nothing_can_be_found() -> None:
    """With 200,000 partitions one look takes longer than a tick."""
    partitions = Counted(view(1, NODES, LED_BY_3).partitions)
    first = Driver(1, View(1, NODES, partitions))
    for now_ms in range(0, 2 * PREFERRED_LEADER_DELAY_MS, 1000):
        assert first.told(Tick(), now_ms) is None
    assert partitions.walks == 2, "when it came, and when it was calm"


@pytest.mark.parametrize("seed", range(20))
def test_what_has_changed_is_enough_to_look_at(seed: int) -> None:
    """Two controllers hear the same; one looks at everything each time. They propose the same at the same moments."""
    rng = Random(seed)
    partitions = {("t", at): Partition(LED_BY_3, 2) for at in range(6)}
    nodes = dict(NODES)
    sparing, thorough = Controller(node=1), Controller(node=1)
    now_ms = seq = proposed = 0
    for _ in range(300):
        now_ms += rng.choice((10, 100, 1000, 20_000, PREFERRED_LEADER_DELAY_MS))
        message: ControllerMessage = Tick()
        changed: list[PartitionKey] = []
        kind = rng.random()
        if kind < 0.2:
            number = rng.choice((2, 3))
            fields = {"is_fenced": rng.random() < 0.5, "is_draining": rng.random() < 0.3}
            nodes = {**nodes, number: Node(incarnation=nodes[number].incarnation + rng.randrange(2), **fields)}
        elif kind < 0.5:
            changed = [("t", rng.randrange(6))]
            known = partitions[changed[0]].assignment
            leader = rng.choice((1, 2, 3, None))
            partitions = {**partitions, changed[0]: Partition(known.with_leader(leader, in_sync=rng.choice(SETS)), 2)}
        if kind < 0.5:
            seq += 1
            message = Applied(View(seq, nodes, partitions), tuple(changed))
        elif kind < 0.6:
            message = Verdict(3, nodes[3].incarnation, "silent")
        sparing, one = step(sparing, message, now_ms)
        thorough, other = step(msgspec.structs.replace(thorough, unseen=None, look_again_ms=0), message, now_ms)
        assert one == other
        if one is not None and rng.random() < 0.5:  # it is written
            seq += 1
            after = {each.key: Partition(each.after, 2) for each in one.events if isinstance(each, ChangePartition)}
            fences = [each.node for each in one.events if isinstance(each, FenceNode)]
            nodes = nodes | {number: Node(incarnation=nodes[number].incarnation, is_fenced=True) for number in fences}
            partitions = partitions | after
            sparing, one = step(sparing, Applied(View(seq, nodes, partitions), tuple(after)), now_ms)
            thorough, other = step(thorough, Applied(View(seq, nodes, partitions)), now_ms)
            assert one == other
        proposed += one is not None
    assert proposed > 5
