"""Shards of coordinator state: partitions of one internal topic, each served by the node that leads it.

Invariants: a shard is served only after everything in it is settled in this node's own epoch. A shard that this node
no longer leads, or leads in a new epoch, is discarded, and its waiters fail through its log. Other shards are served
while one is loading.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, Generic, TypeVar

from braidlog.codec.crc import crc32c
from braidlog.coordinator.journal import JournalLog
from braidlog.model.errors import BrokerError, NotCoordinatorError, Reason, StorageFault
from braidlog.model.runtime.runtime import Runtime, Wakeup
from braidlog.model.settings import Flush, TopicSettings
from braidlog.model.stage_ids import PREFIX, read_stage_name

log = logging.getLogger("braidlog.coordinator")

STATE_TOPIC: Final = "__coordinator_state"
STATE_SETTINGS: Final = TopicSettings(flush=Flush.ACK, compact=True, segment_bytes=16 * 1024 * 1024)
SHARDS: Final = 16
"""Permanent: the shard of a name depends on it."""
AGAIN_SECONDS: Final = 0.1
"""Pause between two attempts to load a shard whose replicas may be unavailable."""
FAULT_SECONDS: Final = 5.0
"""Pause between attempts to load a damaged shard."""
READ_SECONDS_MAX: Final = 30.0
"""How long a request waits for a shard on its only replica to load."""

C = TypeVar("C")
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


def shard_of(name: str) -> int:
    """The shard of a group, transactional id, sink, producer name or snapshot."""
    return crc32c(name.encode(errors="surrogatepass")) % SHARDS


def shard_for_name(name: str) -> int:
    """The shard that stores a name. Stages are stored with their sink, so that one entry decides a batch."""
    stage = read_stage_name(name)
    return shard_of(name.removeprefix(PREFIX) if stage is None else stage.sink)


def unreadable(number: int) -> BrokerError:
    """The error for a shard that this node leads and cannot read. It names no files, because clients see it."""
    return BrokerError(Reason.UNAVAILABLE, f"coordinator shard {number} cannot be read; see the log of this node")


class _Shard(Generic[C]):
    __slots__ = ("content", "is_damaged", "log", "waiting")

    def __init__(self, led: JournalLog) -> None:
        self.log = led
        self.content: C | None = None
        """None while the shard is loading."""
        self.is_damaged = False
        """Whether the last load found a disk fault or damage."""
        self.waiting: list[Wakeup] | None = []
        """Callers that wait for the first load attempt; None afterwards."""

    def tried(self) -> None:
        """End a load attempt and wake the waiting callers."""
        for each in self.waiting or ():
            each.wake()
        self.waiting = None


class Shards(Generic[C]):
    """The shards that this node leads. `load` loads one, `discard` releases its content."""

    def __init__(
        self,
        load: Callable[[int, JournalLog], Awaitable[C]],
        discard: Callable[[C], Coroutine[Any, Any, None]],
        runtime: Runtime,
        spawn: Spawn,
    ) -> None:
        self._load = load
        self._discard = discard
        self._runtime = runtime
        self._spawn = spawn
        self._led: dict[int, _Shard[C]] = {}

    def lead(self, number: int, led: JournalLog) -> None:
        """Start to lead a shard in the epoch of its log."""
        known = self._led.get(number)
        if known is not None and known.log.epoch == led.epoch and known.log.is_led:
            return
        self.unload(number)
        shard = self._led[number] = _Shard(led)
        self._spawn(self._read(number, shard), f"read shard {number}")

    def unload(self, number: int) -> None:
        """Release a shard that another node leads, or none."""
        known = self._led.pop(number, None)
        if known is not None:
            known.tried()
        if known is not None and known.content is not None:
            self._spawn(self._discard(known.content), f"release shard {number}")

    async def _read(self, number: int, shard: _Shard[C]) -> None:
        why = ""
        while shard.log.is_led:
            seconds = AGAIN_SECONDS
            try:
                content = await self._load(number, shard.log)
            except BrokerError as error:
                if str(error) != why:  # nodes may be unavailable for hours
                    why = str(error)
                    log.info("coordinator shard %d is not loaded yet: %s", number, why)
            except StorageFault as fault:
                log.error("coordinator shard %d cannot be read: %s", number, fault)  # noqa: TRY400 - it says where
                seconds, shard.is_damaged = FAULT_SECONDS, True
            else:
                if self._led.get(number) is shard and shard.log.is_led:
                    shard.content = content
                else:
                    await self._discard(content)
                break
            shard.tried()
            await self._runtime.wakeup().wait(seconds)
        shard.tried()

    async def wait_read(self, number: int) -> None:
        """Wait until a shard of this node was loaded or could not be.

        With several replicas the leader may be about to change, so a caller retries instead.
        """
        shard = self._led.get(number)
        if shard is not None and shard.waiting is not None and shard.log.is_sole:
            wakeup = self._runtime.wakeup()
            shard.waiting.append(wakeup)
            await wakeup.wait(READ_SECONDS_MAX)

    def find(self, number: int) -> C | None:
        """The content of a shard; None unless this node leads it and has loaded it."""
        shard = self._led.get(number)
        return shard.content if shard is not None and shard.log.is_led else None

    def shard(self, number: int) -> C:
        """The content of a shard; raises unless this node leads it and has loaded it."""
        shard = self._led.get(number)
        if shard is None or not shard.log.is_led:
            text = f"another node leads coordinator shard {number}; look up the coordinator again"
            raise NotCoordinatorError(number, text)
        if shard.content is None and shard.is_damaged:
            raise unreadable(number)
        if shard.content is None:
            text = f"coordinator shard {number} is loading on this node; try again"
            raise NotCoordinatorError(number, text, is_loading=True)
        return shard.content

    def all_led(self) -> list[C]:
        """The contents of all shards that this node leads; raises while one is not loaded."""
        return [self.shard(number) for number, shard in self._led.items() if shard.log.is_led]

    def served(self) -> Iterator[C]:
        """The contents of the shards that this node serves."""
        for shard in list(self._led.values()):
            if shard.content is not None and shard.log.is_led:
                yield shard.content
