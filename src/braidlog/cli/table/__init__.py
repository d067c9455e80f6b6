"""`braid table`: topics that are Iceberg tables."""

import click

from braidlog.cli import LazyGroup


@click.group(
    cls=LazyGroup,
    lazy={"status": ("braidlog.cli.table.status:status", "Show lag, size and errors of tables.")},
    epilog="""\b
Example:
  braid topic create orders --set braidlog.table=json
  braid table status orders
""",
)
def table() -> None:
    """Show topics that are also Iceberg tables (`braidlog.table = raw | json`): closed segments become rows."""
