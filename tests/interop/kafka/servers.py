"""The brokers a check may talk to: a plain port, one with passwords, one with TLS, one that wants certificates.

Knows: how braidlog and Apache Kafka are started with those. Refuses to know: which client comes.
What of braidlog's configuration names users and certificates stands in `braid_words` alone.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import trustme
from benchmarks.peers.kafka import KafkaPeer, Security
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from braidlog.testing.server import ServerProcess

USER, PASSWORD = "alice", "alice-secret"
ADMIN = "root"
CLIENT_NAME = "carol"
WARM_SECONDS_MAX = 30

# Which broker the tests judge: "braid" (ours) or "apache" (the peer, to see that a check is right itself).
JUDGED = os.environ.get("INTEROP_BROKER", "braid")
IS_FULL = os.environ.get("INTEROP", "") == "full" or JUDGED != "braid"
"""All checks of all clients, as `make interop` asks for; otherwise a sample."""


@dataclass(frozen=True)
class Servers:
    """Addresses (`host:port`), and what a client needs to come in; as `name=value` words on a command line."""

    plain: str
    sasl: str
    tls: str
    mtls: str
    ca: str
    client_cert: str
    client_key: str
    client_both: str
    user: str = USER
    password: str = PASSWORD

    def words(self) -> list[str]:
        return [f"{name}={value}" for name, value in asdict(self).items()]

    @classmethod
    def of(cls, words: list[str]) -> "Servers":
        return cls(**dict(word.split("=", 1) for word in words))


@dataclass(frozen=True)
class Certificates:
    ca: str
    server_cert: str
    server_key: str
    server_both: str
    client_cert: str
    client_key: str
    client_both: str


def certificates(folder: Path) -> Certificates:
    """A new authority, the server's certificate for loopback, a client's with its name. Java wants keys in PKCS #8."""
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = {
        "server": authority.issue_cert("127.0.0.1", "localhost", key_type=trustme.KeyType.RSA),
        "client": authority.issue_cert(f"{CLIENT_NAME}.test", common_name=CLIENT_NAME, key_type=trustme.KeyType.RSA),
    }
    for name, cert in issued.items():
        chain = b"".join(blob.bytes() for blob in cert.cert_chain_pems)
        key = load_pem_private_key(cert.private_key_pem.bytes(), None)
        pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{name}.crt").write_bytes(chain)
        (folder / f"{name}.key").write_bytes(pkcs8)
        (folder / f"{name}.pem").write_bytes(pkcs8 + chain)
    files = [f"{name}.{end}" for name in ("server", "client") for end in ("crt", "key", "pem")]
    return Certificates(*(str(folder / file) for file in ("ca.pem", *files)))


def _servers(addresses: dict[str, str], files: Certificates) -> Servers:
    return Servers(
        **addresses,
        ca=files.ca,
        client_cert=files.client_cert,
        client_key=files.client_key,
        client_both=files.client_both,
    )


# A small node of Apache Kafka that keeps records of 2023 and lets a client's tests have their short sessions.
QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.retention.ms": "-1",
}


@contextlib.contextmanager
def apache(folder: Path, more: dict[str, str] | None = None) -> Iterator[Servers]:
    """One node of Apache Kafka with all four ports."""
    files = certificates(folder)
    security = Security({USER: PASSWORD}, files.server_both, files.ca)
    with KafkaPeer(heap="512m", settings=QUICK | (more or {}), security=security) as peer:
        _warm(peer.address())
        yield _servers({name: peer.address(name) for name in peer.ports}, files)


def _warm(address: str) -> None:
    """Kafka makes its coordinators when they are first asked for, and says "not me" until they are there."""
    settings = {"bootstrap.servers": address, "log_level": 0}
    for number in range(16):
        source = Consumer({**settings, "group.id": f"warm-{number}"})
        deadline = time.monotonic() + WARM_SECONDS_MAX
        while True:
            try:
                source.committed([TopicPartition("warm", 0)], timeout=WARM_SECONDS_MAX)
                break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
        source.close()


def verifier(password: str, bits: int = 256, iterations: int = 4096) -> str:
    """SCRAM-SHA-256 or -512 as a configuration holds it (RFC 5803 gives the parts their names)."""
    salt, kind = os.urandom(16), f"sha{bits}"
    salted = hashlib.pbkdf2_hmac(kind, password.encode(), salt, iterations)
    stored = hashlib.new(kind, hmac.digest(salted, b"Client Key", kind)).digest()
    parts = [base64.b64encode(part).decode() for part in (salt, stored, hmac.digest(salted, b"Server Key", kind))]
    return f"SCRAM-SHA-{bits}${iterations}:{parts[0]}${parts[1]}:{parts[2]}"


def braid_words(name: str, folder: Path, files: Certificates) -> list[str]:
    """What `braid serve` is given for each of the four."""
    tls = [f"listeners.kafka.tls.cert={files.server_cert}", f"listeners.kafka.tls.key={files.server_key}"]
    settings = {"plain": [], "sasl": [], "tls": tls, "mtls": [*tls, f"listeners.kafka.tls.client_ca={files.ca}"]}[name]
    words = [word for setting in settings for word in ("--set", setting)]
    config = folder / f"{name}.toml"
    config.write_text(_config(name), encoding="utf-8")
    return ["--config", str(config), "--set", "groups.heartbeat_interval_ms=300", *words]


def _config(name: str) -> str:
    """Users where passwords are asked for; elsewhere a rule for everyone: without any rules no access lists are kept."""
    if name == "sasl":
        return f'[auth.users]\n{ADMIN} = "{verifier(PASSWORD)}"\n'
    return '[[auth.rules]]\nprincipal = "*"\noperations = ["*"]\n'


def _make_user(address: str) -> None:
    """The user of the checks, with both hashes, made by the one of the configuration through the door itself."""
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": ADMIN, "sasl.password": PASSWORD}
    admin = AdminClient({"bootstrap.servers": address, "security.protocol": "sasl_plaintext", "log_level": 0, **login})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        admin.alter_user_scram_credentials([wanted])[USER].result(WARM_SECONDS_MAX)


@contextlib.contextmanager
def braid(folder: Path) -> Iterator[Servers]:
    """Four nodes of braidlog: a node has one Kafka port."""
    files = certificates(folder)
    addresses = {}
    with contextlib.ExitStack() as stack:
        for name in ("plain", "sasl", "tls", "mtls"):
            words = braid_words(name, folder, files)
            node = stack.enter_context(ServerProcess(folder / f"data-{name}", *words))
            addresses[name] = f"127.0.0.1:{node.ports['kafka']}"
        _make_user(addresses["sasl"])
        yield _servers(addresses, files)


BROKERS = {"apache": apache, "braid": braid}


def judged(folder: Path) -> "contextlib.AbstractContextManager[Servers]":
    return BROKERS[JUDGED](folder)


def run_quietly(command: list[str], seconds: float, folder: Path | None = None) -> str:
    """Run a tool to its end; its output, or an error that shows it."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout
