"""Decisions at an image: each is taken where it is proposed, and those of one node wait for each other."""

from collections.abc import Sequence

from tests.cluster.node import MetadataNode
from tests.refusals import refused_with

from braidlog.cluster.metadata.events import Event, IdBlock, RegisterNode
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Conflict, Metadata
from braidlog.model.errors import Reason
from braidlog.replication.control.incarnation import Life


def test_many_changes_at_once_are_proposed_once_each() -> None:
    node = MetadataNode()
    proposed: list[int | Conflict] = []
    propose = node.store.propose

    async def counted(events: Sequence[Event], after: int) -> int | Conflict:
        outcome = await propose(events, after)
        proposed.append(outcome)
        return outcome

    node.store.propose = counted  # type: ignore[method-assign]
    jobs = [node.runtime.spawn(node.brokers.register(number, "host", number)) for number in range(1, 51)]
    node.runtime.settle()
    for job in jobs:
        job.result()
    assert len(proposed) == 50
    assert not any(isinstance(outcome, Conflict) for outcome in proposed)
    assert len(node.restarted().metadata.image.nodes) == 50


def test_a_decision_that_came_second_is_taken_again() -> None:
    """Another proposer of the same log: whoever loses looks at the newer image before it tries again."""
    node = MetadataNode()
    other = Metadata(node.store, node.runtime)

    def next_block(image: Image) -> list[Event]:
        seen.append(image.ids_taken)
        return [IdBlock(taken=image.ids_taken + 100)]

    seen: list[int] = []
    first = node.runtime.spawn(node.metadata.change(next_block))
    second = node.runtime.spawn(other.change(next_block))
    node.runtime.settle()
    first.result()
    second.result()
    assert len(seen) == 3
    assert sorted(set(seen)) == [seen[0], seen[0] + 100]
    assert node.restarted().metadata.image.ids_taken == seen[0] + 200


def test_a_decision_that_always_comes_second_is_given_up() -> None:
    node = MetadataNode()

    async def lost(events: Sequence[Event], after: int) -> int | Conflict:
        assert events
        node.runtime.clock.advance(1_000)
        return Conflict(after)

    node.store.propose = lost  # type: ignore[method-assign]
    with refused_with(Reason.TIMED_OUT, match="nothing was changed"):
        node.run(node.metadata.change(lambda image: [IdBlock(taken=image.ids_taken + 100)]))


def test_topics_that_a_registration_changed_are_looked_at() -> None:
    """Its leaderships end with it: the node has to carry that out like any change of a topic."""
    node = MetadataNode()
    for name in ("a", "b"):
        node.run(node.topics.create(name, 1))
    node.metadata.take_changed_topics()
    life = Life(boot_id="b", folder_id="f")
    node.metadata.change_exclusively([RegisterNode(node=0, incarnation=node.metadata.seq + 1, life=life)])
    assert node.metadata.take_changed_topics() == {"a", "b"}
    node.metadata.change_exclusively([RegisterNode(node=1, incarnation=node.metadata.seq + 1, life=life)])
    assert node.metadata.take_changed_topics() == set()
