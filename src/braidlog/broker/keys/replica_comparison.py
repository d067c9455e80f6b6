"""Compare replicas of this node's logs of keys with their leaders', and repair those that differ.

Knows: when, one log after the other; how long a log waits with what it applies. Refuses to know: how questions travel, and what
makes two replicas alike (`kv/replicated/anti_entropy.py`).
Invariants: trees are brought up to date in slices, so that others have their turn; a log is applied no further than an answer is
about for a few seconds at most; what a difference was is told once, loudly, and counted.
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
"""To the leader of a log; `BrokerError`: it cannot be asked now."""


class ReplicaComparison:
    """Of one node: `answer` as the leader of a log, `compare` as its follower."""

    def __init__(self, slots: Callable[[], SlotService | None], runtime: Runtime) -> None:
        self._slots = slots
        self._runtime = runtime
        self._trees: dict[int, tuple[KeyLog, int, SlotTree]] = {}
        self.compared = 0
        """Comparisons that came to an end: alike, or put right."""
        self.put_right = 0
        """Keys that were another, missing, or should not have been there."""

    async def _tree(self, slot: KeyLog) -> SlotTree:
        """As of now; made with the first comparison, and anew with each new state."""
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
        """What the leader of a log says; of a log that is not led here, in that epoch, nothing is known."""
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
        """Every log that is followed here, one after the other. Called every `COMPARE_SECONDS`."""
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
        """A peer whose clock is far ahead is refused here as everywhere; what is committed in the log is not."""
        if isinstance(reply, LeafState):
            latest = max((unpack_stamp(each.stamp).wall_ms for each in reply.keys), default=0)
            if latest > max(self._runtime.now_ms(), slot.slot.clock.wall_ms) + DRIFT_MS_MAX:
                raise ProtocolError(
                    f"the leader of log {slot.number} tells of a key that is changed more than a minute from now"
                )

    async def _repair(self, slot: KeyLog, comparison: Comparison) -> list[Repaired]:
        """Leaf by leaf, each when as much is applied as the leader had then; what takes too long is left to the next time."""
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
        self.put_right += len(keys)
        if comparison.differed:
            named = ", ".join(map(repr, keys[:NAMED_MAX])) or "none of them yet"
            log.error(
                "log %d of keys diverged from its leader at the same offset: a defect, or a rotten disk or memory; "
                "repaired %d keys (%s)", number, len(keys), named,
            )  # fmt: skip


def _leads_in(slot: KeyLog, epoch: int) -> bool:
    return slot.is_leader and slot.epoch == epoch
