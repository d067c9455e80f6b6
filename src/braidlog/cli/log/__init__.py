"""`braid log`: the offline tools, seen from a terminal.

Knows: their names. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("braidlog.cli.log.list:list_", "Topics, partitions, offsets and sizes."),
        "dump": ("braidlog.cli.log.dump:dump", "Print records, batch headers, indexes or checkpoints."),
        "verify": ("braidlog.cli.log.verify:verify", "Read every byte and say whether it is what was written."),
        "repair": ("braidlog.cli.log.repair:repair", "Mend a damaged folder; quarantine what cannot be kept."),
        "accept-loss": ("braidlog.cli.log.accept_loss:accept_loss", "Go on without an internal topic that is lost."),
    },
    epilog="""\b
Example:
  braid log verify ./data || braid log repair --dry-run ./data
""",
)
def log() -> None:
    """Look into a data folder, check every byte of it, mend it.

    All but `repair` and `accept-loss` change nothing and take no lock: they may be used while the log is open, and may then
    see its last write half-done.
    """
