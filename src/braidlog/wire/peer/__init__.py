"""The protocol between the nodes of a cluster, on its own port: 0xBEE5, as in the Mayfly document.

Not a client dialect, hence without a `DIALECT`: it has no client listener, no driver and no URL. The wire tools can
decode it.
"""

from braidlog.wire.dialect import Dialect

BETWEEN_NODES = Dialect(name="peer", title="Mayfly's nodes", port=8275, has_topics=False, table="messages")
