"""The key-value client, both faces: what it gives, what it asks again and what it never does, whom it follows."""

import asyncio
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import trustme
from tests.client.proxy import Proxy

import braidlog
from braidlog import kv
from braidlog.client.errors import (
    ClosedError,
    ConnectError,
    RecordError,
    Refusal,
    RefusedError,
    UnknownOutcomeError,
    UnsupportedError,
)
from braidlog.client.kv.commands import REFUSALS
from braidlog.kv import commands as c
from braidlog.kv.replicated.slots import slot_of
from braidlog.testing.server import ServerProcess
from braidlog.wire.contract import NEED_DATA
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Request, ServerConnection
from braidlog.wire.mayfly.messages import Condition, Consistency, Status

QUICK: dict[str, Any] = {"retry_timeout": 30, "backoff_min": 0.01, "backoff_max": 0.1}
BRIEF: dict[str, Any] = QUICK | {"retry_timeout": 0.3}
Test = Callable[[kv.aio.KeyValue], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("client-kv") / "data") as process:
        yield process


def url_of(server: ServerProcess, who: str = "") -> str:
    host, port = server.address("mayfly")
    return f"mayfly://{who}{host}:{port}"


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


# ── What it gives ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

STEPS: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("get", ("absent",), {}, None),
    ("set", ("s", "text"), {}, True),
    ("get", (b"s",), {}, b"text"),
    (
        "set",
        (
            "s",
            b"\xff",
        ),
        {"ttl_seconds": 100},
        True,
    ),
    ("ttl", ("s",), {}, 100),
    ("set", ("s", "x"), {"only_if": Condition.IF_ABSENT}, False),
    ("set", ("absent", "x"), {"only_if": Condition.IF_PRESENT}, False),
    ("exists", ("s",), {}, True),
    ("expire", ("s", 0), {}, True),
    ("ttl", ("s",), {}, 0),
    ("delete", ("s",), {}, True),
    ("delete", ("s",), {}, False),
    ("exists", ("s",), {}, False),
    ("expire", ("s", 5), {}, False),
    ("ttl", ("s",), {}, None),
    ("rpush", ("l", "b", "c"), {}, 2),
    ("lpush", ("l", "a"), {}, 3),
    ("lrange", ("l",), {}, [b"a", b"b", b"c"]),
    ("lrange", ("l", -2, -1), {}, [b"b", b"c"]),
    ("llen", ("l",), {}, 3),
    ("lpop", ("l",), {}, b"a"),
    ("rpop", ("l",), {}, b"c"),
    ("rpop", ("l",), {}, b"b"),
    ("rpop", ("l",), {}, None),
    ("lpop", ("l",), {}, None),
    ("lrange", ("l",), {}, []),
    ("llen", ("l",), {}, 0),
    ("incr", ("n",), {}, 1),
    ("incr", ("n", 10), {}, 11),
    ("incr", ("n", -1), {}, 10),
    ("hset", ("h", {"f": "1", "g": b"2"}), {}, 2),
    ("hset", ("h", {"f": "3"}), {}, 0),
    ("hget", ("h", "f"), {}, b"3"),
    ("hget", ("h", "x"), {}, None),
    ("hgetall", ("h",), {}, {b"f": b"3", b"g": b"2"}),
    ("hdel", ("h", "f", "x"), {}, 1),
    ("hdel", ("h", "x"), {}, 0),
    ("hgetall", ("absent",), {}, {}),
    ("ping", (), {}, True),
]


