"""`braid user token`: a secret for a file, and its hash for a node's settings. No node is asked.

Invariant: the token is in the file alone, which only its owner can read; it is on no screen, and in no list of processes.
"""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

import click
import msgspec

from braidlog.cli import REFUSED, end
from braidlog.cli.terminal.output import hint

TOKEN_BYTES: Final = 24


@click.command(epilog="Example: braid user token ann --file ann.token")
@click.argument("user")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Where the token goes; default: USER.token.")
def token(user: str, path: Path | None) -> None:
    """Make a token for USER: the secret in a file, and what a node's settings need to know of it on the screen.

    A token is good on every port, a password on Kafka's and in the console. The node knows it after its next start.
    """
    path = path or Path(f"{user}.token")
    secret = secrets.token_hex(TOKEN_BYTES)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{secret}\n")
    except FileExistsError:
        end(REFUSED, f"{path} is there already; name another with --file")
    except OSError as error:
        end(REFUSED, f"cannot write {path}: {error.strerror}")
    name = msgspec.json.encode(user).decode()
    click.echo(f'[auth.tokens]\n{name} = "{hashlib.sha256(secret.encode()).hexdigest()}"')
    hint(f"braid topic list --principal {user} --token-file {path}    once that is in the node's settings")
