"""`braid group`: consumer groups."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={
        "list": ("braidlog.cli.group.inspect:list_", "List consumer groups with their lag."),
        "describe": ("braidlog.cli.group.inspect:describe", "Describe members, committed offsets and lag of a group."),
        "reset": ("braidlog.cli.group.change:reset", "Reset committed offsets."),
        "delete": ("braidlog.cli.group.change:delete", "Delete a group and its committed offsets."),
    },
    epilog="""\b
Example:
  braid group describe billing
  braid group reset billing --to earliest --dry-run
  braid group reset billing --to -1h
""",
)
def group() -> None:
    """List, describe, reset and delete consumer groups.

    Lag counts the offsets from the committed offset to the end of the partition.
    """
