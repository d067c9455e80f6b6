"""A request that one node forwards to another for its client: braidlog's own message on the nodes' port. `rows.py`
explains the rows.
"""

from braidlog.wire.kafka.rows import Bytes, Message, Text

END_WAIT = "end-wait"
"""A call that cancels another call on its connection: the body is that call's correlation id, 4 bytes."""


class CallRequest(Message, frozen=True):
    name: Text = ""
    """The number of the operation in the receiver's table."""
    principal: Text = ""
    """The client's principal; trusted, because a node sends it."""
    body: Bytes = b""


class CallResponse(Message, frozen=True):
    reason: Text = ""
    """Why nothing was done, as the name of the `Reason`. If empty, the request was served, and `body` is the result."""
    text: Text = ""
    body: Bytes = b""
