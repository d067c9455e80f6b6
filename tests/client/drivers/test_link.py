"""What really goes over the wire: a proxy listens, and the dialect's own server end counts the requests."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme
import uvloop
from tests.client.dialects import (
    COLUMNS,
    SECONDS_MAX,
    dialect_of,
    fresh,
    read,
    read_all,
    run,
    server_url,
    until,
    url_of,
)
from tests.client.proxy import Proxy

from braidlog import aio
from braidlog.client.errors import ConnectError, Refusal, RefusedError
from braidlog.testing.server import ServerProcess
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.cursus.connection import ServerConnection as CursusServer
from braidlog.wire.flux.connection import ServerConnection as FluxServer
from braidlog.wire.kafka.connection import ServerConnection as KafkaServer
from braidlog.wire.mlog.connection import ServerConnection as MlogServer
from braidlog.wire.rustlog.connection import ServerConnection as RustlogServer

SERVERS: dict[str, Any] = {
    "mlog": MlogServer,
    "flux": FluxServer,
    "cursus": CursusServer,
    "rustlog": RustlogServer,
    "kafka": KafkaServer,
}
SIZES = [b"small", b"large " * 40_000, b"small again"]
"""Large ones leave from where they are, between what was joined."""
PRODUCES = ("Produce", "ProduceBatchRequest", "Batch", "ProduceRequest")


def run_on_uvloop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """As a web server's loop often is: its transports are not of asyncio's classes."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@asynccontextmanager
async def proxied(column: str, shared: ServerProcess, data_dir: Any) -> AsyncIterator[Proxy]:
    """A proxy before the shared server; before one of its own where the server tells clients its address, and they go there."""
    if column != "kafka":
        async with Proxy(shared.ports[dialect_of(column)]) as proxy:
            yield proxy
        return
    async with Proxy() as proxy:
        told = (f"listeners.kafka.{field}" for field in ("advertised_host=127.0.0.1", f"advertised_port={proxy.port}"))
        server = ServerProcess(data_dir, *(part for each in told for part in ("--set", each)))
        await asyncio.to_thread(server.start)
        try:
            proxy.server_port = server.ports[column]
            yield proxy
        finally:
            await asyncio.to_thread(server.__exit__, None, None, None)


def requests(column: str, asked: list[bytes]) -> Counter[str]:
    """How many requests of each kind."""
    found: Counter[str] = Counter()
    for data in asked:
        server = SERVERS[dialect_of(column)]()
        server.receive(data)
        while (event := server.next_event()) is not NEED_DATA:
            message = getattr(event, "message", event)
            found[type(message).__name__] += 1
    return found


def produce_requests(column: str, proxy: Proxy) -> int:
    found = requests(column, proxy.asked)
    return sum(found[name] for name in PRODUCES)


@pytest.mark.parametrize("column", COLUMNS)
async def test_batching_really_batches(column: str, braid_server_shared: ServerProcess, tmp_path: Any) -> None:
    async with (
        proxied(column, braid_server_shared, tmp_path / "data") as proxy,
        aio.connect(url_of(column, proxy.port)) as client,
    ):
        topic = fresh()
        await client.admin.create_topic(topic)
        producer = client.producer()
        for at in range(1000):
            await producer.send(topic, b"%d" % at)
        await producer.flush()
        if client.capabilities.batches:
            assert produce_requests(column, proxy) == 1
        else:
            assert produce_requests(column, proxy) == 1000  # one each, and yet not one after the other:
            assert len(proxy.pipes) == 2
        await producer.close()
        sender = client.producer(batch_records_max=10)
        before = produce_requests(column, proxy)
        for at in range(100):
            await sender.send(topic, b"%d" % at)
        await sender.flush()
        assert produce_requests(column, proxy) - before == (10 if client.capabilities.batches else 100)


@pytest.mark.parametrize("column", COLUMNS)
async def test_many_partitions_get_some_and_order_is_kept(column: str, braid_server_shared: ServerProcess) -> None:
    async with aio.connect(server_url(column, braid_server_shared)) as client:
        topic, able = fresh(), client.capabilities
        await client.admin.create_topic(topic, 4 if able.partitions else 1)
        producer = client.producer(batch_records_max=10)
        for at in range(400):
            await producer.send(topic, b"%d" % at)
            if at % 10 == 9:
                await producer.flush()
        found = await read_all(client, topic)
        assert sorted(int(each.value or b"") for each in found) == list(range(400))
        by_partition: dict[int, list[int]] = {}
        for each in found:
            by_partition.setdefault(each.partition, []).append(int(each.value or b""))
        assert all(values == sorted(values) for values in by_partition.values())
        if able.partitions and able.places:
            assert {len(values) for values in by_partition.values()} == {100}


async def test_fetches_wait_at_the_server_where_the_dialect_can(braid_server_shared: ServerProcess) -> None:
    async with (
        Proxy(braid_server_shared.ports["rustlog"]) as proxy,
        aio.connect(url_of("rustlog", proxy.port)) as client,
    ):
        topic = fresh()
        await client.admin.create_topic(topic)
        consumer = client.consumer(wait_ms=20_000)
        await consumer.assign(topic)
        assert await consumer.poll(timeout=0.3) == []
        assert requests("rustlog", proxy.asked)["Fetch"] == 1
        await client.producer().send_and_wait(topic, b"v")
        assert [each.value for each in await consumer.poll(timeout=30)] == [b"v"]


