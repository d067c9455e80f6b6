"""Apache Kafka's own broker, one node in a process of its own: what ours is measured against, and what judges the interop checks.

Knows: where its jars come from (`kafka/pom.xml`, Maven Central), how a KRaft node is formatted, started and stopped.
Refuses to know: what is asked of it. Invariant: a process that was started is ended by its id, and its folder goes with it.

    with KafkaPeer() as peer:            # PLAINTEXT on peer.address("plain")
        ...
    with KafkaPeer(security=Security(...)) as peer:   # also "sasl" (PLAIN, SCRAM), "tls" and "mtls"
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import uuid
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.peers import maven

POM = Path(__file__).parent / "kafka" / "pom.xml"
READY_SECONDS_MAX = 120
STOP_SECONDS_MAX = 60

# What Kafka's own start script gives the machine, but for the heap, which is said by the caller.
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.apache.logging.log4j.level=INFO",
)

# One node can only replicate to itself; everything else is Kafka's default.
ALONE = {
    "process.roles": "broker,controller",
    "node.id": "0",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

PROTOCOLS = {"plain": "PLAINTEXT", "sasl": "SASL_PLAINTEXT", "tls": "SSL", "mtls": "SSL"}
SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MODULES = "org.apache.kafka.common.security"


class Security(NamedTuple):
    """Users with their passwords, and PEM files: a key (PKCS #8) with its certificate in one file, and who signed clients."""

    users: Mapping[str, str]
    keystore: str
    truststore: str


class Quorum(NamedTuple):
    """The nodes of a cluster: its id, and by number the port of each that the others reach it by."""

    identity: str
    ports: Mapping[int, int]


def new_identity() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def version() -> str:
    return maven.version(POM, "kafka")


def jars() -> Path:
    """The folder with the broker's jars, fetched once."""
    return maven.jars(POM, "kafka")


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on: a KRaft node must know its ports before it starts."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


class KafkaPeer:
    """`kafka.Kafka` on free ports over a temporary folder."""

    def __init__(
        self,
        *,
        heap: str = "1g",
        settings: Mapping[str, str] | None = None,
        security: Security | None = None,
        ports: Mapping[str, int] | None = None,
        quorum: Quorum | None = None,
    ) -> None:
        """`ports`: of listeners that must have a certain one. `quorum`: all of its cluster; its number is in `settings`."""
        self._heap = heap
        self._settings = dict(settings or {})
        self._security = security
        self._wanted_ports = dict(ports or {})
        self._quorum = quorum
        self._folder: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._said: deque[str] = deque(maxlen=200)
        self.ports: dict[str, int] = {}

    def prepare(self) -> None:
        """Jars, a formatted folder and ports: everything that is not the start of the process itself."""
        if self._folder is not None:
            return
        names = list(PROTOCOLS) if self._security else ["plain"]
        controller, *numbers = free_ports(len(names) + 1)
        self.ports = dict(zip(names, numbers, strict=True)) | self._wanted_ports
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-peer-"))
        lines = self._properties(controller)
        (self._folder / "node.properties").write_text("".join(f"{k}={v}\n" for k, v in lines.items()), encoding="utf-8")
        identity = self._quorum.identity if self._quorum else new_identity()
        command = ["kafka.tools.StorageTool", "format", "-t", identity, "-c", f"{self._folder}/node.properties"]
        for name, password in (self._security.users if self._security else {}).items():
            for scram in SCRAMS:
                command += ["--add-scram", f"{scram}=[name={name},password={password}]"]
        java = ["java", "-Xmx256m", "-cp", f"{jars()}/*", *command]
        subprocess.run(java, check=True, capture_output=True, timeout=READY_SECONDS_MAX)

    def _properties(self, controller: int) -> dict[str, str]:
        listeners = [f"{name.upper()}://127.0.0.1:{port}" for name, port in self.ports.items()]
        protocols = {"controller": "PLAINTEXT"} | {name: PROTOCOLS[name] for name in self.ports}
        node = int((ALONE | self._settings)["node.id"])
        voters = self._quorum.ports if self._quorum else {node: controller}
        controller = voters[node]
        lines = ALONE | {
            "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in voters.items()),
            "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{controller}"]),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": ",".join(f"{n.upper()}:{p}" for n, p in protocols.items()),
            "inter.broker.listener.name": "PLAIN",
            "log.dirs": f"{self._folder}/data",
        }
        if self._security is not None:
            lines |= _secured(self._security)
        return lines | self._settings

    def start(self) -> Self:
        self.prepare()
        command = ["java", f"-Xms{self._heap}", f"-Xmx{self._heap}", *JVM, "-cp", f"{jars()}/*", "kafka.Kafka"]
        self._process = subprocess.Popen(
            [*command, f"{self._folder}/node.properties"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(self._process, ready), daemon=True)
        self._reader.start()
        if not ready.wait(READY_SECONDS_MAX) or not self.is_running:
            self.kill()
            raise RuntimeError("Apache Kafka did not start:\n" + self.output())
        return self

    def _read(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.append(line)
            if "Kafka Server started" in line:
                ready.set()
        ready.set()  # it ended: whoever waits for it finds it not running

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def output(self) -> str:
        """The last lines it printed."""
        return "".join(self._said)

    def address(self, listener: str = "plain") -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Start it again over the same folder, on the same ports."""
        return self.start()

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._reader is not None
        assert self._process.stdout is not None
        if self.is_running:
            self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)
        self._reader.join(STOP_SECONDS_MAX)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._forget()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill() if kind is not None else self.stop()
        self._forget()

    def _forget(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _secured(security: Security) -> dict[str, str]:
    """The listeners beside the plain one. Who comes through the plain one may do everything: it is the tests' own door."""
    plain = " ".join(f'user_{name}="{password}"' for name, password in security.users.items())
    lines = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
        "listener.name.sasl.sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAMS]),
        "listener.name.sasl.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required {plain};",
    }
    for scram in SCRAMS:
        name = f"listener.name.sasl.{scram.lower()}.sasl.jaas.config"
        lines[name] = f"{MODULES}.scram.ScramLoginModule required;"
    for listener, client in (("tls", "none"), ("mtls", "required")):
        lines |= {
            f"listener.name.{listener}.ssl.keystore.type": "PEM",
            f"listener.name.{listener}.ssl.keystore.location": security.keystore,
            f"listener.name.{listener}.ssl.truststore.type": "PEM",
            f"listener.name.{listener}.ssl.truststore.location": security.truststore,
            f"listener.name.{listener}.ssl.client.auth": client,
        }
    return lines
