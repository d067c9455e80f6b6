"""What every command that talks to a node answers when nobody is there, when it may not, and when TLS is spoken."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from tests.cli.braid import Braid, as_, fresh, guarded
from tests.cli.braid import url_of as url_of_server

from braidlog.cli.terminal.connection import Node, NodeOptions
from braidlog.security.authentication import NOT_PROVED
from braidlog.testing.server import ServerProcess

COMMANDS = [
    ["topic", "list"],
    ["topic", "describe", "closed"],
    ["topic", "create", "another"],
    ["topic", "alter", "closed", "-c", "retention.ms=1"],
    ["topic", "trim", "closed", "--before", "0", "--yes"],
    ["topic", "delete", "closed", "--yes"],
    ["produce", "closed"],
    ["consume", "closed"],
    ["tail", "closed", "-n", "1"],
    ["group", "list"],
    ["group", "describe", "g"],
    ["group", "reset", "g", "--to", "latest", "--topic", "closed", "--yes"],
    ["group", "delete", "g", "--yes"],
    ["demo", "clicks", "--count", "1", "--topic", "closed"],
    ["bench", "--records", "1", "--repeats", "1"],
]
ANYBODY = (["topic", "list"], ["group", "list"], ["group", "describe", "g"], ["group", "delete", "g", "--yes"])
"""What a known principal may ask without a rule: lists show what it may see."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(folder / "data", *guarded(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def guard(folder: Path, server: ServerProcess) -> Braid:
    braid = Braid(server)
    for topic in ("closed", "open"):
        braid.ok("topic", "create", topic, *as_(folder, "root"))
        braid.ok("produce", topic, *as_(folder, "root"), stdin="word\n")
    return braid


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: " ".join(args[:2]))
def test_nobody_is_there(args: list[str]) -> None:
    """Whoever forgot to start a node hears of it at once, however long it would be tried."""
    said = Braid().fails(5, *args, "--timeout", "3600", stdin="x\n")
    assert "127.0.0.1:1: connection refused; start a node with `braid dev`" in said


def test_only_this_machine_is_asked_once() -> None:
    assert "cannot be reached" in Braid(url="kafka://127.0.0.1:1,example.invalid:1").fails(
        5, "topic", "list", "--timeout", "0.2"
    )


def test_a_name_that_is_not_known_is_said_to_be() -> None:
    said = Braid(url="kafka://example.invalid:9092").fails(5, "topic", "list", "--timeout", "0.2")
    assert "example.invalid:9092 cannot be reached: unknown host" in said


@pytest.mark.parametrize(("spoken", "port"), [("mlog", "kafka"), ("kafka", "flux"), ("kafka", "mayfly")])
def test_the_port_of_another_protocol_is_suspected(server: ServerProcess, spoken: str, port: str) -> None:
    said = Braid(url=f"{spoken}://127.0.0.1:{server.ports[port]}").fails(5, "topic", "list", "--timeout", "0.5")
    assert "does this port speak the protocol of the URL, and TLS or not?" in said


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: " ".join(args[:2]))
def test_strangers_are_told_how_to_say_who_they_are(guard: Braid, args: list[str]) -> None:
    said = guard.fails(3, *args, stdin="x\n")
    assert said.startswith("braid: not allowed: ")
    assert said.endswith("pass --principal and --token-file\n")


@pytest.mark.parametrize(
    "args", [args for args in COMMANDS if args not in ANYBODY], ids=lambda args: " ".join(args[:2])
)
def test_who_may_not_is_told_so(guard: Braid, folder: Path, args: list[str]) -> None:
    said = guard.fails(3, *args, *as_(folder, "ann"), stdin="x\n")
    assert said.splitlines()[-1].startswith("braid: not allowed: ")
    assert "secret" not in said


def test_who_may_is_let_in(guard: Braid, folder: Path) -> None:
    ann = as_(folder, "ann")
    assert guard.ok("consume", "open", *ann) == "word\n"
    assert guard.ok("topic", "list", "-o", "name", *ann) == "open\n"
    in_the_url = guard.url.replace("://", "://ann:secret-of-ann@")
    found = Braid(url=in_the_url)
    assert found.ok("consume", "open") == "word\n"
    guard.environment |= {"BRAID_PRINCIPAL": "ann", "BRAID_TOKEN_FILE": str(folder / "ann.token")}
    assert guard.ok("consume", "open") == "word\n"
    del guard.environment["BRAID_PRINCIPAL"], guard.environment["BRAID_TOKEN_FILE"]


def test_a_topic_can_be_made_and_not_written_to(guard: Braid, folder: Path) -> None:
    """The refusal comes with the first record, not before."""
    for args in (
        ["demo", "clicks", "--count", "5", "--topic", "bobs"],
        ["produce", "bobs"],
        ["bench", "--records", "5"],
    ):
        said = guard.fails(3, *args, *as_(folder, "bob"), stdin="x\n")
        assert "braid: not allowed: " in said
    assert "0 of 5 records acknowledged" in guard.fails(
        3, "demo", "clicks", "--count", "5", "--rate", "0", "--topic", "bobs", *as_(folder, "bob")
    )


