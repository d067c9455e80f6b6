"""`braid topic`: topics."""

import click

from braidlog.cli import LazyGroup

_LOOK, _CHANGE = "braidlog.cli.topic.inspect", "braidlog.cli.topic.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_LOOK}:list_", "List topics."),
        "describe": (f"{_LOOK}:describe", "Describe partitions, offsets and settings."),
        "create": (f"{_CHANGE}:create", "Create a topic."),
        "alter": (f"{_CHANGE}:alter", "Change settings or add partitions."),
        "trim": (f"{_CHANGE}:trim", "Delete the oldest records."),
        "delete": (f"{_CHANGE}:delete", "Delete a topic and all its records."),
    },
    epilog="""\b
Example:
  braid topic create clicks -p 3 -c retention.ms=86400000
  braid topic describe clicks
  braid topic alter clicks --partitions 6 --reset retention.ms
""",
)
def topic() -> None:
    """List, create, describe, alter, trim and delete topics through any listener of a node.

    An operation that the listener's protocol lacks fails with a list of protocols that support it.
    """
