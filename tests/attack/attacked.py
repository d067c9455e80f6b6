"""The node under attack: a process with the switches of `tests.attack.node`, and a proxy before each of its doors.

Clients see the proxies' ports wherever a `ServerProcess` is asked for its own: every client of the other tests can be used.
"""

import asyncio
import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Self

from tests.attack.disk import Disk
from tests.attack.node import ASIDE, BUG, FOLDER, Control
from tests.attack.unsynced import lose_unsynced
from tests.client.proxy import Proxy

from braidlog.testing.server import ServerProcess
from braidlog.wire.dialect import dialects

ROOT = Path(__file__).parents[2]
SETTINGS = {"topics.segment_bytes": 65536, "disk_reserve_bytes": 4 * 1024 * 1024, "groups.rebalance_delay_ms": 0}


class Proxies:
    """One for each dialect, on a loop of their own."""

    def __init__(self) -> None:
        self.by_dialect = {dialect: Proxy(remembers=False) for dialect in dialects()}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)

    async def _run(self) -> None:
        for proxy in self.by_dialect.values():
            await proxy.__aenter__()
        self._ready.set()
        await self._stop.wait()
        for proxy in self.by_dialect.values():
            await proxy.__aexit__(None, None, None)

    @property
    def ports(self) -> dict[str, int]:
        return {dialect: proxy.port for dialect, proxy in self.by_dialect.items()}

    @property
    def cuts(self) -> int:
        return sum(proxy.cuts for proxy in self.by_dialect.values())

    def lead_to(self, ports: dict[str, int]) -> None:
        for dialect, proxy in self.by_dialect.items():
            proxy.server_port = ports[dialect]

    def cut(self, rng: random.Random, dialect: str) -> None:
        """Some connection of this dialect ends within its next bytes, on the way to the node or on the way back."""
        proxy, further, is_answer = self.by_dialect[dialect], rng.randrange(1, 400), rng.random() < 0.5

        def cut() -> None:
            if is_answer:
                proxy.cut_answered_at = max((pipe.answered for pipe in proxy.pipes), default=0) + further
            else:
                proxy.cut_asked_at = max((pipe.asked_bytes for pipe in proxy.pipes), default=0) + further

        self._loop.call_soon_threadsafe(cut)

    def disarm(self) -> None:
        """No connection is cut any more that has not been yet."""
        done = threading.Event()

        def disarm() -> None:
            for proxy in self.by_dialect.values():
                proxy.cut_asked_at = proxy.cut_answered_at = None
            done.set()

        self._loop.call_soon_threadsafe(disarm)
        assert done.wait(60)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._loop.close()


class AttackedNode(ServerProcess):
    module = "tests.attack.node"

    def __init__(self, folder: Path, disk: Disk, proxies: Proxies, bug: str = "") -> None:
        self._folder = folder
        self._disk = disk
        self._proxies = proxies
        self.control = Control(folder)
        settings = {
            **SETTINGS,
            **{f"listeners.{dialect}.advertised_host": "127.0.0.1" for dialect in ("kafka", "mlog")},
            **{f"listeners.{dialect}.advertised_port": proxies.ports[dialect] for dialect in ("kafka", "mlog")},
        }
        environment = {FOLDER: str(folder), ASIDE: str(disk.aside), BUG: bug}
        super().__init__(
            disk.data,
            *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
            environment=environment | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        )
        self.ports_of_its_own: dict[str, int] = {}

    def start(self) -> Self:
        super().start()
        self.ports_of_its_own = self.ports
        self._proxies.lead_to(self.ports)
        self.ports = self._proxies.ports
        return self

    def pause(self, seconds: float) -> None:
        """It hears nothing for a while, as under a debugger, or on a machine that sleeps."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            threading.Event().wait(seconds)
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def cut_power(self) -> None:
        """Of its disk, which must be one of its own; then the node ends as well."""
        self._disk.cut_power()
        self.kill()
        self._disk.power_on()
        # What the disk holds now is durable, all of it.
        (self._folder / "notebook").unlink(missing_ok=True)
        shutil.rmtree(self._disk.aside, ignore_errors=True)

    def lose_unsynced(self) -> int:
        """After it was killed: as if the power had failed then."""
        return lose_unsynced(self._folder / "notebook", self._disk.aside, self._disk.data)
