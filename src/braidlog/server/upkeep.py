"""Let old records go, beside the loop, in every partition that may have some: one after the other."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.slices import breathe
from braidlog.model.world import World
from braidlog.partition.hosted import HostedPartition
from braidlog.partition.hosting import Hosting

log = logging.getLogger("braidlog.server")

PARTITIONS_AT_ONCE: Final = 500
"""Looked at in one turn of the loop."""


async def keep_up_partitions(hosting: Hosting, world: World, look: Callable[[HostedPartition], None]) -> None:
    """`look` sees each of them first. A closed one is opened only if there may be something in it to let go."""
    for number, hosted in enumerate(hosting.opened()):
        if number % PARTITIONS_AT_ONCE == 0:
            await breathe()
        look(hosted)
        now_ms = world.now_ms()
        if not hosted.is_gone and not hosted.damages and hosting.is_due(hosted, now_ms):
            await keep_up(partial(hosting.keep_up, hosted, now_ms), str(hosted), world)


async def keep_up(trim: Callable[[], None], name: str, world: World) -> None:
    """One partition that cannot be kept up (deleted meanwhile, its disk is broken) does not stop the others."""
    try:
        await world.blocking(trim)
    except BrokerError as error:
        log.info("%s is not trimmed: %s", name, error)
    except StorageFault as fault:
        log.error("%s cannot be trimmed: %s", name, fault)  # noqa: TRY400 - the fault says where, a traceback does not
