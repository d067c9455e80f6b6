"""Slots of the key-value cluster in a simulated cluster: the product's slots over its replicas, and clients that use them.

Keys of level QUORUM are registers and counters whose calls must have an order that explains all answers. Lists, counters and keys
of level ONE must in the end hold all that was acknowledged, once, wherever it was written: nodes send what they cut from their
logs to whoever leads. No node loses its disk here: what one node alone has is promised by that node's disk.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from tests.histories.checker import check
from tests.histories.history import Outcome
from tests.simulation.fault_mix import Mix, drawn
from tests.simulation.network import Codec
from tests.simulation.promises import BrokenPromise
from tests.simulation.sent_records import SentRecords
from tests.simulation.simulated_clients import FIRST_CLIENT
from tests.simulation.simulated_messages import Delete, Produce, Read, assignments, key_of
from tests.simulation.simulated_node import SimulatedNode
from tests.simulation.simulated_replica import SimulatedReplica
from tests.simulation.slot_clients import TIMEOUT_US, Answer, Ask, KeyClient, SharedWrite, StrongClient, WeakClient
from tests.simulation.universe import Client, Universe
from tests.simulation.virtual_time import US_PER_MS, US_PER_SECOND, stream

from braidlog.kv.engine import operations as o
from braidlog.kv.engine.hybrid_clock import HybridClock, Stamp
from braidlog.kv.engine.operations import Level
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.engine.values import HashValue, ListValue
from braidlog.kv.replicated.checkpoints import Checkpoint
from braidlog.kv.replicated.log_columns import execute_rows
from braidlog.kv.replicated.log_records import RecordBatch, SlotRecord
from braidlog.kv.replicated.salvage import Verdict
from braidlog.kv.replicated.salvage_files import Tail, forget_tail, kept_tails
from braidlog.model.errors import BrokerError, Reason
from braidlog.model.settings import UNLIMITED, Flush
from braidlog.partition.key_log import (
    NOT_DONE,
    REACHES,
    KeyLog,
    Performed,
    TailFolder,
    keep_uncommitted,
    records_in,
)
from braidlog.partition.replica_runner import Produced
from braidlog.replication.leader import write_refusal
from braidlog.replication.messages import Append, Await, DeleteBelow, Message, Withdraw
from braidlog.replication.ready import Apply, Done, Failed
from braidlog.replication.replica_state import Leader
from braidlog.storage.log.partition_log import PartitionLog
from braidlog.storage.open_files import FilePool

SETTINGS = KeyValueSettings(memory_bytes_max=0, feed=False)
TAILS = "/tails"
NOBODY = -1
LOSES_A_DISK = ("wipe", "flip")
EXPIRE_KEYS = 10
CHECKPOINT_BYTES = 200
"""Of a few keys: others change meanwhile."""
GATHER_US = 5 * US_PER_MS
"""What comes within this time is carried out together, in the runs that gather."""
STRONG, WEAK = 4, 3


class Salvage(NamedTuple):
    """What a node has cut from its log, to whoever leads."""

    name: str
    path: str
    at: int
    record: SlotRecord


class Salvaged(NamedTuple):
    path: str
    at: int
    verdict: Verdict


class SlotReplica(SimulatedReplica):
    """A replica with the slot that its log makes."""

    def __init__(self, node: SimulatedNode, name: str, log: PartitionLog, pool: FilePool) -> None:
        super().__init__(node, name, log, pool)
        self._asks: dict[int, tuple[Ask, Performed, Stamp | None]] = {}
        self._salvages: dict[int, tuple[int, Salvaged]] = {}
        assert isinstance(node.universe, SlotUniverse)
        self._gathers = node.universe.gathers
        self._burst: list[Ask] = []
        self._checkpoint: Checkpoint | None = None
        self._checkpoints: dict[int, int] = {}
        self._waiting = self._kept = 0
        tails = TailFolder(node.disk, TAILS)
        identity = b"simulated node %d" % node.number
        self.kv = KeyLog(key_of(name)[1], HybridClock(identity), self, self, tails, SETTINGS)

    def step(self, message: Message) -> None:
        super().step(message)
        if self._is_here:
            self.kv.apply_committed()
            if self.kv.kept > self._kept:
                self._kept = self.kv.kept
                self.universe.count("tail kept")

    def check(self, level: Level) -> None:
        role = self.replica.role
        if not self.is_leader or not isinstance(role, Leader):
            raise BrokerError(Reason.NOT_LEADER, "it does not lead")
        needs_all, reach = level is not Level.ONE, REACHES[level]
        reason = write_refusal(self.replica, role, needs_all=needs_all, reach=reach)
        if reason is not None:
            raise BrokerError(reason, "nothing is written now")

    def write(self, batch: RecordBatch, level: Level) -> None:
        self.check(level)
        needs_all, reach = level is not Level.ONE, REACHES[level]
        sealed = batch.seal()
        produced = Produced(sealed.data, [sealed.header], self.wall_ms(), own=True)
        self.step(Append(NOBODY, produced.records, produced, needs_all=needs_all, reach=reach))

    def request(self, message: Produce | Delete | Read | Ask | Salvage) -> None:
        match message:
            case Ask():
                self._asked(message)
            case Salvage():
                self._take(message)
            case _:
                super().request(message)

    # -- operations --------------------------------------------------------------------------------------------

    def _asked(self, ask: Ask) -> None:
        if not self.kv.is_leader:
            self._hand_on(ask)
            return
        if not self._gathers:
            self._wait_for(*self._performed(ask))
            return
        self._burst.append(ask)
        if len(self._burst) == 1:
            self.universe.time.after(GATHER_US, lambda: self.node.world_enter(self._perform_burst))

    def _performed(self, ask: Ask) -> tuple[Ask, Performed, Stamp | None]:
        performed = self.kv.perform(ask.operation, ask.level, self.wall_ms())
        return ask, performed, None if performed.end is None else self.kv.slot.stamp_of(ask.operation.key)

    def _performed_run(self, run: list[Ask]) -> list[tuple[Ask, Performed, Stamp | None]]:
        """One operation, or changes of different keys in columns, whose stamps are told by their keys."""
        if len(run) == 1:
            return [self._performed(run[0])]
        self.universe.count("columns")
        columns, ends = _columns(run), dict[bytes, int]()
        results: list[Any] = [None] * len(run)

        def after(row: int) -> Performed:
            result = results[row]
            is_certain = isinstance(result, BrokerError) and result.reason in NOT_DONE
            if result is None and columns.kinds[row] == o.Kind.DELETE:
                result = BrokerError(Reason.KEY_NOT_FOUND, "no such key")
            # What wrote nothing waits for what the others wrote, as in `SlotService`: it tells as well that the
            # leader still leads.
            return Performed(result, max(ends.values(), default=None), is_certain)

        before = {key: self.kv.slot.stamps.get(key) for key in columns.keys}
        execute_rows(self.kv.slot, columns, list(range(len(run))), run[0].level, self.wall_ms(), results)
        for key, stamps in before.items():
            if self.kv.slot.stamps.get(key) != stamps:
                ends[key] = self.kv.slot.applied
        return [
            (ask, after(row), self.kv.slot.stamp_of(ask.operation.key) if ask.operation.key in ends else None)
            for row, ask in enumerate(run)
        ]

    def _perform_burst(self) -> None:
        """What came together and is of one level becomes one batch, as `SlotService.execute_columns` makes it."""
        burst, self._burst = self._burst, []
        if not self._is_here:
            return
        for level in Level:
            asks = [ask for ask in burst if ask.level is level]
            if not self.kv.is_leader:
                for ask in asks:
                    self._hand_on(ask)
                continue
            self.kv.gather(level)
            done = list(chain.from_iterable(map(self._performed_run, _runs(asks))))
            if sum(performed.end is not None for _, performed, _ in done) > 1:
                self.universe.count("gathered")
            if self.kv.write_gathered() is None:
                for each in done:
                    self._wait_for(*each)
            else:
                self.universe.count("not gathered")
                self.kv.apply_committed()

    def _wait_for(self, ask: Ask, performed: Performed, stamp: Stamp | None) -> None:
        self._waiting += 1
        token = self._waiting
        wanted = performed.waits_for(token, ask.level)
        if wanted is None:
            self._reply(ask, performed.result, stamp)
            return
        self._asks[token] = ask, performed, stamp
        self.step(wanted)
        self.universe.time.after(TIMEOUT_US, lambda: self.node.world_enter(partial(self._give_up, token)))

    def expire(self) -> None:
        if self.kv.is_leader:
            with contextlib.suppress(BrokerError):
                for _ in range(self.kv.slot.expire(self.wall_ms(), EXPIRE_KEYS)):
                    self.universe.count("expired")

    def write_checkpoint(self) -> None:
        """Some of one that is under way, else begin one; when its end is committed, the log before it goes."""
        if not self.kv.is_leader:
            return
        with contextlib.suppress(BrokerError):
            if self._checkpoint is None or not self._checkpoint.is_under_way:
                self._checkpoint = self.kv.begin_checkpoint()
                self.universe.count("checkpoint begun")
            elif not self._checkpoint.write_some(CHECKPOINT_BYTES):
                self._waiting += 1
                self._checkpoints[self._waiting] = self._checkpoint.begin
                self.step(Await(self._waiting, self._checkpoint.end()))

    def _hand_on(self, ask: Ask) -> None:
        leader = None if self.replica.assigned is None else self.replica.assignment.leader
        if ask.level is Level.ONE and isinstance(ask.operation, o.Get) and self.replica.role is not None:
            try:
                self._reply(ask, self.kv.slot.read(ask.operation, self.wall_ms()), None)
            except BrokerError as error:
                self._reply(ask, error, None)
        elif ask.is_forwarded or leader is None or leader == self.node.number:
            self._reply(ask, BrokerError(Reason.NOT_LEADER, "it does not lead"), None)
        else:
            self.universe.count("forwarded")
            self.universe.network.send(self.node.number, leader, ask._replace(is_forwarded=True))

    def _give_up(self, token: int) -> None:
        if self._asks.pop(token, None) is not None and self._is_here:
            self.universe.count("withdrawn")
            self.step(Withdraw(token))

    def _reply(self, ask: Ask, result: object, stamp: Stamp | None) -> None:
        self.universe.network.send(self.node.number, ask.client, Answer(ask.number, result, stamp))

    # -- what others have cut ----------------------------------------------------------------------------------

    def _take(self, message: Salvage) -> None:
        if not self.kv.is_leader:
            return
        try:
            verdict, end = self.kv.salvage(message.record, self.wall_ms())
        except BrokerError:
            return
        self.universe.count(f"salvage {verdict.name.lower()}")
        self._waiting += 1
        token = self._waiting
        self._salvages[token] = self._sender, Salvaged(message.path, message.at, verdict)
        self.step(Await(token, end))

    _sender = 0

    def taken_from(self, sender: int, message: Salvage) -> None:
        self._sender = sender
        self.request(message)

    def outcome(self, outcome: Apply) -> None:
        match outcome:
            case Done(token) | Failed(token) if token in self._asks:
                ask, performed, stamp = self._asks.pop(token)
                if isinstance(outcome, Done):
                    self._reply(ask, performed.result, stamp)
                    self.universe.happened(self.node, "acknowledgement")
                elif performed.end is None:
                    self._reply(ask, BrokerError(Reason.NOT_LEADER, "it does not lead any more"), None)
            case Done(token) | Failed(token) if token in self._salvages:
                sender, answer = self._salvages.pop(token)
                if isinstance(outcome, Done):
                    self.universe.network.send(self.node.number, sender, answer)
            case Done(token) | Failed(token) if token in self._checkpoints:
                begin = self._checkpoints.pop(token)
                if isinstance(outcome, Done):
                    self.universe.count("log trimmed")
                    self._waiting += 1
                    self.step(DeleteBelow(self._waiting, begin))
            case Done(token=token) | Failed(token=token):
                assert token == NOBODY or token <= self._waiting
            case _:
                super().outcome(outcome)


def _runs(asks: list[Ask]) -> Iterator[list[Ask]]:
    """Changes of different keys that follow one another are told as columns, everything else by itself."""
    run: list[Ask] = []
    for ask in asks:
        is_plain = isinstance(ask.operation, o.Set | o.Delete) or ask.operation == o.Increment(ask.operation.key)
        if run and (not is_plain or any(each.operation.key == ask.operation.key for each in run)):
            yield run
            run = []
        run.append(ask)
        if not is_plain:
            yield run
            run = []
    if run:
        yield run


def _columns(run: list[Ask]) -> o.Columns:
    operations = [ask.operation for ask in run]
    kinds = {o.Set: o.Kind.SET, o.Delete: o.Kind.DELETE, o.Increment: o.Kind.INCREMENT}
    return o.Columns(
        mutates=True,
        kinds=bytes(kinds[type(each)] for each in operations),
        keys=[each.key for each in operations],
        values=[each.value if isinstance(each, o.Set) else b"" for each in operations],
        ttls=[each.ttl_seconds if isinstance(each, o.Set) else 0 for each in operations],
    )


class SlotNode(SimulatedNode):
    """Sends what it has cut until it is told that it is committed."""

    replica_type = SlotReplica
    universe: "SlotUniverse"

    def start(self) -> None:
        self._sent: dict[str, int] = {}
        super().start()

    def receive(self, sender: int, message: object) -> None:
        match message:
            case Ask():
                replica = self.replicas.get(message.name)
                if isinstance(replica, SlotReplica) and self.universe.is_first(message):
                    replica.request(message)
            case Salvage():
                replica = self.replicas.get(message.name)
                if isinstance(replica, SlotReplica):
                    replica.taken_from(sender, message)
            case Salvaged(path, at, verdict):
                if self._sent.get(path, 0) == at and verdict.is_final:
                    self._sent[path] = at + 1
                    self._send_tails()
            case _:
                super().receive(sender, message)

    def follow(self) -> None:
        """What moved away while this node was down is removed, too."""
        super().follow()
        if self.metadata is None or not self.is_alive:
            return
        for name, assignment in assignments(self.metadata.image).items():
            is_held = self.number in assignment.replicas or name in self.replicas
            if not is_held and self.disk.exists(f"/{name.replace('/', '-')}"):
                self.universe.count("removed after it moved away")
                log = self.open_log(name)
                keep_uncommitted(log, key_of(name)[1], TailFolder(self.disk, TAILS))
                self.remove_folder(log)

    def tails(self) -> list[Tail]:
        return kept_tails(self.disk, TAILS)

    def _release(self, name: str) -> None:
        replica = self.replicas[name]
        assert isinstance(replica, SlotReplica)
        replica.kv.close()
        super()._release(name)

    def _tick(self) -> None:
        super()._tick()
        if not self.incarnation or not self.is_alive:
            return
        for replica in list(self.replicas.values()):
            if isinstance(replica, SlotReplica):
                replica.expire()
                if self.universe.writes_checkpoints:
                    replica.write_checkpoint()
        self._send_tails()

    def _send_tails(self) -> None:
        """The next of each: they are taken in their order. An answer may come before a node that has started knows who leads."""
        if self.metadata is None:
            return
        for tail in self.tails():
            at = self._sent.get(tail.path, 0)
            if at == len(tail.records):
                forget_tail(self.disk, tail)
                del self._sent[tail.path]  # another may have its name
                continue
            name = self.universe.names[tail.log]
            leader = assignments(self.metadata.image)[name].leader
            if leader is not None:
                self.universe.network.send(self.number, leader, Salvage(name, tail.path, at, tail.records[at]))


class _AnyRecords(SentRecords):
    """Nobody knows here what was sent: it is made by the leader."""

    def latest(self, held: Any) -> dict[bytes, int]:
        return {}


def slot_mix(seed: int) -> Mix:
    mix = drawn(seed, stream(seed, "mix"))
    settings = msgspec.structs.replace(
        mix.settings, flush=Flush.ACK, retention_ms=UNLIMITED, compact=False, delete=True
    )
    faults = {name: weight for name, weight in mix.faults.items() if name not in LOSES_A_DISK}
    faults = {"isolate": 1.0, "accuse": 0.5, **faults}
    return msgspec.structs.replace(
        mix,
        settings=settings,
        flush_on_ack=True,
        faults=faults,
        partitions=min(mix.partitions, 2),
        delete_every_us=0,
        think_us=min(mix.think_us, 30 * US_PER_MS),
        duration_us=3 * US_PER_SECOND,
    )


class SlotUniverse(Universe):
    """Make one from a seed, `run` it once."""

    node_type = SlotNode

    def __init__(self, seed: int, *, codec: Codec | None = None, tells: bool = False) -> None:
        self.pushed: dict[bytes, dict[bytes, Outcome]] = defaultdict(dict)
        self.counted: dict[bytes, dict[bytes, Outcome]] = defaultdict(dict)
        self.shared: dict[bytes, list[SharedWrite]] = defaultdict(list)
        self._heard: set[tuple[int, int, bool]] = set()
        self._checkpoints = seed % 3 > 0
        self.gathers = seed % 4 in (0, 3)
        """Whether operations that come together are written together."""
        super().__init__(seed, mix=slot_mix(seed), codec=codec, tells=tells)
        self.records = _AnyRecords()

    @property
    def writes_checkpoints(self) -> bool:
        """In most runs, as long as anybody writes."""
        return self._checkpoints and any(
            isinstance(each, KeyClient) and not each.is_done for each in self.clients.values()
        )

    def is_first(self, ask: Ask) -> bool:
        """A connection does not double what a client sends, whatever happens between nodes."""
        one = ask.client, ask.number, ask.is_forwarded
        is_first = one not in self._heard
        self._heard.add(one)
        return is_first

    def _clients(self) -> Iterator[Client]:
        for at in range(STRONG):
            yield StrongClient(self, FIRST_CLIENT + at, self.names[0])
        for at in range(WEAK):
            yield WeakClient(self, FIRST_CLIENT + 50 + at, self.names[at % len(self.names)])

    def _slots(self, name: str) -> list[SlotReplica]:
        return [each for each in self._replicas_of(name) if isinstance(each, SlotReplica)]

    def _missing(self) -> str:
        for client in self.clients.values():
            if isinstance(client, KeyClient) and not client.is_done:
                return f"client {client.number} goes on"
        for node in self.nodes.values():
            assert isinstance(node, SlotNode)
            if tails := node.tails():
                return f"node {node.number} has not sent all of {[tail.path for tail in tails]}"
        return super()._missing()

    def _check_whole(self) -> None:
        missing = self._missing()
        if missing:
            raise BrokenPromise(f"10 s after the last fault: {missing}")
        for name in self.names:
            self.promises[name].same_records(self._replicas_of(name))
            self._same_state(name)
            self._stamps_ascend(name)
        for wrong in check(self.history):
            raise BrokenPromise(wrong)
        for key, pushes in self.pushed.items():
            self._check_list(key, pushes)
        for key, counts in self.counted.items():
            self._check_counter(key, counts)
        for key, writes in self.shared.items():
            self._check_shared(key, writes)

    def _same_state(self, name: str) -> None:
        slots = [each.kv.slot for each in self._slots(name)]
        states = [
            ({key: self._plain(value) for key, value in slot.keyspace.data.items()}, slot.stamps, slot.origins)
            for slot in slots
        ]
        if any(each != states[0] for each in states) or len({slot.applied for slot in slots}) > 1:
            raise BrokenPromise(f"the replicas of {name} make different keys of the same log: {states}")

    def _plain(self, value: object) -> object:
        if isinstance(value, HashValue):
            return dict(value.fields)
        return list(value.items) if isinstance(value, ListValue) else value

    def _stamps_ascend(self, name: str) -> None:
        log = self._leader_of(name).log
        latest = Stamp(0, 0, b"")
        for origin, record in records_in(log, log.start_offset, log.end_offset):
            if record.origin is None and record.stamp <= latest:
                raise BrokenPromise(f"{name}: {record} at {origin.offset} has a stamp that is not after {latest}")
            latest = max(latest, record.stamp)

    def _held(self, key: bytes) -> object:
        held = [
            value for name in self.names if (value := self._slots(name)[0].kv.slot.keyspace.data.get(key)) is not None
        ]
        assert len(held) <= 1
        return self._plain(held[0]) if held else None

    def _check_list(self, key: bytes, pushes: dict[bytes, Outcome]) -> None:
        held = self._held(key)
        elements = [*held] if isinstance(held, list | dict) else []
        for element, outcome in pushes.items():
            times = elements.count(element)
            if times > 1 or (outcome is Outcome.ACKNOWLEDGED and not times) or (outcome is Outcome.REFUSED and times):
                raise BrokenPromise(f"{key!r}: {element!r} was {outcome.value}, and is there {times} times")
        if any(element not in pushes for element in elements):
            raise BrokenPromise(f"{key!r} holds what nobody pushed: {elements}")

    def _check_counter(self, key: bytes, counts: dict[bytes, Outcome]) -> None:
        held = self._held(key) or 0
        acknowledged = sum(each is Outcome.ACKNOWLEDGED for each in counts.values())
        unknown = sum(each is Outcome.UNKNOWN for each in counts.values())
        assert isinstance(held, int)
        if not acknowledged <= held <= acknowledged + unknown:
            raise BrokenPromise(f"{key!r} is {held}, {acknowledged} were acknowledged and {unknown} are unknown")

    def _check_shared(self, key: bytes, writes: list[SharedWrite]) -> None:
        """The last write wins, by its stamp; one whose outcome is unknown may be it."""
        held = self._held(key)
        stamped = [each for each in writes if each.stamp is not None]
        latest = max(stamped, key=lambda each: each.stamp or Stamp(0, 0, b""), default=None)
        possible = {each.value for each in writes if each.outcome is Outcome.UNKNOWN}
        possible.add(latest.value if latest is not None else None)
        if held not in possible:
            raise BrokenPromise(
                f"{key!r} holds {held!r}; the last acknowledged write is {latest and (latest.value, latest.stamp)}"
            )
