"""NATS JetStream: acknowledged publishes, one by one in a pipeline or in atomic batches; a push consumer.

Knows: NATS's text protocol as far as this needs it. `fsync`: sync_interval always, else the files are left to the kernel.
"""

import json
from collections.abc import Iterable

from benchmarks.load import Line, Marks
from benchmarks.peers.process import PeerProcess

CHUNK = 1000
INBOX = b"_INBOX.bench"


class Nats(PeerProcess):
    name = "nats"

    def __init__(self, *, fsync: bool) -> None:
        super().__init__()
        config = f'port: {self.port}\nhost: "127.0.0.1"\njetstream {{ store_dir: "{self.folder}/js"'
        config += f', sync_interval: "{"always" if fsync else "10m"}" }}\n'
        (self.folder / "nats.conf").write_text(config, encoding="utf-8")

    def command(self) -> list[str]:
        return ["nats-server", "--config", str(self.folder / "nats.conf")]

    def connect(self) -> Line:
        line = Line(self.address)
        line.ask(b"", Marks(b"\r\n"))  # INFO
        line.ask(b'CONNECT {"verbose":false,"headers":true}\r\nPING\r\n', Marks(b"PONG"))
        line.socket.sendall(b"SUB " + INBOX + b".* 1\r\n")
        return line

    def create_stream(self, line: Line, name: str) -> None:
        config = {
            "name": name, "subjects": [name], "storage": "file", "retention": "limits", "allow_atomic": True,
            "num_replicas": 1, "duplicate_window": 0,
        }  # fmt: skip
        answer = line.ask(
            _publish(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), b"api"), Marks(b"}\r\n")
        )
        if b'"error"' in answer:
            raise RuntimeError(answer.decode())

    @staticmethod
    def consume_request(stream: str, name: str, deliver: str) -> bytes:
        """Ask for a consumer that pushes everything from the beginning and wants no acknowledgements: the fastest there is."""
        config = {"deliver_subject": deliver, "ack_policy": "none", "deliver_policy": "all", "durable_name": name}
        body = json.dumps({"stream_name": stream, "config": config}).encode()
        return _publish(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}", body, b"api")


def _publish(subject: str, payload: bytes, reply: bytes) -> bytes:
    return b"PUB %s %s.%s %d\r\n%s\r\n" % (subject.encode(), INBOX, reply, len(payload), payload)


class Produce:
    """Publishes with a reply subject: each is acknowledged by `{"stream":…,"seq":…}`."""

    def __init__(self, stream: str, value: bytes) -> None:
        self.single = _publish(stream, value, b"a")
        self.chunk = self.single * CHUNK
        self.per_chunk = CHUNK

    @staticmethod
    def counter() -> Marks:
        return Marks(b'"seq":')

    def chunks(self, count: int) -> list[bytes]:
        return [self.chunk] * count


class ProduceBatches:
    """Atomic batches of a thousand: every message names its batch, only the last one is acknowledged (with a `count`)."""

    def __init__(self, stream: str, value: bytes) -> None:
        self._stream = stream.encode()
        self._value = value
        self._number = 0
        self.per_chunk = 1

    @staticmethod
    def counter() -> Marks:
        return Marks(b'"count":')

    def chunks(self, count: int) -> list[bytes]:
        made = []
        for _ in range(count):
            self._number += 1
            made.append(b"".join(self._messages(b"b%d" % self._number)))
        return made

    def _messages(self, batch: bytes) -> Iterable[bytes]:
        for sequence in range(1, CHUNK + 1):
            last = sequence == CHUNK
            headers = b"NATS/1.0\r\nNats-Batch-Id: %s\r\nNats-Batch-Sequence: %d\r\n" % (batch, sequence)
            headers += b"Nats-Batch-Commit: 1\r\n\r\n" if last else b"\r\n"
            reply = INBOX + b".b " if last else b""
            size = len(headers)
            yield b"HPUB %s %s%d %d\r\n%s%s\r\n" % (
                self._stream, reply, size, size + len(self._value), headers, self._value,
            )  # fmt: skip
