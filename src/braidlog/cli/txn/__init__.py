"""`braid txn`: transactions of Kafka's producers.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.txn.transactions"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_MODULE}:list_", "Which transactional ids there are, and how they stand."),
        "describe": (f"{_MODULE}:describe", "Since when one is open, and where it writes."),
        "producers": (f"{_MODULE}:producers", "Who writes to a topic, and since where a transaction is open."),
        "abort": (f"{_MODULE}:abort", "End one, and fence its producer."),
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
    """Transactions: what is open keeps readers with `read_committed` waiting at its first record, until it ends or its
    timeout is over. A Spark sink's have ids that begin with `braidlog.sink/`."""
