"""`braid user token`: writes a token to a file and prints its hash for a node's settings, without a node.

The token is only in the file, readable by its owner; it never appears on a screen or in a list of processes.
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
@click.option("--file", "path", type=click.Path(path_type=Path), help="File for the token.  [default: USER.token]")
def token(user: str, path: Path | None) -> None:
    """Create a token for USER: write the secret to a file, and print the line for a node's settings.

    A token is valid on every port; a password only on the Kafka port and in the console. The node accepts the token
    after its next start.
    """
    path = path or Path(f"{user}.token")
    secret = secrets.token_hex(TOKEN_BYTES)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{secret}\n")
    except FileExistsError:
        end(REFUSED, f"{path} already exists; pass another --file")
    except OSError as error:
        end(REFUSED, f"cannot write {path}: {error.strerror}")
    name = msgspec.json.encode(user).decode()
    click.echo(f'[auth.tokens]\n{name} = "{hashlib.sha256(secret.encode()).hexdigest()}"')
    hint(f"braid topic list --principal {user} --token-file {path}    once the line is in the node's settings")
