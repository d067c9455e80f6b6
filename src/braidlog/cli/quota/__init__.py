"""`braid quota`: how much somebody may take.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.quota.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_MODULE}:list_", "Which quotas there are."),
        "set": (f"{_MODULE}:set_", "Set a quota, or change it."),
        "remove": (f"{_MODULE}:remove", "Take back a quota that was set."),
    },
    epilog="""\b
Example:
  braid quota set --user bulk --append-bytes 1000000 --request-percent 20
  braid quota set --user '*' --fetch-bytes 5000000       every user without its own
  braid quota set --address 10.0.0.7 --connections 10
  braid quota remove --user bulk
""",
)
def quota() -> None:
    """Quotas: how fast a user, a client id or both may append and fetch, how much of the node's time they may take, and how fast
    an address may open connections. Who is over is slowed down and loses nothing. What is set here goes before the node's
    settings (`quotas.*`)."""
