"""A client that is nothing but a socket, and nodes prepared for what a socket cannot bring about."""

import asyncio
import json
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.adapters.connected import Connected
from tests.waiting import until

from braidlog.partition.hosted_log import Role
from braidlog.server.config import ListenersConfig, load_config
from braidlog.server.node import Server
from braidlog.testing.server import ServerProcess
from braidlog.wire.cursus.batch import Batch, BatchRecord, Spelling, read_batch, write_batch

DEADLINE = 30.0


class Client(Connected):
    """Frames out, frames in."""

    def __init__(self, server: ServerProcess, dialect: str = "cursus") -> None:
        super().__init__(server.address(dialect))

    def send(self, *bodies: bytes | str) -> None:
        self.socket.sendall(b"".join(frame(body) for body in bodies))

    def read(self) -> bytes:
        return self.read_exactly(struct.unpack(">I", self.read_exactly(4))[0])

    def ask(self, body: bytes | str) -> str:
        self.send(body)
        return self.read().decode()

    def ok(self, body: bytes | str) -> str:
        answer = self.ask(body)
        assert answer.startswith("OK"), (body, answer)
        return answer

    def ack(self, body: bytes | str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ask(body))
        return answer

    def consume(self, topic: str, partition: int = 0, offset: int = 0, more: str = "") -> "Sequence[BatchRecord]":
        self.send(f"CONSUME topic={topic} partition={partition} offset={offset} {more}")
        return read_batch(self.read())[0].records


def frame(body: bytes | str) -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    return struct.pack(">I", len(raw)) + raw


def batch(
    topic: str,
    *payloads: bytes,
    partition: int = 0,
    acks: str = "1",
    idempotent: bool = False,
    first: int = 1,
    producer: str = "p",
    epoch: int = 1,
    spelling: Spelling = Spelling.CLIENTS,
    **more: Any,
) -> bytes:
    records = tuple(
        BatchRecord(payload, sequence=first + place, producer_id=producer, epoch=epoch, **more)
        for place, payload in enumerate(payloads)
    )
    return write_batch(Batch(topic, partition, records, acks, idempotent, first, first + len(payloads) - 1), spelling)


wait_for = partial(until, seconds=DEADLINE)


def prepare(folder: Path) -> None:
    """Topics as only several nodes or an administrator would have them."""
    asyncio.run(_prepare(folder))


async def _prepare(folder: Path) -> None:
    flags = {f"listeners.{name}.port": 0 for name in ListenersConfig.__struct_fields__}
    server = Server(load_config(None, {}, {**flags, "data_dir": str(folder)}).config)
    await server.start()
    services = server.services
    assert services is not None
    try:
        await services.topics.create("follow", 1, settings={"event_streams": True})
        await services.placement.set_role("follow", 0, Role.FOLLOWER)
        await services.topics.create("half", 2)
        await services.placement.set_role("half", 1, Role.FOLLOWER)
        await services.topics.create("behind", 1, followers=["9"], min_in_sync=2)
        await services.topics.create("small", 1, settings={"batch_bytes_max": 1024})
    finally:
        await server.stop()
