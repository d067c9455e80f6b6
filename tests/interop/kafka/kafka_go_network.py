"""kafka-go's tests dial localhost:9092, and 9093 for passwords: here is a network of one's own with both, and a program in it.

    python -m tests.interop.kafka.kafka_go_network FOLDER program …

Run by `unshare --net`: the ports are free there, whatever this machine serves. Invariant: nodes and program end together.
"""

import contextlib
import fcntl
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.kafka import KafkaPeer, Security
from tests.interop.kafka.servers import JUDGED, QUICK, braid_words, certificates, verifier

from braidlog.testing.server import ServerProcess

ALONE = ["unshare", "--net", "--map-root-user"]
PLAIN_PORT, SASL_PORT = 9092, 9093
NODE = "1"
AS_QUICK = [f"node={NODE}", "groups.rebalance_delay_ms=0"]
USERS = {"adminplain": "admin-secret", "adminscram256": "admin-secret-256", "adminscram512": "admin-secret-512"}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def raise_loopback() -> None:
    """A new network has a loopback that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        name, flags = struct.unpack("16sh", fcntl.ioctl(asked, _SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(asked, _SIOCSIFFLAGS, struct.pack("16sh", name, flags | _IFF_UP))


@contextlib.contextmanager
def braid(folder: Path) -> Iterator[None]:
    """Two nodes: one has one Kafka port."""
    config = folder / "sasl.toml"
    lines = [f'{name} = "{verifier(word, 512 if name.endswith("512") else 256)}"' for name, word in USERS.items()]
    config.write_text("\n".join(["[auth.users]", *lines, ""]), encoding="utf-8")
    words = {
        PLAIN_PORT: braid_words("plain", folder, certificates(folder)),
        SASL_PORT: ["--config", str(config)],
    }
    with contextlib.ExitStack() as stack:
        for port, more in words.items():
            told = [f"listeners.kafka.port={port}", "listeners.kafka.advertised_host=localhost", *AS_QUICK]
            settings = [word for setting in told for word in ("--set", setting)]
            stack.enter_context(ServerProcess(folder / f"data-{port}", *more, *settings))
        yield


@contextlib.contextmanager
def apache(folder: Path) -> Iterator[None]:
    files = certificates(folder)
    settings = QUICK | {
        "node.id": NODE,
        "group.min.session.timeout.ms": "6000",
        "advertised.listeners": f"PLAIN://localhost:{PLAIN_PORT},SASL://localhost:{SASL_PORT}",
        "message.max.bytes": "200000000",
    }
    security = Security(USERS, files.server_both, files.ca)
    ports = {"plain": PLAIN_PORT, "sasl": SASL_PORT}
    with KafkaPeer(heap="512m", settings=settings, security=security, ports=ports):
        yield


def main() -> None:
    raise_loopback()
    with {"braid": braid, "apache": apache}[JUDGED](Path(sys.argv[1])):
        code = subprocess.run(sys.argv[2:], check=False).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
