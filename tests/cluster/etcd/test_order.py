"""Changes of metadata have an order that explains all answers: our own checker over three nodes and a model of etcd that loses
calls, loses answers and does some of them late.

Blocks of ids are a counter, which tells its sum; a topic's name is a register, which is taken and given back. What a node
refuses tells nothing: its image may be behind. Who reads all of it from etcd, as a node that starts, finds what was acknowledged.
"""

from collections.abc import Sequence
from itertools import count
from random import Random

import pytest
from tests.cluster.etcd.stores import BLOCK, PREFIX, Cluster, Node
from tests.histories.checker import check
from tests.histories.history import Action, Call, History, Outcome
from tests.model.manual_world import Job
from tests.simulation.etcd import Fate, ModelClient

from braidlog.cluster.etcd import image_snapshots
from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.metadata.events import CreateTopic, DeleteTopic, Event, IdBlock
from braidlog.cluster.metadata.history import History as Told
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import TopicSettings

TOPIC, COUNTER = "t", "ids"
TURNS = 40
SEEDS = 30


class RefusedError(Exception):
    """By what the image of a node says."""


class Caller:
    """What clients ask of three nodes, and what they are told."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.history = History()
        self._moments = count()
        self._ids = count()

    def _begun(self, client: str, key: str, action: Action, argument: int | tuple[None, int] | None = None) -> Call:
        call = Call(client, key, action, argument, next(self._moments))
        self.history.add(call)
        return call

    def _ended(self, call: Call, answer: int | bool | None) -> None:
        call.end, call.outcome, call.answer = next(self._moments), Outcome.ACKNOWLEDGED, answer

    async def count_up(self, node: Node) -> None:
        call, sums = self._begun(node.name, COUNTER, Action.INCREMENT, BLOCK), [0]

        def decide(image: Image) -> Sequence[Event]:
            sums.append(_counted(image) + BLOCK)
            return [IdBlock(taken=image.ids_taken + BLOCK)]

        await self._changed(call, node.metadata, decide)
        self._ended(call, sums[-1])

    async def create(self, node: Node) -> None:
        number = next(self._ids)
        call = self._begun(node.name, TOPIC, Action.SWAP, (None, number))

        def decide(image: Image) -> Sequence[Event]:
            if TOPIC in image.topics:
                raise RefusedError
            made = CreateTopic(
                topic=TOPIC,
                topic_id=f"{number:032x}",
                partitions=1,
                settings=TopicSettings(),
                created_ms=1,
                replicas=(node.name,),
            )
            return [made]

        if await self._changed(call, node.metadata, decide):
            self._ended(call, True)

    async def delete(self, node: Node) -> None:
        call = self._begun(node.name, TOPIC, Action.DELETE)

        def decide(image: Image) -> Sequence[Event]:
            if TOPIC not in image.topics:
                raise RefusedError
            return [DeleteTopic(topic=TOPIC, topic_id=image.topics[TOPIC].topic_id, deleted_ms=1)]

        if await self._changed(call, node.metadata, decide):
            self._ended(call, True)

    @staticmethod
    async def _changed(call: Call, metadata: Metadata, decide: object) -> bool:
        try:
            await metadata.change(decide)  # type: ignore[arg-type]
        except RefusedError:
            call.outcome = Outcome.REFUSED
            return False
        return True

    def read(self) -> None:
        calls = [self._begun("who starts", key, Action.GET) for key in (COUNTER, TOPIC)]
        loaded = self._cluster.run(image_snapshots.load(ModelClient(self._cluster.etcd), Keys(PREFIX), Told()))
        assert isinstance(loaded, image_snapshots.Loaded)
        counted, topic = _counted(loaded.image), loaded.image.topics.get(TOPIC)
        answers = (counted or None, None if topic is None else int(topic.topic_id, 16))
        for call, answer in zip(calls, answers, strict=True):
            self._ended(call, answer)


def _counted(image: Image) -> int:
    return image.ids_taken - Image().ids_taken


def run(seed: int) -> list[str]:
    rng = Random(seed)
    cluster = Cluster(snapshot_every=15, rng=Random(seed))
    nodes = [Node(cluster, str(number)) for number in range(3)]
    weights = rng.choice([(8, 1, 1, 1), (4, 1, 2, 2), (20, 0, 1, 0)])
    for node in nodes:
        node.client.fate = lambda _: rng.choices(list(Fate), weights)[0]
    caller, jobs = Caller(cluster), list[Job[None]]()
    for _ in range(TURNS):
        for node in nodes:
            ask = rng.choice((caller.count_up, caller.create, caller.delete))
            jobs.append(cluster.runtime.spawn(ask(node)))
        cluster.runtime.advance(rng.choice((5, 50, 500, 12_000)))
        if rng.random() < 0.2:
            cluster.etcd.deliver_late()
        if rng.random() < 0.3:
            caller.read()
    for node in nodes:
        node.client.fate = lambda _: Fate.DONE
    cluster.etcd.deliver_late()
    cluster.runtime.advance(30_000)
    caller.read()
    for job in jobs:
        assert job.error is None or (isinstance(job.error, BrokerError) and job.error.reason is Reason.UNAVAILABLE), job
    done = caller.history.count([Call], Outcome.ACKNOWLEDGED)
    assert done > TURNS, f"seed {seed}: {done} of {len(jobs)} were done"
    return check(caller.history)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_changes_have_an_order_that_explains_all_answers(seed: int) -> None:
    assert run(seed) == []
