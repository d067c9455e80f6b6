"""`braid user` against a real node: who was made can sign in, by every mechanism, and who was deleted cannot."""

import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.braid import Braid, as_, fresh, guarded

from braidlog import connect
from braidlog.client.errors import RefusedError
from braidlog.testing.server import ServerProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    """Its settings have a token that the command has made."""
    arguments, settings = guarded(folder), folder / "braid.toml"
    made = Braid().ok("user", "token", "dora", "--file", str(folder / "dora.token"))
    settings.write_text(settings.read_text().replace("[auth.tokens]\n", made, 1))
    with ServerProcess(folder / "data", *arguments) as server:
        yield server


@pytest.fixture
def braid(server: ServerProcess, folder: Path) -> Braid:
    """As root."""
    found = Braid(server)
    found.environment |= {"BRAID_PRINCIPAL": "root", "BRAID_TOKEN_FILE": str(folder / "root.token")}
    return found


def _signs_in(braid: Braid, user: str, password: str, mechanism: str) -> bool:
    url = braid.url.replace("://", f"://{user}:{password}@")
    try:
        with connect(f"{url}?sasl={mechanism}", retry_timeout=60.0) as client:
            client.admin.list_topics()
    except RefusedError:
        return False
    return True


def _rows(braid: Braid, user: str) -> list[tuple[str, int]]:
    rows = braid.json("user", "list", schema="user-list")
    return [(row["mechanism"], row["iterations"]) for row in rows if row["user"] == user]


def test_a_user_from_its_making_to_its_end(braid: Braid, tmp_path: Path) -> None:
    user = fresh("ann")
    (tmp_path / "password").write_text("first\nnot this\n")
    assert braid.ok("user", "create", user, "--password-file", str(tmp_path / "password")) == f"created {user}\n"
    assert _rows(braid, user) == [("SCRAM-SHA-256", 4096), ("SCRAM-SHA-512", 4096)]
    assert [user, "SCRAM-SHA-512", "4096"] in [line.split() for line in braid.ok("user", "list").splitlines()]
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert _signs_in(braid, user, "first", mechanism)
    assert not _signs_in(braid, user, "not%20this", "SCRAM-SHA-256")
    assert "--replace" in braid.fails(3, "user", "create", user, stdin="second\n")
    assert _signs_in(braid, user, "first", "SCRAM-SHA-512")
    assert braid.ok("user", "create", user, "--replace", stdin="second") == f"changed the password of {user}\n"
    assert not _signs_in(braid, user, "first", "SCRAM-SHA-256")
    assert _signs_in(braid, user, "second", "SCRAM-SHA-256")
    assert braid.ok("user", "delete", user, "--yes") == f"deleted {user}\n"
    assert _rows(braid, user) == []
    assert not _signs_in(braid, user, "second", "PLAIN")
    assert f"unknown user '{user}'" in braid.fails(3, "user", "delete", user, "--yes")


def test_one_mechanism_and_more_iterations(braid: Braid) -> None:
    user = fresh("bob")
    chosen = ("--mechanism", "SCRAM-SHA-512", "--iterations", "8192", "--password-file", "-")
    braid.ok("user", "create", user, *chosen, stdin="word\n")
    assert _rows(braid, user) == [("SCRAM-SHA-512", 8192)]
    assert _signs_in(braid, user, "word", "SCRAM-SHA-512")
    braid.ok("user", "delete", user, "--yes")
    assert _rows(braid, user) == []


def test_what_is_refused(braid: Braid, server: ServerProcess, folder: Path) -> None:
    user = fresh("carol")
    for nothing in ("", "\n", "  \nsecond line\n"):
        assert "the input contains no password" in braid.fails(2, "user", "create", user, stdin=nothing)
    assert "--yes" in braid.fails(2, "user", "delete", user)
    assert "no principal that could have a password" in braid.fails(3, "user", "create", "*", stdin="word\n")
    through_mlog = Braid(server, "mlog")
    for command in (["list"], ["create", user], ["delete", user, "--yes"]):
        assert "supported by: kafka" in through_mlog.fails(3, "user", *command, *as_(folder, "root"), stdin="word\n")
        assert "not allowed" in braid.fails(3, "user", *command, *as_(folder, "bob"), stdin="word\n")
    assert _rows(braid, user) == []


def test_a_password_is_no_argument(braid: Braid) -> None:
    assert "No such option" in braid.fails(2, "user", "create", "dave", "--password", "word")
    assert _rows(braid, "dave") == []


def test_a_token_is_in_a_file_and_its_hash_in_the_settings(braid: Braid, folder: Path) -> None:
    file = folder / "dora.token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().strip()
    assert len(secret) == 48
    assert secret not in (folder / "braid.toml").read_text()
    braid.ok("topic", "list", *as_(folder, "dora"))
    assert "not allowed" in braid.fails(3, "topic", "list", *as_(folder, "dora", "wrong"))
    assert "already exists" in Braid().fails(3, "user", "token", "dora", "--file", str(file))
    assert file.read_text().strip() == secret
    assert "cannot write" in Braid().fails(3, "user", "token", "dora", "--file", str(folder / "no" / "where"))
    quoted = Braid().ok("user", "token", 'a "b', "--file", str(folder / "odd.token"))
    assert list(tomllib.loads(quoted)["auth"]["tokens"]) == ['a "b']


def test_what_a_user_may_do_is_said_by_rules(braid: Braid, folder: Path) -> None:
    user, topic = fresh("erin"), fresh("open")
    braid.ok("topic", "create", topic)
    (folder / f"{user}.token").write_text("word\n")
    braid.ok("user", "create", user, "--password-file", str(folder / f"{user}.token"))
    assert topic not in braid.ok("topic", "list", "-o", "name", *as_(folder, user))
    braid.ok("rule", "add", user, "read", "--topic", topic)
    assert braid.ok("topic", "list", "-o", "name", *as_(folder, user)) == f"{topic}\n"