async def test_prefetch_is_bounded(braid_server_shared: ServerProcess) -> None:
    async with (
        Proxy(braid_server_shared.ports["rustlog"]) as proxy,
        aio.connect(url_of("rustlog", proxy.port)) as client,
    ):
        topic = fresh()
        await client.admin.create_topic(topic)
        producer = client.producer()
        await producer.send_many(topic, [b"x" * 10_000] * 200)
        await producer.flush()
        consumer = client.consumer(prefetch_bytes_max=300_000, wait_ms=100)
        await consumer.assign(topic)
        answered = 0

        def is_still() -> bool:
            nonlocal answered
            before, answered = answered, sum(pipe.answered for pipe in proxy.pipes)
            return before == answered > 150_000

        await until(is_still, "the prefetch to stop")
        assert answered < 300_000 * 4 / 3 + 20_000  # base64
        got = 0
        while got < 200:
            got += len(await consumer.poll(timeout=30))


def test_tls(tmp_path: Any) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    arguments = []
    for dialect in SERVERS:
        arguments += ["--set", f"listeners.{dialect}.tls.cert={tmp_path / 'server.pem'}"]
        arguments += ["--set", f"listeners.{dialect}.tls.key={tmp_path / 'server.pem'}"]
    with ServerProcess(tmp_path / "data", *arguments) as server:

        async def test() -> None:
            for dialect in SERVERS:
                url = f"{dialect}+tls://127.0.0.1:{server.ports[dialect]}?cafile={tmp_path / 'ca.pem'}"
                async with aio.connect(url) as client:
                    topic = fresh()
                    await client.admin.create_topic(topic)
                    async with client.producer() as producer:
                        for value in SIZES:
                            await producer.send(topic, value)
                    assert [each.value for each in await read(client, topic, len(SIZES))] == SIZES
            with pytest.raises(ConnectError, match="certificate"):
                await aio.connect(f"mlog+tls://127.0.0.1:{server.ports['mlog']}", retry_timeout=0.1)

        run(test)
        run_on_uvloop(test)


def test_credentials(tmp_path: Any) -> None:
    digest = hashlib.sha256(b"open@sesame").hexdigest()
    config = tmp_path / "braid.toml"
    config.write_text(f'[auth.tokens]\nada = "{digest}"\n')
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server:

        async def test() -> None:
            port = server.ports["cursus"]
            kafka = server.ports["kafka"]
            async with aio.connect(f"kafka://ada:open%40sesame@127.0.0.1:{kafka}") as client:
                await client.admin.create_topic("k")
                assert (await client.producer().send_and_wait("k", b"v")).offset == 0
            for url, code in (
                (f"kafka://ada:wrong@127.0.0.1:{kafka}", "SASL_AUTHENTICATION_FAILED"),
                # Who has only a token is not offered it.
                (f"kafka://ada:open@127.0.0.1:{kafka}?sasl=SCRAM-SHA-512", "UNSUPPORTED_SASL_MECHANISM"),
            ):
                with pytest.raises(RefusedError, match=code) as caught:
                    await aio.connect(url)
                assert caught.value.reason is Refusal.NOT_ALLOWED
            async with aio.connect(f"cursus://ada:open%40sesame@127.0.0.1:{port}") as client:
                await client.admin.create_topic("t")
                assert (await client.producer().send_and_wait("t", b"x" * 100_000)).offset == 0
            with pytest.raises(RefusedError) as caught:
                await aio.connect(f"cursus://ada:wrong@127.0.0.1:{port}")
            assert caught.value.reason is Refusal.NOT_ALLOWED
            async with aio.connect(f"cursus://127.0.0.1:{port}") as client:
                with pytest.raises(RefusedError, match="authentication_required"):
                    await client.admin.list_topics()
            for column in ("mlog", "flux", "rustlog", "rustlog?format=binary"):
                scheme, mark, query = column.partition("?")
                at, topic = f"127.0.0.1:{server.ports[scheme]}{mark}{query}", fresh()
                async with aio.connect(f"{scheme}://ada:open%40sesame@{at}") as client:
                    await client.admin.create_topic(topic)
                    assert (await client.producer().send_and_wait(topic, b"x" * 100_000)).offset == 0
                    assert [each.value for each in await read_all(client, topic)] == [b"x" * 100_000]
                with pytest.raises(RefusedError, match="authentication failed") as caught:
                    await aio.connect(f"{scheme}://ada:wrong@{at}")
                assert caught.value.reason is Refusal.NOT_ALLOWED

        run(test)


@pytest.mark.parametrize("column", COLUMNS)
def test_in_a_program_on_uvloop_records_of_all_sizes_go_there_and_back(
    column: str, braid_server_shared: ServerProcess
) -> None:
    async def test() -> None:
        async with aio.connect(server_url(column, braid_server_shared)) as client:
            topic = fresh()
            await client.admin.create_topic(topic)
            async with client.producer() as producer:
                for value in SIZES:
                    await producer.send(topic, value)
            assert [each.value for each in await read(client, topic, len(SIZES))] == SIZES

    run_on_uvloop(test)
