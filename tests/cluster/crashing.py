"""A workload of metadata changes in which every disk operation may be the last.

After each crash the node is started again. Then: the metadata is that before the change under way or that after it, never
between; the folder is as the metadata says, nothing was set aside, and no acknowledged record of a topic that is there is gone.
A folder of such a topic that is taken away besides is missed.
"""

from collections.abc import Callable
from random import Random

import msgspec
from tests.cluster.node import MetadataNode

from braidlog.cluster.metadata.image import Image
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.partition.hosted_log import Role
from braidlog.security.authorization import Operation as Allowed
from braidlog.security.authorization import Rule
from braidlog.security.users import Hash
from braidlog.storage.folder.data_folder import DataFolder
from braidlog.testing.clock import ManualClock
from braidlog.testing.disk import SimulatedDisk
from braidlog.testing.faults import Operation

Facts = dict[str, object]
NAMES = ("a", "b", "c", "d")
SNAPSHOT_EVERY = 4
RESTARTS_OF = 30
"""In one of so many states the start that completes the change is itself crashed at every operation."""


def facts_of(image: Image) -> Facts:
    """Everything but ids of topics, which are drawn anew by each twin."""
    facts: Facts = {
        f"topic {topic.name}": msgspec.structs.replace(topic, topic_id="", created_ms=0)
        for topic in image.topics.values()
    }
    facts |= {f"user {name}": credentials for name, credentials in image.users.items()}
    return facts | {
        "rules": sorted(image.rules, key=repr),
        "nodes": dict(image.nodes),
        "ids": image.ids_taken,
        "deleted": len(image.deleted),
    }


