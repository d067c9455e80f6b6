"""Every command of the table answered, every status of its rows provoked: over a real socket.

The tests iterate over the table itself: a row that nobody provokes fails.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.adapters.mayfly.client import Client

from braidlog.adapters.contract import answer_of
from braidlog.adapters.errors import FAULT
from braidlog.adapters.mayfly.errors import STATUSES, failure
from braidlog.adapters.mayfly.handlers import _READS, TRANSLATIONS, MayflyAdapter
from braidlog.kv.engine import operations as o
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.limits import KV_COLLECTION_ITEMS_MAX
from braidlog.security.authorization import Authorize
from braidlog.testing.server import ServerProcess
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import Burst, Request, ServerConnection
from braidlog.wire.mayfly.messages import Status as S  # noqa: N817 - a column of the tables below
from braidlog.wire.mayfly.operations import CLUSTERED, EVERYWHERE, OPERATIONS, Operation

K257 = b"k" * 257
MEMORY_BYTES_MAX = 400_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A store with little room, and one key of each type."""
    flags = ["--set", f"kv.memory_bytes_max={MEMORY_BYTES_MAX}"]
    with ServerProcess(tmp_path_factory.mktemp("mayfly") / "data", *flags) as process:
        prepare(process)
        yield process


def prepare(server: ServerProcess) -> None:
    with Client(server) as client:
        for message in (
            m.Set(b"string", b"text"),
            m.Set(b"counter", b"41"),
            m.Set(b"full", b"9223372036854775807"),
            m.Set(b"low", b"-9223372036854775808"),
            m.RPush(b"list", (b"a", b"b", b"c")),
            m.HSet(b"hash", ((b"f", b"1"), (b"g", b"2"))),
        ):
            assert not isinstance(client.ask(message), m.Failure)


# ── OK ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────

ANSWERED: dict[type[m.Message], list[tuple[m.Message, m.Message]]] = {
    m.Set: [(m.Set(b"own", b"v", 60), m.Stored()), (m.Set(b"own", b"w", 0, m.Condition.IF_ABSENT), m.Stored(False))],
    m.Get: [(m.Get(b"string"), m.Value(b"text")), (m.Get(b"counter"), m.Value(b"41"))],
    m.Del: [(m.Set(b"gone", b"v"), m.Stored()), (m.Del(b"gone"), m.Done()), (m.Del(b"gone"), m.MISSING)],
    m.Ping: [(m.Ping(), m.Done())],
    m.Quit: [(m.Quit(), m.Done())],
    m.Exists: [(m.Exists(b"list"), m.Done()), (m.Exists(b"absent"), m.MISSING)],
    m.Expire: [(m.Set(b"e", b"v"), m.Stored()), (m.Expire(b"e", 100), m.Done()), (m.Expire(b"e", 0), m.Done())],
    m.Ttl: [
        (m.Ttl(b"string"), m.TimeLeft(0)),
        (m.Set(b"t", b"v", 1000), m.Stored()),
        (m.Ttl(b"t"), m.TimeLeft(1000)),
    ],
    m.LPush: [(m.LPush(b"l", (b"b", b"a")), m.Length(2)), (m.LRange(b"l", 0, -1), m.Values((b"a", b"b")))],
    m.RPush: [(m.RPush(b"r", (b"a", b"b")), m.Length(2)), (m.LRange(b"r", 0, -1), m.Values((b"a", b"b")))],
    m.LPop: [(m.RPush(b"p", (b"a", b"b")), m.Length(2)), (m.LPop(b"p"), m.Value(b"a"))],
    m.RPop: [(m.RPush(b"q", (b"a", b"b")), m.Length(2)), (m.RPop(b"q"), m.Value(b"b"))],
    m.LRange: [
        (m.LRange(b"list", 0, -1), m.Values((b"a", b"b", b"c"))),
        (m.LRange(b"list", -2, 1), m.Values((b"b",))),
        (m.LRange(b"list", 5, 9), m.Values(())),
        (m.LRange(b"list", -(2**63), 2**63 - 1), m.Values((b"a", b"b", b"c"))),
    ],
    m.LLen: [(m.LLen(b"list"), m.Length(3))],
    m.Incr: [(m.Incr(b"i"), m.Number(1)), (m.Incr(b"i"), m.Number(2))],
    m.Decr: [(m.Decr(b"d"), m.Number(-1))],
    m.IncrBy: [(m.IncrBy(b"by", -(2**63)), m.Number(-(2**63))), (m.IncrBy(b"by", 2**63 - 1), m.Number(-1))],
    m.HSet: [(m.HSet(b"h", ((b"f", b"1"), (b"g", b"2"))), m.Count(2)), (m.HSet(b"h", ((b"f", b"3"),)), m.Count(0))],
    m.HGet: [(m.HGet(b"hash", b"f"), m.Value(b"1"))],
    m.HDel: [(m.HSet(b"hd", ((b"f", b"1"),)), m.Count(1)), (m.HDel(b"hd", (b"f", b"x")), m.Count(1))],
    m.HGetAll: [(m.HGetAll(b"hash"), m.Pairs(((b"f", b"1"), (b"g", b"2"))))],
}
TOLD: dict[type[m.Message], m.Message] = {
    m.Snapshot: m.Snapshot(),
    m.Memory: m.Memory(),
    m.Stats: m.Stats(),
    m.ClusterInfo: m.ClusterInfo(),
    m.ClusterNodes: m.ClusterNodes(),
    m.Scan: m.Scan(0, 0, b"", b"", 10),
}
ELSEWHERE = {m.Auth: "tests/adapters/mayfly/test_life.py", m.Leave: "never OK on a node that is alone"}


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_every_command_is_answered(server: ServerProcess, row: Operation) -> None:
    if row.request in ELSEWHERE:
        return
    with Client(server) as client:
        for message, answer in ANSWERED.get(row.request, ()):
            assert client.ask(message) == answer
        if row.request in TOLD:
            assert type(client.ask(TOLD[row.request])) is row.answer


