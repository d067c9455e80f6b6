"""Three nodes with the switches of `tests.attack.node`, each with a disk, an address and a member of etcd of its own.

Knows: how a node is started, stopped, killed and has its power cut, its member with it or not. Refuses to know: when.
Invariant: every process that was started is ended, whatever happens.
"""

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from tests.attack.disk import Disk
from tests.attack.node import ASIDE, BUG, FOLDER, Control
from tests.attack.unsynced import lose_unsynced
from tests.debian import have
from tests.nemesis.network import Network

from braidlog.model.clock import SystemClock
from braidlog.server.config import load_config
from braidlog.server.etcd.etcd_metadata import MEMBER_FOLDER
from braidlog.server.etcd.etcd_process import stop_member
from braidlog.server.peers.certificate_authority import Pair, make_authority, make_node_certificate
from braidlog.testing.server import ServerProcess, hold_port
from braidlog.wire.dialect import dialects

ROOT = Path(__file__).parents[2]
NUMBERS = (1, 2, 3)
START_SECONDS_MAX = 120.0
ASK_SECONDS_MAX = 5.0
SETTINGS = {
    "cluster.etcd": "embedded",
    "topics.segment_bytes": 1024 * 1024,
    "disk_reserve_bytes": 4 * 1024 * 1024,
    "groups.rebalance_delay_ms": 0,
    "auth.allow_open": "true",
}


