"""`braid backup`: back-ups of a node.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.backup.backups"


@click.group(
    cls=LazyGroup,
    lazy={
        "create": (f"{_MODULE}:create", "Back up a node that runs, or a folder whose node is stopped."),
        "list": (f"{_MODULE}:list_", "Which back-ups a folder holds."),
        "verify": (f"{_MODULE}:verify", "Read every byte of a back-up."),
        "prune": (f"{_MODULE}:prune", "Remove all but the newest back-ups."),
    },
    epilog="""\b
Example:
  braid backup create /backups/node-1
  braid backup verify /backups/node-1
  braid restore /backups/node-1 ./data
""",
)
def backup() -> None:
    """Back-ups of one node: its topics, groups, transactions, users, rules and keys, all as they were at the same moment.

    A back-up is made while the node serves. It holds what `kill -9` at that moment would have left, so a transaction is in it as
    a whole or will be aborted, no commit is ahead of its records, and keys and their change feed agree. Only what the folder of
    back-ups does not hold yet is copied.
    """
