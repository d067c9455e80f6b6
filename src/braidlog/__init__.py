"""braidlog: one log, many wires.

`from braidlog import Log` opens a log in a folder, without a server; `braidlog.connect(url)` and `braidlog.aio.connect(url)`
talk to one. Imports are lazy: `import braidlog` costs nothing.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidlog import aio, kv
    from braidlog.client.blocking import connect
    from braidlog.client.errors import (
        AbortedError,
        BufferFullError,
        ClientError,
        ClosedError,
        ConnectError,
        NoAnswerError,
        RecordError,
        Refusal,
        RefusedError,
        SignInError,
        UnknownOutcomeError,
        UnsupportedError,
    )
    from braidlog.codec.compression import Compression
    from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
    from braidlog.model.record import NewRecord, Record
    from braidlog.model.settings import Flush, TopicSettings
    from braidlog.storage.embedded_log import Log, Topic

__version__ = metadata.version("braidlog")

_HOMES = {
    "AbortedError": "braidlog.client.errors",
    "BrokerError": "braidlog.model.errors",
    "BufferFullError": "braidlog.client.errors",
    "ClientError": "braidlog.client.errors",
    "ClosedError": "braidlog.client.errors",
    "Compression": "braidlog.codec.compression",
    "ConnectError": "braidlog.client.errors",
    "Flush": "braidlog.model.settings",
    "Log": "braidlog.storage.embedded_log",
    "NewRecord": "braidlog.model.record",
    "NoAnswerError": "braidlog.client.errors",
    "ProtocolError": "braidlog.model.errors",
    "Reason": "braidlog.model.errors",
    "Record": "braidlog.model.record",
    "RecordError": "braidlog.client.errors",
    "Refusal": "braidlog.client.errors",
    "RefusedError": "braidlog.client.errors",
    "SignInError": "braidlog.client.errors",
    "StorageFault": "braidlog.model.errors",
    "Topic": "braidlog.storage.embedded_log",
    "TopicSettings": "braidlog.model.settings",
    "UnknownOutcomeError": "braidlog.client.errors",
    "UnsupportedError": "braidlog.client.errors",
    "connect": "braidlog.client.blocking",
}
_MODULES = ("aio", "kv")

__all__ = [
    "AbortedError",
    "BrokerError",
    "BufferFullError",
    "ClientError",
    "ClosedError",
    "Compression",
    "ConnectError",
    "Flush",
    "Log",
    "NewRecord",
    "NoAnswerError",
    "ProtocolError",
    "Reason",
    "Record",
    "RecordError",
    "Refusal",
    "RefusedError",
    "SignInError",
    "StorageFault",
    "Topic",
    "TopicSettings",
    "UnknownOutcomeError",
    "UnsupportedError",
    "__version__",
    "aio",
    "connect",
    "kv",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"braidlog.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'braidlog' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
