"""`braid schema`: schemas in a schema registry."""

import click

from braidlog.cli import LazyGroup

_MODULE = "braidlog.cli.schema.subjects"


@click.group(
    cls=LazyGroup,
    lazy={
        "list": (f"{_MODULE}:list_", "List subjects."),
        "get": (f"{_MODULE}:get", "Print a schema."),
        "register": (f"{_MODULE}:register", "Register a file as the next version of a subject."),
        "check": (f"{_MODULE}:check", "Check a file's compatibility with a subject."),
        "delete": (f"{_MODULE}:delete", "Delete a version or a subject."),
    },
    epilog="""\b
Example:
  braid schema register orders-value order.avsc
  braid schema check orders-value order.avsc && echo compatible
  braid schema get orders-value > order.avsc
""",
)
def schema() -> None:
    """List, get, register, check and delete schemas: Avro, JSON Schema and Protobuf.

    A schema is a version of a subject; topic `orders` has the subjects `orders-key` and `orders-value`. --url names the
    registry: that of a node, or any other with Confluent's REST API.
    """
