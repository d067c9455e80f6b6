"""`braid dev --nodes 3`: several local nodes, each a `braid serve` process, stopped together.

No process is left behind, however another node or this process ends. If a node dies, its number and last log line are
printed, and the other nodes keep running. Only one such process runs per data folder.
"""

import asyncio
import ctypes
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from braidlog.cli import NO, REFUSED, end, say
from braidlog.cli.terminal.output import plural, print_table
from braidlog.server.config import LoadedConfig
from braidlog.server.etcd.cluster_config import EMBEDDED
from braidlog.server.etcd.etcd_metadata import MEMBER_FOLDER
from braidlog.server.etcd.etcd_process import check_program, find_program, stop_member

PORT_STEP: Final = 100
"""Distance between the ports of consecutive nodes."""
HEARTBEAT_MS, ELECTION_MS = 30, 300
"""Timings of etcd members on one machine, shorter than those for a network."""
STOP_SECONDS_MAX: Final = 60.0
"""Time in which a node hands over leadership, syncs, and stops its etcd member, before it is killed."""
LINE_BYTES_MAX: Final = 1024 * 1024
LOCK_FILE: Final = "dev.lock"
_PR_SET_PDEATHSIG: Final = 1  # prctl.h


class NodePlan(msgspec.Struct, frozen=True):
    """Settings of a node to start."""

    number: int
    folder: str
    settings: Mapping[str, Any]

    def command(self) -> list[str]:
        words = [word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")]
        return [sys.executable, "-m", "braidlog.cli", "serve", "--data-dir", self.folder, *words]


def plan_nodes(loaded: LoadedConfig, count: int) -> list[NodePlan]:
    """Plan folders `node-1`, `node-2`, … below the data folder; each node gets its own ports unless they are 0."""
    values = loaded.flat()
    changed = {name: values[name] for name, origin in loaded.origins.items() if origin != "default" and name in values}
    for name in ("data_dir", "node"):
        changed.pop(name, None)
    if any("…" in str(value) for value in changed.values()):
        end(REFUSED, "braid dev --nodes does not support secrets: remove tokens, users and passwords from its settings")
    ports = [name for name, value in values.items() if _is_port(name) and value]
    peers = ",".join(
        f"{number}=http://127.0.0.1:{_port(values, 'cluster.peer_port', number)}" for number in _numbers(count)
    )
    embedded: dict[str, Any] = {}
    if not values["cluster.etcd"]:
        embedded = {"cluster.etcd": EMBEDDED, "cluster.initial_cluster": peers}
        embedded |= {"cluster.heartbeat_ms": HEARTBEAT_MS, "cluster.election_ms": ELECTION_MS}
    quiet = {} if "log.level" in changed else {"log.level": "warning"}
    # One console shows all nodes; more console processes would slow the start.
    alone = {} if "admin.enabled" in changed else {"admin.enabled": "false"}
    return [
        NodePlan(
            number,
            str(Path(values["data_dir"]) / f"node-{number}"),
            changed
            | quiet
            | embedded
            | ({} if number == _numbers(count)[0] else alone)
            | {name: _port(values, name, number) for name in ports}
            | {"node": number},
        )
        for number in _numbers(count)
    ]


def _numbers(count: int) -> range:
    return range(1, count + 1)


def _is_port(name: str) -> bool:
    leaf = name.rpartition(".")[2]
    return leaf == "port" or (leaf.endswith("_port") and leaf != "advertised_port")


def _port(values: Mapping[str, Any], name: str, number: int) -> int:
    port: int = values[name] + PORT_STEP * (number - 1)
    return port


class RunningNode:
    """Process of a node."""

    def __init__(self, plan: NodePlan, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.last_words = ""
        self.ports: dict[str, int] = {}
        self.admin: int | None = None

    async def start(self) -> bool:
        """Start the process; return whether it became ready."""
        # In its own session: Ctrl-C in the terminal reaches only this process, which stops all nodes.
        self._process = await asyncio.create_subprocess_exec(
            *self.plan.command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_end_with_parent,
            limit=LINE_BYTES_MAX,
        )
        self._reading = asyncio.ensure_future(self._read_errors(self._process))
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            return False
        ready = json.loads(line)
        self.ports, self.admin = ready["ports"], ready["admin"]
        return True

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            self.last_words = line.decode(errors="replace").rstrip()
            self._tell(f"node {self.plan.number}: {self.last_words}")

    async def ended(self) -> int:
        """Wait for the process to end; return its exit code."""
        assert self._process is not None
        assert self._reading is not None
        await self._reading
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the process, and an etcd member that a killed node left behind."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_SECONDS_MAX):
                    await self.ended()
            except TimeoutError:
                self._process.kill()
                await self.ended()
        if self.plan.settings.get("cluster.etcd") == EMBEDDED:
            await stop_member(Path(self.plan.folder) / MEMBER_FOLDER)


def _end_with_parent() -> None:
    """In the child: get SIGTERM when the parent dies, so that the node stops its etcd member."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def only_one(data_dir: str) -> Iterator[IO[str]]:
    """Lock the data folder for this process; the operating system releases the lock when the process ends."""
    folder = Path(data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            end(REFUSED, f"nodes already run on {data_dir}: {file.read().strip() or 'they are starting'}")
        file.truncate(0)
        yield file


async def run_cluster(plans: list[NodePlan], data_dir: str, note: Callable[[str], object]) -> None:
    """Run until a signal, or until all nodes have ended. `note` writes the message for a second process on this folder."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    nodes = [RunningNode(plan, lambda line: click.echo(line, err=True)) for plan in plans]
    try:
        await _run(nodes, stopping, data_dir, note)
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


async def _run(nodes: list[RunningNode], stopping: asyncio.Event, data_dir: str, note: Callable[[str], object]) -> None:
    stop = asyncio.ensure_future(stopping.wait())
    starting = {asyncio.ensure_future(node.start()): node for node in nodes}
    while starting and not stopping.is_set():
        await asyncio.wait({stop, *starting}, return_when=asyncio.FIRST_COMPLETED)
        for started in [task for task in starting if task.done()]:
            node = starting.pop(started)
            if not started.result():
                code, words = await node.ended(), node.last_words or "no output"
                end(NO, f"node {node.plan.number} failed to start (exit code {code}), stopping all nodes: {words}")
    if stopping.is_set():
        return
    _announce(nodes, data_dir)
    note(f"{plural(len(nodes), 'node')}, {_how_to_ask(nodes)}; stop them with: kill {os.getpid()}")
    running = {asyncio.ensure_future(node.ended()): node for node in nodes}
    while running and not stopping.is_set():
        await asyncio.wait({stop, *running}, return_when=asyncio.FIRST_COMPLETED)
        for ended in [task for task in running if task.done()]:
            node = running.pop(ended)
            left = f"{plural(len(running), 'node')} left" if running else "no nodes left"
            say(
                f"node {node.plan.number} ended with exit code {ended.result()}: {node.last_words or 'no output'}; {left}"
            )
    if not running:
        end(NO)


def _announce(nodes: list[RunningNode], data_dir: str) -> None:
    click.echo(f"braidlog is ready: {plural(len(nodes), 'node')}, data in {data_dir}")
    doors = sorted(nodes[0].ports)
    rows = [[node.plan.number, *(node.ports.get(door) for door in doors)] for node in nodes]
    print_table(["NODE", *(door.upper() for door in doors)], rows, indent="  ")
    for node in nodes:
        if node.admin is not None:
            click.echo(f"Console of node {node.plan.number}: http://127.0.0.1:{node.admin}/cluster")
    if "kafka" in doors:
        click.echo(f"Query them with: {_how_to_ask(nodes)}")
    click.echo("Stop all with Ctrl-C.")


def _how_to_ask(nodes: list[RunningNode]) -> str:
    hosts = ",".join(f"127.0.0.1:{node.ports['kafka']}" for node in nodes if "kafka" in node.ports)
    return f"braid cluster status --server kafka://{hosts}"


def dev_cluster(loaded: LoadedConfig, count: int) -> None:
    """Start `count` nodes and run them until Ctrl-C."""
    if not loaded.config.cluster.etcd:
        check_program(find_program())
    if count % 2 == 0:
        say(f"{count} nodes tolerate no more failures than {count - 1}: prefer an odd number")
    plans, data_dir = plan_nodes(loaded, count), loaded.config.data_dir
    with only_one(data_dir) as file:

        def note(words: str) -> None:
            file.write(words)
            file.flush()

        asyncio.run(run_cluster(plans, data_dir, note))
