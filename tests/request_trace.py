"""The files and folders of the source that one request passes on its way through a server.

python -m tests.request_trace     one Kafka Produce with fsync: its files in the order in which they are entered, how many
                                  functions of each, and the totals; once synced on the loop, once by the flusher

Counted are the functions of this package that are entered on the loop's thread and on the flusher's, from the first byte of the
request to the answer. The request is one of many alike: what the first ones make is made. Several are traced, and the one that
entered the fewest files counts: what runs beside the others is no part of them.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from unittest import mock

import braidlog
from braidlog.codec.batch.records import encode_batch
from braidlog.server import event_loop_runtime
from braidlog.server.config import load_config
from braidlog.server.node import Server
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages import data as kafka

SOURCE = str(Path(braidlog.__file__).parent) + "/"
TOPIC = "traced"
WARM_REQUESTS = 2 * event_loop_runtime.LONE_SYNCS_MIN
TRACED_REQUESTS = 10
VERSION = 9
LENGTH_BYTES = 4
ON_THE_LOOP = {"LOOP_SYNC_SECONDS_MAX": float("inf")}
BY_THE_FLUSHER = {"LOOP_SYNC_BYTES_MAX": -1.0}
"""Where a request is synced depends on the disk and on its neighbours: here on nothing."""


class Trace:
    """Counts the functions of this package that are entered, by file."""

    def __init__(self) -> None:
        self.entered: Counter[str] | None = None
        """In the order in which files are entered first; None: nothing is counted."""

    def note(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if self.entered is not None and event == "call" and file.startswith(SOURCE):
            self.entered[file.removeprefix(SOURCE)] += 1


async def produce_traced(folder: Path, synced: dict[str, float]) -> Counter[str]:
    """The files that one Produce passes: of one record, over a connection of its own, with fsync before its answer."""
    trace, found = Trace(), list[Counter[str]]()
    others = {f"listeners.{name}.enabled": False for name in ("cursus", "flux", "mayfly", "mlog", "rustlog")}
    flags = {"data_dir": str(folder), "listeners.kafka.port": 0, "topics.flush": "ack", **others}
    server = Server(load_config(None, {}, flags).config)
    with ExitStack() as stack:
        for name, value in synced.items():
            stack.enter_context(mock.patch.object(event_loop_runtime, name, value))
        threading.setprofile(trace.note)  # of threads that are started from here on
        stack.callback(threading.setprofile, None)
        await server.start()
        try:
            assert server.services is not None
            await server.services.topics.create(TOPIC, 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.ports["kafka"])
            partition = kafka.ProduceRequestPartition(0, encode_batch([b"value"], base_timestamp=1))
            topic = kafka.ProduceRequestTopic(TOPIC, partition_data=[partition])
            frame = ClientConnection("trace").request(kafka.ProduceRequest(None, -1, 30_000, [topic]), VERSION)

            async def ask() -> None:
                writer.write(frame)
                size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                await reader.readexactly(size)

            for _ in range(WARM_REQUESTS):
                await ask()
            sys.setprofile(trace.note)
            for _ in range(TRACED_REQUESTS):
                trace.entered = Counter()
                await ask()
                found.append(trace.entered)
            sys.setprofile(None)
            trace.entered = None
            writer.close()
        finally:
            await server.stop()
    return min(found, key=len)


def main() -> None:
    for where, synced in (("on the loop", ON_THE_LOOP), ("by the flusher", BY_THE_FLUSHER)):
        with tempfile.TemporaryDirectory() as folder:
            entered = asyncio.run(produce_traced(Path(folder), synced))
        print(f"synced {where}:")
        for file, count in entered.items():
            print(f"{count:5}  {file}")
        folders = {str(Path(file).parent) for file in entered}
        print(f"{len(entered)} files in {len(folders)} folders, {sum(entered.values())} functions entered\n")


if __name__ == "__main__":
    main()
