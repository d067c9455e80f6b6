"""Nodes whose metadata is in the model of etcd."""

from collections.abc import Callable, Sequence
from itertools import count
from random import Random

from tests.model.manual_world import Job, ManualRuntime
from tests.simulation.etcd import ModelClient, ModelEtcd

from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.position import Position
from braidlog.cluster.metadata.events import Event, IdBlock
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.testing.clock import ManualClock

PREFIX = "braid/test"
BLOCK = 10


class Node:
    """A store and the image that follows it."""

    def __init__(self, cluster: "Cluster", name: str, *, known: Position | None = None) -> None:
        self.name = name
        self.client = ModelClient(cluster.etcd)
        nonces = count(1)
        self.store = EtcdStore(
            self.client,
            cluster.runtime,
            prefix=PREFIX,
            node=name,
            new_nonce=lambda: f"{name}-{next(nonces)}",
            snapshot_every=cluster.snapshot_every,
        )
        cluster.run(self.store.open(known))
        self.metadata = Metadata(self.store, cluster.runtime)
        self.store.arrived = self.metadata.catch_up
        self.jobs = [
            cluster.runtime.spawn(self.store.follow_changes()),
            cluster.runtime.spawn(self.store.check_watch()),
        ]


class Cluster:
    def __init__(self, *, snapshot_every: int = 1_000, rng: Random | None = None) -> None:
        self.runtime = ManualRuntime(ManualClock(), rng=rng)
        self.etcd = ModelEtcd(self.runtime)
        self.snapshot_every = snapshot_every
        founder = EtcdStore(ModelClient(self.etcd), self.runtime, prefix=PREFIX, node="0", new_nonce=lambda: "0")
        self.run(founder.create_cluster("c1"))

    def run(self, coroutine: object, ms: int = 100) -> object:
        job: Job[object] = self.runtime.spawn(coroutine)  # type: ignore[arg-type]
        self.runtime.advance(ms)
        return job.result()

    def entries(self) -> int:
        return len(self.etcd.read(Keys(PREFIX).events, 0, 0, keys_only=True).items)


def next_block_of(size: int) -> Callable[[Image], Sequence[Event]]:
    return lambda image: [IdBlock(taken=image.ids_taken + size)]


next_block = next_block_of(BLOCK)