def renamed(prefix: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if not args:
        return args
    key = args[0] if isinstance(args[0], bytes) else args[0].encode()
    return prefix.encode() + key, *args[1:]


def test_asyncio(server: ServerProcess) -> None:
    async def test() -> None:
        async with kv.aio.connect(url_of(server)) as store:
            for name, args, options, wanted in STEPS:
                assert await getattr(store, name)(*renamed("aio-", args), **options) == wanted, name
            assert (await store.stats()).keys is not None
            assert (await store.memory()).used_bytes is not None
            assert (await store.snapshot()).keys is not None

    run(test())


def test_blocking(server: ServerProcess) -> None:
    with kv.connect(url_of(server)) as store:
        for name, args, options, wanted in STEPS:
            assert getattr(store, name)(*renamed("blocking-", args), **options) == wanted, name
        assert store.stats().keys is not None
        assert store.memory().used_bytes is not None
        assert store.snapshot().keys is not None


def test_many_in_one_piece(server: ServerProcess) -> None:
    """In order, more than go in one piece, and one that is refused keeps nobody from being done."""
    with kv.connect(url_of(server)) as store:
        results = store.run([c.incr("many") for _ in range(2500)])
        assert results == list(range(1, 2501))
        mixed = store.run([c.set_("m", "x"), c.lpop("m"), c.get("m"), c.get("none"), c.delete("m")])
        assert (mixed[0], mixed[2:]) == (True, [b"x", None, True])
        assert isinstance(mixed[1], RefusedError)
        assert mixed[1].code == "WRONG_TYPE"


def test_many_threads_and_tasks_share_one_connection(server: ServerProcess) -> None:
    with kv.connect(url_of(server)) as store:
        threads = [threading.Thread(target=lambda: [store.incr("shared") for _ in range(50)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert store.get("shared") == b"400"

    async def test() -> None:
        async with kv.aio.connect(url_of(server)) as store:
            found = await asyncio.gather(*[store.incr("gathered") for _ in range(300)])
            assert sorted(found) == list(range(1, 301))

    run(test())


def test_refusals(server: ServerProcess) -> None:
    with kv.connect(url_of(server)) as store:
        store.rpush("a list", "x")
        for call in (lambda: store.get("a list"), lambda: store.incr("a list"), lambda: store.hgetall("a list")):
            with pytest.raises(RefusedError, match="WRONG_TYPE") as caught:
                call()
            assert caught.value.reason is Refusal.INVALID
        for wrong in (lambda: store.get("k" * 257), lambda: store.set("k", "v" * 65537), lambda: store.get("")):
            with pytest.raises(RecordError):
                wrong()
        assert store.ping()


def test_every_status_is_some_refusal() -> None:
    assert set(REFUSALS) == set(Status) - {Status.OK}


@pytest.mark.parametrize("consistency", list(Consistency))
def test_consistency(server: ServerProcess, consistency: Consistency) -> None:
    with kv.connect(url_of(server), consistency=consistency) as store:
        assert store.set("c", "v")
        assert store.get("c") == b"v"


# ── URLs, tokens, TLS, ends ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_wrong_urls() -> None:
    for url in ("flux://127.0.0.1", "127.0.0.1:7275", "mayfly://127.0.0.1?nonsense=1", "mayfly://127.0.0.1/0"):
        with pytest.raises(ValueError, match=r"."):
            kv.connect(url)
    with pytest.raises(UnsupportedError, match=r"use braidlog\.kv\.connect"):
        braidlog.connect("mayfly://127.0.0.1")


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConnectError):
            kv.connect(f"mayfly://127.0.0.1:{port}", retry_timeout=0.2)


def test_a_closed_store_says_so(server: ServerProcess) -> None:
    store = kv.connect(url_of(server))
    store.close()
    with pytest.raises(ClosedError):
        store.get("k")
    store.close()


def test_tokens_and_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "cert.pem"), append=True)
    file = tmp_path / "braid.toml"
    digest = hashlib.sha256(b"secret/token").hexdigest()
    paths = f'cert = "{tmp_path}/cert.pem"\nkey = "{tmp_path}/key.pem"\n'
    file.write_text(f'[auth.tokens]\nann = "{digest}"\n[listeners.mayfly.tls]\n{paths}', "utf-8")
    with ServerProcess(tmp_path / "data", "--config", str(file)) as server:
        address = "{}:{}".format(*server.address("mayfly"))
        with kv.connect(f"mayfly+tls://ann:secret%2Ftoken@{address}?cafile={tmp_path}/ca.pem") as store:
            assert store.incr("n") == 1
            assert "secret" not in repr(store)
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with (
            pytest.raises(RefusedError, match="AUTH_FAILED") as caught,
            kv.connect(f"mayfly+tls://:wrong@{address}", tls=context),
        ):
            pass
        assert caught.value.reason is Refusal.NOT_ALLOWED
        with (
            kv.connect(f"mayfly+tls://{address}", tls=context) as stranger,
            pytest.raises(RefusedError, match="AUTH_REQUIRED"),
        ):
            stranger.get("n")


# ── What is asked again ───────────────────────────────────────────────────────────────────────────────────────────────────────


def through_proxy(server: ServerProcess, test: Callable[[Proxy, kv.aio.KeyValue], Any], **options: Any) -> None:
    async def work() -> None:
        async with (
            Proxy(server.address("mayfly")[1]) as proxy,
            kv.aio.connect(f"mayfly://127.0.0.1:{proxy.port}", **QUICK, **options) as store,
        ):
            await store.ping()  # now the proxy has its pipe
            await test(proxy, store)

    run(work())


def test_a_read_is_asked_again_when_its_answer_is_lost(server: ServerProcess) -> None:
    async def test(proxy: Proxy, store: kv.aio.KeyValue) -> None:
        await store.set("read", "v")
        for cut in (0, 5, 12, 15):
            proxy.cut_answered_at = proxy.pipes[-1].answered + cut
            assert await store.get("read") == b"v"
            assert await store.exists("read")
        assert proxy.cuts == 4

    through_proxy(server, test)


def test_a_counter_is_never_counted_twice_by_the_client(server: ServerProcess) -> None:
    """Its answer was lost, so nobody knows: also for who asked for at-least-once. The store knows: once."""

    async def test(proxy: Proxy, store: kv.aio.KeyValue) -> None:
        before = int(await store.get("twice") or 0)
        proxy.cut_answered_at = proxy.pipes[-1].answered
        with pytest.raises(UnknownOutcomeError):
            await store.incr("twice")
        assert int(await store.get("twice") or 0) == before + 1
        once: list[c.Command[Any]] = [
            c.lpush("twice-l", "x"),
            c.lpop("twice-l"),
            c.set_("twice-s", "x", only_if=Condition.IF_ABSENT),
        ]
        for command in once:
            await store.ping()  # over a new connection
            proxy.cut_answered_at = proxy.pipes[-1].answered
            with pytest.raises(UnknownOutcomeError):
                await store.do(command)

    through_proxy(server, test)
    through_proxy(server, test, retries="at-least-once")


def test_what_leaves_the_same_is_sent_again_by_who_wants_it(server: ServerProcess) -> None:
    async def doubtful(proxy: Proxy, store: kv.aio.KeyValue) -> None:
        proxy.cut_answered_at = proxy.pipes[-1].answered
        with pytest.raises(UnknownOutcomeError):
            await store.set("again", "x")

    async def sure(proxy: Proxy, store: kv.aio.KeyValue) -> None:
        for value in ("1", "2", "3"):
            proxy.cut_answered_at = proxy.pipes[-1].answered
            assert await store.set("again", value)
            assert await store.get("again") == value.encode()
        assert proxy.cuts == 3

    through_proxy(server, doubtful)
    through_proxy(server, sure, retries="at-least-once")


async def until_noticed(store: kv.aio.KeyValue) -> None:
    while store._links.opened():  # noqa: ASYNC110 - the link tells nobody else
        await asyncio.sleep(0)


def test_what_was_not_sent_is_sent_when_there_is_a_connection_again(server: ServerProcess) -> None:
    async def test(proxy: Proxy, store: kv.aio.KeyValue) -> None:
        for number in range(1, 6):
            proxy.cut()
            await until_noticed(store)  # what is sent before that would be in doubt
            assert await store.incr("later") == number

    through_proxy(server, test)


def test_a_piece_that_is_cut_tells_of_each_what_is_known(server: ServerProcess) -> None:
    async def test(proxy: Proxy, store: kv.aio.KeyValue) -> None:
        proxy.cut_answered_at = proxy.pipes[-1].answered + 10 * 20  # ten answers of INCR get through
        results = await store.run([c.incr("piece") for _ in range(100)])
        assert results[:10] == list(range(1, 11))
        assert all(isinstance(each, UnknownOutcomeError) for each in results[10:])
        assert await store.get("piece") == b"100"

    through_proxy(server, test)


def test_a_restart_is_survived(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        server_port = server.address("mayfly")[1]

        async def test() -> None:
            async with (
                Proxy(server_port) as proxy,
                kv.aio.connect(f"mayfly://127.0.0.1:{proxy.port}", **QUICK) as store,
            ):
                assert await store.set("k", "v")
                await asyncio.to_thread(server.kill)
                reading = asyncio.ensure_future(store.get("k"))
                await asyncio.to_thread(server.restart)
                proxy.server_port = server.address("mayfly")[1]
                assert await reading == b"v"

        run(test())


# ── Nodes that send one elsewhere ─────────────────────────────────────────────────────────────────────────────────────────────


class Scripted:
    """A server that gives the answers it was told to give."""

    def __init__(self, answer: Callable[[m.Message], m.Message]) -> None:
        self.asked: list[m.Message] = []
        self.answer = answer
        self.port = 0
        self._talks: list[Talk] = []

    def _open(self) -> "Talk":
        self._talks.append(Talk(self))
        return self._talks[-1]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(self._open, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for talk in self._talks:
            talk.transport.abort()


class Talk(asyncio.Protocol):
    def __init__(self, node: Scripted) -> None:
        self._node = node
        self._connection = ServerConnection()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data)
        while (event := self._connection.next_event()) is not NEED_DATA:
            assert isinstance(event, Request)
            self._node.asked.append(event.message)
            self.transport.write(self._connection.respond(event, self._node.answer(event.message)))


def test_moved_is_followed_and_remembered() -> None:
    async def test() -> None:
        async with (
            Scripted(lambda _: m.Value(b"from the owner")) as owner,
            Scripted(lambda _: m.Moved("127.0.0.1", owner.port)) as first,
            kv.aio.connect(f"mayfly://127.0.0.1:{first.port}", **QUICK) as store,
        ):
            assert await store.get("user:42") == b"from the owner"
            assert await store.get("user:42") == b"from the owner"
            assert first.asked == [m.Get(b"user:42")]
            assert owner.asked == [m.Get(b"user:42")] * 2

    run(test())


def test_a_circle_of_moves_ends() -> None:
    async def test() -> None:
        ports: list[int] = []
        async with Scripted(lambda _: m.Moved("127.0.0.1", ports[0])) as alone:
            ports.append(alone.port)
            async with kv.aio.connect(f"mayfly://127.0.0.1:{alone.port}", **BRIEF) as store:
                with pytest.raises(RefusedError) as caught:
                    await store.get("k")
                assert caught.value.reason is Refusal.NOT_LEADER

    run(test())


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.SERVER_ERROR])
def test_a_refusal_is_not_asked_again(status: Status) -> None:
    async def test() -> None:
        async with (
            Scripted(lambda _: m.Failure(status, "no")) as node,
            kv.aio.connect(f"mayfly://127.0.0.1:{node.port}", **QUICK) as store,
        ):
            with pytest.raises(RefusedError, match=rf"no \({status.name}\)"):
                await store.set("k", "v")
            assert node.asked == [m.Set(b"k", b"v")]

    run(test())


