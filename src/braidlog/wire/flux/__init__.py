"""Flux: `V1|id|COMMAND|args` lines (the Flux protocol document).

messages.py: the types. operations.py: the table. tokens.py, records.py, lines.py: words, records and lines of text.
connection.py: both ends. partitioner.py: the partition of a key.
"""

from typing import Final

from braidlog.wire.dialect import Dialect, ListenerOption
from braidlog.wire.flux.operations import REPLICAS_MAX

DIALECT: Final = Dialect(
    name="flux",
    title="Flux",
    port=9097,
    request_id="Id",
    listener_options=(
        ListenerOption("replication_factor", 1, (1, REPLICAS_MAX)),
        ListenerOption("forward", default=True),
    ),
)
