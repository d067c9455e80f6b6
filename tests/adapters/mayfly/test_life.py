"""The life of a connection: who one is, frames cut anywhere, a thousand requests at once, strangers, TLS, QUIT, restarts."""

import contextlib
import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.adapters.hostility import check_running, client_hello, is_cut_off, read_to_end
from tests.adapters.mayfly.client import Client
from tests.waiting import until
from tests.wire.mayfly.vectors import REFUSED, REQUESTS

from braidlog.security.authentication import NOT_PROVED
from braidlog.testing.server import ServerProcess
from braidlog.wire.mayfly import messages as m
from braidlog.wire.mayfly.connection import ClientConnection, Request
from braidlog.wire.mayfly.messages import Status

TOKEN, READER_TOKEN = b"secrettoken", b"readers-token"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("mayfly-life") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Alice may do everything, the reader may read some keys, bob every topic and no key, carol hers."""
    folder = tmp_path_factory.mktemp("mayfly-guarded")
    tokens = {"alice": TOKEN, "reader": READER_TOKEN, "bob": b"bobs-token", "carol": b"carols-token"}
    lines = ["[auth]", "failure_delay_seconds_max = 0.1", "[auth.tokens]"]
    lines += [f'{name} = "{hashlib.sha256(token).hexdigest()}"' for name, token in tokens.items()]
    for principal, operations, resource in (
        ("alice", '"*"', ""),
        ("reader", '"read"', 'key = "rule*"'),
        ("bob", '"read", "write"', 'topic = "*"'),
        ("carol", '"read", "write"', 'key = "carol:*"'),
    ):
        lines += ["[[auth.rules]]", f'principal = "{principal}"', f"operations = [{operations}]", resource]
    (folder / "braid.toml").write_text("\n".join(lines), "utf-8")
    with ServerProcess(folder / "data", "--config", str(folder / "braid.toml")) as process:
        yield process


# ── Who one is ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_auth_comes_first_and_then_everything_is_served(guarded: ServerProcess) -> None:
    with Client(guarded) as client:
        assert client.ask(m.Auth(TOKEN)) == m.Done()
        assert client.ask(m.Set(b"k", b"v")) == m.Stored()
        assert client.ask(m.Ping()) == m.Done()


def test_auth_and_requests_in_one_write(guarded: ServerProcess) -> None:
    with Client(guarded) as client:
        answers = client.ask_all(m.Auth(TOKEN), *[m.Set(b"k%d" % n, b"v") for n in range(100)], m.Get(b"k99"))
        assert answers == [m.Done(), *[m.Stored()] * 100, m.Value(b"v")]


def test_the_documents_frames_word_for_word(guarded: ServerProcess) -> None:
    """AUTH and SET of the protocol document, with the lengths they really have; and as printed, where they fail cleanly."""
    vectors = {each.name: each.data for each in REQUESTS + REFUSED}
    with Client(guarded) as client:
        assert client.ask_raw(vectors["auth"]) == bytes.fromhex("CAFE0101 00000001 00000000")
        assert client.ask_raw(vectors["set"]) == bytes.fromhex("CAFE0101 00000001 00000000")
        printed = client.ask_raw(vectors["set as the document prints it"])
        assert printed[:8] == bytes.fromhex("CAFE0104 00000001")
        assert client.is_closed()
    with Client(guarded) as client:
        printed = client.ask_raw(vectors["auth as the document prints it"])
        assert printed[:8] == bytes.fromhex("CAFE0109 00000001")
        assert client.is_closed()


EVERYTHING = [
    *[each for each in REQUESTS if each.name != "auth"],
    *[each for each in REFUSED if not any(r.close for r in each.refusals) and not each.unfinished],
]


@pytest.mark.parametrize("vector", EVERYTHING, ids=lambda vector: vector.name)
def test_before_auth_everything_gets_the_same_answer(guarded: ServerProcess, vector: Any) -> None:
    """Commands that exist and that do not, whole bodies and broken ones: nobody can tell them apart, and nothing is done."""
    with Client(guarded) as client:
        answer = client.ask_raw(vector.data)
        assert answer[3] == Status.AUTH_REQUIRED
        assert answer[4:8] == vector.data[4:8]
        assert answer[8:] == client.ask_raw(bytes.fromhex("CAFE0104 00000007 00000000"))[8:]


def test_nothing_was_done_for_strangers(guarded: ServerProcess) -> None:
    with Client(guarded) as client:
        client.ask(m.Set(b"forbidden", b"x"))
    with Client(guarded) as client:
        assert client.ask_all(m.Auth(TOKEN), m.Get(b"forbidden")) == [m.Done(), m.MISSING]


def test_a_wrong_token_is_told_so_and_nothing_behind_it_is_done(guarded: ServerProcess) -> None:
    with Client(guarded) as client:
        client.send(m.Auth(b"wrong"), m.Set(b"behind", b"x"), m.Auth(TOKEN))
        response = client.receive()
        assert response.id == 1
        assert response.message == m.Failure(Status.AUTH_FAILED, NOT_PROVED)
        with pytest.raises(EOFError):
            client.receive()
    with Client(guarded) as client:
        assert client.ask_all(m.Auth(TOKEN), m.Get(b"behind")) == [m.Done(), m.MISSING]
    assert "authentication failed" in guarded.errors()
    for token in (TOKEN.decode(), "wrong-token"):
        assert token not in guarded.errors()


@pytest.mark.parametrize("token", [b"", b"secrettoke", b"secrettokenx", b"\x00" * 1024], ids=range(4))
def test_tokens_that_are_almost_right(guarded: ServerProcess, token: bytes) -> None:
    with Client(guarded) as client:
        assert client.ask(m.Auth(token)).status is Status.AUTH_FAILED
        assert client.is_closed()


def test_rules_hold_for_keys(guarded: ServerProcess) -> None:
    """Also for those that came together: each is allowed or refused by itself, and what is refused is not done."""
    with Client(guarded) as client:
        client.ask(m.Auth(b"carols-token"))
        keys = [b"carol:1", b"ruled", b"carol", b"carol:\xff", b"\xffcarol:"]
        answers = [client.ask_all(*[m.Set(key, b"w") for key in keys]), client.ask_all(*[m.Get(key) for key in keys])]
        for told, good in zip(answers, (m.Stored(), m.Value(b"w")), strict=True):
            assert [told[0], told[3]] == [good, good]
            assert [told[n].status for n in (1, 2, 4)] == [Status.AUTH_REQUIRED] * 3


def test_who_may_read_keys_may_not_write_them(guarded: ServerProcess) -> None:
    with Client(guarded) as client:
        assert client.ask_all(m.Auth(TOKEN), m.Set(b"ruled", b"v")) == [m.Done(), m.Stored()]
    with Client(guarded) as client:
        assert client.ask_all(m.Auth(READER_TOKEN), m.Get(b"ruled")) == [m.Done(), m.Value(b"v")]
        for message in (m.Set(b"ruled", b"w"), m.Incr(b"n"), m.Del(b"ruled"), m.Snapshot(), m.Leave()):
            answer = client.ask(message)
            assert answer.status is Status.AUTH_REQUIRED
            assert "'reader' may not" in answer.message
        assert type(client.ask(m.Stats())) is m.Statistics
        assert client.ask(m.Get(b"ruled")) == m.Value(b"v")
    with Client(guarded) as client:
        assert client.ask(m.Auth(b"bobs-token")) == m.Done()
        for refused in (m.Get(b"ruled"), m.Set(b"ruled", b"w"), m.Stats()):
            assert client.ask(refused).status is Status.AUTH_REQUIRED
        assert client.ask(m.Ping()) == m.Done()


# ── Bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_frames_cut_at_every_byte(server: ServerProcess) -> None:
    """Each request in two pieces, cut at every place; the second piece brings the beginning of the next request."""
    ping = bytes.fromhex("CAFE0104 00000063 00000000")
    pong = bytes.fromhex("CAFE0101 00000063 00000000")
    with Client(server) as client:
        for message in (m.Set(b"cut", b"some bytes", 60), m.Get(b"cut"), m.RPush(b"cuts", (b"a", b"")), m.Stats()):
            frame = ClientConnection().request(Request(7, message))
            for cut in range(1, len(frame)):
                client.socket.sendall(frame[:cut])
                client.socket.sendall(frame[cut:] + ping[:2])
                assert client.receive_raw()[3:8] == b"\x01\x00\x00\x00\x07"
                client.socket.sendall(ping[2:])
                assert client.receive_raw() == pong


def test_a_thousand_requests_at_once(server: ServerProcess) -> None:
    """Reads, changes, mistakes in turns: each answer finds its request, and what was asked was done in order."""
    with Client(server) as client:
        messages: list[m.Message] = []
        expected: list[m.Message] = []
        for n in range(200):
            messages += [m.Incr(b"thousand"), m.Get(b"thousand"), m.Set(b"t%d" % n, b"%d" % n), m.Get(b"t%d" % n)]
            expected += [m.Number(n + 1), m.Value(b"%d" % (n + 1)), m.Stored(), m.Value(b"%d" % n)]
            messages.append(m.LPop(b"t%d" % n))
            expected.append(m.Failure(Status.WRONG_TYPE))
        answers = client.ask_all(*messages)
        assert [each if not isinstance(each, m.Failure) else m.Failure(each.status) for each in answers] == expected


def test_runs_of_equal_requests(server: ServerProcess) -> None:
    """Longer than what is served as one, and longer than what a connection may have under way."""
    with Client(server) as client:
        sets = [m.Set(b"run%d" % n, b"%d" % n) for n in range(3000)]
        assert client.ask_all(*sets) == [m.Stored()] * 3000
        assert client.ask_all(*[m.Get(each.key) for each in sets]) == [m.Value(each.value) for each in sets]
        assert client.ask_all(*[m.Incr(b"runs")] * 3000) == [m.Number(n) for n in range(1, 3001)]
        assert client.ask_all(*[m.Del(each.key) for each in sets]) == [m.Done()] * 3000
        assert client.ask_all(*[m.Get(each.key) for each in sets]) == [m.MISSING] * 3000


def test_a_refused_request_in_a_run_refuses_itself_alone(server: ServerProcess) -> None:
    with Client(server) as client:
        client.ask(m.RPush(b"a list", (b"x",)))
        answers = client.ask_all(m.Incr(b"c1"), m.Incr(b"a list"), m.Incr(b"c1"), m.Get(b"a list"), m.Get(b"c1"))
        assert answers[0::2] == [m.Number(1), m.Number(2), m.Value(b"2")]
        assert [each.status for each in answers[1::2]] == [Status.WRONG_TYPE] * 2


def test_a_slow_request_does_not_hold_back_a_fast_one(server: ServerProcess) -> None:
    """A change that waits for the disk is overtaken by what was asked after it."""
    with Client(server) as client:

        def is_overtaken() -> bool:
            client.send(m.LPush(b"slow", (b"v" * 60_000,)), m.Ping())
            first, second = client.receive(), client.receive()
            client.ask(m.Del(b"slow"))
            return first.id > second.id

        until(is_overtaken)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", client_hello(), b"\xbe\xe5\x01\x01" + bytes(20), b"*1\r\n$4\r\nPING\r\n"]
)
def test_strangers_are_shown_out_at_once_and_in_silence(server: ServerProcess, data: bytes) -> None:
    with socket.create_connection(server.address("mayfly"), 60) as peer:
        peer.sendall(data)
        assert read_to_end(peer, 0) == b""
    check_running(server)


def test_quit_is_answered_after_everything_before_it_and_nothing_behind_it_is_done(server: ServerProcess) -> None:
    with Client(server) as client:
        client.send(*[m.Set(b"q%d" % n, b"v") for n in range(50)], m.Quit(), m.Set(b"behind quit", b"v"))
        answered = [client.receive().id for _ in range(51)]
        assert sorted(answered) == list(range(1, 52))
        assert answered[-1] == 51
        with pytest.raises(EOFError):
            client.receive()
    with Client(server) as client:
        assert client.ask_all(m.Get(b"q49"), m.Get(b"behind quit")) == [m.Value(b"v"), m.MISSING]


def test_a_node_that_asks_nobody_takes_any_token(server: ServerProcess) -> None:
    with Client(server) as client:
        assert client.ask_all(m.Auth(b"whatever"), m.Ping()) == [m.Done(), m.Done()]


def test_the_silent_are_shown_out_and_ping_keeps_one_in(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", "--set", "limits.idle_seconds_max=2") as server,
        Client(server) as silent,
        Client(server) as lively,
    ):
        assert silent.ask(m.Ping()) == m.Done()

        def is_silent_gone() -> bool:
            assert lively.ask(m.Ping()) == m.Done()
            return is_cut_off(silent.socket)

        until(is_silent_gone)
        assert lively.ask(m.Ping()) == m.Done()
        assert "idle for " in server.errors()


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "cert.pem"), append=True)
    flags = [f"listeners.mayfly.tls.{name}={tmp_path / f'{name}.pem'}" for name in ("cert", "key")]
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with ServerProcess(tmp_path / "data", *(part for flag in flags for part in ("--set", flag))) as server:
        with Client(server) as client:
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
            assert client.ask_all(*[m.Incr(b"n")] * 500) == [m.Number(n) for n in range(1, 501)]
            assert client.ask(m.Quit()) == m.Done()
        with Client(server) as plain:
            plain.socket.sendall(bytes.fromhex("CAFE0104 00000001 00000000"))
            assert plain.is_closed()
        check_running(server)


# ── Restarts ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["stop", "kill", "snapshot and kill"])
def test_everything_is_there_after_a_restart(tmp_path: Path, how: str) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with Client(server) as client:
            client.ask_all(
                m.Set(b"s", b"text", 1000),
                m.RPush(b"l", (b"a", b"b", b"c")),
                m.LPop(b"l"),
                m.HSet(b"h", ((b"f", b"1"), (b"g", b"2"))),
                m.HDel(b"h", (b"f",)),
                m.IncrBy(b"n", 41),
            )
            if "snapshot" in how:
                assert client.ask(m.Snapshot()).keys == 4
            client.ask_all(m.Incr(b"n"), m.Set(b"gone", b"x"), m.Del(b"gone"))
        if how == "stop":
            assert server.stop() == 0
        else:
            server.kill()
        server.restart()
        with Client(server) as client:
            asked = (m.Get(b"s"), m.LRange(b"l", 0, -1), m.HGetAll(b"h"), m.Get(b"n"), m.Get(b"gone"))
            assert client.ask_all(*asked) == [
                m.Value(b"text"),
                m.Values((b"b", b"c")),
                m.Pairs(((b"g", b"2"),)),
                m.Value(b"42"),
                m.MISSING,
            ]
            assert 900 < client.ask(m.Ttl(b"s")).ttl_seconds <= 1000


def test_a_stop_answers_what_was_asked(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Client(server) as client:
        client.send(*[m.Incr(b"n")] * 2000)
        first = client.receive()
        assert first.message == m.Number(first.id)  # carried out in order; answered as each becomes durable
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        answered = 1
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                client.receive()
                answered += 1
        stopper.join(60)
        server.restart()
        with Client(server) as again:
            assert again.ask(m.Get(b"n")) == m.Value(b"%d" % answered)
