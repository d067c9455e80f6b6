"""mlog: `[u16 type][u32 size][JSON]`, the dialect of a Go mini-Kafka.

Contents:

    messages.py     one frozen type per message, one table of operations
    connection.py   frames: the server's and the client's three verbs
    sizes.py        how much fits into one frame
    gojson.py       JSON read by the rules of Go's encoding/json
    errors.py       error codes, the error message, and when a client should look for another leader
    replication.py  the binary batch inside ReplicateResponse
    events.py       the metadata events of its Raft log
"""

from typing import Final

from braidlog.wire.dialect import Dialect

DIALECT: Final = Dialect(name="mlog", title="mlog", port=9094)
