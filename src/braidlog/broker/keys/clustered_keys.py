"""The slots of a cluster's keys on one node: creates their topics and runs their periodic maintenance.

Does not handle: operations.
Invariant: a node of a cluster serves keys from slots only. Their topic is created once, by `braid cluster init`
of a node that has keys, or by the first node that needs it.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import msgspec

from braidlog.broker.keys.change_feed import SETTINGS as FEED_SETTINGS
from braidlog.broker.keys.feed_sources import LogFeeds
from braidlog.broker.keys.slot_service import Send, SlotService
from braidlog.broker.routing import Routing
from braidlog.broker.topics import Topics
from braidlog.kv.engine.settings import KeyValueSettings
from braidlog.kv.replicated.slots import FEED_TOPIC, KEY_LOGS, LOG_TOPIC, SLOTS
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.keyed_lock import KeyedLock
from braidlog.model.runtime.runtime import Runtime
from braidlog.model.settings import UNLIMITED, TopicSettings
from braidlog.partition.key_log import TailFolder

log = logging.getLogger("braidlog.kv")
LOG_SETTINGS: Final = TopicSettings(delete=False, retention_ms=UNLIMITED, segment_bytes=4 * 1024 * 1024)
"""A log is trimmed only by its checkpoints. `kv.flush` decides when it is synced."""
_FLUSHING: Final = ("flush", "flush_interval_ms", "flush_window_bytes")
ENOUGH_NODES: Final = 3
WAIT_SECONDS: Final = 10.0
"""How long to wait for ENOUGH_NODES before creating slots on fewer."""
MADE_TIMES_MAX: Final = 4
"""How often the node that creates the slots waits for the others, two seconds each: they create as many folders."""
_TURN: Final = "the topics of slots"


def log_settings(settings: KeyValueSettings) -> TopicSettings:
    """Return the settings of the log topic."""
    return LOG_SETTINGS.altered(_flushing(settings))


def _flushing(settings: KeyValueSettings) -> dict[str, Any]:
    return {name: each for name, each in msgspec.to_builtins(settings).items() if name in _FLUSHING}


Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class KeyServiceContext(NamedTuple):
    """Dependencies of a node's slots."""

    node: bytes
    """Node id in the stamps of this node."""
    routing: Routing
    tails: TailFolder
    runtime: Runtime
    spawn: Spawn
    send: Send | None = None
    """Sends truncated changes from this node to their leader."""


class ClusteredKeys:
    """Creates and maintains slots. `listeners` handle leadership changes; `run_maintenance` is called periodically."""

    def __init__(
        self,
        around: KeyServiceContext,
        settings: KeyValueSettings,
        topics: Topics,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._routing = around.routing
        self._runtime = around.runtime
        self._flushing = _flushing(settings)
        self._turns = KeyedLock(around.runtime)
        self._began = around.runtime.monotonic()
        self.slots = SlotService(
            around.runtime, around.node, settings, around.tails, around.spawn, logs=lambda: self._routing.key_logs
        )
        self.feeds = LogFeeds(self.slots, settings, around.runtime, around.spawn)
        self._send = around.send
        self.listeners = {LOG_TOPIC: self.slots.on_leadership_change, FEED_TOPIC: self.feeds.on_leadership_change}

    @property
    def is_created(self) -> bool:
        return self._routing.has_slots

    async def ensure_slots(self) -> None:
        """Create the slots on the live nodes, unless the metadata has them."""
        async with self._turns.acquire(_TURN):
            if not self.is_created:
                await self._topics.create_internal(LOG_TOPIC, KEY_LOGS, log_settings(self._settings))
                for _ in range(MADE_TIMES_MAX):
                    await self._topics.served(LOG_TOPIC)
                log.info("keys are in %d slots on nodes %s", SLOTS, self._routing.numbers)

    async def run_maintenance(self) -> None:
        """Create missing topics and send truncated changes to their leaders; called periodically."""
        try:
            await self._tend()
        except BrokerError as error:
            log.info("slots of keys are tended later: %s", error)
        except StorageFault as fault:
            log.error("slots of keys are tended later: %s", fault)  # noqa: TRY400 - the fault names the file

    async def _tend(self) -> None:
        if not self.is_created:
            await self._begin_in_time()
            return
        if self._send is not None:
            await self.slots.send_tails(self._send)
        if self._routing.controller == self._routing.own_number:
            known = self._topics.hosting.topics.get(LOG_TOPIC)  # None: not opened here yet
            if known is not None and known.settings.altered(self._flushing) != known.settings:
                await self._topics.alter_internal(LOG_TOPIC, self._flushing)
        if self._settings.feed and any(
            each.is_leader and each.slot.applied for each in self.slots.local_logs().values()
        ):
            await self._make_feed()

    async def _begin_in_time(self) -> None:
        if self._routing.controller != self._routing.own_number:
            return
        nodes = sum(map(self._routing.is_live, self._routing.numbers))
        if nodes >= ENOUGH_NODES or self._runtime.monotonic() - self._began > WAIT_SECONDS:
            await self.ensure_slots()

    async def _make_feed(self) -> None:
        """Create the feed's topic with the first change."""
        if self._topics.hosting.find(FEED_TOPIC) is None:
            async with self._turns.acquire(_TURN):
                await self._topics.create_internal(FEED_TOPIC, self._routing.key_logs, FEED_SETTINGS)