class NemesisNode(ServerProcess):
    module = "tests.attack.node"

    def __init__(
        self,
        number: int,
        folder: Path,
        disk: Disk,
        network: Network,
        settings: dict[str, Any],
        bug: str,
        *,
        has_console: bool = False,
    ) -> None:
        self.number = number
        self.disk = disk
        self.network = network
        self.lives: list[str] = []
        """What it said in lives that did not begin."""
        self._folder = folder
        self.control = Control(folder)
        environment = {FOLDER: str(folder), ASIDE: str(disk.aside), BUG: bug}
        environment |= {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        super().__init__(
            disk.data,
            *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
            environment=environment,
            admin=has_console,
            prefix=network.prefix(number),
            host=network.host(number),
        )
        self._config = load_config(None, {}, {name: str(value) for name, value in settings.items()}).config.cluster

    def start(self) -> Self:
        """One that is not ready in time is killed, and has not started."""
        overdue = threading.Timer(START_SECONDS_MAX, lambda: os.kill(self.pid, signal.SIGKILL))
        overdue.start()
        try:
            return super().start()
        except RuntimeError as error:
            self.lives.append(str(error))
            late = "" if overdue.is_alive() else f" within {START_SECONDS_MAX:g} s"
            raise RuntimeError(f"node {self.number} did not start{late}: {str(error)[-1500:]}") from error
        finally:
            overdue.cancel()

    def errors(self) -> str:
        """What it said in all its lives, those too that did not begin."""
        return "".join([*self.lives, "" if self._errors is None else super().errors()])

    def pause(self, seconds: float) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            threading.Event().wait(seconds)
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def registrations(self) -> int:
        """How often this life has registered, the first time included."""
        return super().errors().count("is registered as incarnation")

    # -- its member of etcd ------------------------------------------------------------------------------------

    @property
    def _member(self) -> Path:
        return Path(self.data_dir) / MEMBER_FOLDER

    def member_pid(self) -> int | None:
        """None if none runs."""
        try:
            pid = int(json.loads((self._member / "process.json").read_bytes())["pid"])
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return None
        return pid if state != "Z" else None

    def kill_member(self) -> None:
        pid = self.member_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            _wait_for_end(pid)

    def leads_members(self) -> bool:
        """Whether its member of etcd is the one that leads."""

        def ask() -> dict[str, Any]:
            url, tls = f"{self._config.endpoints[0]}/v3/maintenance/status", self._config.tls()
            with urllib.request.urlopen(url, data=b"{}", timeout=ASK_SECONDS_MAX, context=tls) as answer:
                found: dict[str, Any] = json.load(answer)
                return found

        try:
            said = self.network.call(self.number, ask)
        except OSError:
            return False
        return bool(said.get("leader")) and said["leader"] == said["header"]["member_id"]

    # -- its machine -------------------------------------------------------------------------------------------

    def cut_power(self) -> None:
        """Of a disk of its own: what was not synced is not there when it is on again. Node and member end as well."""
        member = self.member_pid()
        self.disk.cut_power()
        os.kill(self.pid, signal.SIGKILL)
        if member is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself when its disk was gone
                os.kill(member, signal.SIGKILL)
            _wait_for_end(member)

    def power_on(self) -> None:
        self.kill()
        self.disk.power_on()
        self._forget_notebook()

    def _forget_notebook(self) -> None:
        """What the disk holds now is durable, all of it."""
        (self._folder / "notebook").unlink(missing_ok=True)
        shutil.rmtree(self.disk.aside, ignore_errors=True)

    def lose_unsynced(self) -> int:
        """After it was killed: names and ends of files that its folder would not have if the power had failed then."""
        return lose_unsynced(self._folder / "notebook", self.disk.aside, self.disk.data)

    def end(self) -> None:
        """At once, and its member with it."""
        if self.is_running:
            self.kill()
        if (pid := self.member_pid()) is not None:
            os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(OSError):  # a disk whose power is cut says nothing; its member was ended with it
            asyncio.run(stop_member(self._member))


def _wait_for_end(pid: int) -> None:
    """Of a process that may be nobody's child any more."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], START_SECONDS_MAX)
        finally:
            os.close(descriptor)


class NemesisCluster:
    """`with NemesisCluster(folder) as cluster:`; `cluster[2]` is a node. Entered by a process that has no second thread yet."""

    def __init__(
        self, folder: Path, bug: str = "", settings: Mapping[str, Any] = SETTINGS, consoles: Sequence[int] = ()
    ) -> None:
        """`consoles`: the nodes that run one."""
        have("etcd", "etcd-server")
        self._consoles = consoles
        self._settings = settings
        self._folder = folder
        self._bug = bug
        self._stack = contextlib.ExitStack()
        self.network = Network(NUMBERS)
        self.nodes: dict[int, NemesisNode] = {}

    def __getitem__(self, number: int) -> NemesisNode:
        return self.nodes[number]

    @property
    def folders(self) -> dict[int, Path]:
        """Node → where its data is."""
        return {number: Path(node.data_dir) for number, node in self.nodes.items()}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._prepare(stack)
            for node in self.nodes.values():
                stack.callback(node.end)
            self.start(NUMBERS)
            self._stack = stack.pop_all()
        return self

    def _prepare(self, stack: contextlib.ExitStack) -> None:
        network = self.network
        one = None if network.reason else (hold_port(), hold_port())  # each node has all ports of its address
        held = {number: one or (hold_port(), hold_port()) for number in NUMBERS}
        for descriptor in {descriptor for pair in held.values() for descriptor, _ in pair}:
            stack.callback(os.close, descriptor)
        scheme = "http" if network.reason else "https"
        members = ",".join(f"{number}={scheme}://{network.host(number)}:{pair[1][1]}" for number, pair in held.items())
        authority = None if network.reason else make_authority(self._folder, SystemClock())
        for number, (client, peer) in held.items():
            folder = self._folder / f"node-{number}"
            folder.mkdir()
            ports = {"cluster.client_port": client[1], "cluster.peer_port": peer[1]}
            own = {"node": number, "cluster.initial_cluster": members, **self._settings, **ports}
            if authority is not None:
                own |= _exposed(authority, self._folder, number, network.host(number))
            disk = stack.enter_context(Disk(folder))
            self.nodes[number] = NemesisNode(
                number, folder, disk, network, own, self._bug, has_console=number in self._consoles
            )

    def __exit__(self, *_: object) -> None:
        self.network.heal()
        self._stack.close()

    def start(self, numbers: Sequence[int]) -> None:
        """All at once: none of them is ready before most are there."""
        with ThreadPoolExecutor(len(numbers)) as pool:
            list(pool.map(lambda number: self.nodes[number].start(), numbers))


def _exposed(authority: Pair, folder: Path, number: int, host: str) -> dict[str, Any]:
    """Settings of a node that is reached by a network."""
    pair = make_node_certificate(authority, folder, number, SystemClock(), [host])
    files = {"ca": authority.certificate, "cert": pair.certificate, "key": pair.key}
    return {
        "cluster.peers.host": host,
        **{f"cluster.peers.{name}": str(file) for name, file in files.items()},
        **{f"listeners.{dialect}.host": host for dialect in dialects()},
    }
