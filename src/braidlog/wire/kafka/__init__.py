"""Kafka's dialect: length-prefixed frames, a table of messages with versions, record batches carried as they are.

Knows: the protocol of Apache Kafka as its clients speak it. Refuses to know: sockets, clocks, the log, and the other dialects.
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
