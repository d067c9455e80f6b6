"""`braid profile`: servers under names.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.profile.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "create": (f"{_MODULE}:create", "Keep a server under a name."),
        "use": (f"{_MODULE}:use", "Let commands use it from now on."),
        "list": (f"{_MODULE}:list_", "Which there are."),
        "delete": (f"{_MODULE}:delete", "Forget one."),
    },
    epilog="""\b
Example:
  braid profile create shop --server kafka+tls://n1:9092,n2:9092 --ca ca.pem --principal ann --token-file ann.token
  braid profile use shop
  braid topic list                                      of the shop
  braid topic list --profile default                    of another one
""",
)
def profile() -> None:
    """Servers under names: what to connect to, as whom, with which files. Tokens stay in their files.

    Options and the environment (BRAID_SERVER) go before a profile; whoever names another server gets nothing of it.
    """
