"""The cursus dialect: length-prefixed frames of text commands and binary batches, in two spellings on one port.

Knows: what `docs/dialects/cursus.md` says. Start at `messages.py` for what is said, at `connection.py` for how.
"""

from typing import Final

from braidlog.wire.dialect import Dialect, ListenerOption

DIALECT: Final = Dialect(
    name="cursus",
    title="Cursus",
    port=9000,
    table="messages",
    listener_options=(ListenerOption("compression", "none"),),
    error_sql="CASE WHEN name = 'ERROR' THEN get_json_object(fields, '$.code') "
    "WHEN name = 'Ack' THEN nullif(get_json_object(fields, '$.error'), '') END",
)
