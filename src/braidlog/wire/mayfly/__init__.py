"""The mayfly dialect: a key-value store behind 0xCAFE, a fixed header and length-prefixed fields.

Implements the client protocol of the Mayfly document, and defines the bodies that it leaves open. The nodes' protocol
(0xBEE5) is in `wire/peer/`.
"""

from typing import Final

from braidlog.wire.dialect import Dialect

DIALECT: Final = Dialect(
    name="mayfly",
    title="Mayfly key-value store",
    port=7275,
    has_topics=False,
    request_id="ReqID",
    error_sql="CASE WHEN name NOT IN ('OK', 'NOT_FOUND') THEN name END",
)
