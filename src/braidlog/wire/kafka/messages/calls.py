"""What one node asks of another for a client of its own: a message of ours on the nodes' port.

Knows: rows (`rows.py` says how to read one). Refuses to know: bytes, and what can be called.
"""

from braidlog.wire.kafka.rows import Bytes, Message, Text

END_WAIT = "end-wait"
"""A call that ends the wait of another on its connection: the body is that one's correlation id, 4 bytes."""


class CallRequest(Message, frozen=True):
    name: Text = ""
    """What is called: a row of the receiver's table."""
    principal: Text = ""
    """For whom; believed, because a node says so."""
    body: Bytes = b""


class CallResponse(Message, frozen=True):
    reason: Text = ""
    """Why nothing was done, by the name of the `Reason`; empty: it was served, and `body` is what is said about it."""
    text: Text = ""
    body: Bytes = b""
