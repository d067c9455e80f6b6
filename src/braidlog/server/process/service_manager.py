"""What a node tells the service manager that started it (systemd's `Type=notify`): ready, alive, stopping.

Knows: the datagrams of sd_notify(3). Refuses to know: when a node is ready. Without NOTIFY_SOCKET nothing is told.
Invariants: a manager that does not read holds nobody up, what it has no room for is left out. That the node lives is said by the
loop itself: one that hangs says nothing, and is started again. Processes that the node starts do not speak for it.
"""

import os
import socket
from collections.abc import Mapping, MutableMapping

_ADDRESS, _PERIOD, _WHOSE = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_BEATS_PER_PERIOD = 3


class ServiceManager:
    """`beat_seconds`: how often it wants to hear that the node lives; None if it does not."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get(_ADDRESS, "")
        # An address that begins with @ is a name in no file system: there it begins with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        period, whose = environment.get(_PERIOD, ""), environment.get(_WHOSE, "")
        is_meant = self._address != "" and period.isdecimal() and whose in ("", str(os.getpid()))
        self.beat_seconds = int(period) / 1e6 / _BEATS_PER_PERIOD if is_meant and int(period) else None

    @classmethod
    def of_this_process(cls, environment: MutableMapping[str, str]) -> "ServiceManager":
        """Of whoever started this process; those that it starts are not to find it."""
        found = cls(environment)
        for name in (_ADDRESS, _PERIOD, _WHOSE):
            environment.pop(name, None)
        return found

    def notify(self, *words: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(0)
            try:
                out.sendto("\n".join(words).encode(), self._address)
            except OSError:
                return  # it is gone or has no room: nothing that a node could do about it

    async def beat(self) -> None:
        self.notify("WATCHDOG=1")
