"""Periodic maintenance of all partitions: deletes old records (`partition/maintenance/log_maintenance.py`), closes idle
partitions (`partition/closing.py`).

Invariant: a partition whose maintenance fails does not stop that of the others.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from braidlog.broker.services import Services
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.runtime.cooperative import yield_to_loop
from braidlog.model.runtime.runtime import Runtime
from braidlog.partition.closing import close_idle
from braidlog.partition.partition import Partition
from braidlog.partition.partition_registry import PartitionRegistry
from braidlog.server.net.memory_budget import Budget

log = logging.getLogger("braidlog.server")

PARTITIONS_AT_ONCE: Final = 500
"""Partitions checked in one turn of the loop."""
PRESSURE_SECONDS: Final = 5.0
"""Between two checks of memory; while it is short, partitions unused since the last check are closed."""


async def maintain_partitions(hosting: PartitionRegistry, runtime: Runtime, look: Callable[[Partition], None]) -> None:
    """Maintain every partition that is due; `look` is called with each first. Closed partitions open only if due."""
    for number, hosted in enumerate(hosting.opened()):
        if number % PARTITIONS_AT_ONCE == 0:
            await yield_to_loop()
        look(hosted)
        now_ms = runtime.now_ms()
        if not hosted.is_gone and not hosted.damages and hosting.is_due(hosted, now_ms):
            try:
                await runtime.blocking(partial(hosting.maintain_log, hosted, now_ms))
            except BrokerError as error:  # deleted during this call
                log.info("%s is not trimmed: %s", hosted, error)
            except StorageFault as fault:
                log.error("%s cannot be trimmed: %s", hosted, fault)  # noqa: TRY400 - the fault says where


class IdlePartitions:
    """Closes partitions that were not used between two calls; the interval is shorter while memory is short."""

    def __init__(self, services: Services, budget: Budget, idle_seconds: float) -> None:
        self._services = services
        self._budget = budget
        self._turn_seconds = idle_seconds / 2
        self._closed_at = services.runtime.monotonic()

    @property
    def pause_seconds(self) -> float:
        """Interval between calls of `close`."""
        return min(self._turn_seconds, PRESSURE_SECONDS)

    async def close(self) -> None:
        now = self._services.runtime.monotonic()
        is_due = self._budget.is_short or now - self._closed_at >= self._turn_seconds
        if is_due and self._services.append.no_room is None:  # closing a partition writes a little
            self._closed_at = now
            await close_idle(self._services.hosting, self._services.runtime)


async def offline_by_fault(work: Callable[[], Awaitable[object]], name: str) -> None:
    """Run `work` and log a disk fault: it takes its store offline, not the node."""
    try:
        await work()
    except StorageFault as fault:
        log.error("%s: %s", name, fault)  # noqa: TRY400 - the fault says where, a traceback does not
