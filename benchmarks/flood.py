"""What two connections that flood a node with OffsetCommits cost 200 others with small requests, in one run: `make bench-flood`.

Knows: a node, others that ask for nothing much now and then, and the flood in a process of its own, which takes turns with
rest. Of the machine's load both have their part: compare what stands beside each other.
"""

import argparse
import asyncio
import multiprocessing
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from tests.adapters.hostility import CHEAP, settle
from tests.adapters.rustlog.client import Client

from braidlog.testing.server import ServerProcess
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages import groups as g

FLOODERS = 2
OTHERS = 200
PAUSE_SECONDS = 0.1
"""Of each of the others, between an answer and its next request."""
GROUPS = 1000
SECONDS_MAX = 60.0
TOPIC = "kept"


def commits() -> bytes:
    """One commit of each of many groups."""
    connection = ClientConnection("flood")
    topics = [g.OffsetCommitRequestTopic(TOPIC, partitions=[g.OffsetCommitRequestPartition(0, 0)])]
    return b"".join(
        connection.request(g.OffsetCommitRequest(f"group-{number}", topics=topics), 7) for number in range(GROUPS)
    )


def flood(address: tuple[str, int], flows: Event, enough: Event, told: Connection) -> None:
    """As fast as the node takes them. What it answers is counted: commits a second."""
    answered: list[int] = []

    def one() -> None:
        with socket.create_connection(address) as peer:
            threading.Thread(target=read, args=(peer, answered, flows), daemon=True).start()
            requests = commits()
            while True:
                peer.sendall(requests)

    for _ in range(FLOODERS):
        threading.Thread(target=one, daemon=True).start()
    flows.wait()
    began, before = time.perf_counter(), len(answered)
    enough.wait()
    told.send((len(answered) - before) / (time.perf_counter() - began))


def read(peer: socket.socket, answered: list[int], flows: Event) -> None:
    with peer.makefile("rb") as answers:
        while head := answers.read(4):
            answered.append(len(answers.read(int.from_bytes(head))))
            if len(answered) >= GROUPS and not flows.is_set():
                flows.set()


class Flood:
    """`commits_per_second` is known when it has ended."""

    commits_per_second = 0.0


@contextmanager
def flooded(server: ServerProcess) -> Iterator[Flood]:
    flows, enough = multiprocessing.Event(), multiprocessing.Event()
    rate, told = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.Process(target=flood, args=(server.address("kafka"), flows, enough, told), daemon=True)
    child.start()
    try:
        assert flows.wait(SECONDS_MAX), "the flood is not answered"
        found = Flood()
        yield found
        enough.set()
        assert rate.poll(SECONDS_MAX), "the flood does not end"
        found.commits_per_second = rate.recv()
    finally:
        child.kill()
        child.join()


async def ask_all(address: tuple[str, int], seconds: float) -> list[float]:
    """What each request of the others took, in order of time taken."""
    taken: list[float] = []
    request = CHEAP["kafka"]
    until = time.perf_counter() + seconds

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        await asyncio.sleep(PAUSE_SECONDS * number / OTHERS)
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(request)
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            taken.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_SECONDS)
        writer.close()

    await asyncio.gather(*map(one, range(OTHERS)))
    return sorted(taken)


def said(name: str, taken: list[float]) -> str:
    p50, p99 = (taken[int(len(taken) * part)] * 1000 for part in (0.5, 0.99))
    return f"{name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms of {len(taken)} requests"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    wishes = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ServerProcess(folder) as server:
        with Client(server) as client:
            client.create(TOPIC)
        address = server.address("kafka")
        for number in range(1, wishes.rounds + 1):
            settle(server)
            print(said(f"round {number}, {OTHERS} connections alone", asyncio.run(ask_all(address, wishes.seconds))))
            with flooded(server) as alone:
                asyncio.run(asyncio.sleep(wishes.seconds))
            with flooded(server) as beside:
                taken = asyncio.run(ask_all(address, wishes.seconds))
            print(said(f"round {number}, beside {FLOODERS} that flood", taken))
            rates = beside.commits_per_second, alone.commits_per_second
            print("round {}, the flood: {:.0f} commits a second, {:.0f} without the others".format(number, *rates))


if __name__ == "__main__":
    main()
