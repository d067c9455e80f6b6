"""`braid schema`: what records look like, as the schema registry keeps it.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.schema.subjects"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_MODULE}:list_", "Which subjects there are."),
        "get": (f"{_MODULE}:get", "Print a schema."),
        "register": (f"{_MODULE}:register", "Make a file the next version of a subject."),
        "check": (f"{_MODULE}:check", "Would a file fit a subject's versions?"),
        "delete": (f"{_MODULE}:delete", "Delete a version, or a subject."),
    },
    epilog="""\b
Example:
  braid schema register orders-value order.avsc
  braid schema check orders-value order.avsc && echo it fits
  braid schema get orders-value > order.avsc
""",
)
def schema() -> None:
    """Schemas: Avro, JSON Schema and Protobuf, in versions of subjects (topic `orders` has `orders-key` and `orders-value`). They
    are kept by the registry of a node, or by any other with Confluent's REST API: --url."""
