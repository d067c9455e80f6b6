"""`braid txn`: transactions of Kafka producers."""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.txn.transactions"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_MODULE}:list_", "List transactional ids with their state."),
        "describe": (f"{_MODULE}:describe", "Describe a transaction."),
        "producers": (f"{_MODULE}:producers", "List producers of a topic with their open transactions."),
        "abort": (f"{_MODULE}:abort", "Abort a transaction and fence its producer."),
    },
    epilog="""\b
Example:
  braid txn list --open
  braid txn describe billing-1
  braid txn producers orders
  braid txn abort billing-1
""",
)
def txn() -> None:
    """List, describe and abort transactions.

    Consumers with `read_committed` wait at the first record of an open transaction until it ends or times out.
    Transactions of Spark sinks have ids that begin with `braidlog.sink/`.
    """
