"""Compares this node's replicas of key logs with their leaders', and repairs differences.

Does not handle: transport, the comparison itself (`kv/replicated/anti_entropy.py`).
Invariants: trees are updated in slices, so that other tasks run between them. Applying a log pauses for a few
seconds at most, at the offset of the leader's answer. Each difference is logged once as an error, and counted.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from braidlog.broker.keys.slot_service import SlotService
from braidlog.kv.engine.hybrid_clock import DRIFT_MS_MAX, unpack_stamp
from braidlog.kv.replicated.anti_entropy import Ask, Comparison, LeafState, Repaired, Reply, SlotTree, Unknown
from braidlog.model.errors import BrokerError, ProtocolError
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.key_log import KeyLog

log = logging.getLogger("braidlog.kv")

COMPARE_SECONDS: Final = 60.0
KEYS_PER_TURN: Final = 500
HOLD_SECONDS_MAX: Final = 5.0
LOOK_SECONDS: Final = 0.01
NAMED_MAX: Final = 10

AskLeader = Callable[[int, Ask], Awaitable[Reply]]
"""ask(log, question) → the leader's reply. `BrokerError`: the leader is unreachable."""


class ReplicaComparison:
    """`answer` as the leader of a log, `compare` as a follower."""

    def __init__(self, slots: Callable[[], SlotService | None], runtime: Runtime) -> None:
        self._slots = slots
        self._runtime = runtime
        self._trees: dict[int, tuple[KeyLog, int, SlotTree]] = {}
        self.compared = 0
        """Completed comparisons: equal, or repaired."""
        self.repaired_keys = 0
        """Keys that differed, were missing, or should not have existed."""

    async def _tree(self, slot: KeyLog) -> SlotTree:
        """Return the current tree of a log. It is created by the first comparison, and replaced whenever the log's
        state is rebuilt."""
        kept = self._trees.get(slot.number)
        if kept is None or kept[0] is not slot or kept[1] != slot.made_anew:
            tree = SlotTree(slot.slot)
            slot.slot.listeners.append(tree)
            kept = self._trees[slot.number] = slot, slot.made_anew, tree
        while kept[2].tree.update(KEYS_PER_TURN):
            await self._runtime.wakeup().wait(0)
        return kept[2]

    # -- as a leader -------------------------------------------------------------------------------------------

    async def answer(self, number: int, ask: Ask) -> Reply:
        """Return the leader's reply, or `Unknown` if this node does not lead the log in that epoch."""
        slot = self._here(number)
        if slot is None or not _leads_in(slot, ask.epoch):
            return Unknown(ask)
        tree = await self._tree(slot)
        return tree.respond(ask) if _leads_in(slot, ask.epoch) and tree.slot is slot.slot else Unknown(ask)

    def _here(self, number: int) -> KeyLog | None:
        slots = self._slots()
        return None if slots is None else slots.local_logs().get(number)

    # -- as a follower -----------------------------------------------------------------------------------------

    async def compare_all(self, ask: AskLeader) -> None:
        """Compare every log that this node follows, one after the other. Called every `COMPARE_SECONDS`."""
        slots = self._slots()
        for number in [] if slots is None else list(slots.local_logs()):
            await self.compare(number, ask)

    async def compare(self, number: int, ask: AskLeader) -> list[Repaired]:
        slot = self._here(number)
        if slot is None or slot.is_leader or not slot.is_whole:
            return []
        comparison = Comparison(await self._tree(slot), slot.epoch)
        state = slot.slot, slot.epoch
        repaired: list[Repaired] = []
        try:
            asks, until = deque(comparison.restart()), float("inf")
            while asks and (slot.slot, slot.epoch) == state and self._runtime.monotonic() < until:
                question = asks.popleft()
                if slot.hold_at is None and (held := comparison.holds_at) is not None:
                    slot.hold_at, until = held, self._runtime.monotonic() + HOLD_SECONDS_MAX
                reply = await ask(number, question)
                if (slot.slot, slot.epoch) != state:
                    break
                self._check_clock(slot, reply)
                asks.extend(comparison.handle_reply(reply))
            if not asks:
                repaired = await self._repair(slot, comparison)
                self.compared += 1
        except (BrokerError, ProtocolError) as error:
            log.warning("log %d of keys could not be compared with its leader's: %s", number, error)
        finally:
            self._resume_applying(slot, comparison)
        self._tell(number, comparison, repaired)
        return repaired

    def _check_clock(self, slot: KeyLog, reply: Reply) -> None:
        """Refuse the reply of a leader whose clock is far ahead. Stamps already committed in the log are accepted."""
        if isinstance(reply, LeafState):
            latest = max((unpack_stamp(each.stamp).wall_ms for each in reply.keys), default=0)
            if latest > max(self._runtime.now_ms(), slot.slot.clock.wall_ms) + DRIFT_MS_MAX:
                raise ProtocolError(
                    f"the leader of log {slot.number} reports a key with a change time more than a minute ahead"
                )

    async def _repair(self, slot: KeyLog, comparison: Comparison) -> list[Repaired]:
        """Repair leaf by leaf, each as soon as this replica has applied as much as the leader had. What takes too
        long is left to the next comparison."""
        until, state = self._runtime.monotonic() + HOLD_SECONDS_MAX, (slot.slot, slot.epoch)
        repaired = comparison.due()
        while (at := comparison.received_at) is not None and (slot.slot, slot.epoch) == state:
            if self._runtime.monotonic() >= until:
                break
            slot.hold_at = at
            self._resume(slot)
            await self._runtime.wakeup().wait(LOOK_SECONDS if slot.slot.applied < at else 0)
            repaired += comparison.due()
        return repaired

    def _resume_applying(self, slot: KeyLog, comparison: Comparison) -> None:
        comparison.give_up()
        slot.hold_at = None
        self._resume(slot)

    def _resume(self, slot: KeyLog) -> None:
        slots = self._slots()
        if slots is not None:
            slots.resume_applying(slot.number)

    def _tell(self, number: int, comparison: Comparison, repaired: list[Repaired]) -> None:
        slots = self._slots()
        if slots is not None:
            slots.differed += comparison.differed
        keys = [key for each in repaired for key in (*each.put, *each.removed)]
        self.repaired_keys += len(keys)
        if comparison.differed:
            named = ", ".join(map(repr, keys[:NAMED_MAX])) or "none of them yet"
            log.error(
                "log %d of keys diverged from its leader at the same offset: a defect, or a rotten disk or memory; "
                "repaired %d keys (%s)", number, len(keys), named,
            )  # fmt: skip


def _leads_in(slot: KeyLog, epoch: int) -> bool:
    return slot.is_leader and slot.epoch == epoch