WRONG = {
    "kafka": "the user or the password is wrong (SASL_AUTHENTICATION_FAILED)",
    "cursus": f"{NOT_PROVED} (authentication_failed)",
    "flux": f"{NOT_PROVED} (BAD_REQUEST)",
    "mlog": f"{NOT_PROVED} (UNKNOWN)",
    "rustlog": f"{NOT_PROVED} (INVALID_REQUEST)",
}
NEXT = "check --principal and --token-file, or create a new token: `braid user token`"


@pytest.mark.parametrize("dialect", WRONG)
def test_a_wrong_token(server: ServerProcess, folder: Path, dialect: str) -> None:
    """And an unknown user, who is told the same."""
    braid = Braid(url=f"{dialect}://127.0.0.1:{server.ports[dialect]}")
    for principal in ("ann", "nobody"):
        said = braid.fails(3, "topic", "list", *as_(folder, principal, "wrong"))
        assert said == f"braid: not allowed: {WRONG[dialect]}; {NEXT}\n"


def test_a_wrong_token_of_the_store(server: ServerProcess, folder: Path) -> None:
    url, token = f"mayfly://127.0.0.1:{server.ports['mayfly']}", str(folder / "wrong.token")
    said = Braid().fails(3, "kv", "get", "key", "--url", url, "--token-file", token)
    assert said == f"braid: not allowed: {NOT_PROVED} (AUTH_FAILED); {NEXT}\n"


def test_a_token_of_nobody(guard: Braid, folder: Path) -> None:
    assert "--token-file needs --principal" in guard.fails(
        2, "topic", "list", "--token-file", str(folder / "ann.token")
    )
    (folder / "empty.token").write_text("\n")
    assert "contains no token" in guard.fails(2, "topic", "list", *as_(folder, "ann", "empty"))


@pytest.mark.parametrize(
    "server", ["x://127.0.0.1", "kafka://127.0.0.1:port", "kafka://127.0.0.1/topic", "kafka://h?x=1"]
)
def test_a_wrong_url_is_wrong_usage(server: str) -> None:
    assert "Usage:" in Braid().fails(2, "topic", "list", "--server", server)


def test_a_store_has_no_topics() -> None:
    assert "has keys, not topics" in Braid().fails(3, "topic", "list", "--server", "mayfly://127.0.0.1")


def test_tls(tmp_path: Path) -> None:
    """A node that asks for certificates: with one, without one, and with a wrong idea of whom to trust."""
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    stranger.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    for name, issued in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("ann", authority.issue_cert("ann", common_name="ann")),
    ):
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    settings = {"cert": "server.pem", "key": "server.pem", "client_ca": "ca.pem"}
    flags = [
        word for name, file in settings.items() for word in ("--set", f"listeners.kafka.tls.{name}={tmp_path / file}")
    ]
    with ServerProcess(tmp_path / "data", *flags) as server:
        braid = Braid(server)
        trust, shown = ["--ca", str(tmp_path / "ca.pem")], ["--cert", str(tmp_path / "ann.pem"), "--timeout", "2"]
        topic = fresh("tls")
        assert braid.ok("topic", "create", topic, *trust, *shown) == f"created {topic}\n"
        assert braid.ok("topic", "list", "-o", "name", *trust, *shown) == f"{topic}\n"
        assert braid.fails(5, "topic", "list", *trust, "--timeout", "0.5")
        assert braid.fails(5, "topic", "list", "--ca", str(tmp_path / "other.pem"), *shown, "--timeout", "0.5")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"server": "h:1"}, "kafka://h:1"),
        ({"server": "flux://h"}, "flux://h"),
        ({"server": "kafka://a:b@h:1?compression=lz4"}, "kafka://a:b@h:1?compression=lz4"),
        ({"server": "kafka://a:b@h", "principal": "c/d", "token_file": "token"}, "kafka://c%2Fd:e%40f@h"),
        ({"server": "h", "ca": "/x y.pem"}, "kafka+tls://h?cafile=%2Fx+y.pem"),
        ({"server": "cursus+tls://h?x=1", "cert": "c", "cert_key": "k"}, "cursus+tls://h?x=1&certfile=c&keyfile=k"),
    ],
)
def test_options_become_one_url(
    given: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("e@f\n", encoding="utf-8")
    assert NodeOptions(**given).url() == expected


def test_a_token_is_not_in_a_repr() -> None:
    assert repr(Node("kafka+tls://ann:word@h", 1.0)) == "<Node kafka+tls>"


def test_a_token_has_an_owner(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t", encoding="utf-8")
    with pytest.raises(click.UsageError, match="needs --principal"):
        NodeOptions(server="h", token_file=str(tmp_path / "token")).url()


def test_commands_environment_does_not_trouble_a_node(tmp_path: Path) -> None:
    environment = {
        "BRAID_SERVER": "kafka://h",
        "BRAID_PRINCIPAL": "ann",
        "BRAID_KV_URL": "mayfly://h",
        "BRAID_ADMIN_URL": "x",
    }
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        assert url_of_server(server)
