"""The key-value engine: a keyspace in memory, the log that makes it durable, and the clock that orders its changes.

Does not handle: wire protocols, the event loop, topics. May import: storage, model, codec.

Client programs also start here: `braidlog.kv.connect(url)` blocks, `braidlog.kv.aio.connect(url)` is for asyncio,
and `braidlog.kv.commands` are the arguments of `run`. They are part of `braidlog.client`, which is imported on
first use only: a server does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidlog.client.kv import client as aio
    from braidlog.client.kv import commands
    from braidlog.client.kv.blocking import connect

_HOMES = {
    "aio": ("braidlog.client.kv.client", None),
    "commands": ("braidlog.client.kv.commands", None),
    "connect": ("braidlog.client.kv.blocking", "connect"),
}

__all__ = ["aio", "commands", "connect"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'braidlog.kv' has no attribute {name!r}")
    home, inside = _HOMES[name]
    module = import_module(home)
    return module if inside is None else getattr(module, inside)
