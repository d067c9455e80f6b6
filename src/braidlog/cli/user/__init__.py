"""`braid user`: users with passwords.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.user.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_MODULE}:list_", "Which users there are."),
        "create": (f"{_MODULE}:create", "Make a user, or give one a new password."),
        "delete": (f"{_MODULE}:delete", "Delete a user."),
        "token": ("braidlog.cli.user.token:token", "Make a token, and the line for it in a node's settings."),
    },
    epilog="""\b
Example:
  braid user create ann                                 asks for the password
  openssl rand -hex 24 | tee ann.password | braid user create ann
  braid rule add ann read --topic orders --group 'ann-*'
  braid consume orders --principal ann --token-file ann.password
""",
)
def user() -> None:
    """Users with passwords, for Kafka's clients: SASL PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512. Rules say what each may do
    (`braid rule`). Tokens, and users of the node's settings, are changed there: `braid user token` makes the line."""
