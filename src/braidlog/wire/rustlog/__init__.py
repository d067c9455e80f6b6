"""The rustlog dialect: length-prefixed frames, JSON or binary payloads, told apart frame by frame.

Knows: the RustLog document and what its published clients send. Refuses to know: sockets, clocks, the log, other dialects.
"""

from typing import Final

from braidlog.wire.dialect import Dialect

DIALECT: Final = Dialect(
    name="rustlog", title="RustLog", port=9096, url_variants={"rustlog?format=binary": {"format": "binary"}}
)
