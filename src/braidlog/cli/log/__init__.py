"""`braid log`: offline tools for a data folder."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("braidlog.cli.log.list:list_", "List topics and partitions with offsets and sizes."),
        "dump": ("braidlog.cli.log.dump:dump", "Print records, batch headers, indexes or checkpoints."),
        "verify": ("braidlog.cli.log.verify:verify", "Verify every byte of a data folder."),
        "repair": ("braidlog.cli.log.repair:repair", "Repair a damaged data folder."),
        "accept-loss": ("braidlog.cli.log.accept_loss:accept_loss", "Accept the loss of an internal topic."),
    },
    epilog="""\b
Example:
  braid log verify ./data || braid log repair --dry-run ./data
""",
)
def log() -> None:
    """Inspect, verify and repair a data folder.

    Only `repair` and `accept-loss` write and take the lock. The other commands can run while a node has the folder open,
    and may then see an incomplete last write.
    """
