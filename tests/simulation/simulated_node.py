"""A node of a simulated cluster: real storage, real steps, real metadata store; its process can end at any moment.

Knows: how a node starts, registers, follows the metadata, and carries messages to its steps. Refuses to know: which faults come.
"""

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.etcd import ModelClient
from tests.simulation.simulated_messages import (
    TOPIC,
    Delete,
    ForReplica,
    Ping,
    Produce,
    Produced,
    Read,
    assignments,
    key_of,
)
from tests.simulation.simulated_replica import SimulatedReplica
from tests.simulation.virtual_time import US_PER_MS, Job, VirtualWorld

from braidlog.cluster.controller_runner import Views
from braidlog.cluster.etcd.etcd_store import EtcdStore
from braidlog.cluster.etcd.port import EtcdError
from braidlog.cluster.etcd.position import Position
from braidlog.cluster.metadata import events as e
from braidlog.cluster.metadata import proposals
from braidlog.cluster.metadata.image import Image
from braidlog.cluster.metadata.metadata_store import Metadata
from braidlog.model.errors import BrokerError, Reason
from braidlog.replication import assignment as sets
from braidlog.replication.control import controller as control
from braidlog.replication.control import swim
from braidlog.replication.control.incarnation import Life, Registration, last_known_incarnation
from braidlog.replication.messages import Assigned, ChangeRefused, Tick
from braidlog.replication.ready import Proposal, ProposeChange, ReportLogEnd, Resign
from braidlog.storage.log.partition_log import PartitionLog, create_partition
from braidlog.storage.open_files import FilePool
from braidlog.storage.segment.segment_files import Identity
from braidlog.testing.disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.simulation.universe import Universe

TOPIC_ID = b"simulated-topic."
PREFIX = "sim"
CLUSTER = "simulated"
TICK_US = 100 * US_PER_MS
REPLICA_TICK_EVERY = 3
AGAIN_SECONDS = 0.05
SYNC_RATE = 0.3
UPKEEP_RATE = 0.3
"""How likely a replica does so at one of its ticks."""


class FolderMemory(NamedTuple):
    """What a node's folder holds besides its log, durably."""

    remembers: int = 0
    start_ids: tuple[str, ...] = ()
    """Under which it asked to be registered since, without having heard what became of it."""
    position: Position | None = None


