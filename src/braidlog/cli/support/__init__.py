"""`braid support`: what somebody who helps needs to see.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "bundle": ("braidlog.cli.support.bundle:bundle", "Put all that helps to find a fault into one archive."),
    },
    epilog="Example: braid support bundle --log /var/log/braidlog.log",
)
def support() -> None:
    """What somebody who helps you needs to see of a node or a cluster."""
