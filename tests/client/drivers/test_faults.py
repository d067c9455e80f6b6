"""Servers that die, connections that are cut at any byte: what is acknowledged is there, and what was sent once is there once."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.client.dialects import COLUMNS, dialect_of, fresh, read_all, run, server_url, url_of
from tests.client.proxy import Proxy

from braidlog import aio
from braidlog.client.errors import ClientError, UnknownOutcomeError
from braidlog.testing.server import ServerProcess

KILLS = int(os.environ.get("KILL_ROUNDS", "1"))
CUTS = 12
QUICK: dict[str, Any] = {"retry_timeout": 50, "backoff_min": 0.01, "backoff_max": 0.2}


class Tally:
    """What a sender was told about each of its values."""

    def __init__(self) -> None:
        self.stored: dict[bytes, tuple[int, int]] = {}
        self.unknown: set[bytes] = set()
        self.refused: dict[bytes, ClientError] = {}

    async def take(self, value: bytes, delivery: aio.Delivery) -> None:
        try:
            placed = await delivery
        except UnknownOutcomeError:
            self.unknown.add(value)
        except ClientError as error:
            self.refused[value] = error
        else:
            self.stored[value] = (placed.partition, placed.offset)

    def check(self, found: list[aio.ConsumedRecord], *, once: bool) -> None:
        there = {(each.partition, each.offset): each.value for each in found}
        counts = Counter(each.value for each in found)
        for value, place in self.stored.items():
            assert there.get(place) == value, f"{value!r} was acknowledged at {place}"
        assert not [value for value in self.refused if counts[value]], "refused, and yet there"
        assert set(counts) <= set(self.stored) | self.unknown
        if once:
            assert {value: count for value, count in counts.items() if count > 1} == {}


@pytest.mark.parametrize("column", COLUMNS)
def test_kill_9_while_producing(column: str, tmp_path: Path) -> None:
    """Idempotent: each record exactly once, none in doubt. Else: nothing acknowledged is lost, nothing is stored twice."""
    with ServerProcess(tmp_path / "data") as server:

        async def test() -> None:
            tally = Tally()
            stop = asyncio.Event()

            async def send(producer: aio.Producer) -> None:
                number = 0
                takers = []
                while not stop.is_set():
                    value = b"%d" % number
                    takers.append(asyncio.ensure_future(tally.take(value, await producer.send("t", value))))
                    number += 1
                    if number % 50 == 0:
                        await asyncio.sleep(0.005)
                await asyncio.gather(*takers)

            async with aio.connect(server_url(column, server), **QUICK) as client:
                await client.admin.create_topic("t")
                producer = client.producer(batch_records_max=40)
                sending = asyncio.ensure_future(send(producer))
                for _ in range(KILLS):
                    enough = len(tally.stored) + 200
                    while len(tally.stored) < enough:
                        assert not sending.done(), sending.exception()
                        await asyncio.sleep(0.005)
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.restart)
                stop.set()
                await sending
                found = await read_all(client, "t")
                tally.check(found, once=True)
                assert not tally.refused
                if client.capabilities.idempotence:
                    assert not tally.unknown
                    assert [each.value for each in found] == [b"%d" % at for at in range(len(tally.stored))]

        run(test)


@pytest.mark.parametrize("column", COLUMNS)
def test_at_least_once_leaves_no_doubt(column: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:

        async def test() -> None:
            async with aio.connect(server_url(column, server), **QUICK) as client:
                await client.admin.create_topic("t")
                producer = client.producer(batch_records_max=20, retries="at-least-once")
                sent = [await producer.send("t", b"%d" % at) for at in range(300)]
                await sent[20]
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
                await producer.flush()
                assert {each.value for each in await read_all(client, "t")} == {b"%d" % at for at in range(300)}

        run(test)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("side", ["asked", "answered"])
def test_cut_at_random_bytes(column: str, side: str, tmp_path: Path) -> None:
    """Of what the client says, and of what the server answers."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def test() -> None:
        async with Proxy() as proxy:
            dialect = dialect_of(column)
            # mlog looks for its leader after each cut: it must be told the proxy's address.
            told = [
                f"listeners.{dialect}.advertised_host=127.0.0.1",
                f"listeners.{dialect}.advertised_port={proxy.port}",
            ]
            server = ServerProcess(tmp_path / "data", "--set", told[0], "--set", told[1])
            await asyncio.to_thread(server.start)
            with server_ended(server):
                proxy.server_port = server.ports[dialect]
                async with aio.connect(url_of(column, proxy.port), **QUICK) as client:
                    await client.admin.create_topic("t")
                    producer = client.producer(batch_records_max=7)
                    tally, number = Tally(), 0
                    while proxy.cuts < CUTS:
                        place = chance.randrange(1, 600 if side == "asked" else 120)
                        latest = max((p.answered if side == "answered" else len(p.asked)) for p in proxy.pipes)
                        setattr(proxy, f"cut_{side}_at", latest + place)
                        values = [b"%d" % at for at in range(number, number + 20)]
                        number += 20
                        sent = [await producer.send("t", value) for value in values]
                        await asyncio.gather(*(tally.take(v, d) for v, d in zip(values, sent, strict=True)))
                    proxy.cut_asked_at = proxy.cut_answered_at = None
                    found = await read_all(client, "t")
                    tally.check(found, once=True)
                    assert not tally.refused
                    if client.capabilities.idempotence:
                        assert [each.value for each in found] == [b"%d" % at for at in range(number)]
                    else:
                        assert tally.unknown, "no cut hit a request that was on its way"

    run(test)


class server_ended:  # noqa: N801 - used as a function
    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_consumer_outlives_its_server(column: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:

        async def test() -> None:
            async with aio.connect(server_url(column, server), **QUICK) as client:
                topic = fresh()
                await client.admin.create_topic(topic)
                producer = client.producer()
                await producer.send_many(topic, [b"%d" % at for at in range(100)])
                await producer.flush()
                consumer = client.consumer(wait_ms=100)
                await consumer.assign(topic)
                got = await consumer.poll(max_records=10, timeout=30)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
                await producer.send_many(topic, [b"%d" % at for at in range(100, 150)])
                await producer.flush()
                while len(got) < 150:
                    got += await consumer.poll(timeout=30)
                assert [each.offset for each in got] == list(range(150))
                assert [each.value for each in got] == [b"%d" % at for at in range(150)]

        run(test)


async def test_changes_whose_answer_was_lost_are_not_errors(braid_server_shared: ServerProcess) -> None:
    """The topic was made, the answer was cut: asked again, "it exists" is what was wanted."""
    for column in ("rustlog", "cursus", "flux"):
        async with (
            Proxy(braid_server_shared.ports[dialect_of(column)]) as proxy,
            aio.connect(url_of(column, proxy.port), **QUICK) as client,
        ):
            topic = fresh()
            await client.admin.list_topics()
            before = proxy.pipes[0].answered
            listing = before  # cursus looks at its list before it creates
            proxy.cut_answered_at = before + (listing + 3 if column == "cursus" else 3)
            await client.admin.create_topic(topic)
            assert proxy.cuts == 1
            assert topic in await client.admin.list_topics()
