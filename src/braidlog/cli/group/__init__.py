"""`braid group`: who reads, and how far they are.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("braidlog.cli.group.inspect:list_", "Which groups there are, and their lag."),
        "describe": ("braidlog.cli.group.inspect:describe", "Members, commits and lag of a group."),
        "reset": ("braidlog.cli.group.change:reset", "Let a group go on somewhere else."),
        "delete": ("braidlog.cli.group.change:delete", "Forget a group and its commits."),
    },
    epilog="""\b
Example:
  braid group describe billing
  braid group reset billing --to earliest --dry-run
  braid group reset billing --to -1h
""",
)
def group() -> None:
    """Groups of consumers: who reads, how far behind, and how to send a group elsewhere. Lag is counted in records: offsets from
    the commit to the end of the partition."""
