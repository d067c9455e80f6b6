"""The rustlog dialect: length-prefixed frames with JSON or binary payloads, detected per frame.

Implements the RustLog document and the behavior of its published clients.
"""

from typing import Final

from braidlog.wire.dialect import Dialect

DIALECT: Final = Dialect(
    name="rustlog", title="RustLog", port=9096, url_variants={"rustlog?format=binary": {"format": "binary"}}
)
