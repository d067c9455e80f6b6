"""A node of a simulated cluster: real storage, real steps, real metadata store; its process can end at any moment.

Knows: how a node starts, registers, follows the metadata, and carries messages to its steps. Refuses to know: which faults come.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from braidlog.cluster import events as e
from braidlog.cluster import proposals
from braidlog.cluster.controlling import Views
from braidlog.cluster.etcd.port import EtcdError
from braidlog.cluster.etcd.position import Position
from braidlog.cluster.etcd.store import EtcdStore
from braidlog.cluster.image import Image
from braidlog.cluster.store import Metadata
from braidlog.codec.batch import iter_batches
from braidlog.codec.records import decode_batch
from braidlog.model.errors import BrokerError, Reason
from braidlog.partition.replicated import ReplicatedPartition
from braidlog.replication import assignment as sets
from braidlog.replication import controller as control
from braidlog.replication import replica as replica_steps
from braidlog.replication import swim
from braidlog.replication.messages import (
    Answer,
    Assigned,
    ChangeRefused,
    Complaint,
    Diverging,
    Fetch,
    Fetched,
    Message,
    Refused,
    StartAnew,
    Tick,
)
from braidlog.replication.ready import (
    Apply,
    BeginEpoch,
    Done,
    Effect,
    Failed,
    ProposeChange,
    Resign,
    Stopped,
    Sync,
    Truncate,
)
from braidlog.replication.registration import Life, Registration, remembered
from braidlog.storage.head import Identity
from braidlog.storage.partition import PartitionLog
from braidlog.storage.pool import FilePool
from braidlog.testing.disk import SimulatedDisk
from braidlog.testing.etcd import ModelClient
from braidlog.testing.simulated_messages import TOPIC, Ping, Produce, Produced, Read, ReadAnswer
from braidlog.testing.virtual_time import US_PER_MS, Job, VirtualWorld

if TYPE_CHECKING:
    from braidlog.testing.universe import Universe

KEY = (TOPIC, 0)
FOLDER = "/t-0"
IDENTITY = Identity(b"simulated-topic.", 0)
PREFIX = "sim"
CLUSTER = "simulated"
TICK_US = 100 * US_PER_MS
REPLICA_TICK_EVERY = 3
AGAIN_SECONDS = 0.05
READ_BYTES = 64 * 1024


class FolderMemory(NamedTuple):
    """What a node's folder holds besides its log, durably."""

    remembers: int = 0
    start_ids: tuple[str, ...] = ()
    """Under which it asked to be registered since, without having heard what became of it."""
    position: Position | None = None