class SimulatedNode:
    """`start`, then everything by `receive` and by its own ticks, until `end`."""

    replica_type: type[SimulatedReplica] = SimulatedReplica

    def __init__(self, universe: "Universe", number: int) -> None:
        self.universe = universe
        self.number = number
        self.disk = SimulatedDisk()
        self.folder_id, self.boot_id = 0, 0
        self.kept = FolderMemory()
        self.life = 0
        self.is_alive = False
        self.paused_until_us = 0
        self.replicas: dict[str, SimulatedReplica] = {}
        self.metadata: Metadata | None = None
        self.store: EtcdStore | None = None
        self.incarnation = 0
        self._copies = 0
        self._registrations = 0
        self._jobs: list[Job] = []

    # -- birth and death ---------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.is_alive
        self.is_alive = True
        self.life += 1
        self.paused_until_us = 0
        self.incarnation = 0
        self.replicas, self.metadata, self.store = {}, None, None
        self._is_registering = True
        self._acted = -1
        self._busy_until_us = 0
        self._ticks = 0
        draw = self.universe.stream(f"clock {self.number} {self.life}")
        rate = 1 + self.universe.mix.drift * (2 * draw.random() - 1)
        # A monotonic clock is a machine's: it goes on where it was, whatever becomes of the process.
        self.runtime = VirtualWorld(
            self.universe.time, rate=rate, ahead_ms=draw.randrange(-500, 500), enter=self._entering()
        )
        self._draw = self.universe.stream(f"node {self.number} {self.life}")
        self.swim = swim.Swim(node=self.number)
        self.controller = control.Controller(node=self.number)
        self._views = Views()
        self._spawn(self._begin())
        self.universe.time.after(self._draw.randrange(TICK_US), lambda: self.world_enter(self._tick))

    def end(self) -> None:
        """The process is gone."""
        self.is_alive = False
        self.life += 1
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job.cancel()
        if self.store is not None:
            self.store.close()

    def _entering(self) -> Callable[[Callable[[], None]], None]:
        life = self.life
        return lambda action: self.universe.enter(self, life, action)

    def world_enter(self, action: Callable[[], None]) -> None:
        self.universe.enter(self, self.life, action)

    def _spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._jobs = [job for job in self._jobs if not job.is_over]
        self._jobs.append(self.runtime.spawn(coroutine))

    async def _begin(self) -> None:
        nonce = self.universe.stream(f"nonce {self.number} {self.life}")
        client = ModelClient(
            self.universe.etcd,
            lambda call: self.universe.fate(self.number, call),
            runtime=self.runtime,
            seconds=self.universe.etcd_seconds,
        )
        store = EtcdStore(
            client,
            self.runtime,
            prefix=PREFIX,
            node=str(self.number),
            new_nonce=lambda: f"{self.number}-{nonce.getrandbits(48):x}",
            snapshot_every=self.universe.mix.snapshot_every,
            propose_seconds_max=1.0,
        )
        while True:
            try:
                await store.open(self.kept.position)
                break
            except EtcdError:
                await self.runtime.wakeup().wait(AGAIN_SECONDS)
        self.store = store
        self.metadata = Metadata(store, self.runtime)
        self._pool = FilePool(self.disk)
        store.arrived = self.follow
        self.follow()
        self._spawn(store.follow_changes())
        self._spawn(store.check_watch())
        await self._register()

    def next_copy(self) -> str:
        """A name for one opening of one log."""
        self._copies += 1
        return f"{self.life}.{self._copies}"

    def open_log(self, name: str) -> PartitionLog:
        """Over its folder, which is made if it is not there."""
        folder, identity = f"/{name.replace('/', '-')}", Identity(TOPIC_ID, key_of(name)[1])
        settings = self.universe.mix.settings
        if not self.disk.exists(folder):  # it has its name once it is whole, as in a data folder
            building = f"{folder}-new-{self.life}"
            create_partition(self.disk, building, identity, settings, self._pool, now_ms=self.runtime.now_ms())
            self.disk.rename(building, folder)
            self.disk.sync_folder("/")
        return PartitionLog(self.disk, folder, identity, settings, self._pool)

    def _host(self, name: str) -> SimulatedReplica:
        replica = self.replica_type(self, name, self.open_log(name), self._pool)
        self.universe.opened(replica)
        if self.incarnation:
            replica.replica = replica.replica.registered_as(self.incarnation)
        return replica

    def _release(self, name: str) -> None:
        """It has moved to other nodes: its folder goes."""
        self.universe.note(self.number, f"removes {name}")
        self.universe.count("replica removed")
        replica = self.replicas.pop(name)
        self.universe.gives_up(replica)
        self.remove_folder(replica.log)

    def remove_folder(self, log: PartitionLog) -> None:
        """Its name first: a crash between must not leave a part of it there."""
        log.close()
        aside = f"/removed-{self.next_copy()}"
        self.disk.rename(log.folder, aside)
        self.disk.sync_folder("/")
        for each in self.disk.names(aside):
            self.disk.remove(f"{aside}/{each}")
        self.disk.remove_folder(aside)

    def this_life(self, before: Registration | None = None) -> Life:
        return Life(
            boot_id=f"{self.number}.{self.boot_id}",
            folder_id=f"{self.number}.{self.folder_id}",
            remembers=last_known_incarnation(before, self.kept.remembers, self.kept.start_ids),
            start_id=f"{self.number}.{self.life}.{self._registrations}",
        )

    def _damaged(self) -> tuple[str, ...]:
        return tuple(name for name, each in self.replicas.items() if each.replica.is_damaged)

    async def _register(self) -> None:
        """Until it is known which incarnation we are."""
        self._is_registering = True
        assert self.metadata is not None
        metadata = self.metadata
        proposed = 0

        def decide(image: Image) -> Sequence[e.Event]:
            nonlocal proposed
            proposed = metadata.seq + 1
            member = image.cluster.member(self.number)
            life = self.this_life(member.registered if member else None)
            return [e.RegisterNode(node=self.number, incarnation=proposed, life=life, damaged=self._damaged())]

        self._registrations += 1
        start_id = self.this_life().start_id
        self.kept = self.kept._replace(start_ids=(*self.kept.start_ids, start_id))

        while True:
            try:
                await metadata.change(decide)
                break
            except BrokerError:
                await self.runtime.wakeup().wait(AGAIN_SECONDS)
        self.kept = self.kept._replace(remembers=proposed, start_ids=())
        self.incarnation = proposed
        for each in self.replicas.values():
            each.replica = each.replica.registered_as(proposed)
        self._is_registering = False
        self._acted = -1
        self.universe.note(self.number, f"is registered as incarnation {proposed}")
        self.universe.happened(self, "registered")
        self.follow()

    # -- metadata ----------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Act on what the metadata says now."""
        assert self.metadata is not None
        assert self.store is not None
        before = self.metadata.image
        self.metadata.catch_up()
        image, seq = self.metadata.image, self.metadata.seq
        if image is not before:
            self.universe.count("watch gap")
        if seq == self._acted:
            return
        self._acted = seq
        # First of all: a node that has acted on an entry must know that there is one.
        self.kept = self.kept._replace(position=self.store.position)
        cluster = image.cluster
        self.universe.promises.applied(self.number, seq, image)
        for name, assignment in assignments(image).items():
            is_mine = self.number in assignment.replicas
            if is_mine and name not in self.replicas:
                self.replicas[name] = self._host(name)
            if name in self.replicas:
                minimum = image.topics[TOPIC].min_in_sync
                self.replicas[name].step(Assigned(assignment, cluster.incarnations(), minimum))
                if not self.is_alive:
                    return
            if name in self.replicas and not is_mine:
                self._release(name)
        me = cluster.member(self.number)
        if not self._is_registering and me is not None and me.is_fenced:
            self.universe.count("fenced alive")
            self._is_registering = True
            self._spawn(self._register())
        members = swim.Members(
            tuple((number, node.incarnation) for number, node in sorted(cluster.nodes().items()) if not node.is_fenced)
        )
        self._swim(members)
        self._control(self._views.at(image, seq))

    def propose(self, replica: SimulatedReplica, proposal: Proposal) -> None:
        self.universe.happened(self, "proposal")
        if not isinstance(proposal, ProposeChange):
            self._spawn(self._say(replica.name, proposal))
        elif proposal.change != replica.proposed:
            replica.proposed = proposal.change
            self._spawn(self._change_set(replica, proposal.change))

    async def _say(self, name: str, said: Resign | ReportLogEnd) -> None:
        assert self.metadata is not None
        try:
            await proposals.propose_reports(self.metadata, [(key_of(name), said)])
        except BrokerError:
            return
        self.follow()

    async def _change_set(self, replica: SimulatedReplica, change: sets.InSyncSetChange) -> None:
        """Written, certainly refused, or asked for again by the leader's next tick."""
        assert self.metadata is not None
        try:
            if await proposals.change_sets(self.metadata, [(key_of(replica.name), change)]):
                replica.step(ChangeRefused(change))
        except BrokerError:
            self.universe.count("set change of unknown outcome")
        replica.proposed = None
        self.follow()

    def change_assignment(self, name: str, decide: Callable[[sets.Assignment, Image], sets.Assignment]) -> None:
        """As an administrator asks this node for."""
        self._spawn(self._change_assignment(name, decide))

    async def _change_assignment(self, name: str, decide: Callable[[sets.Assignment, Image], sets.Assignment]) -> None:
        assert self.metadata is not None

        def events(image: Image) -> Sequence[e.Event]:
            known = assignments(image)[name]
            after = decide(known, image)
            if after == known:
                return []
            topic, number = key_of(name)
            return [
                e.AssignPartition(
                    topic=topic,
                    partition=number,
                    leader_epoch=known.leader_epoch,
                    partition_epoch=known.partition_epoch,
                    after=after,
                )
            ]

        with contextlib.suppress(BrokerError):
            await self.metadata.change(events)
            self.follow()

    def _control(self, message: control.ControllerMessage) -> None:
        self.controller, proposal = control.step(self.controller, message, self.runtime.monotonic_ms())
        if proposal is not None:
            self.universe.happened(self, "proposal")
            self._spawn(self._write_entry(proposal))

    async def _write_entry(self, proposal: control.Propose) -> None:
        assert self.metadata is not None
        try:
            is_written = await proposals.write_entry(self.metadata, proposal)
        except BrokerError:
            return
        if not is_written:
            self._control(control.NotWritten(proposal.after))
        self.follow()

    # -- messages ----------------------------------------------------------------------------------------------

    def receive(self, sender: int, message: object) -> None:
        match message:
            case Ping():
                if self.incarnation:
                    self.universe.network.send(self.number, sender, swim.Pong(self.number, self.incarnation))
            case ForReplica(name, inner):
                if name in self.replicas:
                    self.replicas[name].step(inner)
            case swim.Pong() | swim.ConnectionRefused() | swim.PingRequest() | swim.WitnessReport():
                self._swim(message)
            case Produce() | Delete() | Read():
                if message.name in self.replicas:
                    self.replicas[message.name].request(message)
                elif not isinstance(message, Read):
                    refused = Produced(message.number, None, Reason.NOT_LEADER)
                    self.universe.network.send(self.number, sender, refused)
            case _:
                raise AssertionError(message)

    def _swim(self, message: swim.SwimMessage) -> None:
        self.swim, ready = swim.step(self.swim, message, self.runtime.monotonic_ms())
        for each in ready.send:
            match each:
                case swim.Ping(node):
                    self.universe.network.send(self.number, node, Ping())
                case swim.AskWitness(witness, node, incarnation):
                    question = swim.PingRequest(self.number, node, incarnation)
                    self.universe.network.send(self.number, witness, question)
                case swim.SendReport(to, report):
                    self.universe.network.send(self.number, to, report)
        for verdict in ready.verdicts:
            self.accuse(verdict)

    def accuse(self, verdict: swim.Verdict) -> None:
        self.universe.note(self.number, f"takes node {verdict.node}.{verdict.incarnation} for dead: {verdict.cause}")
        self._control(verdict)

    def _tick(self) -> None:
        self._ticks += 1
        self.universe.time.after(TICK_US, lambda: self.world_enter(self._tick))
        if not self.incarnation:
            return
        self._swim(swim.Tick(self._draw.getrandbits(16)))
        self._control(control.Tick())
        if (self._ticks + self.number) % REPLICA_TICK_EVERY:
            return
        for replica in list(self.replicas.values()):
            replica.step(Tick())
            if not self.is_alive:
                return
            if not self.universe.mix.flush_on_ack and self._draw.random() < SYNC_RATE:
                replica.beside(replica.sync_by_itself)
            if self._draw.random() < UPKEEP_RATE:
                replica.maintain_log()
            has_flipped = self.universe.has_flipped(replica) and not self.universe.is_flip_out_of_reach
            if has_flipped and self._draw.random() < UPKEEP_RATE:
                replica.scrub()  # nothing else would be found

    # -- for its replicas --------------------------------------------------------------------------------------

    def beside(self, act: Callable[[], None]) -> None:
        """One after the other, each as long as the disk takes."""
        time = self.universe.time
        begins = max(time.now_us, self._busy_until_us)
        self._busy_until_us = begins + self.universe.mix.sync_us(self._draw)
        life = self.life
        time.after(self._busy_until_us - time.now_us, lambda: self.universe.enter(self, life, act))

    def replaced(self) -> None:
        """While it registers anew, the newer registration may be the one whose answer it waits for."""
        if not self._is_registering:
            self.universe.stop(self, "its number is registered by another process")
