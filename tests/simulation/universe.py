"""A whole cluster in one process and on virtual time: a seed gives one run, the same each time.

Three nodes with real storage on a disk in memory, the real steps of replication, failure detection and control, the real store of
metadata over a model of etcd; a network that delays, loses, doubles and cuts; clients that write and read; faults as its
mix has them. `run` raises `BrokenPromise` as soon as something is not as it was promised; then faults end, and within a few
virtual seconds everything must be whole again.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Protocol

from tests.histories.checker import check
from tests.histories.history import History, Read
from tests.simulation.etcd import Fate, ModelClient, ModelEtcd
from tests.simulation.fault_mix import Mix, drawn
from tests.simulation.network import Codec, Conditions, Network
from tests.simulation.promises import BrokenPromise, Promises
from tests.simulation.sent_records import SentRecords
from tests.simulation.simulated_clients import FIRST_CLIENT, Deleter, Producer, Reader
from tests.simulation.simulated_messages import TOPIC, Ping, Produce, assignments
from tests.simulation.simulated_node import CLUSTER, PREFIX, FolderMemory, SimulatedNode
from tests.simulation.simulated_replica import SimulatedReplica
from tests.simulation.timed_faults import TimedFaults
from tests.simulation.virtual_time import US_PER_MS, US_PER_SECOND, VirtualTime, VirtualWorld, stream

from braidlog.cluster.etcd.entries import Keys
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.membership import name_of
from braidlog.cluster.metadata import events as e
from braidlog.replication.assignment import Assignment
from braidlog.replication.control import swim
from braidlog.replication.control.incarnation import Life
from braidlog.testing.disk import SimulatedDisk
from braidlog.testing.faults import Crash

REPLICAS = 3
MIN_IN_SYNC = 2
HEAL_US = 10 * US_PER_SECOND
ETCD = 0


class Client(Protocol):
    """Somebody outside of the cluster, with a number of his own on the network."""

    @property
    def number(self) -> int: ...

    def start(self) -> None: ...

    def receive(self, sender: int, message: object, /) -> None: ...


class Universe:
    """Make one from a seed, `run` it once."""

    node_type: type[SimulatedNode] = SimulatedNode

    def __init__(
        self,
        seed: int,
        *,
        mix: Mix | None = None,
        codec: Codec | None = None,
        tells: bool = False,
        skipped: frozenset[int] = frozenset(),
    ) -> None:
        self.seed = seed
        self.mix = drawn(seed, self.stream("mix")) if mix is None else mix
        self.time = VirtualTime()
        self.counts: Counter[str] = Counter()
        self.story: list[str] | None = [] if tells else None
        self.history = History()
        self.records = SentRecords()
        self.is_healing = False
        self.faults = 0
        self._skipped = skipped
        self._events = self.stream("events")
        self._etcd_draw = self.stream("etcd")
        self._runtime = VirtualWorld(self.time)
        self.etcd = ModelEtcd(self._runtime)
        self.etcd_away_until_us: dict[int, int] = {}
        self.network = Network(self.time, self.stream("network"), self.mix.conditions, self._deliver, codec)
        self.names = [name_of(TOPIC, number) for number in range(self.mix.partitions)]
        self.promises = Promises(self, self.names)
        self.nodes = {number: self.node_type(self, number) for number in range(1, 1 + self.mix.nodes)}
        self._crash_power = False
        self._lost: set[int] = set()
        self._flipped: tuple[int, str] | None = None
        """The node and the partition of a copy in which a bit has turned, until that is found."""
        self.is_flip_out_of_reach = False
        """It is below the log's start: only an opening may come across it."""
        self._copying: list[tuple[int, str, int]] = []
        self.clients: dict[int, Client] = {client.number: client for client in self._clients()}

    def _clients(self) -> Iterator[Client]:
        """Each partition has a producer, a reader and, if the mix says so, somebody who deletes."""
        mix, names = self.mix, self.names
        strong = max(mix.producers, len(names))
        for at in range(strong + mix.weak_producers):
            yield Producer(self, FIRST_CLIENT + at, names[at % len(names)], needs_all=at < strong)
        for at in range(max(mix.readers, len(names))):
            yield Reader(self, FIRST_CLIENT + 50 + at, names[at % len(names)], at_leader=at % 2 == 0)
        for at, name in enumerate(names if mix.delete_every_us else ()):
            yield Deleter(self, FIRST_CLIENT + 100 + at, name)

    def stream(self, name: str) -> Random:
        return stream(self.seed, name)

    @property
    def seconds(self) -> float:
        return self.time.now_us / US_PER_SECOND

    @property
    def acknowledged(self) -> int:
        return sum(client.acknowledged for client in self.clients.values() if isinstance(client, Producer))

    # -- the run -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._run()
        finally:
            for node in self.nodes.values():
                node.end()

    def start(self) -> None:
        self._found()
        for node in self.nodes.values():
            node.start()
        for client in self.clients.values():
            client.start()
        TimedFaults(self).start()

    def _run(self) -> None:
        self.start()
        self.time.run(self.mix.duration_us)
        self._heal()
        self.time.run(self.time.now_us + HEAL_US, done=self._is_whole)
        self._check_whole()

    def _found(self) -> None:
        """A cluster whose nodes held all partitions when they were last there; nobody leads any of them yet."""
        founder = EtcdStore(ModelClient(self.etcd), self._runtime, prefix=PREFIX, node="0", new_nonce=lambda: "0")
        numbers = tuple(self.nodes)
        placement = tuple((numbers[at:] + numbers[:at])[:REPLICAS] for at in range(len(self.names)))
        created = e.CreateTopic(
            topic=TOPIC,
            topic_id="0",
            partitions=len(self.names),
            settings=self.mix.settings,
            created_ms=0,
            replicas=("0",),
            min_in_sync=MIN_IN_SYNC,
            placement=placement,
        )
        unled = [
            e.AssignPartition(
                topic=TOPIC,
                partition=at,
                leader_epoch=1,
                partition_epoch=0,
                after=Assignment(replicas=replicas, in_sync=replicas, leader=None),
            )
            for at, replicas in enumerate(placement)
        ]
        registered = [
            e.RegisterNode(node=node.number, incarnation=1, life=node.this_life()) for node in self.nodes.values()
        ]
        for node in self.nodes.values():
            node.kept = FolderMemory(remembers=1)

        async def found() -> None:
            await founder.create_cluster(CLUSTER)
            await founder.open()
            await founder.propose([*registered, created, *unled], after=0)

        self._runtime.spawn(found())
        self.time.run(50 * US_PER_MS)
        assert self.etcd.read(Keys(PREFIX).events, 0, 0, keys_only=True).items

    def _heal(self) -> None:
        self.note(0, "faults end")
        self.is_healing = True
        self.network.heal_all()
        self.network.conditions = Conditions()
        self.etcd_away_until_us.clear()
        self.etcd.deliver_late()
        for watch in self.etcd.watches:
            watch.is_deaf = False
            watch.wake()
        for node in self.nodes.values():
            node.paused_until_us = 0
            node.disk.stop_at = None  # a death that was still to come would be one more fault
            if not node.is_alive:
                node.start()

    def _is_whole(self) -> bool:
        return self.time.actions % 64 == 0 and not self._missing()

    def _missing(self) -> str:
        """What is not yet as it should be."""
        for client in self.clients.values():
            if isinstance(client, Producer) and not client.is_done:
                return f"producer {client.number} has no answer"
        for node in self.nodes.values():
            if node.metadata is None or not node.incarnation:
                return f"node {node.number} has not started"
            for name, known in assignments(node.metadata.image).items():
                is_moving = known.adding or known.removing
                if known.leader is None or len(known.in_sync) < len(known.replicas) or is_moving:
                    return f"node {node.number} knows {name} as {known}"
        # One that moved away while its node was down is not opened any more, and so never copied anew.
        is_held = self._flipped is not None and self._flipped[1] in self.nodes[self._flipped[0]].replicas
        if self._flipped is not None and is_held and not self.is_flip_out_of_reach:
            return f"node {self._flipped[0]} has not copied {self._flipped[1]} anew, in which a bit has turned"
        return next((missing for name in self.names if (missing := self._missing_of(name))), "")

    def _missing_of(self, name: str) -> str:
        replicas = self._replicas_of(name)
        ends = {(each.replica.log.end, each.replica.watermark, each.replica.epoch) for each in replicas}
        if len(ends) > 1 or any(end != watermark for end, watermark, _ in ends):
            return f"ends, watermarks, epochs of {name}: {sorted(ends)}"
        if not any(each.is_leader for each in replicas):
            return f"nobody has begun to lead {name}"
        law = self._leader_of(name).log.start_offset
        starts = [each.log.start_offset for each in replicas]
        return f"{name} begins at {starts}, in its leader at {law}" if min(starts) < law else ""

    def _replicas_of(self, name: str) -> list[SimulatedReplica]:
        return [node.replicas[name] for node in self.nodes.values() if name in node.replicas]

    def _leader_of(self, name: str) -> SimulatedReplica:
        return next(each for each in self._replicas_of(name) if each.is_leader)

    def _check_whole(self) -> None:
        missing = self._missing()
        if missing:
            raise BrokenPromise(f"{HEAL_US // US_PER_SECOND} s after the last fault: {missing}")
        now = math.nextafter(self.seconds, math.inf)  # everything else is over by then
        for name in self.names:
            replicas = self._replicas_of(name)
            self.promises[name].same_records(replicas)
            for each in replicas:
                self.promises[name].has_all(each)
            log = self._leader_of(name).log
            held = self._leader_of(name).records(log.start_offset, log.end_offset)
            values = {offset: value.decode() for offset, value in held}
            page = Read("reader at the end", name, values, log.start_offset, log.end_offset, now, now, last=True)
            self.history.add(page)
        for wrong in check(self.history):
            raise BrokenPromise(wrong)

    # -- nodes and what happens to them ------------------------------------------------------------------------

    def enter(self, node: SimulatedNode, life: int, action: Callable[[], None]) -> None:
        """Do something as that life of a node, unless it is over; later, if the process stands still."""
        if node.life != life or not node.is_alive:
            return
        if node.paused_until_us > self.time.now_us:
            self.time.after(node.paused_until_us - self.time.now_us, lambda: self.enter(node, life, action))
            return
        try:
            action()
        except Crash as crash:
            # Asked again: between the decision and the crash another copy may have been lost.
            self.end(node, "power" if self._crash_power and self.may_lose("power") else "kill", str(crash))

    def happened(self, node: SimulatedNode, event: str) -> None:
        """The place for faults by event."""
        rate = self.mix.after_events.get(event, 0.0)
        if not rate or self.is_healing or self._events.random() >= rate or not self.is_wanted():
            return
        self._crash_power = self._events.random() < 0.5 and self.may_lose("power")
        self.count(f"crash at {event}")
        if self._events.random() < 0.3:
            self._end_others(node)
        if event == "truncation":
            node.disk.stop_at = len(node.disk.operations) + 1 + self._events.randrange(12)
            return
        raise Crash(f"at: {event}")

    def _end_others(self, node: SimulatedNode) -> None:
        """They go down together, and come back in any order."""
        for other in self.nodes.values():
            if other is not node and other.is_alive and self._events.random() < 0.7:
                self.time.after(0, partial(self._end_with, other, other.life))

    def _end_with(self, node: SimulatedNode, life: int) -> None:
        if node.is_alive and node.life == life:
            kind = "power" if self.mix.flush_on_ack and self._events.random() < 0.5 else "kill"
            self.end(node, kind, "together with another")

    def stop(self, node: SimulatedNode, why: str) -> None:
        self._crash_power = False
        raise Crash(f"node {node.number} stops: {why}")

    def is_wanted(self) -> bool:
        """Faults are numbered; a run that is made shorter leaves some out."""
        self.faults += 1
        return self.faults not in self._skipped

    def may_lose(self, kind: str) -> bool:
        """Whether a copy may lose something now: one at a time, until it is in sync again, or no promise could be kept."""
        if kind == "kill" or (kind == "power" and self.mix.flush_on_ack):
            return True
        self._lost = {lost for lost in self._lost if not self._is_back(self.nodes[lost].this_life(), lost)}
        self._copying = [each for each in self._copying if not self._is_copied(*each)]
        return not (self._lost or self._copying or self._flipped)

    def flip(self, node: SimulatedNode, draw: Random) -> None:
        """One bit of one of its copies, if none is lost already."""
        replica = node.replicas.get(draw.choice(self.names))
        if node.is_alive and replica is not None and self.may_lose("bit") and replica.flip_bit(draw):
            self._flipped, self.is_flip_out_of_reach = (node.number, replica.name), False
            self.count("bit flipped")

    def has_flipped(self, replica: SimulatedReplica) -> bool:
        return self._flipped == (replica.node.number, replica.name)

    def gives_up(self, replica: SimulatedReplica, *, copies: bool = False) -> None:
        """What had a flipped bit is gone; if it `copies` them anew, it may have nothing until it is in sync."""
        if self.has_flipped(replica):
            self._flipped = None
        if copies:
            self._copying.append((replica.node.number, replica.name, replica.replica.epoch))

    def _is_copied(self, number: int, name: str, epoch: int) -> bool:
        """Whether it is in sync in that epoch or later, or holds the partition no more."""
        for node in self.nodes.values():
            known = assignments(node.metadata.image).get(name) if node.metadata is not None else None
            if known is not None and known.leader_epoch >= epoch:
                return number in known.in_sync or number not in known.replicas
        return False

    def opened(self, replica: SimulatedReplica) -> None:
        """A crash leaves no damage; what a leader of several lives promised is checked when it leads."""
        if not replica.log.damages:
            return
        if not self.has_flipped(replica):
            raise BrokenPromise(f"node {replica.node.number} finds damage after a crash: {replica.log.damages[0]}")
        self.count("damage found at opening")

    def _is_back(self, life: Life, number: int) -> bool:
        """Whether it has fetched its way into the set with the folder and on the machine that it has now."""
        for node in self.nodes.values():
            image = node.metadata.image if node.metadata is not None else None
            member = image.cluster.member(number) if image is not None else None
            if image is None or member is None:
                continue
            known = assignments(image).values()
            if any(number in each.replicas and number not in each.in_sync for each in known):
                continue
            if (member.registered.life.folder_id, member.registered.life.boot_id) == (life.folder_id, life.boot_id):
                return True
        return False

    def end(self, node: SimulatedNode, kind: str, why: str) -> None:
        """The process ends: kill keeps what was written, power only what was synced, wipe nothing."""
        self.note(node.number, f"ends by {kind}: {why}")
        self.count(kind)
        draw = self.stream(f"end {node.number} {node.life}")
        node.end()
        if kind != "kill":
            node.boot_id += 1
            if kind == "wipe" or not self.mix.flush_on_ack:
                self._lost.add(node.number)
        if kind == "wipe":
            node.disk = SimulatedDisk()
            self._flipped = None if self._flipped and self._flipped[0] == node.number else self._flipped
            node.folder_id += 1
            node.kept = FolderMemory()
        elif kind == "power":
            _, node.disk = next(iter(node.disk.crash_states(limit=1, rng=draw)))
        else:
            node.disk = node.disk.after_kill()
        after_ms = draw.choice((5, 50, 300, 1_500)) * (0.5 + draw.random())
        life = node.life
        self.time.after(int(after_ms * US_PER_MS), lambda: self._start(node, life))

    def _start(self, node: SimulatedNode, life: int) -> None:
        if node.life == life and not node.is_alive:
            self.note(node.number, "starts")
            node.start()

    # -- around ------------------------------------------------------------------------------------------------

    def _deliver(self, to: int, sender: int, message: object) -> None:
        if to in self.clients:
            self.clients[to].receive(sender, message)
            return
        node = self.nodes[to]
        if node.is_alive:
            self.enter(node, node.life, lambda: node.receive(sender, message))
        elif isinstance(message, Ping):
            self.network.send(to, sender, swim.ConnectionRefused(to))

    def fate(self, node: int, call: str) -> Fate:
        """What becomes of a call of a node to etcd."""
        if self.etcd_away_until_us.get(node, 0) > self.time.now_us:
            return Fate.NOT_ARRIVED
        rate = 0.0 if self.is_healing or call != "write" else self.mix.unknown_rate
        if rate and self._etcd_draw.random() < rate:
            self.count("unknown outcome")
            fate = self._etcd_draw.choice((Fate.NOT_ANSWERED, Fate.LATE, Fate.NOT_ARRIVED))
            if fate is Fate.LATE:
                self.time.after(self._etcd_draw.randrange(300 * US_PER_MS), self.etcd.deliver_late)
            return fate
        return Fate.DONE

    def etcd_seconds(self) -> float:
        return self.mix.etcd_us * (0.5 + self._etcd_draw.random()) / US_PER_SECOND

    def leader_as_seen(self, draw: Random, name: str) -> int:
        """By one of the nodes; or anybody."""
        numbers = tuple(self.nodes)
        node = self.nodes[draw.choice(numbers)]
        if node.metadata is not None and name in (known := assignments(node.metadata.image)):
            leader = known[name].leader
            if leader is not None:
                return leader
        return draw.choice(numbers)

    def deletable_end(self, name: str) -> int:
        """What producers wrote last is not deleted: a copy that begins behind it would not know a retry from a new batch."""
        producers = (each for each in self.clients.values() if isinstance(each, Producer) and each.needs_all)
        return min(each.last_offset for each in producers if each.partition == name)

    def is_asked_for(self, message: Produce) -> bool:
        """Whether its producer still waits for it."""
        client = self.clients[message.client]
        return isinstance(client, Producer) and client.asks_for(message.data)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def note(self, node: int, what: str) -> None:
        if self.story is not None:
            who = f"node {node}" if node else "cluster"
            self.story.append(f"{self.time.now_us / US_PER_MS:10.3f} ms  {who}: {what}")
