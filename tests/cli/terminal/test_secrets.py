"""No command takes a secret that is typed: everybody on the machine can read command lines."""

import click
import pytest
from click.testing import CliRunner
from tests.cli.braid import Braid
from tests.cli.test_main import COMMANDS

from braidlog.cli import main
from braidlog.server.config import OF_CLIENTS

WORD = "hunter2-xyz"
SAYS_SECRET = ("password", "secret", "token")


def _command(path: str) -> click.Command:
    found: click.Command = main
    for name in path.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        assert inner is not None
        found = inner
    return found


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path or "braid")
def test_options_about_secrets_take_files(path: str) -> None:
    for option in _command(path).params:
        if any(word in str(option.name) for word in SAYS_SECRET):
            assert all(name.endswith("-file") for name in option.opts), option.opts


@pytest.mark.parametrize(
    "args",
    [
        ["topic", "list", "--server", f"kafka://ann:{WORD}@127.0.0.1:1"],
        ["node", "--server", f"kafka+tls://ann:{WORD}@127.0.0.1:1"],
        ["kv", "get", "k", "--url", f"mayfly://:{WORD}@127.0.0.1:1"],
        ["kv", "watch", "--feed-url", f"rustlog://ann:{WORD}@127.0.0.1:1"],
        ["schema", "list", "--url", f"http://ann:{WORD}@127.0.0.1:1"],
        ["health", "--url", f"http://ann:{WORD}@127.0.0.1:1"],
        ["profile", "create", "p", "--server", f"kafka://ann:{WORD}@h"],
        ["config", "check", "--set", f"cluster.password={WORD}"],
        ["serve", "--set", f"cluster.token={WORD}"],
    ],
    ids=lambda args: " ".join(args[:2]),
)
def test_a_secret_that_was_typed_is_refused(args: list[str]) -> None:
    """Before anything is asked; the sentence does not repeat it."""
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2, result.output
    assert "see" in result.stderr or "secret" in result.stderr or "token" in result.stderr
    assert WORD not in result.output


def test_the_environment_may_hold_one() -> None:
    """Nobody else can read it: the next thing that is wrong is that nobody is there."""
    assert "connection refused" in Braid(url=f"kafka://ann:{WORD}@127.0.0.1:1").fails(5, "topic", "list")


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path or "braid")
def test_a_node_leaves_the_environment_of_commands_alone(path: str) -> None:
    """It would take a name that it does not know for a setting."""
    named = {str(option.envvar) for option in _command(path).params if option.envvar}
    assert named <= OF_CLIENTS
