"""`braid support`: diagnostics."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "bundle": ("braidlog.cli.support.bundle:bundle", "Collect diagnostics in an archive."),
    },
    epilog="Example: braid support bundle --log /var/log/braidlog.log",
)
def support() -> None:
    """Collect diagnostics of a node or a cluster."""
