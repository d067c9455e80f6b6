"""A producer's name has one id on three nodes."""

from collections.abc import Coroutine
from typing import Any

import pytest
from tests.adapters.peers.linked_nodes import LinkedNode, linked
from tests.refusals import refused_with

from braidlog.adapters.peers.node_calls import client_call
from braidlog.broker.coordination.producer_names import CALL, REMEMBERED_MAX, REMEMBERED_SECONDS
from braidlog.cluster.metadata import events as e
from braidlog.coordinator.transactions.named_producers import NamedProducer
from braidlog.model.errors import BrokerError, Reason


def three() -> dict[int, LinkedNode]:
    nodes = linked(3)
    for each in nodes.values():
        each.table.rows[CALL] = client_call(each.node.services.producer_names.handle_call)
    return nodes


def resolved(node: LinkedNode, name: str = "p", epoch: int = 0) -> NamedProducer:
    return ended(node, node.node.services.producer_names.resolve(name, epoch))


def ended(node: LinkedNode, work: Coroutine[Any, Any, NamedProducer]) -> NamedProducer:
    job = node.node.spawn(work)
    for _ in range(200):
        if not job.is_done:
            node.node.runtime.advance(20)
    return job.result()


def test_a_name_has_one_id_on_all_nodes_and_is_asked_for_once() -> None:
    nodes = three()
    first = resolved(nodes[2])
    assert [resolved(nodes[number]) for number in (1, 2, 3)] == [first] * 3
    assert resolved(nodes[3], "q").producer_id != first.producer_id
    assert nodes[1].called == [CALL] * 3


def test_a_higher_epoch_is_the_next_of_the_same_id_and_a_lower_one_is_fenced_everywhere() -> None:
    nodes = three()
    before = resolved(nodes[2], epoch=5)
    after = resolved(nodes[3], epoch=6)
    assert (after.producer_id, after.epoch) == (before.producer_id, before.epoch + 1)
    assert resolved(nodes[2], epoch=5) == before, "what it remembers; the log fences it"
    for number in (1, 3):
        with refused_with(Reason.STALE_PRODUCER_EPOCH, match="was fenced by epoch 6"):
            resolved(nodes[number], epoch=5)
    nodes[2].node.services.producer_names._remembered.clear()
    began = nodes[2].node.clock.monotonic()
    with refused_with(Reason.STALE_PRODUCER_EPOCH, match="was fenced by epoch 6"):
        resolved(nodes[2], epoch=5)
    assert nodes[2].node.clock.monotonic() == began, "a refusal for good is not waited for"


def test_while_the_coordinator_is_away_known_names_go_on() -> None:
    nodes = three()
    known = resolved(nodes[2])
    nodes[2].node.services.metadata.change_exclusively([e.FenceNode(node=1, incarnation=1)])
    nodes[2].node.runtime.advance(round(REMEMBERED_SECONDS * 1000))
    assert resolved(nodes[2]) == known
    for name, epoch in (("new", 0), ("p", 1)):
        with refused_with(Reason.NOT_COORDINATOR):
            resolved(nodes[2], name, epoch)


def test_a_name_is_asked_for_again_after_a_while_so_that_it_is_not_forgotten() -> None:
    nodes = three()
    known = resolved(nodes[2])
    nodes[2].node.runtime.advance(round(REMEMBERED_SECONDS * 1000))
    assert resolved(nodes[2]) == known
    assert nodes[1].called == [CALL] * 2


def test_who_comes_while_a_name_is_asked_for_waits_behind() -> None:
    nodes = three()
    coordinator = nodes[2].others.pop(1)
    names, order = nodes[2].node.services.producer_names, list[int]()

    async def work(number: int) -> None:
        await names.resolve("p", 0)
        order.append(number)

    jobs = [nodes[2].node.spawn(work(number)) for number in range(3)]
    nodes[2].node.runtime.advance(20)
    assert not any(job.is_done for job in jobs)
    nodes[2].others[1] = coordinator
    nodes[2].node.runtime.advance(100)
    assert (order, coordinator.called) == ([0, 1, 2], [CALL])


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REMEMBERED_MAX >= 1000
    monkeypatch.setattr("braidlog.broker.coordination.producer_names.REMEMBERED_MAX", 2)
    nodes = three()
    for name in "abc":
        resolved(nodes[2], name)
    assert list(nodes[2].node.services.producer_names._remembered) == ["b", "c"]


def test_a_node_that_gives_no_ids_refuses_and_so_does_one_that_is_asked_nonsense() -> None:
    nodes = three()
    for number, body in ((2, b"\x92\xa1p\x00"), (1, b"nonsense")):
        with pytest.raises(BrokerError):
            nodes[number].node.run(nodes[number].node.services.producer_names.handle_call(body, "alice"))
