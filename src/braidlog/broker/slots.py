"""The slots that this node holds, as a service: operations in, results out, each answered as its level says.

Knows: which slot a key is in, how long an answer is waited for, what goes on in the background. Refuses to know: how requests and
salvaged mutations travel, where leaders are (a slot that is led elsewhere is `NotLeaderError`).
Invariants: operations of a slot take effect in the order in which they come, at once; a result is given when what it waits for
has come true in the epoch in which it was asked, or not at all; a kept tail goes when all of it is committed elsewhere.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from braidlog.codec.batch import read_headers
from braidlog.kv import operations as o
from braidlog.kv.levels import Level
from braidlog.kv.salvage import Verdict
from braidlog.kv.settings import KeyValueSettings
from braidlog.kv.slot_records import SlotRecord
from braidlog.kv.slots import LOG_TOPIC, slot_of
from braidlog.kv.tail_files import Tail, forget_tail, kept_tails
from braidlog.model.clock import SteadyClock
from braidlog.model.errors import BrokerError, NotLeaderError
from braidlog.model.world import World
from braidlog.partition.cluster_partition import ClusterPartition
from braidlog.partition.replicated import Produced
from braidlog.partition.replicated_slot import REACHES, ReplicatedSlot, TailFolder
from braidlog.replication.messages import Await

R = TypeVar("R")
ANSWER_SECONDS_MAX: Final = 2.0
RECORDS_PER_TURN: Final = 200
"""Applied at once; then others have their turn."""
EXPIRE_KEYS: Final = 100
_READS: Final = frozenset((o.Get, o.Exists, o.TimeToLive, o.ListRange, o.ListLength, o.HashGet, o.HashGetAll))

Send = Callable[[int, SlotRecord], Awaitable[Verdict]]
"""To the leader of a slot, on whatever node; returns its verdict when that is committed."""
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Slots:
    """The use case. A partition of the slots' log is attached when it is opened here."""

    def __init__(self, world: World, node: bytes, settings: KeyValueSettings, tails: TailFolder, spawn: Spawn) -> None:
        self._world = world
        self._node = node
        self._settings = settings
        self._tails = tails
        self._spawn = spawn
        self._steady = SteadyClock(world)
        self._held: dict[int, tuple[ClusterPartition, ReplicatedSlot]] = {}
        self._following: set[int] = set()

    def attach(self, partition: ClusterPartition) -> None:
        """This node holds a slot from now on: its state is made from what is committed."""

        def write(data: bytes, level: Level) -> None:
            produced = Produced(data, list(read_headers(data)), self._world.now_ms())
            partition.produce(produced, needs_all=level is not Level.ONE, is_awaited=False, reach=REACHES[level])

        slot = ReplicatedSlot(partition.number, self._node, partition.replicated, write, self._tails, self._settings)
        self._held[partition.number] = partition, slot
        partition.followed = lambda: self._follow(partition, slot)
        self._follow(partition, slot)

    def here(self) -> dict[int, ReplicatedSlot]:
        """The slots that this node holds, by number."""
        return {number: slot for number, (partition, slot) in self._held.items() if not partition.is_gone}

    # -- operations --------------------------------------------------------------------------------------------

    async def execute(self, operation: o.Operation[R], level: Level) -> R:
        """Carry out an operation, or raise why not; TIMED_OUT: a write may have happened, and a read has no answer."""
        partition, slot = self._slot(slot_of(operation.key))
        if not slot.is_leader:
            if level is Level.ONE and type(operation) in _READS and slot.is_whole:
                return slot.slot.look(operation, self._steady.now_ms())
            raise _led_elsewhere(partition.number)
        performed = slot.perform(operation, level, self._steady.now_ms())
        if performed.waits_for(0, level) is not None:
            await partition.come_true(lambda token: performed.waits_for(token, level), self._world, ANSWER_SECONDS_MAX)
        if isinstance(performed.result, BrokerError):
            raise performed.result
        return performed.result  # type: ignore[no-any-return]

    async def replicate(self, number: int, record: SlotRecord) -> Verdict:
        """Take what another node has cut from its log; return when the verdict is final, or stands without being so."""
        partition, slot = self._slot(number)
        if not slot.is_leader:
            raise _led_elsewhere(number)
        verdict, end = slot.salvage(record, self._steady.now_ms())
        if verdict.is_final:
            await partition.come_true(lambda token: Await(token, end), self._world, ANSWER_SECONDS_MAX)
        return verdict

    def _slot(self, number: int) -> tuple[ClusterPartition, ReplicatedSlot]:
        held = self._held.get(number)
        if held is None or held[0].is_gone:
            raise _led_elsewhere(number)
        return held

    # -- in the background -------------------------------------------------------------------------------------

    def _follow(self, partition: ClusterPartition, slot: ReplicatedSlot) -> None:
        """A few records at once; a long log beside whatever else is to be done."""
        number = partition.number
        if number in self._following or partition.is_gone or partition.is_cutting:
            return
        if slot.follow(RECORDS_PER_TURN):
            self._following.add(number)
            self._spawn(self._catch_up(partition, slot), f"slot {number}")

    async def _catch_up(self, partition: ClusterPartition, slot: ReplicatedSlot) -> None:
        try:
            is_behind = True
            while is_behind and not partition.is_gone:
                await self._pause()
                is_behind = partition.is_cutting or slot.follow(RECORDS_PER_TURN)
        finally:
            self._following.discard(partition.number)

    def _pause(self) -> Awaitable[bool]:
        return self._world.wakeup().wait(0)

    async def send_tails(self, send: Send) -> list[Tail]:
        """Hand what was cut here to whoever leads, each tail in its order; return those that are left for a person to decide.

        One whose leader cannot be asked now is tried again by the next call. What is sent twice counts once.
        """
        left = []
        for tail in await self._world.blocking(lambda: kept_tails(self._tails.disk, self._tails.path)):
            verdicts = []
            for record in tail.records:
                verdicts.append(await self._sent(send, tail.slot, record))
                if verdicts[-1] is None:
                    break
            if all(each is not None and each.is_final for each in verdicts):
                await self._world.blocking(lambda tail=tail: forget_tail(self._tails.disk, tail))  # type: ignore[misc]
            elif None not in verdicts:
                left.append(tail)
        return left

    async def _sent(self, send: Send, number: int, record: SlotRecord) -> Verdict | None:
        try:
            return await (self.replicate if self._leads(number) else send)(number, record)
        except BrokerError:
            return None

    def _leads(self, number: int) -> bool:
        held = self.here().get(number)
        return held is not None and held.is_leader

    async def expire(self) -> int:
        """Let keys go whose time has come, of the slots that are led here; return how many went."""
        count = 0
        for slot in self.here().values():
            if slot.is_leader:
                count += slot.slot.expire(self._steady.now_ms(), EXPIRE_KEYS)
                await self._pause()
        return count


def _led_elsewhere(number: int) -> NotLeaderError:
    return NotLeaderError(LOG_TOPIC, number, f"this node does not lead slot {number}: ask the metadata who does")
