"""The files and folders of the source that one request passes on its way through a server.

python -m tests.request_trace     one Kafka Produce with fsync: each file, how many functions of it were entered, and the totals

Counted are the functions of this package that are entered on the loop's thread and on the flusher's, from the first byte of the
request to the answer. The request is one of many alike: what the first ones make is made.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import braidlog
from braidlog.codec.records import encode_batch
from braidlog.server.compose import Server
from braidlog.server.config import load_config
from braidlog.wire.kafka.connection import ClientConnection
from braidlog.wire.kafka.messages import data as kafka

SOURCE = str(Path(braidlog.__file__).parent) + "/"
TOPIC = "traced"
WARM_REQUESTS = 20
VERSION = 9
LENGTH_BYTES = 4


class Trace:
    """Counts the functions of this package that are entered, by file."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        self._is_on = False

    def note(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if self._is_on and event == "call" and file.startswith(SOURCE):
            self.entered[file.removeprefix(SOURCE)] += 1

    @contextmanager
    def on(self) -> Iterator[None]:
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False


async def produce_traced(folder: Path) -> Counter[str]:
    """The files that one Produce passes: of one record, over a connection of its own, with fsync before its answer."""
    trace = Trace()
    threading.setprofile(trace.note)  # of threads that are started from here on
    others = {f"listeners.{name}.enabled": False for name in ("cursus", "flux", "mayfly", "mlog", "rustlog")}
    flags = {"data_dir": str(folder), "listeners.kafka.port": 0, "topics.flush": "ack", **others}
    server = Server(load_config(None, {}, flags).config)
    await server.start()
    try:
        assert server.services is not None
        await server.services.topics.create(TOPIC, 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports["kafka"])
        partition = kafka.ProduceRequestPartition(0, encode_batch([b"value"], base_timestamp=1))
        message = kafka.ProduceRequest(None, -1, 30_000, [kafka.ProduceRequestTopic(TOPIC, partition_data=[partition])])
        frame = ClientConnection("trace").request(message, VERSION)

        async def ask() -> None:
            writer.write(frame)
            size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
            await reader.readexactly(size)

        for _ in range(WARM_REQUESTS):
            await ask()
        sys.setprofile(trace.note)
        with trace.on():
            await ask()
        sys.setprofile(None)
        writer.close()
    finally:
        threading.setprofile(None)
        await server.stop()
    return trace.entered


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        entered = asyncio.run(produce_traced(Path(folder)))
    for file, count in sorted(entered.items()):
        print(f"{count:5}  {file}")
    folders = {str(Path(file).parent) for file in entered}
    print(f"{len(entered)} files in {len(folders)} folders, {sum(entered.values())} functions entered")


if __name__ == "__main__":
    main()