class Campaign:
    """`states` counts distinct disks that were started from, `inside` those left by a crash of such a start.

    `missed` counts folders that were taken away besides, and were not replaced by empty ones.
    """

    def __init__(self, seed: int, states_per_operation: int = 12) -> None:
        self.rng = Random(seed)
        self.states = self.inside = self.took_effect = self.missed = 0
        self._limit = states_per_operation
        self._seen: set[int] = set()
        self._draws = 0
        self.node = MetadataNode(snapshot_every=SNAPSHOT_EVERY)
        self.before = self.after = facts_of(self.node.metadata.image)
        self.written: dict[str, bytes] = {}

    def run(self, changes: int) -> None:
        kinds: list[tuple[Callable[[], None], int]] = [
            (self.create, 5),
            (self.delete, 3),
            (self.grow, 2),
            (self.alter, 2),
            (self.place, 1),
            (self.lead, 2),
            (self.user, 2),
            (self.rule, 2),
            (self.ids, 2),
            (self.register, 1),
        ]
        for _ in range(changes):
            (kind,) = self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
            kind()

    # -- one change ------------------------------------------------------------------------------------------

    def change(self, call: Callable[[MetadataNode], object]) -> None:
        """First on a twin, to learn what it makes of the facts; then for real, with a crash at every operation."""
        twin = self.node.restarted()
        call(twin)
        self.after = facts_of(twin.metadata.image)
        self.node.disk.on_operation = self._crash
        call(self.node)
        self.node.disk.on_operation = None
        acknowledged = facts_of(self.node.metadata.image)
        assert acknowledged == self.after
        self.before = acknowledged
        for label, disk in self._states(self.node.disk):
            self._check(disk, f"after the acknowledgement, {label}")
            self.states += 1
        for topic in self.node.metadata.image.topics.values():
            if topic.topic_id not in self.written:
                self.node.write(topic.name, topic.topic_id.encode())
                self.written[topic.topic_id] = topic.topic_id.encode()

    def _states(self, disk: SimulatedDisk, limit: int | None = None) -> list[tuple[str, SimulatedDisk]]:
        self._draws += 1
        return list(disk.crash_states(limit=limit or self._limit, rng=Random(self._draws), seen=self._seen))

    def _crash(self, operation: Operation) -> None:
        where = f"operation {operation.number} ({operation.kind} {operation.path})"
        for label, disk in self._states(self.node.disk):
            self.states += 1
            self._check(disk, f"{where}, {label}", restarts=self.states % RESTARTS_OF == 0)

    def _check(self, disk: SimulatedDisk, where: str, *, restarts: bool = False) -> None:
        if restarts:
            self._crash_the_start(disk.copy(), where)
            self._lose_folders(disk.copy(), where)
        try:
            again = self.node.restarted(disk)
            self._check_started(again, where)
        except (StorageFault, BrokerError) as error:
            raise AssertionError(f"{where}: {error}") from error

    def _crash_the_start(self, disk: SimulatedDisk, where: str) -> None:
        def crash(operation: Operation) -> None:
            for label, inner in self._states(disk, limit=3):
                self.inside += 1
                self._check(inner, f"{where}; then operation {operation.number} of the start, {label}")

        disk.on_operation = crash
        self.node.restarted(disk)

    def _check_started(self, again: MetadataNode, where: str) -> None:
        found = facts_of(again.metadata.image)
        assert found in (self.before, self.after), f"{where}: {found}, neither {self.before} nor {self.after}"
        self.took_effect += found == self.after != self.before
        strays = [note for note in again.folder.notes if ".stray" in note]
        assert not strays, f"{where}: {strays}"
        metas = {meta.name: meta for meta in again.folder.topics() if not meta.name.startswith("__")}
        topics = again.metadata.image.topics
        told = {name: (meta.topic_id, meta.partitions, meta.settings) for name, meta in metas.items()}
        wanted = {name: (topic.topic_id, topic.partitions, topic.settings) for name, topic in topics.items()}
        assert told == wanted, f"{where}: the folder holds {told}, the metadata says {wanted}"
        for name, topic in topics.items():
            (first, *_) = again.hosting.partitions(name)
            assert first.end_offset >= (topic.topic_id in self.written), f"{where}: a record of {name} is gone"
            assert again.metadata.image.made_by("0", topic) == topic.partitions, f"{where}: {name} would not be missed"

    def _lose_folders(self, disk: SimulatedDisk, where: str) -> None:
        """Take away the folder of each topic that has acknowledged records: the next start must miss it."""
        folder = DataFolder(disk, "/data", ManualClock())
        held = {meta.topic_id: meta.name for meta in folder.topics() if meta.topic_id in self.written}
        for name in held.values():
            folder.delete_topic(name)
        folder.release()
        hosting = self.node.restarted(disk).hosting
        for topic_id, name in held.items():
            if hosting.name_of(topic_id) is None:
                continue  # its deletion had become durable
            try:
                hosting.partition(name, 0)
            except StorageFault:
                self.missed += 1
            else:
                raise AssertionError(f"{where}: the folder of {name} was lost, and an empty one is served in its place")

    # -- changes ---------------------------------------------------------------------------------------------

    def _some(self) -> str | None:
        names = self.node.hosting.names()
        return self.rng.choice(names) if names else None

    def create(self) -> None:
        missing = [name for name in NAMES if name not in self.node.hosting.names()]
        if missing:
            name, count, followers = self.rng.choice(missing), self.rng.randrange(1, 3), self.rng.choice([(), ("9",)])
            self.change(lambda node: node.run(node.topics.create(name, count, followers=followers)))

    def delete(self) -> None:
        if (name := self._some()) is not None:
            self.change(lambda node: node.run(node.topics.delete(name)))

    def grow(self) -> None:
        name = self._some()
        if name is not None and (count := self.node.hosting.partition_count(name)) < 4:
            self.change(lambda node: node.run(node.topics.grow(name, count + 1)))

    def alter(self) -> None:
        if (name := self._some()) is not None:
            changes = {"retention_ms": self.rng.randrange(1, 10**6)}
            self.change(lambda node: node.run(node.topics.alter(name, changes)))

    def place(self) -> None:
        if (name := self._some()) is not None:
            followers = [str(number) for number in range(1, self.rng.randrange(1, 4))]
            self.change(lambda node: node.run(node.placement.set_followers(name, followers, 1)))

    def lead(self) -> None:
        """Follow and lead: each leadership is an epoch of its own."""
        if (name := self._some()) is not None:
            for role in (Role.FOLLOWER, Role.LEADER):
                self.change(lambda node, role=role: node.run(node.placement.set_role(name, 0, role)))  # type: ignore[misc]

    def user(self) -> None:
        name, salt = self.rng.choice(("alice", "bob")), self.rng.randbytes(16)
        if name in self.node.users.names() and self.rng.random() < 0.4:
            self.change(lambda node: node.run(node.users.drop(name, Hash.SHA_256)))
        else:
            self.change(lambda node: node.run(node.users.put(name, Hash.SHA_256, salt, 4096, bytes(32))))

    def rule(self) -> None:
        rules = [Rule(who, [Allowed.READ], f"t{self.rng.randrange(10)}") for who in ("alice", "bob")]
        if self.rng.random() < 0.3:
            self.change(lambda node: node.run(node.rules.drop(lambda rule: rule.principal == "bob")))
        else:
            self.change(lambda node: node.run(node.rules.add(rules)))

    def ids(self) -> None:
        def call(node: MetadataNode) -> None:
            given = node.run(node.producer_ids.allocate())
            assert given == self.before["ids"]
            node.producer_ids._next = node.producer_ids._limit

        self.change(call)

    def register(self) -> None:
        number, port = self.rng.randrange(1, 4), self.rng.randrange(1, 9)
        self.change(lambda node: node.run(node.brokers.register(number, "host", port)))