@pytest.mark.parametrize("row", [row for row in OPERATIONS if row.request in ANSWERED], ids=lambda row: row.name)
def test_what_is_sent_at_once_is_done_in_order(tmp_path: Path, server: ServerProcess, row: Operation) -> None:
    """The same as one by one, whatever was made one burst of it. Keys are this test's own."""
    steps = [each for each in ANSWERED[row.request] if type(each[0]) is not m.Quit]
    prefix = b"at-once-"

    def own(message: m.Message) -> m.Message:
        mine = {"own", "gone", "e", "t", "l", "r", "p", "q", "i", "d", "by", "h", "hd"}
        key = getattr(message, "key", b"").decode()
        return type(message)(**{**asdict(message), "key": prefix + key.encode()}) if key in mine else message

    with Client(server) as client:
        assert client.ask_all(*[own(message) for message, _ in steps]) == [answer for _, answer in steps]


def asdict(message: m.Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


def test_nothing_of_the_table_is_left_out() -> None:
    known = {*ANSWERED, *TOLD, *ELSEWHERE}
    assert known == {row.request for row in OPERATIONS}
    assert set(MayflyAdapter.routes) >= known
    assert set(TRANSLATIONS) >= set(_READS)


def test_figures_are_real(server: ServerProcess) -> None:
    with Client(server) as client:
        before = client.ask(m.Stats())
        assert client.ask(m.Set(b"figure", b"v" * 1000)) == m.Stored()
        assert client.ask(m.Get(b"figure")) == m.Value(b"v" * 1000)
        assert client.ask(m.Get(b"no such figure")) == m.MISSING
        after = client.ask(m.Stats())
        assert (after.hits, after.misses) == (before.hits + 1, before.misses + 1)
        assert after.mutations == before.mutations + 1
        assert after.sequence == after.durable_sequence == before.sequence + 1
        assert after.keys == before.keys + 1
        assert None not in asdict(after).values()

        used = client.ask(m.Memory())
        assert used.limit_bytes == MEMORY_BYTES_MAX
        assert 1000 < used.used_bytes <= used.peak_bytes <= MEMORY_BYTES_MAX
        assert client.ask(m.Del(b"figure")) == m.Done()
        assert client.ask(m.Memory()).used_bytes < used.used_bytes - 1000

        taken = client.ask(m.Snapshot())
        assert (taken.keys, taken.sequence) == (after.keys - 1, after.sequence + 1)
        assert taken.bytes > 0
        assert client.ask(m.Stats()).snapshots == after.snapshots + 1


def test_a_lone_node_tells_that_it_is_alone(server: ServerProcess) -> None:
    host, port = server.address("mayfly")
    with Client(server) as client:
        assert client.ask(m.ClusterInfo()) == m.ClusterState("standalone", "0", 1, 0)
        assert client.ask(m.ClusterNodes()) == m.Nodes((m.Node("0", m.NodeState.ALIVE, host, port),))


# ── Every other status ────────────────────────────────────────────────────────────────────────────────────────────────────────


def keyed(kind: type[m.Message], key: bytes) -> m.Message:
    """A good request of a type, for this key."""
    more: dict[type[m.Message], tuple[Any, ...]] = {
        m.Set: (b"v",),
        m.Expire: (1,),
        m.LPush: ((b"v",),),
        m.RPush: ((b"v",),),
        m.LRange: (0, -1),
        m.IncrBy: (1,),
        m.HSet: (((b"f", b"v"),),),
        m.HGet: (b"f",),
        m.HDel: ((b"f",),),
    }
    make: Any = kind
    return make(key, *more.get(kind, ()))  # type: ignore[no-any-return]


_WRONG = {m.Get: b"list", m.Incr: b"list", m.Decr: b"string", m.IncrBy: b"hash"}
_LARGE = b"v" * 65536
_TOO_MUCH: dict[type[m.Message], list[m.Message]] = {
    m.Set: [m.Set(b"huge-%d" % n, _LARGE) for n in range(8)],
    m.LPush: [m.LPush(b"huge-l", (_LARGE,)) for _ in range(8)],
    m.RPush: [m.RPush(b"huge-r", (_LARGE,)) for _ in range(8)],
    m.HSet: [m.HSet(b"huge-h", ((b"%d" % n, _LARGE),)) for n in range(8)],
}


def provoke(client: Client, kind: type[m.Message], status: S) -> Any:
    """What the server says to a request of this type that earns this status."""
    number = next(row.number for row in OPERATIONS if row.request is kind)
    if status is S.BAD_PAYLOAD:
        return raw(client, number, b"\xff")
    if status is S.KEY_TOO_LONG:
        return raw(client, number, b"\x01\x01" + K257)
    if status is S.VALUE_TOO_LARGE:
        return provoke_too_large(client, kind, number)
    if status is S.NOT_FOUND:
        return client.ask(keyed(kind, b"absent"))
    if status is S.WRONG_TYPE:
        return client.ask(keyed(kind, _WRONG.get(kind, b"string")))
    if status is S.SERVER_ERROR:
        return client.ask(m.Leave())
    assert status is S.OUT_OF_MEMORY
    return provoke_full(client, kind)


def raw(client: Client, number: int, payload: bytes) -> m.Failure:
    head = b"\xca\xfe\x01" + bytes((number,)) + b"\x00\x00\x00\x63" + len(payload).to_bytes(4, "big")
    answer = client.ask_raw(head + payload)
    assert answer[4:8] == b"\x00\x00\x00\x63"
    return m.Failure(S(answer[3]), "")


def provoke_too_large(client: Client, kind: type[m.Message], number: int) -> Any:
    beyond = (65537).to_bytes(4, "big")
    if kind is m.Set:
        return raw(client, number, b"\x00\x01k" + beyond)
    if kind in (m.LPush, m.RPush):
        return raw(client, number, b"\x00\x01k\x00\x00\x00\x01" + beyond)
    if kind is m.HSet:
        return raw(client, number, b"\x00\x01k\x00\x00\x00\x01\x00\x01f" + beyond)
    if kind in (m.Incr, m.Decr, m.IncrBy):
        return client.ask(keyed(kind, b"low" if kind is m.Decr else b"full"))
    raise AssertionError(f"{kind.__name__} cannot be too large")


def provoke_full(client: Client, kind: type[m.Message]) -> Any:
    try:
        if kind in _TOO_MUCH:
            answers = [client.ask(message) for message in _TOO_MUCH[kind]]
            return next(each for each in answers if isinstance(each, m.Failure))
        number = 0
        while True:  # until not even a counter fits
            answers = client.ask_all(*[m.Set(b"fill-%d-%d" % (number, n), b"") for n in range(500)])
            number += 1
            if any(isinstance(each, m.Failure) for each in answers):
                return client.ask(keyed(kind, b"one-more-counter"))
    finally:
        for message in _TOO_MUCH.get(kind, ()):
            client.ask(m.Del(message.key))  # type: ignore[attr-defined]
        if kind not in _TOO_MUCH:
            for batch in range(number + 1):
                client.ask_all(*[m.Del(b"fill-%d-%d" % (batch, n)) for n in range(500)])


STATUS_ROWS = [
    (row, status)
    for row in OPERATIONS
    for status in (*row.statuses, *EVERYWHERE)
    if status not in (S.AUTH_REQUIRED, S.AUTH_FAILED)  # tests/adapters/mayfly/test_life.py
    and (status is not S.SERVER_ERROR or row.request is m.Leave)  # the disk's faults: test_faults_are_server_errors
]


@pytest.mark.parametrize(("row", "status"), STATUS_ROWS, ids=lambda value: value.name)
def test_every_status_is_provoked(server: ServerProcess, row: Operation, status: S) -> None:
    with Client(server) as client:
        answer = provoke(client, row.request, status)
        assert isinstance(answer, m.Failure)
        assert answer.status is status
        assert client.ask(m.Ping()) == m.Done()


def test_what_was_refused_changed_nothing(server: ServerProcess) -> None:
    with Client(server) as client:
        assert client.ask(m.Get(b"full")) == m.Value(b"9223372036854775807")
        assert client.ask(m.LRange(b"list", 0, -1)) == m.Values((b"a", b"b", b"c"))
        assert client.ask(m.Get(b"string")) == m.Value(b"text")


def test_a_list_and_a_hash_stay_so_small_that_they_fit_an_answer(tmp_path: Path) -> None:
    """What would make them larger is refused: large values, and many small ones, around which more stands than they hold."""
    with ServerProcess(tmp_path / "data") as server, Client(server) as client:
        answers: list[Any] = []
        for number in range(9):
            fields = tuple((b"%d-%d" % (number, n), b"v" * 65536) for n in range(15))
            answers = [
                client.ask(m.RPush(b"long", (b"v" * 65536,) * 15)),
                client.ask(m.HSet(b"wide", fields)),
                client.ask(m.LPush(b"many", (b"",) * (KV_COLLECTION_ITEMS_MAX // 8))),
            ]
        assert [each.status for each in answers] == [S.VALUE_TOO_LARGE] * 3
        assert len(client.ask(m.LRange(b"long", 0, -1)).values) == 120
        assert len(client.ask(m.HGetAll(b"wide")).pairs) == 120
        assert len(client.ask(m.LRange(b"many", 0, -1)).values) == KV_COLLECTION_ITEMS_MAX


def test_unknown_commands_and_versions(server: ServerProcess) -> None:
    with Client(server) as client:
        for number in (0x0A, 0x16, 0x23, 0x34, 0x40, 0x53, 0x63, 0xFF):
            assert raw(client, number, b"whatever").status is S.UNKNOWN_CMD
        assert client.ask_raw(b"\xca\xfe\x03")[3] == S.UNSUPPORTED_VERSION
        assert client.is_closed()


def test_consistency_is_the_same_on_a_lone_node(server: ServerProcess) -> None:
    with Client(server) as client:
        for number, level in enumerate(m.Consistency, 1):
            client.socket.sendall(client.connection.request(Request(number, m.Get(b"string"), level), version=2))
            assert client.receive().message == m.Value(b"text")


# ── What one node cannot be made to say over a socket ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_status(reason: Reason) -> None:
    answer = failure(BrokerError(reason, "why"))
    frame = ServerConnection().respond(Request(1, m.Ping()), answer)
    assert frame[3] == STATUSES[reason]
    assert STATUSES[reason] not in (S.OK, S.MOVED)


def test_faults_are_server_errors() -> None:
    assert failure(StorageFault("the disk is gone", "/data")) == m.Failure(S.SERVER_ERROR, FAULT)


class Failing:
    """The keys of a node of a cluster, which say one thing."""

    clustered = True

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def execute(self, _: o.Operation[Any], __: int) -> Any:
        raise self._error

    async def execute_columns(self, _: o.Columns, __: int) -> Any:
        raise self._error


class Reading:
    """A store of one key that only reads."""

    clustered = None

    def read(self, operation: o.Operation[Any]) -> Any:
        if operation.key != b"k":
            raise BrokerError(Reason.KEY_NOT_FOUND, "no such key")
        return b"v"


def test_a_read_of_a_node_that_is_alone_is_answered_without_a_coroutine() -> None:
    services: Any = SimpleNamespace(
        keyvalue=Reading(),
        authorize=Authorize({}, []),
        routing=SimpleNamespace(epoch=0),
        forwarding=SimpleNamespace(calls=None, names=set()),
    )
    adapter = MayflyAdapter(services)
    conversation: Any = SimpleNamespace(principal="anonymous", is_forwarded=False)
    assert adapter.handle(conversation, Request(1, m.Get(b"k"))) == m.Value(b"v")
    with pytest.raises(BrokerError, match="no such key"):
        adapter.handle(conversation, Request(1, m.Get(b"other")))


@pytest.mark.parametrize("reason", [Reason.TIMED_OUT, Reason.NOT_LEADER])
def test_what_only_a_cluster_says_passes_the_adapter(reason: Reason) -> None:
    error = BrokerError(reason, "not now")
    one_of_several = SimpleNamespace(epoch=0)
    nobody = SimpleNamespace(calls=None, names=set())
    services: Any = SimpleNamespace(
        keyvalue=Failing(error), authorize=Authorize({}, []), routing=one_of_several, forwarding=nobody
    )
    adapter = MayflyAdapter(services)
    conversation: Any = SimpleNamespace(principal="anonymous")
    one = Request(1, m.Get(b"k"))
    burst = Burst(b"\2\2", b"\0\0\0\1\0\0\0\2", [b"k", b"l"], [], None)
    for request in (one, burst):
        with pytest.raises(BrokerError):
            asyncio.run(answer_of(adapter.handle, conversation, request))
        answer = adapter.failure(request, error)
        frames = ServerConnection().respond(request, answer)
        assert frames[3] == STATUSES[reason]
        assert STATUSES[reason] in CLUSTERED
