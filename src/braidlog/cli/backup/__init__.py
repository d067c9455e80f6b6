"""`braid backup`: backups of a node."""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.backup.backups"


@click.group(
    cls=LazyGroup,
    lazy={
        "create": (f"{_MODULE}:create", "Back up a running node, or the folder of a stopped node."),
        "list": (f"{_MODULE}:list_", "List backups."),
        "verify": (f"{_MODULE}:verify", "Verify every byte of a backup."),
        "prune": (f"{_MODULE}:prune", "Remove all but the newest backups."),
    },
    epilog="""\b
Example:
  braid backup create /backups/node-1
  braid backup verify /backups/node-1
  braid restore /backups/node-1 ./data
""",
)
def backup() -> None:
    """Create, list, verify and prune backups of one node.

    A backup is a consistent snapshot of topics, groups, transactions, users, rules and keys, taken while the node
    serves. It equals the data folder after `kill -9`: open transactions are aborted after a restore, no commit is ahead
    of its records, and keys agree with their change feed. Backups are incremental: only new data is copied.
    """
