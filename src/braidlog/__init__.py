"""braidlog: one log, many wires.

`from braidlog import Log` opens a log in a folder, without a server. Imports are lazy: `import braidlog` costs nothing.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidlog.codec.compression import Compression
    from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
    from braidlog.model.record import NewRecord, Record
    from braidlog.model.settings import Flush, TopicSettings
    from braidlog.storage.log import Log, Topic

__version__ = metadata.version("braidlog")

_HOMES = {
    "BrokerError": "braidlog.model.errors",
    "Compression": "braidlog.codec.compression",
    "Flush": "braidlog.model.settings",
    "Log": "braidlog.storage.log",
    "NewRecord": "braidlog.model.record",
    "ProtocolError": "braidlog.model.errors",
    "Reason": "braidlog.model.errors",
    "Record": "braidlog.model.record",
    "StorageFault": "braidlog.model.errors",
    "Topic": "braidlog.storage.log",
    "TopicSettings": "braidlog.model.settings",
}

__all__ = [
    "BrokerError",
    "Compression",
    "Flush",
    "Log",
    "NewRecord",
    "ProtocolError",
    "Reason",
    "Record",
    "StorageFault",
    "Topic",
    "TopicSettings",
    "__version__",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'braidlog' has no attribute {name!r}")
    return getattr(import_module(home), name)