class SimulatedNode:
    """`start`, then everything by `receive` and by its own ticks, until `end`."""

    def __init__(self, universe: "Universe", number: int) -> None:
        self.universe = universe
        self.number = number
        self.disk = SimulatedDisk()
        self.folder_id, self.boot_id = 0, 0
        self.kept = FolderMemory()
        self.life = 0
        self.is_alive = False
        self.paused_until_us = 0
        self.partition: ReplicatedPartition | None = None
        self.metadata: Metadata | None = None
        self.store: EtcdStore | None = None
        self.incarnation = 0
        self._registrations = 0
        self._jobs: list[Job] = []

    # -- birth and death ---------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.is_alive
        self.is_alive = True
        self.life += 1
        self.paused_until_us = 0
        self.incarnation = 0
        self.partition, self.metadata, self.store = None, None, None
        self._is_registering = True
        self._acted = -1
        self._busy_until_us = 0
        self._tokens: dict[int, tuple[int, Produce, int]] = {}
        self._tokens_made = 0
        self._ticks = 0
        self._proposed: sets.SetChange | None = None
        draw = self.universe.stream(f"clock {self.number} {self.life}")
        rate = 1 + self.universe.mix.drift * (2 * draw.random() - 1)
        # A monotonic clock is a machine's: it goes on where it was, whatever becomes of the process.
        self.world = VirtualWorld(
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
        self._jobs.append(self.world.spawn(coroutine))

    async def _begin(self) -> None:
        nonce = self.universe.stream(f"nonce {self.number} {self.life}")
        client = ModelClient(
            self.universe.etcd,
            lambda call: self.universe.fate(self.number, call),
            world=self.world,
            seconds=self.universe.etcd_seconds,
        )
        store = EtcdStore(
            client,
            self.world,
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
                await self.world.wakeup().wait(AGAIN_SECONDS)
        self.store = store
        self.metadata = Metadata(store, self.world)
        self._open_partition()
        store.arrived = self.follow
        self.follow()
        self._spawn(store.follow_changes())
        self._spawn(store.check_watch())
        await self._register()

    def _open_partition(self) -> None:
        pool = FilePool(self.disk)
        settings = self.universe.mix.settings
        if not self.disk.exists(FOLDER):
            PartitionLog.create(self.disk, FOLDER, IDENTITY, settings, pool, now_ms=self.world.now_ms())
            self.disk.sync_folder("/")
        log = PartitionLog(self.disk, FOLDER, IDENTITY, settings, pool)
        self.universe.promises.opened(self, log)
        self.partition = _Watched(self, log)

    def this_life(self, before: Registration | None = None) -> Life:
        return Life(
            boot_id=f"{self.number}.{self.boot_id}",
            folder_id=f"{self.number}.{self.folder_id}",
            remembers=remembered(before, self.kept.remembers, self.kept.start_ids),
            start_id=f"{self.number}.{self.life}.{self._registrations}",
        )

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
            return [e.RegisterNode(node=self.number, incarnation=proposed, life=life)]

        self._registrations += 1
        start_id = self.this_life().start_id
        self.kept = self.kept._replace(start_ids=(*self.kept.start_ids, start_id))

        while True:
            try:
                await metadata.change(decide)
                break
            except BrokerError:
                await self.world.wakeup().wait(AGAIN_SECONDS)
        self.kept = self.kept._replace(remembers=proposed, start_ids=())
        self.incarnation = proposed
        assert self.partition is not None
        self.partition.replica = self.partition.replica.registered_as(proposed)
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
        assert self.partition is not None
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
        self.universe.promises.applied(self, seq, image)
        there = image.topics.get(TOPIC)
        if there is not None:
            self._tell(Assigned(there.assignments[0], cluster.incarnations(), there.min_in_sync))
        if not self.is_alive:
            return
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

    def propose(self, proposal: ProposeChange | Resign) -> None:
        self.universe.happened(self, "proposal")
        if isinstance(proposal, Resign):
            self._spawn(self._resign(proposal))
        elif proposal.change != self._proposed:
            self._proposed = proposal.change
            self._spawn(self._change_set(proposal.change))

    async def _resign(self, proposal: Resign) -> None:
        assert self.metadata is not None
        try:
            await proposals.resign(self.metadata, [(KEY, proposal)])
        except BrokerError:
            return
        self.follow()

    async def _change_set(self, change: sets.SetChange) -> None:
        """Written, certainly refused, or asked for again by the leader's next tick."""
        assert self.metadata is not None
        try:
            if await proposals.change_sets(self.metadata, [(KEY, change)]):
                self._tell(ChangeRefused(change))
        except BrokerError:
            self.universe.count("set change of unknown outcome")
        self._proposed = None
        self.follow()

    def _control(self, message: control.ControllerMessage) -> None:
        self.controller, proposal = control.step(self.controller, message, self.world.monotonic_ms())
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
            case Fetch() | Fetched() | Diverging() | StartAnew() | Refused() | Complaint():
                self._tell(message)
            case swim.Pong() | swim.ConnectionRefused() | swim.PingRequest() | swim.WitnessReport():
                self._swim(message)
            case Produce():
                self._produce(sender, message)
            case Read():
                self._read(sender, message)
            case _:
                raise AssertionError(message)

    def _tell(self, message: Message) -> None:
        if self.partition is not None:
            self.partition.tell(message)

    def _swim(self, message: swim.SwimMessage) -> None:
        self.swim, ready = swim.step(self.swim, message, self.world.monotonic_ms())
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
        if self.partition is None or not self.incarnation:
            return
        self._swim(swim.Tick(self._draw.getrandbits(16)))
        self._control(control.Tick())
        if (self._ticks + self.number) % REPLICA_TICK_EVERY == 0:
            self._tell(Tick())
            if not self.universe.mix.flush_on_ack and self._draw.random() < 0.3:
                self.beside(self._sync_by_itself)

    def _sync_by_itself(self) -> None:
        assert self.partition is not None
        self.partition.log.sync()

    # -- clients -----------------------------------------------------------------------------------------------

    def _produce(self, sender: int, message: Produce) -> None:
        if self.partition is None:
            self.universe.network.send(self.number, sender, Produced(message.number, None, Reason.NOT_LEADER))
            return
        self._tokens_made += 1
        self._tokens[self._tokens_made] = (sender, message, 0)
        self.partition.append(self._tokens_made, message.data, needs_all=message.needs_all)

    def _read(self, sender: int, message: Read) -> None:
        """Below what is committed as far as we know, from a leader and from a follower alike."""
        partition = self.partition
        if partition is None or partition.replica.role is None:
            return
        end = replica_steps.readable_end(partition.replica)
        records: tuple[tuple[int, bytes], ...] = ()
        if message.offset < end:
            records = tuple(self.records(max(message.offset, partition.log.start_offset), end))
        self.universe.promises.read(self.number, f"reader {sender}", records)
        self.universe.network.send(self.number, sender, ReadAnswer(message.number, end, records, self.life))

    def records(self, offset: int, end: int) -> list[tuple[int, bytes]]:
        """What the log holds there."""
        assert self.partition is not None
        log = self.partition.log
        found: list[tuple[int, bytes]] = []
        while offset < min(end, log.end_offset):
            data = log.read(offset, READ_BYTES, upto=end)
            for at, header in iter_batches(data):
                rows = decode_batch(data, at, decompressed_bytes_max=READ_BYTES)
                found += [(row[0], row[3] or b"") for row in rows if offset <= row[0] < end]
                offset = header.next_offset
            if not data:
                break
        return found

    # -- what the replica asks for (`ReplicaPort`) -------------------------------------------------------------

    def now_ms(self) -> int:
        return self.world.monotonic_ms()

    wall_ms = now_ms

    def sync(self, end: int, cuts: int) -> None:
        assert self.partition is not None
        self.beside(partial(self.partition.synced, end, cuts))

    def begin_epoch(self, epoch: int) -> None:
        assert self.partition is not None
        self.beside(partial(self.partition.epoch_begun, epoch))

    def send(self, node: int, message: Fetch | Answer | Complaint) -> None:
        self.universe.network.send(self.number, node, message)

    def beside(self, work: Callable[[], Message | None]) -> None:
        """One after the other, each as long as the disk takes."""
        time = self.universe.time
        begins = max(time.now_us, self._busy_until_us)
        self._busy_until_us = begins + self.universe.mix.sync_us(self._draw)

        def act() -> None:
            result = work()
            if result is not None:
                self._tell(result)

        life = self.life
        time.after(self._busy_until_us - time.now_us, lambda: self.universe.enter(self, life, act))

    def outcome(self, outcome: Apply) -> None:
        match outcome:
            case Done(token, end):
                sender, message, _ = self._tokens.pop(token)
                if message.needs_all:
                    self.universe.promises.acknowledged(self, message, end)
                self.universe.network.send(self.number, sender, Produced(message.number, end))
                self.universe.happened(self, "acknowledgement")
            case Failed(token, reason):
                sender, message, _ = self._tokens.pop(token)
                if reason is Reason.OUT_OF_ORDER_SEQUENCE:
                    self.universe.promises.found_gap(self, message)
                self.universe.network.send(self.number, sender, Produced(message.number, None, reason))
            case Stopped() if not self._is_registering:
                # While it registers anew, the newer registration may be the one whose answer it waits for.
                self.universe.stop(self, "its number is registered by another process")


class _Watched(ReplicatedPartition):
    """The product's own, with eyes on what it does and crashes between."""

    def __init__(self, node: SimulatedNode, log: PartitionLog) -> None:
        mix = node.universe.mix
        super().__init__(log, node.number, node, flush_on_ack=mix.flush_on_ack)
        self.replica = self.replica.now(lag_ms_max=mix.lag_ms_max)
        self._node = node
        if log.start_offset < self.replica.watermark < log.end_offset:
            node.universe.count("opened with a kept watermark")

    def tell(self, message: Message) -> None:
        if not self._node.is_alive:
            return
        super().tell(message)
        if self._node.is_alive:
            self._node.universe.promises.stepped(self._node, message)

    def _persist(self, effect: Effect) -> None:
        universe, node = self._node.universe, self._node
        match effect:
            case Truncate(end) if end < self.log.end_offset:
                universe.count("truncation")
                universe.note(node.number, f"cuts its log from {self.log.end_offset} to {end}")
                universe.happened(node, "truncation")
            case Sync():
                universe.happened(node, "write")
            case BeginEpoch(epoch):
                universe.note(node.number, f"begins epoch {epoch} at {self.log.end_offset}")
        super()._persist(effect)
