"""`braid profile`: named server connections."""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.profile.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "create": (f"{_MODULE}:create", "Create a server profile."),
        "use": (f"{_MODULE}:use", "Select the default profile."),
        "list": (f"{_MODULE}:list_", "List profiles."),
        "delete": (f"{_MODULE}:delete", "Delete a profile."),
    },
    epilog="""\b
Example:
  braid profile create shop --server kafka+tls://n1:9092,n2:9092 --ca ca.pem --principal ann --token-file ann.token
  braid profile use shop
  braid topic list                                      on the server of shop
  braid topic list --profile default                    on the server of another profile
""",
)
def profile() -> None:
    """Create, use, list and delete named server connections: URL, principal, token file and certificates.

    A profile stores paths, not secrets. Options and the environment (BRAID_SERVER) override the profile; if they name
    another server, the profile is ignored.
    """
