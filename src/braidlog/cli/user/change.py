"""`braid user list`, `create`, `delete`.

A password is never an argument, because other users of a machine can see command lines.
"""

import sys
from typing import BinaryIO

import click

from braidlog.cli import REFUSED, end
from braidlog.cli.terminal.arguments import YES, confirm
from braidlog.cli.terminal.connection import secret_of, with_client
from braidlog.cli.terminal.output import OUTPUT, hint, print_rows
from braidlog.client.blocking import Client
from braidlog.client.drivers.users import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

USER = click.argument("user")


@click.command("list", epilog="Example: braid user list -o json")
@OUTPUT
@with_client
def list_(client: Client, output: str) -> None:
    """List all users with passwords, including those of the node's settings, one line per mechanism."""
    empty = "No users.", "braid user create NAME"
    print_rows(client.admin.list_users(), output, ["USER", "MECHANISM", "ITERATIONS"], empty)


@click.command(epilog="Example: openssl rand -hex 24 | tee ann.password | braid user create ann")
@USER
@click.option(
    "--password-file", type=click.File("rb"), help="File with the password in its first line; `-`: standard input."
)
@click.option("--replace", is_flag=True, help="Change the password of an existing user.")
@click.option(
    "--mechanism", "mechanisms", multiple=True, type=click.Choice(MECHANISMS), help="Only this mechanism; repeatable."
)
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="Number of hash iterations.",
)
@with_client
def create(
    client: Client,
    user: str,
    password_file: BinaryIO | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    *,
    replace: bool,
) -> None:
    """Create the user USER, or with --replace change its password.

    The password is prompted for, or read from standard input or a file. Only a hash of it is sent. Open connections stay
    authenticated.
    """
    known = client.admin.list_users(user)
    if known and not replace:
        end(REFUSED, f"user {user!r} already exists; pass --replace to change its password")
    client.admin.set_password(user, _password(password_file), mechanisms or MECHANISMS, iterations)
    click.echo(f"{'changed the password of' if known else 'created'} {user}")
    hint(f"braid rule add {user} read --topic TOPIC --group '{user}-*'")


def _password(file: BinaryIO | None) -> str:
    if file is None and sys.stdin.isatty():
        asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return asked
    source = sys.stdin.buffer if file is None else file
    return secret_of(source.read(), "the input", "password")


@click.command(epilog="Example: braid user delete ann --yes")
@USER
@YES
@with_client
def delete(client: Client, user: str, *, yes: bool) -> None:
    """Delete USER and its password; its open connections and access rules are kept."""
    client.require("users")
    confirm(f"Delete user {user}?", yes=yes)
    client.admin.delete_user(user)
    click.echo(f"deleted {user}")
