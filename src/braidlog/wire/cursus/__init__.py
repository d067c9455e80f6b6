"""The cursus dialect: length-prefixed frames of text commands and binary batches, in two spellings on one port.

Knows: what `docs/dialects/cursus.md` says. Start at `messages.py` for what is said, at `connection.py` for how.
"""

from braidlog.wire.cursus.batch import Batch, BatchRecord, Spelling
from braidlog.wire.cursus.connection import FRAME_BYTES_MAX, ClientConnection, ServerConnection
from braidlog.wire.cursus.failures import ErrorCode, Failure
from braidlog.wire.cursus.messages import OPERATIONS, Operation, Request

__all__ = [
    "FRAME_BYTES_MAX",
    "OPERATIONS",
    "Batch",
    "BatchRecord",
    "ClientConnection",
    "ErrorCode",
    "Failure",
    "Operation",
    "Request",
    "ServerConnection",
    "Spelling",
]
