"""`braid user`: users and tokens."""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.user.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_MODULE}:list_", "List users."),
        "create": (f"{_MODULE}:create", "Create a user or change a password."),
        "delete": (f"{_MODULE}:delete", "Delete a user."),
        "token": ("braidlog.cli.user.token:token", "Create a token."),
    },
    epilog="""\b
Example:
  braid user create ann                                 prompts for the password
  openssl rand -hex 24 | tee ann.password | braid user create ann
  braid rule add ann read --topic orders --group 'ann-*'
  braid consume orders --principal ann --token-file ann.password
""",
)
def user() -> None:
    """List, create and delete users with passwords, and create tokens.

    Kafka clients authenticate with SASL PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Access rules grant permissions (`braid
    rule`). Tokens, and users of the node's settings, are changed in the settings; `braid user token` prints the line.
    """