KEYS = [b"%d" % number for number in range(40)]


def by_slot(ports: dict[int, int], here: int) -> Callable[[m.Message], m.Message]:
    """A node of two: slots are led by the first or the second by whether they are even."""

    def answer(message: Any) -> m.Message:
        leader = slot_of(message.key) % 2
        return m.Value(b"%d" % here) if leader == here else m.Moved("127.0.0.1", ports[leader])

    return answer


def test_a_run_over_many_nodes_is_parted_by_what_is_known_of_slots() -> None:
    async def test() -> None:
        ports: dict[int, int] = {}
        async with Scripted(by_slot(ports, 0)) as even, Scripted(by_slot(ports, 1)) as odd:
            ports.update({0: even.port, 1: odd.port})
            url = f"mayfly://127.0.0.1:{even.port},127.0.0.1:{odd.port}"
            async with kv.aio.connect(url, **QUICK) as store:
                wanted = [b"%d" % (slot_of(key) % 2) for key in KEYS]
                assert await store.run([c.get(key) for key in KEYS]) == wanted
                asked = len(even.asked), len(odd.asked)
                assert asked == (len(KEYS), wanted.count(b"1")), "the first time all were asked of the first node"
                assert await store.run([c.get(key) for key in KEYS]) == wanted
                assert [await store.get(key) for key in KEYS] == wanted
                assert len(even.asked) == asked[0] + 2 * wanted.count(b"0")
                assert len(odd.asked) == 3 * wanted.count(b"1")

    run(test())


