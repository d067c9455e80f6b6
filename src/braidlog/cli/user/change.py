"""`braid user list`, `create`, `delete`.

Knows: where a password may come from. Refuses to know: what becomes of it.
Invariant: a password is never an argument: other users of a machine can see what was typed.
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
    """All users with passwords, those of the node's settings too: one line for each mechanism."""
    empty = "There are no users yet.", "braid user create NAME"
    print_rows(client.admin.list_users(), output, ["USER", "MECHANISM", "ITERATIONS"], empty)


@click.command(epilog="Example: openssl rand -hex 24 | tee ann.password | braid user create ann")
@USER
@click.option(
    "--password-file", type=click.File("rb"), help="Its first line is the password; `-` is the standard input."
)
@click.option("--replace", is_flag=True, help="If the user is there, give it this password.")
@click.option(
    "--mechanism", "mechanisms", multiple=True, type=click.Choice(MECHANISMS), help="Only this one; may be repeated."
)
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="How often the password is hashed.",
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
    """Make the user USER, or with --replace give it another password.

    The password is asked for, or read from the standard input or a file. Only a hash of it is sent. Connections that are open
    stay as they are.
    """
    known = client.admin.list_users(user)
    if known and not replace:
        end(REFUSED, f"user {user!r} is there already; pass --replace to give it another password")
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
    """Delete USER: nobody can sign in with its password any more. Connections that are open stay, and so do rules about it."""
    client.require("users")
    confirm(f"Delete user {user}?", yes=yes)
    client.admin.delete_user(user)
    click.echo(f"deleted {user}")
