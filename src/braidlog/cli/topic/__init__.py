"""`braid topic`: topics of a node.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_LOOK, _CHANGE = "braidlog.cli.topic.inspect", "braidlog.cli.topic.change"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_LOOK}:list_", "Which topics there are."),
        "describe": (f"{_LOOK}:describe", "Partitions, offsets and settings."),
        "create": (f"{_CHANGE}:create", "Make a topic."),
        "alter": (f"{_CHANGE}:alter", "Change settings, add partitions."),
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
    """Make, list, describe, change, trim and delete topics of a node, through any of its doors. What a door's protocol has no
    words for is refused, with the doors that have."""