def test_what_a_node_that_is_gone_led_is_asked_of_whoever_leads_it_now() -> None:
    async def test() -> None:
        ports: dict[int, int] = {}
        async with Scripted(by_slot(ports, 0)) as even:
            async with Scripted(by_slot(ports, 1)) as odd:
                ports.update({0: even.port, 1: odd.port})
                store = kv.aio.KeyValue(f"mayfly://127.0.0.1:{even.port}", consistency=Consistency.QUORUM, **QUICK)
                await store.run([c.get(key) for key in KEYS])
            even.answer = lambda _: m.Value(b"after")
            (key,) = [key for key in KEYS if slot_of(key) % 2][:1]
            assert await store.get(key) == b"after"
            assert await store.run([c.get(each) for each in KEYS]) == [b"after"] * len(KEYS)
            await store.close()

    run(test())


def test_a_topology_that_changes_is_waited_for() -> None:
    async def test() -> None:
        answers = [m.TopologyChanged(1, "moving"), m.TopologyChanged(2, "moving"), m.STORED] * 2
        async with (
            Scripted(lambda _: answers.pop(0)) as node,
            kv.aio.connect(f"mayfly://127.0.0.1:{node.port}", **QUICK) as store,
        ):
            assert await store.set("k", "v") is True
            assert await store.run([c.set_("k", "v")]) == [True]
            assert node.asked == [m.Set(b"k", b"v")] * 6

    run(test())


