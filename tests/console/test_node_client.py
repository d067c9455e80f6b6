"""What the node says over its private socket is what the console knows, whatever JSON makes of it on the way."""

import asyncio
from typing import Any

import msgspec
from tests.server.test_node_reporter import Setting

from braidlog.console.node_client import Node
from braidlog.model.reporting.node_report import LINE_BYTES_MAX, Question, Reply, Snapshot, TableState, WorkerReport

IDLE = WorkerReport(is_running=False, jobs=[], jobs_seconds_total=0, waiting=0, waiting_bytes=0, failed=0, starts=0)


class Wire:
    """A socket whose other side is this test."""

    def __init__(self) -> None:
        self.asked: asyncio.Future[Question] = asyncio.get_running_loop().create_future()

    def write(self, line: bytes) -> None:
        self.asked.set_result(msgspec.json.decode(line, type=Question))


async def answered(snapshot: Snapshot) -> Snapshot:
    reader, wire = asyncio.StreamReader(limit=LINE_BYTES_MAX), Wire()
    writer: Any = wire
    welcome: Any = None
    node = Node(reader, writer, welcome)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(node.run())
        asking = tasks.create_task(node.snapshot())
        reader.feed_data(msgspec.json.encode(Reply((await wire.asked).id, snapshot)) + b"\n")
        found = await asking
        reader.feed_eof()
        await running
    return found


def test_a_snapshot_arrives_as_it_was_made() -> None:
    """Offsets of a table are by partition, a number; in JSON names are text."""
    table = TableState("orders", "json", {0: 5, 1: 7}, rows=12)
    made = msgspec.structs.replace(Setting().take()[0], worker=IDLE, upkeep=IDLE, table_workers=[IDLE], tables=[table])
    assert asyncio.run(answered(made)) == made
