"""Notifies the service manager (systemd's `Type=notify`, sd_notify(3)): ready, alive, stopping.

Without NOTIFY_SOCKET it does nothing. Invariants: a notification never blocks; one that the manager has no room for is
dropped. The event loop itself sends the watchdog's beat, so systemd restarts a node that hangs. Child processes do not
notify.
"""

import os
import socket
from collections.abc import Mapping, MutableMapping

_ADDRESS, _PERIOD, _WHOSE = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_BEATS_PER_PERIOD = 3


class ServiceManager:
    """`beat_seconds`: interval of the watchdog's beat; None without a watchdog."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get(_ADDRESS, "")
        # An address that begins with @ is an abstract socket: its name begins with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        period, whose = environment.get(_PERIOD, ""), environment.get(_WHOSE, "")
        is_meant = self._address != "" and period.isdecimal() and whose in ("", str(os.getpid()))
        self.beat_seconds = int(period) / 1e6 / _BEATS_PER_PERIOD if is_meant and int(period) else None

    @classmethod
    def of_this_process(cls, environment: MutableMapping[str, str]) -> "ServiceManager":
        """Return the manager of this process, and hide it from child processes."""
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
                return  # the manager has ended or has no room: the node cannot help it

    async def beat(self) -> None:
        self.notify("WATCHDOG=1")
