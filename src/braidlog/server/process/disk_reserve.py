"""Refuses records and keys while free disk space is below a reserve, which is for groups, transactions and deletes.

Invariant: the disk is queried on a thread; while it does not answer, nothing changes.
"""

import errno
import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

from braidlog.model.errors import StorageFault
from braidlog.model.runtime.runtime import Runtime

log = logging.getLogger("braidlog.disk")

LOOK_SECONDS: Final = 1.0


class Refusing(Protocol):
    """A service that accepts data, or refuses it with `no_room`."""

    no_room: StorageFault | None


def free_bytes(folder: str) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


class DiskReserve:
    """Checks free space every `LOOK_SECONDS`; makes the services refuse data when it is low, and accept it again."""

    def __init__(self, free: Callable[[], int], reserve_bytes: int, runtime: Runtime, services: list[Refusing]) -> None:
        self._free = free
        self._reserve_bytes = reserve_bytes
        self._runtime = runtime
        self._services = services
        self._is_low = False

    async def check(self) -> None:
        try:
            free = await self._runtime.blocking(self._free)
        except OSError as error:
            log.warning("cannot determine free disk space: %s", error.strerror or error)
            return
        is_low = free < self._reserve_bytes
        if is_low == self._is_low:
            return
        self._is_low = is_low
        if is_low:
            log.error(
                "%d bytes are free on the disk, fewer than disk_reserve_bytes = %d: no records and keys are taken until there "
                "is room; groups, transactions and deletes continue",
                free,
                self._reserve_bytes,
            )
        else:
            log.warning("%d bytes are free on the disk again: records and keys are taken", free)
        for service in self._services:
            service.no_room = _low() if is_low else None


def _low() -> StorageFault:
    fault = StorageFault("disk nearly full: the rest is reserved for the node")
    fault.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return fault
