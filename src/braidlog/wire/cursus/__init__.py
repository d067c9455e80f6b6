"""The cursus dialect: length-prefixed frames of text commands and binary batches, in two spellings on one port.

`docs/dialects/cursus.md` describes it. Start with `messages.py` for the messages, with `connection.py` for the
framing.
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
