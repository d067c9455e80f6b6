"""What coordinators keep is in shards: partitions of one internal topic, each kept by the node that leads it.

Knows: which name is in which shard; when a shard is read, served and let go on this node. Does not know: what is in it.
Invariants: nobody is served from a shard before all that was in it is settled in this node's own epoch; a shard that is led no
more, or anew, is thrown away, and whoever waited for it hears so from its log; others are served while one is read.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, Generic, TypeVar

from braidlog.codec.crc import crc32c
from braidlog.coordinator.journal import JournalLog
from braidlog.model.errors import BrokerError, NotCoordinatorError, Reason, StorageFault
from braidlog.model.settings import Flush, TopicSettings
from braidlog.model.stages import PREFIX, read_stage_name
from braidlog.model.world import Wakeup, World

log = logging.getLogger("braidlog.coordinator")

STATE_TOPIC: Final = "__coordinator_state"
STATE_SETTINGS: Final = TopicSettings(flush=Flush.ACK, compact=True, segment_bytes=16 * 1024 * 1024)
SHARDS: Final = 16
"""For ever: a name's shard follows from it."""
AGAIN_SECONDS: Final = 0.1
"""Between two attempts to read a shard: its replicas may be away for now."""
FAULT_SECONDS: Final = 5.0
"""The same, if it is damaged."""
READ_SECONDS_MAX: Final = 30.0
"""How long a request waits for a shard that no other node could read."""

C = TypeVar("C")
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


def shard_of(name: str) -> int:
    """The shard of a group, a transactional id, a sink, a producer's name or a snapshot."""
    return crc32c(name.encode(errors="surrogatepass")) % SHARDS


def place_of(name: str) -> int:
    """Where a name is kept. Stages are where their sink is, so that a batch is decided by one entry."""
    stage = read_stage_name(name)
    return shard_of(name.removeprefix(PREFIX) if stage is None else stage.sink)


def unreadable(number: int) -> BrokerError:
    """The refusal of what is in a shard that this node leads and cannot read. Names no files: clients see it."""
    return BrokerError(
        Reason.UNAVAILABLE, f"shard {number} of the coordinators cannot be read: the log of this node says why"
    )


class _Shard(Generic[C]):
    __slots__ = ("content", "is_damaged", "log", "waiting")

    def __init__(self, led: JournalLog) -> None:
        self.log = led
        self.content: C | None = None
        """None: it is being read."""
        self.is_damaged = False
        """Whether a fault of the disk, or damage, was found when it was last read."""
        self.waiting: list[Wakeup] | None = []
        """Callers that wait for the first attempt to read it; None after that."""

    def tried(self) -> None:
        """An attempt to read it is over."""
        for each in self.waiting or ():
            each.wake()
        self.waiting = None


class Shards(Generic[C]):
    """Those that this node leads. `load` reads one, `discard` lets go of what was read."""

    def __init__(
        self,
        load: Callable[[int, JournalLog], Awaitable[C]],
        discard: Callable[[C], Coroutine[Any, Any, None]],
        world: World,
        spawn: Spawn,
    ) -> None:
        self._load = load
        self._discard = discard
        self._world = world
        self._spawn = spawn
        self._led: dict[int, _Shard[C]] = {}

    def lead(self, number: int, led: JournalLog) -> None:
        """This node leads a shard, in the epoch of its log."""
        known = self._led.get(number)
        if known is not None and known.log.epoch == led.epoch and known.log.is_led:
            return
        self.let_go(number)
        shard = self._led[number] = _Shard(led)
        self._spawn(self._read(number, shard), f"read shard {number}")

    def let_go(self, number: int) -> None:
        """Another node leads a shard, or none."""
        known = self._led.pop(number, None)
        if known is not None:
            known.tried()
        if known is not None and known.content is not None:
            self._spawn(self._discard(known.content), f"let go of shard {number}")

    async def _read(self, number: int, shard: _Shard[C]) -> None:
        why = ""
        while shard.log.is_led:
            seconds = AGAIN_SECONDS
            try:
                content = await self._load(number, shard.log)
            except BrokerError as error:
                if str(error) != why:  # nodes may be away for hours
                    why = str(error)
                    log.info("shard %d of the coordinators is not read yet: %s", number, why)
            except StorageFault as fault:
                log.error("shard %d of the coordinators cannot be read: %s", number, fault)  # noqa: TRY400 - it says where
                seconds, shard.is_damaged = FAULT_SECONDS, True
            else:
                if self._led.get(number) is shard and shard.log.is_led:
                    shard.content = content
                else:
                    await self._discard(content)
                break
            shard.tried()
            await self._world.wakeup().wait(seconds)
        shard.tried()

    async def wait_read(self, number: int) -> None:
        """Return when a shard that this node leads was read, or could not be. Among several replicas the leader may be about to
        change: there a caller comes again."""
        shard = self._led.get(number)
        if shard is not None and shard.waiting is not None and shard.log.is_sole:
            wakeup = self._world.wakeup()
            shard.waiting.append(wakeup)
            await wakeup.wait(READ_SECONDS_MAX)

    def find(self, number: int) -> C | None:
        """What is in a shard; None unless this node leads it and has read it."""
        shard = self._led.get(number)
        return shard.content if shard is not None and shard.log.is_led else None

    def of(self, number: int) -> C:
        """What is in a shard; refused, unless this node leads it and has read it."""
        shard = self._led.get(number)
        if shard is None or not shard.log.is_led:
            text = f"another node leads shard {number} of the coordinators: ask which one"
            raise NotCoordinatorError(number, text)
        if shard.content is None and shard.is_damaged:
            raise unreadable(number)
        if shard.content is None:
            text = f"this node reads shard {number} of the coordinators, which it leads since now: try again"
            raise NotCoordinatorError(number, text, is_loading=True)
        return shard.content

    def all_led(self) -> list[C]:
        """What is in the shards that this node leads; refused while one is not read yet."""
        return [self.of(number) for number, shard in self._led.items() if shard.log.is_led]

    def served(self) -> Iterator[C]:
        """What is in the shards that this node serves."""
        for shard in list(self._led.values()):
            if shard.content is not None and shard.log.is_led:
                yield shard.content
