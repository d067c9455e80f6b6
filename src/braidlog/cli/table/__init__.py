"""`braid table`: topics that are tables.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={"status": ("braidlog.cli.table.status:status", "How far tables are, how large, and what keeps them.")},
    epilog="""\b
Example:
  braid topic create orders --set braidlog.table=json
  braid table status orders
""",
)
def table() -> None:
    """Topics that are Iceberg tables as well (`braidlog.table = raw | json`): closed segments become rows."""
