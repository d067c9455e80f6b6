"""What nodes of a cluster say to each other on a port of their own: 0xBEE5, as the Mayfly document has it.

No dialect of clients, and so without a `DIALECT`: it has no listener among theirs, no driver and no URL. Tools see it.
"""

from braidlog.wire.dialect import Dialect

BETWEEN_NODES = Dialect(name="peer", title="Mayfly's nodes", port=8275, has_topics=False, table="messages")
