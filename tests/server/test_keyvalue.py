"""The key-value store in a running server: on a real disk, with its tasks, through restarts, its feed read by another door."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.server.test_node import config_for, play
from tests.server.toy import until

from braidlog.broker.keys.key_service import KeyValue
from braidlog.kv.engine import operations as o
from braidlog.kv.replicated.slots import FEED_TOPIC
from braidlog.model.errors import BrokerError, StorageFault
from braidlog.model.settings import Flush
from braidlog.server.node import Server
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mlog import messages as mlog
from braidlog.wire.mlog.connection import ClientConnection as MlogConnection


async def serving(folder: Path, scene: Callable[[Server, KeyValue], Awaitable[None]], **flags: object) -> None:
    server = Server(config_for(folder, **flags))
    await server.start()
    try:
        assert server.services is not None
        await scene(server, server.services.keyvalue)
    finally:
        await server.stop()


@pytest.mark.parametrize("flush", list(Flush))
def test_counters_of_many_tasks_survive_restarts(tmp_path: Path, flush: Flush) -> None:
    async def count(_: Server, kv: KeyValue) -> None:
        async def many(number: int) -> None:
            for _ in range(25):
                await kv.execute(o.Increment(b"count%d" % (number % 3)))

        await asyncio.gather(*(many(number) for number in range(30)))

    async def scene() -> None:
        for _ in range(3):
            await serving(tmp_path, count, kv__flush=str(flush))
        await serving(tmp_path, check, kv__flush=str(flush))

    async def check(server: Server, kv: KeyValue) -> None:
        assert [await kv.execute(o.Get(b"count%d" % number)) for number in range(3)] == [b"750"] * 3
        assert kv.stats().feed_sequence == kv.stats().sequence == 2250, "a clean stop leaves nothing to tell"
        assert server.services is not None
        assert server.services.hosting.partition(FEED_TOPIC, 0).high_watermark == 2250
        assert kv.memory().resident_bytes > 1_000_000

    play(scene)


def test_expiry_and_snapshots_go_on_by_themselves(tmp_path: Path) -> None:
    async def scene_of(_: Server, kv: KeyValue) -> None:
        for number in range(200):
            await kv.execute(o.Set(b"key%d" % number, b"x" * 100, 1))
        await until(lambda: kv.stats().expired == 200 and kv.stats().snapshots > 0)
        assert kv.stats().keys == 0
        assert kv.stats().snapshot_sequence > 0

    async def scene() -> None:
        await serving(tmp_path, scene_of, kv__snapshot_wal_bytes=8192)

    play(scene)


def test_the_feed_is_read_through_another_door(tmp_path: Path) -> None:
    async def scene_of(server: Server, kv: KeyValue) -> None:
        await kv.execute(o.Set(b"a", b"one"))
        await kv.execute(o.Set(b"a", b"two"))
        await until(lambda: kv.stats().feed_sequence == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports["mlog"])
        connection = MlogConnection()
        writer.write(connection.request(mlog.FetchBatchRequest(FEED_TOPIC, "", 0, 10, "")))
        while (answer := connection.next_event()) is NEED_DATA:
            connection.receive(await reader.read(65536))
        writer.close()
        assert [entry.value for entry in answer.entries] == [b"one", b"two"]

    async def scene() -> None:
        await serving(tmp_path, scene_of, listeners__mlog__enabled=True, listeners__mlog__port=0)

    play(scene)


def test_a_key_in_doubt_is_refused_and_the_others_are_served(tmp_path: Path) -> None:
    async def write(_: Server, kv: KeyValue) -> None:
        await kv.execute(o.Set(b"a", b"one"))
        await kv.execute(o.Set(b"b", b"two"))

    async def broken(_: Server, kv: KeyValue) -> None:
        with pytest.raises(BrokerError, match="key 'a' is in doubt"):
            await kv.execute(o.Get(b"a"))
        assert await kv.execute(o.Get(b"b")) == b"two"

    async def scene() -> None:
        await serving(tmp_path, write)
        (wal,) = (tmp_path / "data" / "kv").glob("*.wal")
        data = bytearray(wal.read_bytes())
        data[150] ^= 1
        wal.write_bytes(data)
        await serving(tmp_path, broken)

    play(scene)


def test_a_damaged_store_does_not_keep_the_node_from_serving(tmp_path: Path) -> None:
    async def write(_: Server, kv: KeyValue) -> None:
        await kv.execute(o.Set(b"a", b"one"))

    async def broken(server: Server, kv: KeyValue) -> None:
        with pytest.raises(StorageFault, match="offline"):
            await kv.execute(o.Get(b"a"))
        assert server.services is not None
        await server.services.topics.create("t", 1)

    async def scene() -> None:
        await serving(tmp_path, write)
        (wal,) = (tmp_path / "data" / "kv").glob("*.wal")
        data = bytearray(wal.read_bytes())
        data[:64] = bytes(64)
        wal.write_bytes(data)
        await serving(tmp_path, broken)

    play(scene)
