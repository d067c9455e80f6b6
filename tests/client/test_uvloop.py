"""The client in a program whose loop is uvloop's, as a web server's often is: its transports are not of asyncio's classes."""

import asyncio

import pytest
import uvloop
from tests.client.dialects import COLUMNS, SECONDS_MAX, fresh, read, server_url

from braidlog import aio
from braidlog.testing.server import ServerProcess


@pytest.mark.parametrize("column", COLUMNS)
def test_records_of_all_sizes_go_there_and_back(column: str, braid_server_shared: ServerProcess) -> None:
    values = [b"small", b"large " * 40_000, b"small again"]

    async def test() -> None:
        async with asyncio.timeout(SECONDS_MAX), aio.connect(server_url(column, braid_server_shared)) as client:
            topic = fresh()
            await client.admin.create_topic(topic)
            async with client.producer() as producer:
                for value in values:
                    await producer.send(topic, value)
            assert [each.value for each in await read(client, topic, len(values))] == values

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
