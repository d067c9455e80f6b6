"""Kafka's protocol: length-prefixed frames, a table of versioned messages, record batches passed through unchanged.

Does not handle: sockets, clocks, the log.
"""

from typing import Final

from braidlog.model.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.wire.dialect import Dialect, ListenerOption

DIALECT: Final = Dialect(
    name="kafka",
    title="Apache Kafka",
    port=9092,
    listener_options=(
        ListenerOption("auto_create", default=True),
        ListenerOption("partitions", 1, (1, PARTITIONS_PER_TOPIC_MAX)),
        ListenerOption("session_timeout_ms_min", 6_000, (100, 1_800_000)),
        ListenerOption("reauthentication_ms", 0, (0, 2**40)),
    ),
    table="apis",
    request_id="CorrID",
    error_sql=r"""nullif(regexp_extract(fields, '(?<!\\\\)"error_code":(-?[1-9][0-9]*)', 1), '')""",
)
