"""Logs that do not begin at 0, and offsets that hold no record."""

from pathlib import Path
from typing import Any

import pytest
from tests.client.dialects import COLUMNS, fresh, read, run, server_url

from braidlog import Log, aio
from braidlog.client.errors import Refusal, RefusedError
from braidlog.testing.server import ServerProcess
from braidlog.wire.cursus import requests as r


@pytest.mark.parametrize("column", COLUMNS)
async def test_offsets_that_hold_no_record_are_stepped_over(column: str, braid_server_shared: ServerProcess) -> None:
    """A transaction leaves a marker: 0, 1, (2), 3."""
    topic = fresh()
    async with aio.connect(server_url("cursus", braid_server_shared)) as writer:
        await writer.admin.create_topic(topic)
        driver: Any = writer._driver
        began = await driver.ask_checked(r.InitProducerId(topic))
        who = (topic, began.producer_id, began.epoch)
        await driver.ask_checked(r.BeginTxn(*who))
        for number in (1, 2):
            message = r.TxnPublish(topic, topic, began.producer_id, number, began.epoch, b"%d" % number, 0)
            await driver.ask_checked(message)
        await driver.ask_checked(r.EndTxn(*who, "commit"))
        await writer.producer().send_and_wait(topic, b"3")
    async with aio.connect(server_url(column, braid_server_shared)) as client:
        assert [(each.offset, each.value) for each in await read(client, topic, 3)] == [
            (0, b"1"),
            (1, b"2"),
            (3, b"3"),
        ]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_log_that_has_lost_its_beginning(column: str, tmp_path: Path) -> None:
    with Log(str(tmp_path / "data")) as log:
        topic = log.create_topic("t")
        for at in range(60):
            topic.append(b"%d" % at)
        topic.delete_before(37)
        span = aio.Span(37, 60)
    with ServerProcess(tmp_path / "data") as server:

        async def test() -> None:
            async with aio.connect(server_url(column, server), retry_timeout=5) as client:
                assert (await client.admin.describe_topic("t")).partitions == (span,)
                found = await read(client, "t", span.latest - span.earliest)
                assert [each.offset for each in found] == list(range(span.earliest, span.latest))
                lost = client.consumer(wait_ms=50)
                await lost.assign("t", start=0)
                if client.dialect == "mlog":  # its server passes over what is gone by itself
                    assert (await lost.poll(timeout=30))[0].offset == span.earliest
                    return
                with pytest.raises(RefusedError) as caught:
                    await lost.poll(timeout=30)
                binary = "binary" in column  # one code for all that fails
                assert caught.value.reason is (Refusal.FAILED if binary else Refusal.OFFSET_OUT_OF_RANGE)
                if not binary:
                    reset = client.consumer(wait_ms=50, reset="earliest")
                    await reset.assign("t", start=0)
                    assert (await reset.poll(timeout=30))[0].offset == span.earliest

        run(test)
