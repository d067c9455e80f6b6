"""`braid quota`: quotas of users, clients and addresses."""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.quota.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_MODULE}:list_", "List quotas."),
        "set": (f"{_MODULE}:set_", "Set or change a quota."),
        "remove": (f"{_MODULE}:remove", "Remove a quota."),
    },
    epilog="""\b
Example:
  braid quota set --user bulk --append-bytes 1000000 --request-percent 20
  braid quota set --user '*' --fetch-bytes 5000000       users without their own quota
  braid quota set --address 10.0.0.7 --connections 10
  braid quota remove --user bulk
""",
)
def quota() -> None:
    """List, set and remove quotas.

    A quota limits the append rate, fetch rate and request time of a user, a client id or both, or the connection rate of
    an address. A client over its quota is throttled and loses no records. These quotas override the node's settings
    (`quotas.*`).
    """