def test_a_circle_of_moves_ends_for_many_too() -> None:
    async def test() -> None:
        ports: list[int] = []
        async with Scripted(lambda _: m.Moved("127.0.0.1", ports[0])) as alone:
            ports.append(alone.port)
            async with kv.aio.connect(f"mayfly://127.0.0.1:{alone.port}", **BRIEF) as store:
                (outcome,) = await store.run([c.get("k")])
                assert isinstance(outcome, RefusedError)
                assert outcome.reason is Refusal.NOT_LEADER

    run(test())


def test_nodes_that_do_not_agree_yet_are_asked_until_they_do() -> None:
    async def test() -> None:
        ports: list[int] = []
        left = [1] * 8

        def answer(_: m.Message) -> m.Message:
            return m.Moved("127.0.0.1", ports[0]) if left and left.pop() else m.Value(b"v")

        async with Scripted(answer) as alone:
            ports.append(alone.port)
            async with kv.aio.connect(f"mayfly://127.0.0.1:{alone.port}", **QUICK) as store:
                assert await store.get("k") == b"v"
                left.extend([1] * 8)
                assert await store.run([c.get("k")]) == [b"v"]

    run(test())


def test_who_names_several_nodes_speaks_version_2() -> None:
    for url, version in (("mayfly://a", 1), ("mayfly://a,b", 2)):
        data, _ = kv.aio.KeyValue(url)._links._endpoint.make_wire().ask(m.Ping())
        assert data[2] == version
